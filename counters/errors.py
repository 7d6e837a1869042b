"""Errors an operator sees: one line with the fact, the value, the limit and the setting to change."""

from __future__ import annotations


class CountersError(Exception):
    """Base of every error this package raises on purpose; the command line prints it and exits with 2."""


class SettingsError(CountersError):
    """A settings file, environment variable or option is wrong."""


class SketchError(CountersError):
    """Bytes that should be a HyperLogLog are not."""


class StoreError(CountersError):
    """The store holds something that contradicts the settings."""


class InputError(CountersError):
    """An argument names something that does not exist or cannot be read."""


class StoreUnavailable(CountersError):
    """The store does not answer, or cannot answer now."""


class SourceError(CountersError):
    """What the history is rebuilt from does not answer, or not completely; the last good history stays."""
