"""Dumps of keys in lines: hexadecimal and JSON, and what holds for all formats."""

from __future__ import annotations

import base64
import gzip
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from io import TextIOWrapper
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from dumped import KEYS, join, read_anew, read_chunks
from hypothesis import given
from hypothesis import strategies as st

from counters.errors import InputError
from counters.objects.dumps import Encoding, Form, open_dump

HEX = "".join(f"{key.hex()}\n" for key in KEYS).encode()
JSONL = "".join(f'{{"id":"{key.hex()}","size":1}}\n' for key in KEYS).encode()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "keys"


@pytest.fixture
def pipe(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """What is written to this descriptor is standard input."""
    out, into = os.pipe()
    with os.fdopen(out, "rb") as file:
        monkeypatch.setattr(sys, "stdin", TextIOWrapper(file))
        yield into


def read(
    path: Path, data: bytes, form: Form, field: str | None = None, encoding: Encoding = Encoding.HEX
) -> tuple[list[bytes], int, list[str]]:
    path.write_bytes(data)
    return join(read_chunks(path, form, field=field, encoding=encoding))


@pytest.mark.parametrize(
    "data",
    [
        HEX,
        HEX.upper(),
        HEX.replace(b"\n", b"\r\n"),
        HEX.replace(b"\n", b"\n\n \n"),
        HEX.rstrip(b"\n"),
        b"\xef\xbb\xbf" + HEX,
        b"".join(b"\\x" + line for line in HEX.splitlines(keepends=True)),
        gzip.compress(HEX, mtime=0),
    ],
    ids=["plain", "upper", "crlf", "blank lines", "no last end", "byte order mark", "postgres", "gzip"],
)
def test_hexadecimal_lines_are_keys_however_they_are_written(path: Path, data: bytes) -> None:
    assert read(path, data, Form.HEX) == (KEYS, 0, [])


@pytest.mark.parametrize(
    "bad", [b"xyz", b"abc", b"ab cd", b"ab,cd", b"\x00\x00", b"\xff\xfe", b"0xab", b"\\x", b"ab\\xcd"]
)
def test_a_bad_line_costs_itself_and_is_named(path: Path, bad: bytes) -> None:
    keys, failed, (problem,) = read(path, b"aa\n" + bad + b"\nbb\n", Form.HEX)

    assert (keys, failed) == ([b"\xaa", b"\xbb"], 1)
    assert problem.startswith(("line 2: not hexadecimal: '", "line 2: empty: '"))


def test_lines_of_odd_length_do_not_complete_each_other(path: Path) -> None:
    assert read(path, b"abc\ndef\n", Form.HEX)[:2] == ([], 2)


def test_only_the_first_problems_of_a_chunk_are_described_and_all_are_counted(path: Path) -> None:
    keys, failed, problems = read(path, b"xyz\n" * 100 + b"aa\n", Form.HEX)

    assert (keys, failed) == ([b"\xaa"], 100)
    assert problems == [f"line {n}: not hexadecimal: 'xyz'" for n in range(1, 6)]


def test_a_long_bad_line_is_shown_shortened(path: Path) -> None:
    _, _, (problem,) = read(path, b"z" * 1000, Form.HEX)

    assert problem == f"line 1: not hexadecimal: '{'z' * 40}…'"


@pytest.mark.parametrize("limit", [1, 30_000, 1_000_000])
def test_a_line_longer_than_a_mebibyte_fails_wherever_chunks_end(path: Path, limit: int) -> None:
    path.write_bytes(b"aa\n" + b"ab" * 600_000 + b"\nbb\n" + b"ab" * 2_000_000)

    keys, failed, problems = join(read_chunks(path, Form.HEX, limit=limit))

    assert (keys, failed) == ([b"\xaa", b"\xbb"], 2)
    assert problems[0].startswith("line 2: longer than 1048576 bytes: 'abab")
    assert problems[1].startswith("line 4: longer than 1048576 bytes: 'abab")


@pytest.mark.parametrize("data", [b"", b"\n", b"\r\n \n\n"])
@pytest.mark.parametrize("form", [Form.HEX, Form.JSONL])
def test_a_dump_of_nothing_is_read_to_its_end(path: Path, data: bytes, form: Form) -> None:
    assert read(path, data, form) == ([], 0, [])


@pytest.mark.parametrize(
    "data",
    [
        JSONL,
        JSONL.replace(b"\n", b"\r\n"),
        JSONL.replace(b"\n", b" \n\n"),
        JSONL.rstrip(b"\n"),
        "".join(f'"{key.hex()}"\n' for key in KEYS).encode(),
        "".join(f'{{"id":"{key.hex()}"}}\n"{key.hex()}"\n' for key in KEYS).encode(),
    ],
    ids=["objects", "crlf", "blank lines", "no last end", "strings", "both"],
)
def test_json_lines_hold_keys_in_objects_or_are_keys(path: Path, data: bytes) -> None:
    keys, failed, _ = read(path, data, Form.JSONL)

    assert (sorted(set(keys)), failed) == (KEYS, 0)


@pytest.mark.parametrize(
    ("bad", "problem"),
    [
        (b"{}", "missing required field `id`"),
        (b'{"id":null}', "got `null`"),
        (b'{"id":7}', "got `int`"),
        (b'{"id":""}', "empty"),
        (b'{"id":"xyz"}', "not hexadecimal"),
        (b'{"id":"aa"', "not as expected"),
        (b'{"id":"aa"}{"id":"bb"}', "trailing characters"),
        (b"[]", "got `array`"),
        (b'{"id":"\xff"}', "line 2"),
        (b"\x00", "not as expected"),
        (b"[" * 100_000, "line 2"),
        (b'{"x":' * 100_000, "line 2"),
    ],
)
def test_a_bad_json_line_costs_itself_and_says_why(path: Path, bad: bytes, problem: str) -> None:
    keys, failed, problems = read(path, b'{"id":"cc"}\n' + bad + b'\n{"id":"dd"}\n', Form.JSONL)

    assert (keys, failed) == ([b"\xcc", b"\xdd"], 1)
    assert problem in problems[0]


def test_a_json_object_over_two_lines_is_no_record_even_if_another_line_holds_two(path: Path) -> None:
    keys, failed, _ = read(path, b'{"id":\n"aa"}\n{"id":"bb"}{"id":"cc"}\n{"id":"dd"}\n', Form.JSONL)

    assert (keys, failed) == ([b"\xdd"], 3)


def test_a_path_leads_to_a_field_within_objects(path: Path) -> None:
    assert read(path, b'{"a":{"x y":"aa"}}\n{"a":{}}\n', Form.JSONL, "a.x y")[:2] == ([b"\xaa"], 1)


@pytest.mark.parametrize("key", [b"\x00\xff", b"a", b"abc"])
def test_base64_is_decoded(path: Path, key: bytes) -> None:
    data = b'{"id":"' + base64.b64encode(key) + b'"}\n'

    assert read(path, data, Form.JSONL, None, Encoding.BASE64) == ([key], 0, [])


def test_text_that_is_the_key_itself_may_be_an_integer(path: Path) -> None:
    data = '{"id":"Zoë"}\n{"id":17}\n{"id":true}\n{"id":1.5}\n'.encode()

    keys, failed, _ = read(path, data, Form.JSONL, None, Encoding.UTF8)

    assert (keys, failed) == (["Zoë".encode(), b"17"], 2)


LINES = st.lists(
    st.sampled_from(
        b'aabb|cc|ddeeff||xyz|abc|\xff|\\xabcd| 11 |a\rb|"dd"|{"id":"aa"}|{"id":"bbcc"}|{"id":1}|{"id":|"ee"}'
        b'|{"id":"aa"}{"id":"bb"}'.split(b"|")
    ),
    max_size=40,
)
LINE_FORMS = [Form.HEX, Form.JSONL, Form.CSV]


@given(
    LINES, st.sampled_from([b"\n", b"\r\n"]), st.booleans(), st.integers(1, 50), st.sampled_from(LINE_FORMS)
)
def test_keys_do_not_depend_on_where_chunks_end(
    lines: list[bytes], end: bytes, ended: bool, limit: int, form: Form
) -> None:
    data = end.join(lines) + (end if ended else b"")
    field = "1" if form is Form.CSV else None
    with TemporaryDirectory() as folder:
        path = Path(folder) / "keys"
        path.write_bytes(data)
        keys, failed, _ = join(read_chunks(path, form, field=field))

        assert join(read_chunks(path, form, field=field, limit=limit))[:2] == (keys, failed)
        assert read_anew(path, form, field=field, limit=limit) == keys


@pytest.mark.parametrize("data", [HEX, gzip.compress(HEX, mtime=0)], ids=["plain", "gzip"])
def test_another_reader_goes_on_at_a_stored_cursor(path: Path, data: bytes) -> None:
    path.write_bytes(data)

    assert read_anew(path, Form.HEX, limit=7) == KEYS


def test_problems_name_the_line_of_the_file_also_after_resuming(path: Path) -> None:
    path.write_bytes(HEX + b"xyz\n")
    with closing(open_dump(path, Form.HEX)) as dump:
        cursor = dump.read({}, 50).cursor
    with closing(open_dump(path, Form.HEX)) as dump:
        assert cursor is not None
        chunk = dump.read(cursor, 1_000_000)

    assert chunk.problems == [f"line {len(KEYS) + 1}: not hexadecimal: 'xyz'"]


def test_a_file_says_how_much_of_it_is_done(path: Path) -> None:
    path.write_bytes(HEX)
    with closing(open_dump(path, Form.HEX)) as dump:
        chunk = dump.read({}, 50)

        assert chunk.cursor is not None
        assert (dump.done({}), dump.done(chunk.cursor), dump.total) == (0, 41 * len(chunk.keys), len(HEX))


def test_of_compressed_data_the_size_is_not_known_before_the_end(path: Path) -> None:
    path.write_bytes(gzip.compress(HEX, mtime=0))
    with closing(open_dump(path, Form.HEX)) as dump:
        assert dump.total is None


def test_a_file_that_grew_is_the_same_dump_and_another_is_not(path: Path) -> None:
    path.write_bytes(HEX)
    with closing(open_dump(path, Form.HEX)) as dump:
        before = dump.fingerprint
    for data, same in [(HEX, True), (HEX + b"aa\n", True), (HEX[:-1], False), (b"ee" + HEX[2:], False)]:
        path.write_bytes(data)
        with closing(open_dump(path, Form.HEX)) as dump:
            assert dump.continues(before) is same


def test_the_same_file_read_in_another_way_is_another_dump(path: Path) -> None:
    path.write_bytes(JSONL)
    with closing(open_dump(path, Form.JSONL)) as dump:
        before = dump.fingerprint
    with closing(open_dump(path, Form.JSONL, field="name")) as dump:
        assert not dump.continues(before)


@pytest.mark.parametrize("data", [HEX, gzip.compress(HEX, mtime=0)], ids=["plain", "gzip"])
def test_standard_input_is_read_and_skips_the_lines_that_were_used(pipe: int, data: bytes) -> None:
    os.write(pipe, data)
    os.close(pipe)
    with closing(open_dump("-", Form.HEX)) as dump:
        first = dump.read({"line": 20}, 50)
        assert first.cursor is not None
        second = dump.read(first.cursor, 1_000)

        assert first.keys + second.keys == KEYS[20:]
        assert (dump.total, dump.done(first.cursor)) == (None, 20 + len(first.keys))


def test_standard_input_cannot_go_back(pipe: int) -> None:
    os.write(pipe, HEX)
    os.close(pipe)
    with closing(open_dump("-", Form.HEX)) as dump:
        dump.read({}, 50)

        with pytest.raises(InputError, match="cannot go back to line 3"):
            dump.read({"line": 2}, 50)


def test_a_named_pipe_is_read_like_standard_input(path: Path) -> None:
    os.mkfifo(path)
    keep_open = os.open(path, os.O_RDWR)
    os.write(keep_open, HEX)
    with closing(open_dump(path, Form.HEX)) as dump:
        os.close(keep_open)
        chunk = dump.read({"line": 3}, 1_000)

    assert chunk.keys == KEYS[3:]


def test_what_cannot_be_opened_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"^\S+/none: No such file or directory; name a file with keys$"):
        open_dump(tmp_path / "none", Form.HEX)
    with pytest.raises(InputError, match=r"^\S+: Is a directory; name a file with keys$"):
        open_dump(tmp_path, Form.HEX)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every file")
