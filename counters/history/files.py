"""History files: ``{"content": [[<Unix milliseconds>, <count>], …], …}``, as swh-counters writes them."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
from collections.abc import Mapping
from pathlib import Path

import msgspec
import numpy as np

from counters.errors import InputError
from counters.history.series import TIMES_END, Series


def encode(series: Mapping[str, Series]) -> bytes:
    """The content of a history file."""
    return msgspec.json.encode(
        {
            name: list(zip((one.times * 1000).tolist(), one.values.tolist(), strict=True))
            for name, one in series.items()
        }
    )


def read_file(path: Path) -> dict[str, Series]:
    """The series of a history file, as they stand there. ``NaN``, which old servers wrote, is understood.

    Raises:
        InputError: there is no such file, or it is not a history.
    """
    try:
        # Not msgspec: NaN is not JSON, and yet found in such files.
        content = json.loads(path.read_bytes())
        if not isinstance(content, dict):
            raise ValueError("it is not an object with one list per counter")
        return {name: _series(name, points) for name, points in content.items()}
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}; check history.static_files") from error
    except ValueError as error:
        raise InputError(f"{path} is no history file: {error}; check history.static_files") from error


def write_file(path: Path, series: Mapping[str, Series]) -> None:
    """Write a history file whole or not at all; whoever reads it meanwhile sees the old one.

    Raises:
        InputError: it cannot be written; what was there stays.
    """
    scratch = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        with scratch.open("xb") as file:
            file.write(encode(series))
            file.flush()
            os.fsync(file.fileno())
        scratch.replace(path)
        _sync_directory(path.parent)
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        with contextlib.suppress(OSError):
            scratch.unlink()


def _series(name: str, points: object) -> Series:
    try:
        table = np.array(points or np.empty((0, 2)), np.float64)
    except (TypeError, ValueError):
        table = np.empty(0)
    if table.ndim != 2 or table.shape[1] != 2:
        raise ValueError(f"{name!r} is not a list of pairs of milliseconds and count")
    if not np.isfinite(table[:, 0]).all():
        raise ValueError(f"{name!r} has a point without a time")
    seconds = table[:, 0] // 1000
    absurd = (seconds < 0) | (seconds >= TIMES_END)
    if absurd.any():
        raise ValueError(
            f"{name!r} has a point at {table[absurd][0, 0]:g}, which is not milliseconds since 1970"
        )
    return Series(seconds.astype(np.int64), table[:, 1])


def _sync_directory(directory: Path) -> None:
    """So that the new name, too, outlives a power failure."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
