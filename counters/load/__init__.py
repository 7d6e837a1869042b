"""Loaders: what publishes the objects of a real source to the journal."""

from counters.load.git import LoadReport, ObjectSink, Progress, Skip, load_repository
from counters.load.repository import Repository

__all__ = ["LoadReport", "ObjectSink", "Progress", "Repository", "Skip", "load_repository"]
