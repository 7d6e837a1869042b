"""Checkpoints in a database, in its transactions and beside its tables; and how its tables are scanned."""

from __future__ import annotations

import threading

import pytest
from checkpoint_stores import COUNTS, CURSOR, NAME, WRITES, SqlPlace
from sqlalchemy import Column, Integer, MetaData, Table, insert, select
from sqlalchemy.exc import OperationalError

from counters import sql as engines
from counters.checkpoints.model import (
    Advance,
    CursorMoved,
)
from counters.checkpoints.sql_store import create_schema
from counters.checkpoints.watermark import watermark
from counters.errors import SettingsError, StoreError


def test_a_database_without_the_tables_has_no_checkpoints(sql: SqlPlace) -> None:
    sql.remove()
    store = sql.open()
    assert (store.get(NAME), store.list(), store.paused(NAME)) == (None, [], False)


@pytest.mark.parametrize("write", WRITES)
def test_every_write_to_a_database_without_the_tables_says_how_to_make_them(
    sql: SqlPlace, write: str
) -> None:
    sql.remove()
    with pytest.raises(
        StoreError, match="has no tables for checkpoints; counters checkpoints create-tables makes them"
    ):
        WRITES[write](sql.open(), NAME)


def test_the_tables_are_reported_as_a_checkpoint_of_the_system(sql: SqlPlace) -> None:
    sql.remove()
    create_schema(sql.engine)
    create_schema(sql.engine)
    assert [(row.name, row.state) for row in sql.open().list()] == [("schema:core", "applied")]


def test_the_tables_can_be_created_by_several_at_once(sql: SqlPlace) -> None:
    sql.remove()
    failures: list[BaseException] = []

    def create() -> None:
        try:
            create_schema(sql.engine)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=create) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert [row.name for row in sql.open().list()] == ["schema:core"]


def test_a_write_within_the_transaction_of_the_work_is_rolled_back_with_it(sql: SqlPlace) -> None:
    store = sql.open()
    store.put(NAME, CURSOR, COUNTS, "idle")
    with sql.engine.connect() as connection:
        within = store.within(connection)
        within.apply(Advance(NAME, {"row": 8}, {}))
        inside, outside = within.get(NAME), store.get(NAME)
        connection.rollback()
    after = store.get(NAME)
    assert inside is not None
    assert inside.position == {"row": 8}
    assert outside is not None
    assert after is not None
    assert outside.position == after.position == CURSOR


def test_a_refused_write_takes_the_work_of_its_transaction_with_it(sql: SqlPlace) -> None:
    store = sql.open()
    store.put(NAME, CURSOR, COUNTS, "idle")

    def work() -> None:
        with sql.engine.begin() as connection:
            within = store.within(connection)
            within.put("rollup:day", CURSOR, COUNTS, "idle")
            within.apply(Advance(NAME, {"row": 8}, expected="{}"))

    with pytest.raises(CursorMoved):
        work()
    assert [row.name for row in store.list()] == [NAME]


def test_what_a_database_says_is_passed_on_in_one_line_without_the_password() -> None:
    engine = engines.connect("postgresql://user:secret@127.0.0.1:1/none")
    assert engines.reason(engine, ValueError("no such option in 'password=secret'\nhint")) == (
        "no such option in 'password=***'"
    )


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("mysql://user:secret@host/db", "the database is mysql; it must be sqlite or postgresql"),
        ("secret", "the database URL is wrong; write it like sqlite:///file.db"),
        (
            "postgresql://user:secret@host:port/db",
            "the database URL is wrong; write it like sqlite:///file.db",
        ),
    ],
)
def test_a_wrong_database_url_is_refused_without_its_secrets(url: str, message: str) -> None:
    with pytest.raises(SettingsError) as raised:
        engines.connect(url)
    assert str(raised.value) == message


LINES = Table("lines", MetaData(), Column("id", Integer, primary_key=True), Column("text", Integer))


def test_a_scan_up_to_the_watermark_loses_no_line_that_is_committed_late(sql: SqlPlace) -> None:
    LINES.create(sql.engine)
    found: list[int] = []

    def scan(after: int) -> int:
        with sql.engine.begin() as connection:
            top = watermark(connection, LINES, LINES.c.id) or 0
        with sql.engine.connect() as connection:
            ids = select(LINES.c.id).where(LINES.c.id > after, LINES.c.id <= top).order_by(LINES.c.id)
            found.extend(connection.execute(ids).scalars())
        return top

    scanner: list[int] = []
    late = sql.engine.connect()
    late.execute(insert(LINES).values(text=1))  # has the lower number, and is not committed
    if sql.kind == "postgresql":  # SQLite has one writer at a time
        with sql.engine.begin() as connection:
            connection.execute(insert(LINES).values(text=2))
    thread = threading.Thread(target=lambda: scanner.append(scan(0)))
    thread.start()
    thread.join(0.2)
    assert thread.is_alive()  # it waits for the writer
    late.commit()
    late.close()
    thread.join(10)
    with sql.engine.begin() as connection:
        connection.execute(insert(LINES).values(text=3))
    scan(scanner[0])
    with sql.engine.connect() as connection:
        assert found == list(connection.execute(select(LINES.c.id).order_by(LINES.c.id)).scalars())


def test_the_watermark_keeps_writers_out_until_its_transaction_ends(sql: SqlPlace) -> None:
    LINES.create(sql.engine)
    impatient = engines.connect(
        sql.url + ("?options=-clock_timeout=50ms" if sql.kind != "sqlite" else ""), 0.05
    )
    line = insert(LINES).values(text=1)
    with sql.engine.begin() as connection, impatient.connect() as other:
        assert watermark(connection, LINES, LINES.c.id) is None
        with pytest.raises(OperationalError):
            other.execute(line)
        other.rollback()
        connection.commit()
        other.execute(line)
    impatient.dispose()
