"""``/api/v1/checkpoints``: the tasks. Reading is open to everybody, changing takes the token.

However many read, the stores are read once per second, and asked who holds a claim one question at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, TypeVar

import msgspec
from fastapi import APIRouter, HTTPException, Query, Request, Response
from pydantic import SecretStr

from counters.api.bodies import Body
from counters.api.security import check_token
from counters.api.v1 import JSON, WITH_TOKEN, answers
from counters.checkpoints.model import MAX_NAME, AlreadyRunning, NotFound, check_name
from counters.checkpoints.operations import MAX_CURSOR, Operations, Task, TaskAlone, missing
from counters.checkpoints.snapshots import Snapshot, Snapshots
from counters.errors import CountersError, InputError

T = TypeVar("T")

ANSWER_SECONDS = 5.0
"""How long a reader waits for the store."""

DEFAULT_TASKS, MOST_TASKS = 200, 1_000
"""Tasks per answer: what a page can show, and some 500 KB."""

NOT_KEPT = "no-store"

Limit = Annotated[int, Query(ge=1, le=MOST_TASKS, description="Tasks at most")]
After = Annotated[str, Query(max_length=MAX_NAME, description="Only tasks whose names follow this one")]
State = Annotated[
    str | None, Query(max_length=100, description="Only tasks in this state: `idle`, `running`, `paused`, …")
]
Force = Annotated[bool, Query(description="Also while it runs; it starts again at the beginning then")]


@dataclass(frozen=True, slots=True)
class TasksBody:
    """Tasks, ordered by name. ``total`` is how many there are, whether they are in this answer or not; those
    that follow are asked for with ``after``. ``as_of`` is the time by the store's clock.
    """

    as_of: datetime
    total: int
    tasks: list[Task]


@dataclass(frozen=True, slots=True)
class RewindBody:
    """Where the next batch is to start; null, or no body at all: at the beginning."""

    cursor: dict[str, Any] | None = None


_REWIND = {
    "requestBody": {
        "required": False,
        "content": {
            JSON: {
                "schema": {
                    "type": "object",
                    "properties": {"cursor": {"type": ["object", "null"]}},
                    "description": " ".join((RewindBody.__doc__ or "").split()),
                }
            }
        },
    }
}
_READING = answers(JSON, 404, 422, 503)
_WRITING = answers(JSON, 401, 403, 404, 409, 422, 503, cached=False)


def reading_router(reads: TaskReads | None) -> APIRouter:
    """What there is."""
    routes = APIRouter(prefix="/api/v1", tags=["checkpoints"])

    @routes.get("/checkpoints", response_model=TasksBody, responses=_READING)
    async def tasks(
        request: Request, state: State = None, after: After = "", limit: Limit = DEFAULT_TASKS
    ) -> Response:
        """Every task and how far it is, and the positions in the journal (`journal:…`)."""
        snapshot = await _served(reads).current()
        total, rows = snapshot.page(state, after, limit)
        content = TasksBody(snapshot.as_of, total, [Task.of(row) for row in rows])
        return Body.of(msgspec.json.encode(content), JSON).answer(request, NOT_KEPT)

    @routes.get("/checkpoints/{name}", response_model=TaskAlone, responses=_READING)
    async def task(request: Request, name: str) -> Response:
        """One task, and who runs it."""
        found = await _served(reads).alone(name)
        return Body.of(msgspec.json.encode(found), JSON).answer(request, NOT_KEPT)

    return routes


def writing_router(reads: TaskReads | None, token: SecretStr | None) -> APIRouter:
    """What an operator does: only with the token."""
    routes = APIRouter(prefix="/api/v1/checkpoints", tags=["checkpoints"], dependencies=[WITH_TOKEN])

    async def changed(request: Request, name: str, change: Callable[[Operations], None]) -> Response:
        def and_show(operations: Operations) -> TaskAlone:
            change(operations)
            return operations.show(name)

        check_token(request, token)
        shown = await _served(reads).change(and_show)
        return Response(msgspec.json.encode(shown), headers={"cache-control": NOT_KEPT}, media_type=JSON)

    @routes.post("/{name}/pause", response_model=TaskAlone, responses=_WRITING)
    async def pause(request: Request, name: str) -> Response:
        """Have a task stop at its next batch, or not begin at all; its row is created where there is none."""
        return await changed(request, name, lambda operations: operations.pause(name))

    @routes.post("/{name}/resume", response_model=TaskAlone, responses=_WRITING)
    async def resume(request: Request, name: str) -> Response:
        """Let a task run again, from where it stopped."""
        return await changed(request, name, lambda operations: operations.resume(name))

    @routes.post("/{name}/rewind", response_model=TaskAlone, responses=_WRITING, openapi_extra=_REWIND)
    async def rewind(request: Request, name: str) -> Response:
        """Have the next batch start elsewhere. A run in progress goes on there as well."""
        check_token(request, token)
        cursor = await _cursor(request)
        return await changed(request, name, lambda operations: operations.rewind(name, cursor))

    @routes.delete("/{name}", status_code=204, response_class=Response, responses=_WRITING)
    async def delete(request: Request, name: str, force: Force = False) -> Response:
        """Forget a task; also one that is not known. 409 while it runs: pause it first."""
        check_token(request, token)
        await _served(reads).change(lambda operations: operations.delete(name, force=force))
        return Response(status_code=204, headers={"cache-control": NOT_KEPT})

    return routes


class TaskReads:
    """The tasks for all clients of this process. For one event loop."""

    def __init__(self, operations: Operations) -> None:
        self._operations = operations
        self._snapshots = Snapshots(lambda: Snapshot.read(operations))
        self._asking = asyncio.Lock()
        self._holders: tuple[Snapshot | None, dict[str, str | None]] = (None, {})

    @property
    def snapshots(self) -> Snapshots:
        """What metrics read from as well."""
        return self._snapshots

    async def current(self) -> Snapshot:
        """Every row, as it was a moment ago."""
        async with _answering():
            return await self._snapshots.current(ANSWER_SECONDS)

    async def alone(self, name: str) -> TaskAlone:
        """One task and its holder, as they were a moment ago."""
        async with _answering():
            check_name(name)
            snapshot = await self._snapshots.current(ANSWER_SECONDS)
            row = snapshot.find(name)
            if row is None:
                raise missing(name)
            return TaskAlone.held_by(row, await self._holder(name, snapshot))

    async def change(self, change: Callable[[Operations], T]) -> T:
        """Make a change; who reads from now on sees it."""
        with _explained():
            try:
                return await asyncio.to_thread(change, self._operations)
            finally:
                self._snapshots.outdate()

    async def _holder(self, name: str, snapshot: Snapshot) -> str | None:
        async with asyncio.timeout(ANSWER_SECONDS), self._asking:
            if self._holders[0] is not snapshot:
                self._holders = (snapshot, {})
            known = self._holders[1]
            if name not in known:
                known[name] = await asyncio.to_thread(self._operations.holder, name)
            return known[name]


def _served(reads: TaskReads | None) -> TaskReads:
    if reads is None:
        raise HTTPException(404, "this server has no tasks")
    return reads


@asynccontextmanager
async def _answering() -> AsyncIterator[None]:
    """For a reader: why the store does not answer is for operators, it may name addresses."""
    try:
        with _explained():
            yield
    except (HTTPException, TimeoutError) as error:
        if isinstance(error, HTTPException) and error.status_code != 503:
            raise
        raise HTTPException(503, "the tasks could not be read; see the log", {"retry-after": "1"}) from error


@contextmanager
def _explained() -> Iterator[None]:
    """Answers errors as HTTP does."""
    try:
        yield
    except NotFound as error:
        raise HTTPException(404, str(error)) from error
    except InputError as error:
        raise HTTPException(422, str(error)) from error
    except AlreadyRunning as error:
        raise HTTPException(409, f"{error}; pause it and try again when it has stopped") from error
    except CountersError as error:
        raise HTTPException(503, str(error), {"retry-after": "1"}) from error


async def _cursor(request: Request) -> dict[str, Any] | None:
    """The cursor in the body. That is read after the token was, and no further than it may be long."""
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > MAX_CURSOR:
            raise HTTPException(422, f"the body has more than {MAX_CURSOR} bytes")
    if not body:
        return None
    try:
        return msgspec.json.decode(body, type=RewindBody).cursor
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise HTTPException(422, f'the body must be like {{"cursor": {{"done": 5}}}}: {error}') from error