def test_a_file_that_may_not_be_read_is_one_clear_line(path: Path) -> None:
    path.touch(mode=0)
    with pytest.raises(InputError, match="Permission denied"):
        open_dump(path, Form.HEX)


@pytest.mark.parametrize(
    "damage", [lambda data: data[:-20], lambda data: data[:30] + b"\x00" * 30 + data[60:]]
)
def test_damaged_compressed_data_ends_the_reading_with_one_clear_line(
    path: Path, damage: Callable[[bytes], bytes]
) -> None:
    path.write_bytes(damage(gzip.compress(os.urandom(3000).hex().encode() + b"\n")))
    with pytest.raises(InputError, match=r"(cut off|cannot be read) after line 0"):
        list(read_chunks(path, Form.HEX))


def test_another_compression_is_refused_with_the_way_around(path: Path) -> None:
    path.write_bytes(b"\x28\xb5\x2f\xfd" + b"rest")
    with pytest.raises(InputError, match="compressed by zstd; pipe the output of zstd -dc"):
        open_dump(path, Form.HEX)


@pytest.mark.parametrize("options", [{"field": "id"}, {"encoding": Encoding.UTF8}])
def test_hexadecimal_lines_have_no_field_and_no_other_encoding(path: Path, options: dict[str, Any]) -> None:
    path.write_bytes(HEX)
    with pytest.raises(InputError, match="use csv with --field 1"):
        open_dump(path, Form.HEX, **options)


