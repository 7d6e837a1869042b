"""Dumps of keys in a column of a Parquet file."""

from __future__ import annotations

import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from dumped import KEYS, join, read_anew, read_chunks

from counters.errors import InputError
from counters.objects.dumps import Encoding, Form, open_dump

pa = pytest.importorskip("pyarrow", reason="reading Parquet needs the extra 'parquet'")
pq = pytest.importorskip("pyarrow.parquet")

HEX = [key.hex() for key in KEYS]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "keys.parquet"


def write(path: Path, keys: Any, **options: Any) -> None:
    pq.write_table(pa.table({"n": list(range(len(keys))), "id": keys}), path, **options)


@pytest.mark.parametrize(
    "keys",
    [
        pa.array(KEYS, pa.binary()),
        pa.array(KEYS, pa.large_binary()),
        pa.array(KEYS, pa.binary(20)),
        pa.array(KEYS, pa.binary()).dictionary_encode(),
        pa.array(HEX),
        pa.array(HEX, pa.large_string()),
        pa.array(HEX).dictionary_encode(),
    ],
    ids=lambda keys: str(keys.type),
)
def test_byte_strings_are_keys_and_texts_are_decoded(path: Path, keys: Any) -> None:
    write(path, keys)

    assert join(read_chunks(path, Form.PARQUET, field="id")) == (KEYS, 0, [])


def test_keys_of_different_lengths_are_told_apart(path: Path) -> None:
    keys = [b"a" * (1 + n % 7) for n in range(100)]
    write(path, pa.array(keys, pa.binary()))

    assert join(read_chunks(path, Form.PARQUET, field="id", limit=9)) == (keys, 0, [])


def test_identifiers_with_a_type_of_their_own_are_their_bytes(path: Path) -> None:
    keys = [key[:16] for key in KEYS]
    write(path, pa.ExtensionArray.from_storage(pa.uuid(), pa.array(keys, pa.binary(16))))

    assert join(read_chunks(path, Form.PARQUET, field="id")) == (keys, 0, [])


@pytest.mark.parametrize("limit", [1, 7, 64, 1_000])
@pytest.mark.parametrize("group", [5, 64, 1_000])
def test_another_reader_goes_on_at_a_stored_cursor(path: Path, limit: int, group: int) -> None:
    write(path, pa.array(KEYS, pa.binary()), row_group_size=group)

    assert join(read_chunks(path, Form.PARQUET, field="id", limit=limit))[0] == KEYS
    assert read_anew(path, Form.PARQUET, field="id", limit=limit) == KEYS


def test_a_reader_goes_back_when_it_is_told_to(path: Path) -> None:
    write(path, pa.array(KEYS, pa.binary()))
    with closing(open_dump(path, Form.PARQUET, field="id")) as dump:
        dump.read({"row": 30}, 10)

        assert dump.read({"row": 20}, 10).keys == KEYS[20:30]
        assert (dump.done({"row": 20}), dump.total) == (20, len(KEYS))


def test_bad_values_cost_themselves_and_are_named(path: Path) -> None:
    write(path, pa.array(["aa", None, "xyz", "", "bb"]), row_group_size=2)

    assert join(read_chunks(path, Form.PARQUET, field="id")) == (
        [b"\xaa", b"\xbb"],
        3,
        ["row 2: null", "row 3: not hexadecimal: 'xyz'", "row 4: empty: ''"],
    )


def test_an_empty_byte_string_is_no_key(path: Path) -> None:
    write(path, pa.array([b"", b"a"], pa.binary()))

    assert join(read_chunks(path, Form.PARQUET, field="id"))[:2] == ([b"a"], 1)


def test_a_column_of_nulls_only_is_read_to_its_end(path: Path) -> None:
    write(path, pa.array([None] * 10, pa.binary()))

    assert join(read_chunks(path, Form.PARQUET, field="id"))[:2] == ([], 10)


def test_a_file_without_rows_has_no_keys(path: Path) -> None:
    write(path, pa.array([], pa.binary()))

    assert join(read_chunks(path, Form.PARQUET, field="id")) == ([], 0, [])


def test_texts_may_be_the_keys_themselves(path: Path) -> None:
    write(path, pa.array(["Zoë", "Ada"]))

    assert join(read_chunks(path, Form.PARQUET, field="id", encoding=Encoding.UTF8))[0] == [
        "Zoë".encode(),
        b"Ada",
    ]


def test_only_the_file_as_it_was_is_the_same_dump(path: Path) -> None:
    write(path, pa.array(KEYS, pa.binary()))
    with closing(open_dump(path, Form.PARQUET, field="id")) as dump:
        before = dump.fingerprint
        assert dump.continues(before)
    write(path, pa.array([*KEYS, b"one more"], pa.binary()))
    with closing(open_dump(path, Form.PARQUET, field="id")) as dump:
        assert not dump.continues(before)


@pytest.mark.parametrize(("field", "problem"), [("x", "no column 'x' but n, id"), ("n", "'n' holds int64")])
def test_a_column_that_holds_no_keys_is_one_clear_line(path: Path, field: str, problem: str) -> None:
    write(path, pa.array(KEYS, pa.binary()))
    with pytest.raises(InputError, match=problem):
        open_dump(path, Form.PARQUET, field=field)


@pytest.mark.parametrize("data", [b"", b"aabb\n" * 100])
def test_another_file_is_one_clear_line(path: Path, data: bytes) -> None:
    path.write_bytes(data)
    with pytest.raises(InputError, match="is no Parquet file"):
        open_dump(path, Form.PARQUET, field="id")


def test_a_damaged_page_ends_the_reading_with_one_clear_line(path: Path) -> None:
    write(path, pa.array(KEYS, pa.binary()), compression="gzip")
    data = bytearray(path.read_bytes())
    start = pq.ParquetFile(path).metadata.row_group(0).column(1).dictionary_page_offset
    data[start : start + 200] = b"\xff" * 200
    path.write_bytes(data)
    with pytest.raises(InputError, match="damaged after row 0"):
        list(read_chunks(path, Form.PARQUET, field="id"))


def test_standard_input_is_refused() -> None:
    with pytest.raises(InputError, match="name the file"):
        open_dump("-", Form.PARQUET, field="id")


def test_a_missing_library_is_one_line_that_says_how_to_get_it(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(InputError, match=r"needs pyarrow; pip install 'counters\[parquet\]'$"):
        open_dump(path, Form.PARQUET, field="id")


def test_of_several_columns_none_is_guessed(path: Path) -> None:
    pq.write_table(pa.table({"id": [1], "sha1": [b"key"]}), path)
    with pytest.raises(InputError, match="has the columns id, sha1; set --field"):
        open_dump(path, Form.PARQUET)
