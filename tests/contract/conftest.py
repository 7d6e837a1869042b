"""The stores of checkpoints: every test of the contract runs on each."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from checkpoint_stores import KINDS, Place, SqlPlace, place

from counters.checkpoints.store import Checkpoints


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    """Which store."""
    return str(request.param)


@pytest.fixture
def at(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """Where its checkpoints are; there are none."""
    if kind == "sqlite":
        url = f"sqlite:///{tmp_path}/checkpoints.db"
    else:
        url = request.getfixturevalue("redis_url" if kind == "redis" else "postgresql_url")
    with place(kind, url) as made:
        yield made


@pytest.fixture
def store(at: Place) -> Checkpoints:
    """The store, opened."""
    return at.open()


@pytest.fixture(params=["sqlite", "postgresql"])
def sql(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SqlPlace]:
    """A SQL database for what only those can do."""
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path}/checkpoints.db"
    else:
        url = request.getfixturevalue("postgresql_url")
    with place(request.param, url) as made:
        assert isinstance(made, SqlPlace)
        yield made
