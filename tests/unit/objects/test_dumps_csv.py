"""Dumps of keys in rows of separated fields."""

from __future__ import annotations

import csv
import gzip
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from dumped import KEYS, join, read_anew, read_chunks
from hypothesis import given
from hypothesis import strategies as st

from counters.errors import InputError
from counters.objects.dumps import Encoding, Form, open_dump

Read = tuple[list[bytes], int, list[str]]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "keys.csv"


def read(path: Path, data: bytes, field: str | None = "id", encoding: Encoding = Encoding.HEX) -> Read:
    path.write_bytes(data)
    return join(read_chunks(path, Form.CSV, field=field, encoding=encoding))


@pytest.mark.parametrize(
    "data",
    [
        b"id,n\naa,1\nbb,2\n",
        b"n,id\n1,aa\n2,bb",
        b"\xef\xbb\xbfid,n\r\naa,1\r\n\r\nbb,2\r\n",
        b'"n","id"\n"1","aa"\n"2","bb"\n',
        b'n,id\n"1\n""2""\n3",aa\n5" disk,bb\n',
        b'"n\nm",id\r\n"1\r\n2",aa\r\n"3",bb\r\n',
        b"id,n\n\\xaa,1\n\\xbb,2\n",
        b"id,n\naa,\xff\nbb,\x00\n",
        gzip.compress(b"id,n\naa,1\nbb,2\n", mtime=0),
    ],
)
def test_the_column_is_found_by_its_name_however_rows_are_written(path: Path, data: bytes) -> None:
    assert read(path, data) == ([b"\xaa", b"\xbb"], 0, [])


def test_a_number_is_a_column_of_a_file_without_header(path: Path) -> None:
    assert read(path, b"1,aa\n2,bb\n", "2") == ([b"\xaa", b"\xbb"], 0, [])


@pytest.mark.parametrize("data", [b"key\naa\n", b"id\naa\n"])
def test_without_a_field_it_is_the_only_column(path: Path, data: bytes) -> None:
    assert read(path, data, None) == ([b"\xaa"], 0, [])


def test_a_file_named_tsv_is_separated_by_tabs(tmp_path: Path) -> None:
    assert read(tmp_path / "keys.tsv", b"n\tid\n1,2\taa\n", "id") == ([b"\xaa"], 0, [])


@pytest.mark.parametrize("data", [b"", b"id\n", b"id", b"id\n\n\r\n"])
def test_a_file_without_rows_has_no_keys(path: Path, data: bytes) -> None:
    assert read(path, data) == ([], 0, [])


def test_a_column_that_is_not_there_is_one_clear_line(path: Path) -> None:
    path.write_bytes(b"hash,n\naa,1\n")
    with pytest.raises(InputError, match=r"has no column 'sha1' but hash, n; set --field"):
        open_dump(path, Form.CSV, field="sha1")


def test_of_several_columns_none_is_guessed(path: Path) -> None:
    path.write_bytes(b"id,sha1\n1,aa\n")
    with pytest.raises(InputError, match="has the columns id, sha1; set --field"):
        open_dump(path, Form.CSV)


def test_a_first_line_that_is_a_key_is_not_taken_for_a_name(path: Path) -> None:
    path.write_bytes(b"".join(key.hex().encode() + b"\n" for key in KEYS))
    with pytest.raises(InputError, match="its first line is a key, not a name; give --field 1"):
        open_dump(path, Form.CSV)


def test_columns_are_numbered_from_one(path: Path) -> None:
    path.write_bytes(b"aa\n")
    with pytest.raises(InputError, match="numbered from 1"):
        open_dump(path, Form.CSV, field="0")


@pytest.mark.parametrize(
    ("bad", "problem"),
    [
        (b"aa", "line 3: 1 fields, not 2: 'aa'"),
        (b"aa,1,2", "line 3: 3 fields, not 2: 'aa,1,2'"),
        (b",1", "line 3: empty: ',1'"),
        (b'"",1', "line 3: empty: '\"\",1'"),
        (b"xyz,1", "line 3: not hexadecimal: 'xyz,1'"),
        (b"\xff,1", "line 3: not hexadecimal: '\\\\xff,1'"),
        (b'"aa"b,1', "line 3: ',' expected after '\"': '\"aa\"b,1'"),
        (b'"aa,1', "line 3: unexpected end of data: '\"aa,1'"),
    ],
)
def test_a_bad_row_costs_itself_and_says_why(path: Path, bad: bytes, problem: str) -> None:
    assert read(path, b"id,n\ncc,1\n" + bad + b"\ndd,2\n") == ([b"\xcc", b"\xdd"], 1, [problem])


def test_a_quote_that_is_never_closed_costs_its_line_in_a_long_file(path: Path) -> None:
    rows = [f"{key.hex()},{'x' * 5_000}\n" for key in KEYS]

    keys, failed, problems = read(path, "".join(["id,n\n", '"aa,1\n', *rows]).encode())

    assert (keys, failed) == (KEYS, 1)
    assert problems == ["line 2: field larger than field limit (131072): '\"aa,1'"]


def test_an_empty_quoted_field_of_a_single_column_is_a_failure_and_a_blank_line_is_none(path: Path) -> None:
    assert read(path, b'id\naa\n\n""\n') == ([b"\xaa"], 1, ["line 4: empty: '\"\"'"])


def test_text_that_is_the_key_itself_must_be_utf8(path: Path) -> None:
    data = 'id\n"Zoë, Ada"\n"two\r\nlines"\n'.encode() + b"\xc3\n\xa9\n"

    keys, failed, _ = read(path, data, "id", Encoding.UTF8)

    assert (keys, failed) == (["Zoë, Ada".encode(), b"two\r\nlines"], 2)


FIELDS = st.text(alphabet='a",\n\xe9 ', max_size=6)
ROWS = st.lists(st.tuples(FIELDS, st.text(alphabet='b"\n,', min_size=1, max_size=5)), max_size=30)


@given(ROWS, st.sampled_from(["\n", "\r\n"]), st.integers(1, 20))
def test_what_the_csv_module_wrote_is_read_in_any_chunks(
    rows: list[tuple[str, str]], end: str, limit: int
) -> None:
    written = StringIO(newline="")
    csv.writer(written, lineterminator=end).writerows([("n", "id"), *rows])
    with TemporaryDirectory() as folder:
        path = Path(folder) / "keys.csv"
        path.write_bytes(written.getvalue().encode())
        keys = [key.encode() for _, key in rows]

        assert join(read_chunks(path, Form.CSV, field="id", encoding=Encoding.UTF8, limit=limit)) == (
            keys,
            0,
            [],
        )
        assert read_anew(path, Form.CSV, field="id", encoding=Encoding.UTF8, limit=limit) == keys


@given(st.text(alphabet='ab",\n\r', max_size=120), st.sampled_from(["1", "2", "b"]), st.integers(1, 20))
def test_any_characters_are_read_alike_in_any_chunks(text: str, field: str, limit: int) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "keys.csv"
        path.write_bytes(b"id,b\n" + text.encode())
        keys, failed, _ = join(read_chunks(path, Form.CSV, field=field, encoding=Encoding.UTF8))

        in_chunks = join(read_chunks(path, Form.CSV, field=field, encoding=Encoding.UTF8, limit=limit))
        assert in_chunks[:2] == (keys, failed)
        assert read_anew(path, Form.CSV, field=field, encoding=Encoding.UTF8, limit=limit) == keys
