"""Keys are counted exactly, on disk, and from any recorded state on."""

from __future__ import annotations

import json
import random
import resource
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from counters.errors import InputError, StoreError
from counters.objects.exact import Spool
from counters.objects.sketch import Hashes, hash_keys

ROOMY = 32 << 20


def add(spool: Spool, *keys: bytes) -> None:
    spool.add(keys, hash_keys(keys))


def ids(count: int, start: int = 0) -> list[bytes]:
    """Different keys of 20 bytes."""
    return [number.to_bytes(20, "big") for number in range(start, start + count)]


def of_hash(hashed: int, keys: list[bytes]) -> Hashes:
    """Hashes as if all keys had the same."""
    return np.full(len(keys), hashed, np.uint64)


@contextmanager
def opened(directory: Path, max_bucket_bytes: int = ROOMY) -> Iterator[Spool]:
    spool = Spool.open(directory, max_bucket_bytes=max_bucket_bytes)
    try:
        yield spool
    finally:
        spool.close()


@given(
    st.lists(st.lists(st.binary(max_size=3) | st.binary(max_size=60), max_size=40), max_size=5),
    st.sampled_from([100, 500, ROOMY]),
)
@example([[b"", b""], [b""]], 1)
@example([[b"equal"] * 40, [b"equal"], [b"length"]], 100)
@example([], 1)
def test_the_count_is_that_of_a_set(batches: list[list[bytes]], max_bucket_bytes: int) -> None:
    with tempfile.TemporaryDirectory() as directory, opened(Path(directory), max_bucket_bytes) as spool:
        for batch in batches:
            add(spool, *batch)
        assert spool.count() == len({key for batch in batches for key in batch})


@given(st.lists(st.binary(max_size=2), max_size=80), st.integers(0, 80), st.sampled_from([1, 200, ROOMY]))
def test_keys_that_share_a_hash_are_told_apart(keys: list[bytes], length: int, max_bucket_bytes: int) -> None:
    largest = (1 << 64) - 1
    with tempfile.TemporaryDirectory() as directory, opened(Path(directory), max_bucket_bytes) as spool:
        spool.add(keys, of_hash(largest, keys))
        equally_long = [key.rjust(length, b".") for key in keys]
        spool.add(equally_long, of_hash(largest, equally_long))
        assert spool.count() == len({*keys, *equally_long})


def test_a_key_of_a_mebibyte_counts_like_any_other(tmp_path: Path) -> None:
    large = random.Random(1).randbytes(1 << 20)
    with opened(tmp_path, max_bucket_bytes=100_000) as spool:
        add(spool, large, b"", large[:-1], *[large] * 8)
        add(spool, large)
        assert spool.count() == 3


def test_many_repetitions_of_one_key_fill_no_bucket(tmp_path: Path) -> None:
    largest = 0

    def watch(_: float) -> None:
        nonlocal largest
        largest = max([largest, *(path.stat().st_size for path in tmp_path.glob("*bucket*"))])

    with opened(tmp_path, max_bucket_bytes=100_000) as spool:
        for _ in range(20):
            add(spool, *[b"always the same key."] * 5_000)
        assert spool.count(watch) == 1
    assert 0 < largest < 100_000


@pytest.mark.parametrize(("hash_bits", "digits"), [(48, 6), (8, 16)])
def test_a_bucket_that_is_too_large_is_dealt_again_by_further_bits(
    tmp_path: Path, hash_bits: int, digits: int
) -> None:
    names: set[str] = set()
    with opened(tmp_path, max_bucket_bytes=20_000) as spool:
        for start in range(0, 3_601, 200):  # Each key twice, in different batches.
            keys = ids(400, start)
            spool.add(keys, hash_keys(keys) & np.uint64((1 << hash_bits) - 1))
        assert spool.count(lambda _: names.update(path.name for path in tmp_path.glob("*bucket*"))) == 4_000
    assert max(len(name.rpartition("-")[2]) for name in names) == digits  # Two for each byte of the hash.


def test_keys_read_are_counted_with_their_repetitions(tmp_path: Path) -> None:
    with opened(tmp_path) as spool:
        add(spool, b"a", b"a", b"b")
        add(spool)
        add(spool, b"a")
        assert spool.read == 4


def test_more_keys_can_be_added_after_a_count(tmp_path: Path) -> None:
    with opened(tmp_path, max_bucket_bytes=1_000) as spool:
        add(spool, *ids(100))
        assert spool.count() == 100
        add(spool, *ids(100, start=50))
        assert spool.count() == 150


def test_progress_rises_to_one(tmp_path: Path) -> None:
    told: list[float] = []
    with opened(tmp_path, max_bucket_bytes=2_000) as spool:
        for start in range(0, 1_000, 100):
            add(spool, *ids(100, start))
        spool.count(told.append)
    assert told == sorted(told)
    assert len(told) > 20
    assert told[-1] == 1


# --- Going on from a recorded state -------------------------------------------------------------------------


def test_a_batch_that_was_not_recorded_is_cut_off(tmp_path: Path) -> None:
    with opened(tmp_path) as spool:
        add(spool, b"a", b"b")
        token = json.loads(json.dumps(spool.token))
        add(spool, b"c", b"c")
    resumed = Spool.open(tmp_path, token)
    assert (tmp_path / "keys.spool").stat().st_size == token["bytes"]
    add(resumed, b"d")
    assert (resumed.read, resumed.count()) == (3, 3)
    resumed.close()


