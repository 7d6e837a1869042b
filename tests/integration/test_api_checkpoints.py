"""``/api/v1/checkpoints``: open to read, with the token to change, and never a burden to Redis."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from urllib.parse import quote

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from published import GROUP, PREFIX
from pydantic import SecretStr
from redis import Redis
from serving import SETTINGS, running, served

from counters.api.app import create_app
from counters.checkpoints.model import Advance
from counters.checkpoints.redis_store import RedisCheckpoints
from counters.config import ApiSettings
from counters.embedded import EmbeddedRedis
from counters.objects.spec import Count
from journal_client.pytest_plugin import wait_for

URL = "/api/v1/checkpoints"
BACKFILL = "backfill:content"
TOKEN = "correct horse"
GUARDED = SETTINGS.model_copy(update={"api": ApiSettings(token=SecretStr(TOKEN))})
CHANGES = [("POST", f"{BACKFILL}/pause"), ("POST", f"{BACKFILL}/resume"), ("POST", f"{BACKFILL}/rewind")]
CHANGES += [("DELETE", BACKFILL)]


@pytest.fixture
def store(redis_client: Redis) -> RedisCheckpoints:
    """One task, which does not run."""
    store = RedisCheckpoints(redis_client, PREFIX)
    cursor, counts = {"done": 3, "total": 4}, {"examined": 3, "note": "a"}
    store.apply(Advance(BACKFILL, cursor, counts, runner="ann/17", ok=2, failed=1))
    return store


@pytest.fixture
def client(redis_url: str, store: RedisCheckpoints) -> Iterator[httpx.Client]:
    """A client that knows the token."""
    with served(redis_url, settings=GUARDED) as client:
        client.headers["authorization"] = f"Bearer {TOKEN}"
        yield client


def is_problem(answer: httpx.Response, status: int, detail: str) -> bool:
    return (
        answer.status_code == answer.json()["status"] == status
        and answer.headers["content-type"] == "application/problem+json"
        and detail in answer.json()["detail"]
    )


def test_everybody_may_see_every_task(client: httpx.Client) -> None:
    del client.headers["authorization"]
    answer = client.get(URL)
    [task] = answer.json()["tasks"]
    assert (answer.status_code, answer.json()["total"]) == (200, 1)
    assert answer.headers["cache-control"] == "no-store"
    assert (task["name"], task["state"], task["progress"]) == (BACKFILL, "running", 0.75)
    assert (task["cursor"], task["counts"]) == ({"done": 3, "total": 4}, {"examined": 3, "note": "a"})
    assert (task["runner"], task["items"]) == ("ann/17", {"ok": 2, "failed": 1})


def test_one_task_is_shown_with_who_runs_it(client: httpx.Client, store: RedisCheckpoints) -> None:
    with store.claim(BACKFILL, "ann/17"):
        answer = client.get(f"{URL}/{BACKFILL}")
    assert answer.status_code == 200
    assert answer.json()["holder"].startswith("ann/17 (claim ")


def test_positions_in_the_journal_are_in_the_list(client: httpx.Client, redis_client: Redis) -> None:
    redis_client.hset(f"{{{PREFIX}}}:offsets:{GROUP}", "objects.content:3", 12)
    tasks = {task["name"]: task for task in client.get(URL).json()["tasks"]}
    assert tasks["journal:readers"]["cursor"] == {"objects.content[3]": 12}
    assert client.get(f"{URL}/journal:readers").json()["state"] == "active"
    assert is_problem(client.post(f"{URL}/journal:readers/pause"), 422, "written by the system")


def test_the_list_is_of_one_state_and_of_one_page(client: httpx.Client, store: RedisCheckpoints) -> None:
    for number in range(5):
        store.pause(f"rebuild:n{number}")
    first = client.get(URL, params={"state": "paused", "limit": 2}).json()
    names = [task["name"] for task in first["tasks"]]
    rest = client.get(URL, params={"state": "paused", "after": names[-1]}).json()
    names += [task["name"] for task in rest["tasks"]]
    assert first["total"] == rest["total"] == 5
    assert names == [f"rebuild:n{number}" for number in range(5)]


def test_a_pause_is_seen_at_once(client: httpx.Client, store: RedisCheckpoints) -> None:
    assert client.get(f"{URL}/{BACKFILL}").json()["state"] == "running"
    answer = client.post(f"{URL}/{BACKFILL}/pause")
    assert (answer.status_code, answer.json()["state"]) == (200, "paused")
    assert client.get(f"{URL}/{BACKFILL}").json()["state"] == "paused"
    assert store.paused(BACKFILL)
    assert client.post(f"{URL}/{BACKFILL}/resume").json()["state"] == "idle"
    assert not store.paused(BACKFILL)


@pytest.mark.parametrize(
    ("body", "cursor"),
    [(b"", {}), (b"{}", {}), (b'{"cursor": null}', {}), (b'{"cursor": {"a": [1]}}', {"a": [1]})],
)
def test_rewinding_sets_the_cursor(client: httpx.Client, body: bytes, cursor: dict[str, object]) -> None:
    answer = client.post(f"{URL}/{BACKFILL}/rewind", content=body)
    assert (answer.status_code, answer.json()["cursor"]) == (200, cursor)
    assert answer.json()["counts"] == {"examined": 3, "note": "a"}


@pytest.mark.parametrize(
    "body", [b"{", b"[]", b'{"cursor": 5}', b'{"cursor":' + b'{"a":' * 9_000, b"\xff", b"x" * 70_000]
)
def test_a_body_that_is_none_is_422(client: httpx.Client, store: RedisCheckpoints, body: bytes) -> None:
    assert is_problem(client.post(f"{URL}/{BACKFILL}/rewind", content=body), 422, "body")
    row = store.get(BACKFILL)
    assert row is not None
    assert row.position == {"done": 3, "total": 4}


def test_deleting_succeeds_whether_there_is_something_or_not(client: httpx.Client) -> None:
    assert [client.delete(f"{URL}/{BACKFILL}").status_code for _ in range(2)] == [204, 204]
    assert client.get(URL).json()["tasks"] == []


def test_a_task_that_runs_is_deleted_only_by_force(client: httpx.Client, store: RedisCheckpoints) -> None:
    with store.claim(BACKFILL, "ann/17"):
        assert is_problem(client.delete(f"{URL}/{BACKFILL}"), 409, "ann/17")
        assert store.get(BACKFILL) is not None
        assert client.delete(f"{URL}/{BACKFILL}", params={"force": True}).status_code == 204
    assert store.get(BACKFILL) is None


@pytest.mark.parametrize(("method", "path"), CHANGES)
def test_changing_takes_the_token(client: httpx.Client, method: str, path: str) -> None:
    client.headers["authorization"] = "Bearer wrong"
    refused = client.request(method, f"{URL}/{path}")
    assert is_problem(refused, 401, "api.token")
    assert refused.headers["www-authenticate"].startswith("Bearer")
    assert client.get(f"{URL}/{BACKFILL}").json()["state"] == "running"


@pytest.mark.parametrize(("method", "path"), CHANGES)
def test_without_a_configured_token_nobody_changes_anything(
    redis_url: str, store: RedisCheckpoints, method: str, path: str
) -> None:
    with served(redis_url) as client:
        assert is_problem(client.request(method, f"{URL}/{path}"), 403, "set api.token")
    assert store.get(BACKFILL) is not None


@pytest.mark.parametrize("path", ["", "/resume", "/rewind"])
def test_a_task_that_does_not_exist_is_404(client: httpx.Client, path: str) -> None:
    method = "POST" if path else "GET"
    assert is_problem(client.request(method, f"{URL}/backfill:origin{path}"), 404, "no task backfill:origin")


@pytest.mark.parametrize("name", ["events_backfill", ":global", "CreditExpiry:global", "a b:c", "<b>:x"])
def test_what_is_no_name_of_a_task_is_422(client: httpx.Client, name: str) -> None:
    path = f"{URL}/{quote(name)}"
    asked = [client.get(path), client.delete(path)]
    asked += [client.post(f"{path}/{verb}") for verb in ("pause", "resume", "rewind")]
    assert all(is_problem(answer, 422, "no name of a task") for answer in asked)


def test_a_server_without_tasks_says_so() -> None:
    class Nothing:
        def read(self) -> list[Count]:
            return []

    with running(create_app(SETTINGS, Nothing())) as address:
        assert is_problem(httpx.get(f"{address}{URL[1:]}"), 404, "no tasks")


def test_a_redis_that_is_gone_is_503_and_names_no_address(own_redis: Callable[..., EmbeddedRedis]) -> None:
    server = own_redis()
    with served(server.url, settings=GUARDED) as client:
        assert client.get(URL).status_code == 200
        server.kill()
        wait_for(lambda: client.get(URL).status_code == 503)
        for path in (URL, f"{URL}/{BACKFILL}"):
            answer = client.get(path)
            assert is_problem(answer, 503, "could not be read")
            assert "127.0.0.1" not in answer.text
        change = client.post(f"{URL}/{BACKFILL}/pause", headers={"authorization": f"Bearer {TOKEN}"})
        assert is_problem(change, 503, "Redis does not answer")


@contextmanager
def commands(redis: Redis, command: str) -> Iterator[Callable[[], int]]:
    """How often a command was run since."""

    def calls() -> int:
        known = redis.info("commandstats").get(f"cmdstat_{command}", {"calls": 0})
        return int(known["calls"])

    before = calls()
    yield lambda: calls() - before


def test_however_many_read_redis_is_asked_once_a_second(
    client: httpx.Client, redis_client: Redis, store: RedisCheckpoints
) -> None:
    client.get(URL)
    with (
        store.claim(BACKFILL),
        commands(redis_client, "hscan") as scans,
        commands(redis_client, "client|list") as questions,
    ):
        with ThreadPoolExecutor(8) as readers:
            paths = [URL, f"{URL}/{BACKFILL}", f"{URL}?state=paused", "/metrics"] * 50
            statuses = {answer.status_code for answer in readers.map(client.get, paths)}
        assert statuses == {200}
        assert scans() <= 6  # in as many seconds, on a busy machine
        assert 1 <= questions() <= 6


def test_the_metrics_have_the_tasks(client: httpx.Client, store: RedisCheckpoints) -> None:
    client.post(f"{URL}/{BACKFILL}/pause")

    def samples() -> dict[tuple[str, ...], float]:
        families = text_string_to_metric_families(client.get("/metrics").text)
        return {(s.name, *sorted(s.labels.values())): s.value for family in families for s in family.samples}

    wait_for(lambda: ("task_paused", BACKFILL) in samples())
    found = samples()
    assert found["task_paused", BACKFILL] == 1
    assert abs(found["task_last_progress_timestamp_seconds", BACKFILL] - store.now().timestamp()) < 60
    assert found["batch_items_total", BACKFILL, "ok"] == 2
    assert found["batch_items_total", BACKFILL, "failed"] == 1
