"""Keys out of dumps: files of hexadecimal lines, JSON lines, CSV or Parquet, read in resumable chunks.

A bad record costs itself and is counted, never the dump. What is read depends only on the cursor, so whoever
stores the cursor with what was counted goes on exactly there.
"""

from __future__ import annotations

from counters.errors import InputError
from counters.objects.dumps.csv_rows import CsvRows
from counters.objects.dumps.hex_lines import HexLines
from counters.objects.dumps.json_lines import DEFAULT_FIELD, JsonLines
from counters.objects.dumps.lines import LinesDump, Records
from counters.objects.dumps.model import Chunk, Cursor, Dump, Encoding, Fingerprint, Form
from counters.objects.dumps.parquet_column import ParquetDump
from counters.objects.dumps.source import Place, Source

__all__ = ["Chunk", "Cursor", "Dump", "Encoding", "Fingerprint", "Form", "Place", "open_dump"]


def open_dump(
    place: Place, form: Form, *, field: str | None = None, encoding: Encoding = Encoding.HEX
) -> Dump:
    """A dump to read.

    Lines may be compressed by gzip, which their first bytes tell. Standard input (``-``) and pipes have no
    fingerprint; started again, they skip the lines that were used.

    Args:
        place: the file, or ``-``.
        form: how it is written.
        field: where the key is. JSON: a path of names (``id``); CSV: a name in the header row, or a number
            from 1 on if there is none; Parquet: a column. None: ``id`` in JSON, else the only column.
        encoding: how text stands for a key. Does not matter to byte strings in Parquet.

    Raises:
        InputError: it cannot be opened, has no such field, or the form has none or no such encoding.
    """
    if form is Form.HEX and (field is not None or encoding is not Encoding.HEX):
        raise InputError(
            "--format hex has neither --field nor --encoding; for other keys, use csv with --field 1"
        )
    known_by: Fingerprint = {"form": form.value, "field": field or "", "encoding": encoding.value}
    if form is Form.PARQUET:
        if place == "-":
            raise InputError("Parquet cannot be read from standard input; name the file")
        return ParquetDump(place, field, encoding, known_by)
    source = Source(place)
    try:
        return LinesDump(source, _open_records(source, form, field, encoding), known_by)
    except InputError:
        source.close()
        raise


def _open_records(source: Source, form: Form, field: str | None, encoding: Encoding) -> Records:
    if form is Form.HEX:
        return HexLines()
    if form is Form.JSONL:
        return JsonLines(DEFAULT_FIELD if field is None else field, encoding)
    delimiter = "\t" if source.name.removesuffix(".gz").endswith(".tsv") else ","
    return CsvRows.open(source, field, delimiter, encoding)