@pytest.mark.parametrize("field", ["", ".id", "a..b"])
def test_a_path_with_an_empty_part_is_refused(path: Path, field: str) -> None:
    path.write_bytes(JSONL)
    with pytest.raises(InputError, match="is not a path"):
        open_dump(path, Form.JSONL, field=field)


def test_a_file_with_the_same_beginning_and_size_is_not_read_on(path: Path) -> None:
    lines = b"%040x\n" * 4_000 % tuple(range(4_000))
    path.write_bytes(lines)
    with closing(open_dump(path, Form.HEX)) as dump:
        cursor = dump.read({}, 2_500).cursor
    assert cursor is not None
    path.write_bytes(lines[:80_000] + lines[80_000:].replace(b"0\n", b"1\n"))
    with (
        closing(open_dump(path, Form.HEX)) as dump,
        pytest.raises(InputError, match="is not the file that was"),
    ):
        dump.read(cursor, 10)


def test_a_line_without_end_ends_the_reading(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(200 << 20)
    with (
        closing(open_dump(path, Form.HEX)) as dump,
        pytest.raises(InputError, match=r"line 1 is longer than \d+ bytes; this is no dump of keys"),
    ):
        dump.read({}, 10)


def test_a_slow_pipe_gives_what_it_has(pipe: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("counters.objects.dumps.source._PATIENCE", 0.01)
    os.write(pipe, b"aa\nbb\n")
    with closing(open_dump("-", Form.HEX)) as dump:
        first = dump.read({}, 1_000)
        assert first.cursor is not None
        os.write(pipe, b"cc\n")
        os.close(pipe)
        assert (first.keys, dump.read(first.cursor, 1_000).keys) == ([b"\xaa", b"\xbb"], [b"\xcc"])
