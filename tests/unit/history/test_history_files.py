"""Files of swh-counters are read as they are, and written whole or not at all."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import pytest

from counters.errors import InputError
from counters.history.files import read_file, write_file
from counters.history.series import Series


def test_a_file_holds_pairs_of_whole_milliseconds_and_count(tmp_path: Path) -> None:
    path = tmp_path / "history.json"
    write_file(path, {"content": Series.of([(1_618_415_227, 3.0)])})
    assert path.read_text() == '{"content":[[1618415227000,3.0]]}'


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    points = [(1, 2.0), (43_201, 9e9)]
    write_file(tmp_path / "f", {"content": Series.of(points), "origin": Series.of()})
    found = read_file(tmp_path / "f")
    assert (found["content"].points(), found["origin"].points()) == (points, [])


def test_a_file_with_nan_is_read(tmp_path: Path) -> None:
    (tmp_path / "f").write_text('{"content": [[1000, NaN], [2000, null], [3000, 4]]}')
    assert read_file(tmp_path / "f")["content"].points()[2] == (3, 4.0)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("[1]", "not an object"),
        ('{"content": [[1000, 2], [3000', "no history file"),
        ('{"content": [[1, 2, 3]]}', "'content' is not a list of pairs"),
        ('{"content": [[1, 2], [3]]}', "'content' is not a list of pairs"),
        ('{"content": {"a": 1}}', "'content' is not a list of pairs"),
        ('{"content": [[null, 2]]}', "a point without a time"),
        ('{"content": [[1700000000000000, 2]]}', "not milliseconds"),
        ('{"content": [[1000, 2], [1e300, 2]]}', "not milliseconds"),
        ('{"content": [[-5000, 2]]}', "not milliseconds"),
        ("\ufffe", "no history file"),
    ],
)
def test_what_is_no_history_is_one_line(content: str, complaint: str, tmp_path: Path) -> None:
    (tmp_path / "f").write_text(content)
    with pytest.raises(InputError) as caught:
        read_file(tmp_path / "f")
    assert complaint in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none\.json: No such file.*history\.static_files"):
        read_file(tmp_path / "none.json")


def test_a_write_that_fails_leaves_the_old_file_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "history.json"
    write_file(path, {"content": Series.of([(1, 1.0)])})

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(InputError, match="No space left"):
        write_file(path, {"content": Series.of([(1, 2.0)])})
    assert json.loads(path.read_text()) == {"content": [[1000, 1.0]]}
    assert list(tmp_path.iterdir()) == [path]


def test_two_writers_and_a_reader_meet_only_whole_files(tmp_path: Path) -> None:
    path = tmp_path / "history.json"
    large = {"content": Series.of([(n, float(n)) for n in range(5_000)])}
    write_file(path, large)

    def write() -> None:
        for _ in range(15):
            write_file(path, large)

    writers = [threading.Thread(target=write) for _ in range(2)]
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        assert len(json.loads(path.read_text())["content"]) == 5_000
    assert list(tmp_path.iterdir()) == [path]
