"""The endpoints of swh-counters over a real socket and a real Redis, row by row of their contract."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator

import httpx
import pytest
from old_calls import GUARDED, JSON, MSGPACK, TOKEN, call, error_of, post, publish_history, serving
from published import PREFIX, numbered, publish
from redis import Redis

from counters.config import Access, ApiSettings, LegacyApiSettings
from counters.embedded import EmbeddedRedis
from counters.objects.spec import CounterSpec
from journal_client.pytest_plugin import wait_for

READING = ("/check", "/count", "/counts", "/counters", "/history")
WRITING = ("/add", "/refresh_history")


@pytest.fixture
def client(redis_client: Redis, redis_url: str) -> Iterator[httpx.Client]:
    publish(redis_client, CounterSpec("content", precision=16), numbered(100))
    publish(redis_client, CounterSpec("origin", precision=14), numbered(10))
    with serving(redis_url) as client:
        yield client


# -- asking


def test_the_store_is_checked(client: httpx.Client) -> None:
    assert call(client, "/check") is True


def test_a_counter_is_counted(client: httpx.Client) -> None:
    assert call(client, "/count", collection="content") == 100


def test_an_unknown_counter_counts_0(client: httpx.Client) -> None:
    assert call(client, "/count", collection="unknown") == 0


def test_counts_come_in_the_order_asked_for(client: httpx.Client) -> None:
    found = call(client, "/counts", collections=["origin", "unknown", "content"])
    assert list(found.items()) == [("origin", 10), ("unknown", 0), ("content", 100)]


def test_counters_are_listed_as_bytes(client: httpx.Client) -> None:
    assert call(client, "/counters") == [b"content", b"origin"]


def test_names_may_be_the_bytes_that_were_listed(client: httpx.Client) -> None:
    assert call(client, "/counts", collections=call(client, "/counters")) == {"content": 100, "origin": 10}


def test_bytes_in_json_are_tagged(client: httpx.Client) -> None:
    listed = client.post("/counters").json()
    assert [base64.b85decode(name["d"]) for name in listed] == [b"content", b"origin"]
    assert {name["swhtype"] for name in listed} == {"bytes"}


def test_json_is_the_text_it_always_was(client: httpx.Client) -> None:
    answer = client.post("/counts", json={"collections": ["origin", "content"]})
    assert answer.text == '{"origin": 10, "content": 100}'
    assert answer.headers["content-type"] == JSON


def test_the_accept_header_decides_the_encoding(client: httpx.Client) -> None:
    for accept, kind in {"*/*": JSON, "text/html": JSON, JSON: JSON, MSGPACK: MSGPACK}.items():
        answer = client.post("/check", headers={"accept": accept})
        assert (answer.status_code, answer.headers["content-type"]) == (200, kind)


def test_a_count_that_is_not_known_is_left_out_and_not_0(client: httpx.Client, redis_client: Redis) -> None:
    redis_client.set(CounterSpec("origin", precision=14).keys(PREFIX)[0], "foreign")
    asked = {"collections": ["content", "origin"]}
    wait_for(lambda: client.post("/counts", json=asked).json() == {"content": 100})
    assert error_of(post(client, "/count", collection="origin")) == (503, "ConnectionError")


def test_a_count_that_fell_is_not_told(client: httpx.Client, redis_client: Redis) -> None:
    redis_client.delete(*CounterSpec("content", precision=16).keys(PREFIX)[1:])
    asked = {"collections": ["content", "origin"]}
    wait_for(lambda: client.post("/counts", json=asked).json() == {"origin": 10})


# -- adding


@pytest.mark.parametrize(
    "keys",
    [
        [b"a", "a", b"b", 1, "1", 1.5, "1.5"],
        {b"a": b"value", "b": None, 1: [b"x"], 1.5: {}},
    ],
)
def test_keys_are_counted_as_redis_sees_them(client: httpx.Client, keys: object) -> None:
    assert post(client, "/add", collection="release", keys=keys).content == b"\xc0"
    assert call(client, "/count", collection="release") == 4


def test_what_was_added_is_seen_at_once(redis_client: Redis, redis_url: str) -> None:
    with serving(redis_url, interval=60) as client:
        for size in (1, 2, 3):
            call(client, "/add", collection="release", keys=numbered(size))
            assert call(client, "/counts", collections=["release"]) == {"release": size}
        assert call(client, "/counters") == [b"release"]


def test_keys_in_json_may_be_tagged_bytes(client: httpx.Client) -> None:
    keys = [{"swhtype": "bytes", "d": base64.b85encode(b"a").decode()}, "a"]
    answer = client.post("/add", json={"collection": "release", "keys": keys})
    assert (answer.status_code, answer.text) == (200, "null")
    assert call(client, "/count", collection="release") == 1


def test_adding_nothing_makes_no_counter(client: httpx.Client) -> None:
    for nothing in ([], {}, {None: b"value"}):
        assert call(client, "/add", collection="release", keys=nothing) is None
    assert call(client, "/counters") == [b"content", b"origin"]


def test_a_key_of_no_kind_that_redis_stores_is_refused(client: httpx.Client) -> None:
    for key in (None, True, [b"a"], {b"a": 1}):
        answer = post(client, "/add", collection="release", keys=[b"a", key])
        assert error_of(answer) == (400, "TypeError")
    assert call(client, "/count", collection="release") == 0


def test_a_record_without_key_costs_the_batch_nothing(client: httpx.Client) -> None:
    call(client, "/add", collection="release", keys={b"a": b"value", None: b"value"})
    assert call(client, "/count", collection="release") == 1


def test_a_name_that_no_topic_could_have_is_refused(client: httpx.Client, redis_client: Redis) -> None:
    before = set(redis_client.keys())
    for name in ("", ".", "..", "a b", "../content", "{counters}:registry", "a\r\nb", "a\n", "x" * 201):
        assert error_of(post(client, "/add", collection=name, keys=[b"a"])) == (400, "ValueError")
    assert set(redis_client.keys()) == before


def test_adding_to_a_foreign_value_is_an_error_of_that_counter(
    client: httpx.Client, redis_client: Redis
) -> None:
    redis_client.set(CounterSpec("origin", precision=14).keys(PREFIX)[0], "foreign")
    assert error_of(post(client, "/add", collection="origin", keys=[b"a"])) == (500, "RuntimeError")
    assert call(client, "/add", collection="content", keys=[b"a"]) is None


# -- who may


def test_what_writes_is_off_unless_enabled(redis_url: str) -> None:
    with serving(redis_url, ApiSettings(), refresh=lambda: None) as client:
        assert error_of(post(client, "/add", collection="a", keys=[b"a"])) == (403, "PermissionError")
        refused = post(client, "/refresh_history", cache_file="history.json")
        assert error_of(refused) == (403, "PermissionError")
        assert call(client, "/counters") == []


def basic(password: str) -> str:
    return "Basic " + base64.b64encode(f"anybody:{password}".encode()).decode()


WRONG = [
    "",
    "Bearer",
    f"Bearer {TOKEN}x",
    f"Bearer {TOKEN[:-1]}",
    "Bearer än erfundenes Zeichen",
    TOKEN,
    f"Digest {TOKEN}",
    basic("wrong"),
    "Basic %%%",
    "Basic",
]


def test_a_wrong_token_is_refused(redis_url: str) -> None:
    body = {"collection": "release", "keys": ["a"]}
    with serving(redis_url, GUARDED) as client:
        for wrong in (None, *WRONG):
            headers = {} if wrong is None else {b"authorization": wrong.encode("latin-1")}
            answer = client.post("/add", json=body, headers=headers)
            assert error_of(answer) == (401, "PermissionError"), wrong
            assert answer.headers["www-authenticate"].startswith("Bearer")
        assert call(client, "/counters") == []


def test_who_has_the_token_may_write(redis_url: str) -> None:
    with serving(redis_url, GUARDED, refresh=lambda: None) as client:
        for number, right in enumerate([f"Bearer {TOKEN}", f"bearer  {TOKEN}", basic(TOKEN)], start=1):
            client.headers["authorization"] = right
            assert call(client, "/add", collection="release", keys=[number]) is None
            assert call(client, "/count", collection="release") == number
        assert call(client, "/refresh_history", cache_file="history.json") is None


# -- errors


MISTAKES = [
    ("/counts", b"", JSON, (400, "TypeError")),
    ("/counts", b'{"collection": "content"}', JSON, (400, "TypeError")),
    ("/count", b'{"collection": "content", "more": 1}', JSON, (400, "TypeError")),
    ("/count", b'{"collection": ["content"]}', JSON, (400, "TypeError")),
    ("/counts", b'{"collections": "content"}', JSON, (400, "TypeError")),
    ("/counts", b'{"collections": [1]}', JSON, (400, "TypeError")),
    ("/check", b"{", JSON, (400, "ValueError")),
    ("/check", b"[]", JSON, (400, "TypeError")),
    ("/check", b"\xc1", MSGPACK, (400, "ValueError")),
    ("/check", b"{}", "text/plain", (415, "ValueError")),
]


def test_a_mistake_of_the_caller_is_a_4xx_that_names_it(client: httpx.Client) -> None:
    for path, content, kind, expected in MISTAKES:
        answer = client.post(path, content=content, headers={"content-type": kind})
        assert error_of(answer) == expected, (path, content)


def test_an_error_is_json_for_who_asks_for_json(client: httpx.Client) -> None:
    answer = client.post("/counts", headers={"accept": JSON})
    assert (answer.status_code, answer.headers["content-type"]) == (400, JSON)
    assert answer.json()["type"] == "TypeError"


def test_calls_are_posts(client: httpx.Client) -> None:
    for path in (*READING, *WRITING):
        for method in ("GET", "HEAD", "PUT", "DELETE", "OPTIONS"):
            answer = client.request(method, path)
            assert (answer.status_code, answer.headers["allow"]) == (405, "POST"), (method, path)
            assert answer.headers["content-type"] == MSGPACK


def test_an_unknown_path_is_404(client: httpx.Client) -> None:
    assert post(client, "/remove").status_code == 404


def test_an_error_shows_no_paths_of_the_server(client: httpx.Client) -> None:
    answer = client.post("/counts", content=b"{", headers={"content-type": JSON})
    assert b".py" not in answer.content
    assert b"/" + b"usr" not in answer.content


@pytest.mark.parametrize("path", ["/counts", "/add"])
def test_a_body_of_10_mb_is_refused_where_less_is_expected(redis_url: str, path: str) -> None:
    api = ApiSettings(legacy=LegacyApiSettings(add=Access.OPEN, max_body=1_000_000))
    with serving(redis_url, api) as client:
        assert error_of(post(client, path, collection="a", keys=[b"x" * 10_000_000])) == (413, "ValueError")
        assert call(client, "/counters") == []


def test_a_batch_of_10_mb_is_counted(client: httpx.Client) -> None:
    batch = dict.fromkeys(numbered(100), b"x" * 100000)
    assert call(client, "/add", collection="release", keys=batch) is None
    assert call(client, "/count", collection="release") == 100


def test_many_small_keys_are_counted_within_the_error(client: httpx.Client) -> None:
    assert call(client, "/add", collection="release", keys=numbered(50_000)) is None
    counted = call(client, "/count", collection="release")
    assert abs(counted - 50_000) < 3 * CounterSpec("release", precision=16).standard_error * 50_000


def test_no_answer_is_chunked_or_empty(client: httpx.Client, redis_client: Redis) -> None:
    publish_history(redis_client)
    wait_for(lambda: client.get("/counters_history/history.json").status_code == 200)
    answers = [
        post(client, "/check"),
        post(client, "/counts", collections=["content"]),
        post(client, "/add", collection="release", keys=numbered(3)),
        post(client, "/history", cache_file="history.json"),
        post(client, "/nothing"),
        post(client, "/counts"),
        client.get("/counts"),
        client.get("/"),
        client.get("/counters_history/history.json"),
        client.get("/counters_history/other.json"),
    ]
    for answer in answers:
        assert int(answer.headers["content-length"]) == len(answer.content) > 0, answer.request.url
        assert "transfer-encoding" not in answer.headers
        assert answer.headers["content-type"]


# -- the root


def test_tools_get_the_old_greeting(client: httpx.Client) -> None:
    client.headers.pop("accept")
    for accept in (None, "*/*", JSON, "text/plain"):
        answer = client.get("/", headers={} if accept is None else {"accept": accept})
        assert (answer.status_code, answer.text) == (200, "SWH Counters API server")
        assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert "accept" in answer.headers["vary"].split(", ")


def test_browsers_get_the_page_also_while_redis_is_down(own_redis: Callable[..., EmbeddedRedis]) -> None:
    server = own_redis()
    browser = {"accept": "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"}
    with serving(server.url) as client:
        server.kill()
        wait_for(lambda: client.get("/").status_code == 503)
        answer = client.get("/", headers=browser)
    assert answer.status_code == 200
    assert answer.text.startswith("<!doctype html>")
    assert "accept" in answer.headers["vary"].split(", ")
