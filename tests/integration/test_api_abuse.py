"""Requests nobody should send: paths that climb, headers in parameters, bodies that do not end."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import httpx
import pytest
from published import numbered, publish
from redis import Redis
from serving import served

from counters.objects.spec import CounterSpec

CONTENT = CounterSpec("content", precision=14)
MEGABYTE = 1 << 20


@pytest.fixture
def client(redis_client: Redis, redis_url: str) -> Iterator[httpx.Client]:
    publish(redis_client, CONTENT, numbered(10))
    with served(redis_url) as client:
        yield client


def raw(client: httpx.Client, request: bytes) -> bytes:
    """What the server answers to bytes that no client library would send."""
    with socket.create_connection((client.base_url.host, client.base_url.port), timeout=10) as connection:
        connection.sendall(request)
        connection.shutdown(socket.SHUT_WR)
        answer = b""
        while part := connection.recv(65_536):
            answer += part
        return answer


@pytest.mark.parametrize(
    "path",
    [
        "/web/../../pyproject.toml",
        "/web/..%2f..%2fpyproject.toml",
        "/web/%2e%2e/%2e%2e/pyproject.toml",
        "/web/..%5c..%5cpyproject.toml",
        "/web//etc/passwd",
        "/web/style.css%00.html",
        "/web/README.md",
        "/api/v1/badge/../../../etc/passwd.svg",
        "/api/v1/badge/..%2f..%2fetc%2fpasswd.svg",
        "/embed/..%2f..%2fetc%2fpasswd",
        "/api/v1/counts/..%2f..%2fetc%2fpasswd",
    ],
)
def test_no_path_leads_to_a_file(client: httpx.Client, path: str) -> None:
    request = f"GET {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n"
    answer = raw(client, request.encode())
    assert answer.split(b" ", 2)[1] == b"404"
    assert b"root:" not in answer
    assert b"[project]" not in answer


@pytest.mark.parametrize(
    "path",
    [
        "/api/v1/counts/a%0d%0aSet-Cookie:%20x=1",
        "/api/v1/history?types=a%0d%0aSet-Cookie:%20x=1",
        "/api/v1/history?from=%0d%0aSet-Cookie:%20x=1",
        "/api/v1/badge/content.svg?label=%0d%0aSet-Cookie:%20x=1",
        "/unknown%0d%0aSet-Cookie:%20x=1",
    ],
)
def test_no_parameter_becomes_a_header(client: httpx.Client, path: str) -> None:
    answer = client.get(path)
    assert "set-cookie" not in answer.headers
    assert answer.status_code in (200, 404, 422)


@pytest.mark.parametrize("name", ["%ff%fe", "%00", "%F0%9F%A6%86", "a" * 10_000, "%25s%25n"])
def test_any_name_that_does_not_exist_is_404(client: httpx.Client, name: str) -> None:
    answer = client.get(f"/api/v1/counts/{name}")
    assert (answer.status_code, len(answer.content) < 1_000) == (404, True)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("POST", "/api/v1/history/refresh", 403),
        ("POST", "/api/v1/counts", 405),
        ("GET", "/api/v1/counts", 200),
        ("GET", "/api/v1/history", 200),
    ],
)
def test_a_body_of_ten_megabytes_is_not_looked_at(
    client: httpx.Client, method: str, path: str, status: int
) -> None:
    answer = client.request(method, path, content=b"x" * 10 * MEGABYTE)
    assert answer.status_code == status
    assert client.get("/healthz").status_code == 200


def test_a_body_that_never_comes_keeps_nobody_waiting(client: httpx.Client) -> None:
    host, port = client.base_url.host, client.base_url.port
    with socket.create_connection((host, port), timeout=10) as connection:
        connection.sendall(
            b"POST /api/v1/history/refresh HTTP/1.1\r\nHost: test\r\nContent-Length: 9999999\r\n\r\n"
        )
        assert connection.recv(65_536).startswith(b"HTTP/1.1 403")


@pytest.mark.parametrize(
    "request_line",
    [
        b"GET\r\n\r\n",
        b"\x00\x01\x02\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n",
    ],
)
def test_what_is_no_http_is_refused_and_the_server_lives(client: httpx.Client, request_line: bytes) -> None:
    try:
        answer = raw(client, request_line)
    except ConnectionError:
        answer = b""
    assert b" 500 " not in answer[:20]
    assert client.get("/healthz").status_code == 200


def test_thousands_of_types_in_one_question_are_refused(client: httpx.Client) -> None:
    answer = client.get("/api/v1/history", params={"types": ",".join(["content"] * 5_000)})
    assert answer.status_code == 422