def test_a_write_that_was_torn_is_cut_off(tmp_path: Path) -> None:
    with opened(tmp_path) as spool:
        add(spool, *ids(10))
        token = spool.token
        add(spool, *ids(10, start=10))
    log = tmp_path / "keys.spool"
    with log.open("r+b") as file:
        file.truncate(log.stat().st_size - 7)
    resumed = Spool.open(tmp_path, token)
    add(resumed, *ids(10, start=100))
    assert (resumed.read, resumed.count()) == (20, 20)
    resumed.close()


def test_what_a_count_that_was_killed_left_is_not_counted(tmp_path: Path) -> None:
    with opened(tmp_path, max_bucket_bytes=100) as spool:
        add(spool, *ids(100))
        left: dict[Path, bytes] = {}
        spool.count(lambda _: left.update((path, path.read_bytes()) for path in tmp_path.glob("*bucket*")))
        token = spool.token
    assert left
    for path, content in left.items():
        path.write_bytes(content)
    resumed = Spool.open(tmp_path, token, max_bucket_bytes=100)
    assert [path.name for path in tmp_path.iterdir()] == ["keys.spool"]
    assert resumed.count() == 100
    resumed.close()


def test_a_token_is_small_whatever_was_added(tmp_path: Path) -> None:
    with opened(tmp_path) as spool:
        add(spool, *ids(10_000))
        assert len(json.dumps(spool.token)) < 120


def test_without_a_token_the_spool_starts_empty(tmp_path: Path) -> None:
    with opened(tmp_path) as spool:
        add(spool, b"a")
    with opened(tmp_path) as spool:
        assert (spool.read, spool.count()) == (0, 0)


def test_a_log_that_lost_data_is_refused(tmp_path: Path) -> None:
    with opened(tmp_path) as spool:
        add(spool, *ids(10))
        token = spool.token
    with (tmp_path / "keys.spool").open("r+b") as file:
        file.truncate(100)
    with pytest.raises(StoreError, match=r"has 100 bytes, not the \d+ recorded; start the exact count again"):
        Spool.open(tmp_path, token)


def test_the_token_of_another_spool_is_refused(tmp_path: Path) -> None:
    with opened(tmp_path) as spool:
        add(spool, b"a")
        token = spool.token
    with opened(tmp_path) as spool:
        add(spool, b"b")
    with pytest.raises(StoreError, match="is that of another count"):
        Spool.open(tmp_path, token)


@pytest.mark.parametrize(
    "token", [{}, {"spool": "x", "bytes": 20, "keys": 1}, {"spool": "0" * 32, "bytes": -1, "keys": 1}]
)
def test_what_is_no_token_is_refused(tmp_path: Path, token: dict[str, object]) -> None:
    with pytest.raises(StoreError, match=r"recorded state .* start the exact count again"):
        Spool.open(tmp_path, token)


@pytest.mark.parametrize("at", [16, 20, 24, 28, 40, -1])
def test_a_damaged_log_is_not_counted(tmp_path: Path, at: int) -> None:
    with opened(tmp_path) as spool:
        add(spool, *ids(10))
        log = tmp_path / "keys.spool"
        content = bytearray(log.read_bytes())
        content[at] ^= 1
        log.write_bytes(content)
        with pytest.raises(
            StoreError, match=r"keys\.spool is damaged at byte 16; start the exact count again"
        ):
            spool.count()


# --- The directory ------------------------------------------------------------------------------------------


def test_a_missing_directory_is_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"spool in .*/absent cannot be used: No such file .*--spool"):
        Spool.open(tmp_path / "absent")


def test_a_file_is_no_directory_for_a_spool(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(InputError, match=r"cannot be used: Not a directory; .*--spool"):
        Spool.open(file)


def test_a_directory_in_use_is_refused(tmp_path: Path) -> None:
    with opened(tmp_path) as spool:
        add(spool, b"a")
        with pytest.raises(InputError, match=r"in use by another process; .*--spool"):
            Spool.open(tmp_path)
        assert spool.count() == 1


@contextmanager
def files_up_to(size: int) -> Iterator[None]:
    """No file of this process can grow beyond so many bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_batch_the_disk_does_not_take_is_not_in_the_spool(tmp_path: Path) -> None:
    with opened(tmp_path) as spool:
        add(spool, *ids(10))
        token = spool.token
        with files_up_to(1_000), pytest.raises(StoreError, match=rf"{tmp_path} cannot be used: .*--spool"):
            add(spool, *ids(100))
        assert spool.token == token
        add(spool, *ids(1, start=1_000))
        assert (spool.read, spool.count()) == (11, 11)


def test_a_count_the_disk_does_not_take_can_be_repeated(tmp_path: Path) -> None:
    with opened(tmp_path, max_bucket_bytes=5_000) as spool:
        add(spool, *ids(10_000))
        with files_up_to(100), pytest.raises(StoreError, match=rf"{tmp_path} cannot be used: .*--spool"):
            spool.count()
        assert [path.name for path in tmp_path.iterdir()] == ["keys.spool"]
        assert spool.count() == 10_000


def test_remove_deletes_only_the_files_of_the_spool(tmp_path: Path) -> None:
    (tmp_path / "notes").touch()
    with opened(tmp_path) as spool:
        add(spool, b"a")
        spool.remove()
    assert [path.name for path in tmp_path.iterdir()] == ["notes"]


def test_close_leaves_the_spool_to_the_next_process(tmp_path: Path) -> None:
    with opened(tmp_path) as spool:
        add(spool, b"a")
        token = spool.token
    resumed = Spool.open(tmp_path, token)
    assert resumed.count() == 1
    resumed.close()
