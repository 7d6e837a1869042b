"""Tables, badges, files, caching, and what other sites may do: the small print of the API."""

from __future__ import annotations

import csv
import gzip
import io
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from xml.etree import ElementTree

import httpx
import pytest
from published import PREFIX, numbered, publish
from redis import Redis
from serving import publish_history, served

from counters.api import openapi
from counters.api.assets import ASSETS
from counters.api.badge import NUMBER, badge, short
from counters.embedded import EmbeddedRedis
from counters.objects.spec import Count, CounterSpec
from journal_client.pytest_plugin import wait_for

CONTENT = CounterSpec("content", precision=14)
HOSTILE = '"><script>alert(1)</script>&'


@pytest.fixture
def client(redis_client: Redis, redis_url: str) -> Iterator[httpx.Client]:
    publish(redis_client, CONTENT, numbered(1_234), messages=5_000, stamp=1_700_000_000_000)
    publish(redis_client, CounterSpec("broken", precision=14))
    redis_client.set(CounterSpec("broken", precision=14).keys(PREFIX)[0], "foreign")
    publish_history(redis_client, content=[(1_700_000_000, 1), (1_700_050_000, 2)])
    with served(redis_url, interval=0.2) as client:
        yield client


def value(client: httpx.Client) -> int:
    return int(client.get("/api/v1/counts/content").json()["value"])


def test_the_table_has_a_line_per_counter_and_nothing_where_nothing_is_known(client: httpx.Client) -> None:
    answer = client.get("/api/v1/counts.csv")
    assert answer.headers["content-type"].startswith("text/csv")
    broken, content = csv.DictReader(io.StringIO(answer.text))
    assert (content["type"], content["value"], content["messages"]) == ("content", str(value(client)), "5000")
    assert (broken["value"], broken["standard_error"], "WRONGTYPE" in broken["reason"]) == ("", "", True)


def test_a_name_like_a_formula_is_text_for_a_spreadsheet(client: httpx.Client, redis_client: Redis) -> None:
    publish(redis_client, CounterSpec("=1+1", precision=14), [b"a"])
    wait_for(lambda: "'=1+1," in client.get("/api/v1/counts.csv").text)


def test_a_badge_shows_the_number_in_short_and_in_full(client: httpx.Client) -> None:
    answer = client.get("/api/v1/badge/content.svg")
    assert (answer.headers["content-type"], answer.headers["cache-control"]) == (
        "image/svg+xml",
        "public, max-age=60",
    )
    picture = ElementTree.fromstring(answer.content)
    texts = [element.text for element in picture.iter("{http://www.w3.org/2000/svg}text")]
    assert texts == ["content", short(value(client))]
    assert f"content: {value(client):,} ± " in picture.attrib["aria-label"]


def test_a_badge_of_what_cannot_be_read_says_unknown(client: httpx.Client) -> None:
    assert ">unknown<" in client.get("/api/v1/badge/broken.svg").text


def test_a_label_cannot_leave_the_picture(client: httpx.Client, redis_client: Redis) -> None:
    answer = client.get("/api/v1/badge/content.svg", params={"label": HOSTILE})
    picture = ElementTree.fromstring(answer.content)
    assert not list(picture.iter("{http://www.w3.org/2000/svg}script"))
    assert HOSTILE in picture.attrib["aria-label"]


def test_a_badge_of_an_unknown_type_is_404(client: httpx.Client) -> None:
    assert client.get("/api/v1/badge/unknown.svg").status_code == 404


@pytest.mark.parametrize(
    ("number", "shown"),
    [
        (0, "0"),
        (999, "999"),
        (1_000, "1.00k"),
        (12_345, "12.3k"),
        (999_499, "999k"),
        (999_500, "1.00M"),
        (27_480_123_456, "27.5B"),
        (10**15, "1000T"),
    ],
)
def test_short_numbers_have_three_digits(number: int, shown: str) -> None:
    assert short(number) == shown


@pytest.mark.parametrize(
    "path",
    [
        "/api/v1/counts",
        "/api/v1/counts/content",
        "/api/v1/counts.csv",
        "/api/v1/history",
        "/api/v1/history.csv",
        "/api/v1/badge/content.svg",
    ],
)
def test_what_the_client_has_is_not_sent_again(client: httpx.Client, path: str) -> None:
    etag = client.get(path).headers["etag"]
    answer = client.get(path, headers={"if-none-match": f'"other", {etag}'})
    assert (answer.status_code, answer.content) == (304, b"")
    assert answer.headers["access-control-allow-origin"] == "*"
    assert "max-age" in answer.headers["cache-control"]


def test_head_is_get_without_the_body(client: httpx.Client) -> None:
    for path in ("/api/v1/counts", "/api/v1/history", "/api/v1/badge/content.svg"):
        head = client.head(path)
        assert (head.status_code, head.content) == (200, b"")
        assert int(head.headers["content-length"]) > 100


