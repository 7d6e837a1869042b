"""What happens in the environment of swh-counters; run by its Python, so it imports nothing of this project.

    python swh_side.py call URL OPTIONS CALLS
    python swh_side.py write BROKERS PREFIX
    python swh_side.py count JOURNAL RECORDS COUNTERS

Arguments that are not text, and the last line on standard output, are Python literals.
"""

from __future__ import annotations

import sys
from ast import literal_eval
from typing import Any


def call(url: str, options: str, calls: str) -> list[Any]:
    """The answers to ``[(method, arguments), …]``; of one that raises, the exception's name and text."""
    import swh.core.api
    from swh.counters import get_counters

    swh.core.api.RETRY_WAIT_INTERVAL = 0.1  # 10 s are meant for operators
    client = get_counters("remote", url=url, **_options(literal_eval(options)))
    return [_answer(client, method, arguments) for method, arguments in literal_eval(calls)]


def _options(options: dict[str, Any]) -> dict[str, Any]:
    names = options.pop("reraise_exceptions", ())
    errors = {error.__name__: error for error in (ValueError, TypeError, PermissionError)}
    return {**options, "reraise_exceptions": [errors[name] for name in names]}


def _answer(client: Any, method: str, arguments: dict[str, Any]) -> Any:
    try:
        if method == "history":  # RemoteCounters has no method for it
            return client._post("history", arguments)
        return getattr(client, method)(**arguments)
    except Exception as error:
        return "raises", type(error).__name__, str(error)


def write(brokers: str, prefix: str) -> dict[str, int]:
    """Write the example objects of the archive's own model; how many of each type."""
    from swh.journal.writer import get_journal_writer
    from swh.model.tests.swh_model_data import TEST_OBJECTS

    types = ("content", "directory", "origin", "release", "revision", "skipped_content", "snapshot")
    writer = get_journal_writer("kafka", brokers=brokers.split(","), prefix=prefix, client_id="test")
    for object_type in types:
        writer.write_additions(object_type, TEST_OBJECTS[object_type])
    return {object_type: len(TEST_OBJECTS[object_type]) for object_type in types}


def count(journal: str, records: str, counters: str) -> None:
    """Read so many records with the old journal client, into the counters given."""
    from swh.counters import get_counters
    from swh.counters.journal_client import CountersJournalClient

    client = CountersJournalClient(
        counters=get_counters(**literal_eval(counters)),
        stop_after_objects=int(records),
        **literal_eval(journal),
    )
    client.process_messages()
    client.close()


if __name__ == "__main__":
    name, *rest = sys.argv[1:]
    print(repr({"call": call, "write": write, "count": count}[name](*rest)))
