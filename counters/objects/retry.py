"""Counting records that were set aside, once what kept them from being counted is mended.

A record goes into its counter like any other, and into the ``messages`` of its topic, once for all times: the
write that counts it leaves its receipt. What has a receipt, because it was retried or dropped, is done. The
cursor is written with the work.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any

from counters.checkpoints.nodes import Node
from counters.checkpoints.receipts import Receipts
from counters.checkpoints.runner import Done, Turn
from counters.objects.bulk import BulkWriter, Records
from counters.objects.extraction import Extraction
from counters.objects.store import Receipted
from journal_client.batch import Batch
from journal_client.letters import Letter, Letters

logger = logging.getLogger(__name__)

BATCH = 1_000
"""Letters per batch."""


class Retry:
    """Retries the letters of a quarantine.

    Args:
        node: says in the store that this process may do a batch again.
        only: ids of the letters to retry; None: all that have no receipt.
    """

    unit = "records"

    def __init__(
        self,
        letters: Letters,
        receipts: Receipts,
        writer: BulkWriter,
        extraction: Extraction,
        node: Node,
        only: Collection[str] | None = None,
    ) -> None:
        self.name = "quarantine:retry" if only is None else "quarantine:chosen"
        self._letters = letters
        self._receipts = receipts
        self._writer = writer
        self._extraction = extraction
        self._node = node
        self._only = None if only is None else set(only)

    def batch(self, turn: Turn) -> Done:
        """The next letters."""
        with self._node.attempt(f"{self.name}:{turn.cursor}"):
            while True:
                try:
                    return self._batch(turn)
                except Receipted:  # dropped by somebody in this moment: look again
                    continue

    def progress(self, cursor: dict[str, Any]) -> tuple[int, int | None]:
        """How far is not known: letters may come while they are read."""
        return 0, None

    def _batch(self, turn: Turn) -> Done:
        page, cursor = self._letters.read(turn.cursor, BATCH)
        chosen = [letter for letter in page if self._only is None or letter.id in self._only]
        waiting = unhandled(chosen, self._receipts)
        batch, counted = Batch(), []
        for letter in waiting:
            problem = self._take(letter, batch)
            if problem is None:
                counted.append(letter)
            else:
                logger.warning("%s still cannot be counted: %s", letter.id, problem)
        done = Done(cursor, ok=len(counted), failed=len(waiting) - len(counted), recorded=True)
        messages = dict(Counter(letter.topic for letter in counted))
        records = Records(messages, [letter.receipt for letter in counted])
        self._writer.add(self._extraction.keys(batch), turn.advance(done), records)
        return done

    def _take(self, letter: Letter, batch: Batch) -> str | None:
        """Add the record to ``batch``; why that is not possible."""
        if letter.truncated:
            return "key and value were too large for the quarantine"
        if letter.key is None:
            return "it has no key"
        if not self._extraction.is_ours(letter.topic):
            return f"its topic {letter.topic} is not below journal.prefix"
        decoder = self._extraction.decoder(letter.topic)
        if decoder is not None:
            try:
                value = None if letter.value is None else decoder(letter.value)
            except Exception as error:  # a decoder may raise anything on a value it cannot decode
                return f"{type(error).__name__}: {error}"
            batch.values.setdefault(letter.topic, []).append(value)
        batch.keys.setdefault(letter.topic, []).append(letter.key)
        return None


def unhandled(letters: Sequence[Letter], receipts: Receipts) -> list[Letter]:
    """The letters without a receipt, each record once."""
    once = {letter.receipt: letter for letter in letters}
    known = receipts.known(once)
    return [letter for receipt, letter in once.items() if receipt not in known]
