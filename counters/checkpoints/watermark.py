"""How far a growing SQL table can be scanned by its sequence without missing a row.

Numbers of a sequence are given at the insert, and seen at the commit: a writer with a lower number may commit
after one with a higher. A scan that followed the highest number it saw would never come back for the lower
one. So the highest number is taken while nobody writes: everything up to it is committed, or never will be.
What comes later is left to the next scan.
"""

from __future__ import annotations

from sqlalchemy import Column, Connection, Table, func, select, text

from counters.sql import begin


def watermark(connection: Connection, table: Table, column: Column[int]) -> int | None:
    """The highest ``column`` of ``table`` below which nothing will be added; None: the table is empty.

    Writers are kept out until the end of the transaction, so it should be one of its own, and short. It waits
    for those that are at work. ``column`` is numbered by the database, by nothing random and no clock.

    Raises:
        SQLAlchemyError: what the database says; on SQLite also that it was read before in this transaction,
            and was changed since.
    """
    begin(connection)
    if connection.dialect.name == "postgresql":
        name = connection.dialect.identifier_preparer.format_table(table)
        connection.execute(text(f"LOCK TABLE {name} IN SHARE MODE"))
    return connection.execute(select(func.max(column)).select_from(table)).scalar_one_or_none()