def test_a_large_answer_is_compressed_for_who_takes_it(client: httpx.Client, redis_client: Redis) -> None:
    publish_history(redis_client, content=[(1_700_000_000 + n, n) for n in range(2_000)])
    wait_for(lambda: len(client.get("/api/v1/history").content) > 10_000)
    with client.stream("GET", "/api/v1/history", headers={"accept-encoding": "gzip"}) as answer:
        packed = b"".join(answer.iter_raw())
        assert (answer.headers["content-encoding"], answer.headers["vary"]) == ("gzip", "accept-encoding")
    plain = client.get("/api/v1/history", headers={"accept-encoding": "gzip;q=0"})
    assert "content-encoding" not in plain.headers
    assert gzip.decompress(packed) == plain.content
    assert len(packed) < len(plain.content) / 2


@pytest.mark.parametrize("path", ["/api/v1/counts", "/api/v1/unknown", "/api/v1/history?from=never"])
def test_scripts_of_other_sites_may_read_every_answer(client: httpx.Client, path: str) -> None:
    assert client.get(path).headers["access-control-allow-origin"] == "*"


def test_scripts_of_other_sites_may_ask_whether_something_changed(client: httpx.Client) -> None:
    asks = {"origin": "https://example.org", "access-control-request-method": "GET",
            "access-control-request-headers": "if-none-match"}  # fmt: skip
    answer = client.options("/api/v1/counts", headers=asks)
    assert answer.status_code == 204
    assert "if-none-match" in answer.headers["access-control-allow-headers"]
    assert "POST" not in answer.headers["access-control-allow-methods"]


@pytest.mark.parametrize("name", ASSETS)
def test_files_of_the_page_are_served_once_per_version(client: httpx.Client, name: str) -> None:
    answer = client.get(f"/web/{name}")
    assert answer.headers["content-type"].startswith(ASSETS[name])
    again = client.get(f"/web/{name}", headers={"if-none-match": answer.headers["etag"]})
    assert (answer.status_code, again.status_code) == (200, 304)


def test_only_the_embeddable_page_may_be_framed(client: httpx.Client) -> None:
    embed = client.get("/embed/content")
    assert (embed.status_code, "1,2" in embed.text or "1\u202f2" in embed.text) == (200, True)
    assert "frame-ancestors *" in embed.headers["content-security-policy"]
    page = client.get("/", headers={"accept": "text/html"})
    assert "frame-ancestors 'none'" in page.headers["content-security-policy"]
    assert client.get("/embed/unknown").status_code == 404


def test_the_committed_description_is_that_of_the_code() -> None:
    assert openapi.main(["--check"]) == 0


def test_reading_again_changes_no_tag_and_replicas_agree(client: httpx.Client, redis_url: str) -> None:
    paths = ("/api/v1/counts", "/api/v1/counts/content", "/api/v1/counts.csv")
    tags = {path: client.get(path).headers["etag"] for path in paths}
    before = client.get(paths[0]).json()["as_of"]
    wait_for(lambda: client.get(paths[0]).json()["as_of"] != before)
    with served(redis_url) as replica:
        for path, tag in tags.items():
            assert client.get(path, headers={"if-none-match": tag}).status_code == 304, path
            assert replica.get(path).headers["etag"] == tag, path


def test_a_counter_that_did_not_change_keeps_its_tag_when_another_does(
    client: httpx.Client, redis_client: Redis
) -> None:
    one, both = (client.get(path).headers["etag"] for path in ("/api/v1/counts/broken", "/api/v1/counts"))
    publish(redis_client, CONTENT, numbered(3_000))
    wait_for(lambda: client.get("/api/v1/counts").headers["etag"] != both)
    assert client.get("/api/v1/counts/broken").headers["etag"] == one


def test_what_is_stale_says_so_everywhere(own_redis: Callable[..., EmbeddedRedis]) -> None:
    server = own_redis()
    with Redis.from_url(server.url) as redis:
        publish(redis, CONTENT, numbered(10))
    with served(server.url) as client:
        fresh = client.get("/api/v1/counts/content")
        assert (fresh.json()["stale"], fresh.json()["age_seconds"]) == (False, 0)
        server.kill()
        wait_for(lambda: client.get("/api/v1/counts/content").json()["stale"])
        assert client.get("/api/v1/counts/content").headers["etag"] != fresh.headers["etag"]
        [row] = csv.DictReader(io.StringIO(client.get("/api/v1/counts.csv").text))
        assert (row["stale"], row["age_seconds"].isdigit()) == ("true", True)
        picture = client.get("/api/v1/badge/content.svg").text
    assert (">10 stale<" in picture, NUMBER in picture) == (True, False)


def test_a_badge_of_a_number_that_fell_is_grey_and_says_suspect() -> None:
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    picture = badge(Count("content", 5, 0.01, updated_at=None, as_of=moment, suspect=True)).decode()
    assert (">5 suspect<" in picture, NUMBER in picture) == (True, False)


def test_a_label_with_control_characters_is_still_a_picture(client: httpx.Client) -> None:
    answer = client.get("/api/v1/badge/content.svg", params={"label": "a\x00\x1b\ufffeb"})
    assert ElementTree.fromstring(answer.content).attrib["aria-label"].startswith("a   b: ")
