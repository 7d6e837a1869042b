"""The one place where Redis clients are made.

They speak bytes, and they do not try again by themselves: a failed call fails at once and the caller, who
knows what may be repeated, decides.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import SplitResult, unquote, urlsplit

from redis import ConnectionPool, Redis, RedisCluster, RedisError, Sentinel
from redis.backoff import NoBackoff
from redis.cluster import ClusterNode
from redis.connection import Connection, SSLConnection, UnixDomainSocketConnection, parse_url
from redis.exceptions import RedisClusterException
from redis.retry import Retry
from redis.sentinel import MasterNotFoundError

from counters.config import RedisSettings
from counters.errors import SettingsError, StoreUnavailable

AnyRedis = Redis | RedisCluster
"""A client of one server, found directly or through Sentinel, or of a cluster."""

_HEALTH_CHECK = 30
"""Seconds of silence after which a connection is tried before it is used (firewalls forget idle ones)."""

_DIRECT = ("redis", "rediss", "unix")
_SCHEMES = (*_DIRECT, "redis+sentinel", "rediss+sentinel", "redis+cluster", "rediss+cluster")


@dataclass(frozen=True, slots=True)
class RedisAddress:
    """What a URL says.

    Attributes:
        kind: ``server``, ``sentinel`` or ``cluster``.
        hosts: host and port of each server named; empty for a Unix socket.
        options: arguments for the connections (database, user, password, TLS, …).
        service: the name that Sentinel knows the primary by.
        sentinel: arguments for the connections to the Sentinels themselves.
    """

    kind: str
    hosts: tuple[tuple[str, int], ...]
    options: dict[str, Any]
    service: str = ""
    sentinel: dict[str, Any] = field(default_factory=dict)


def connect(settings: RedisSettings) -> AnyRedis:
    """A client for ``redis.url``. Connects when first used; a cluster's asks for the layout now.

    Raises:
        SettingsError: the URL is wrong; the message shows it without its password.
        StoreUnavailable: no node of the cluster answers.
    """
    url = settings.url.get_secret_value()
    try:
        address = parse(url)
        client = _client(address, settings.timeout)
    except (ValueError, TypeError) as error:
        raise SettingsError(f"redis.url {mask_url(url)!r} is wrong: {_reason(error)}") from None
    except (RedisError, RedisClusterException) as error:
        reason = error.__cause__ or error
        raise StoreUnavailable(f"no node of {mask_url(url)} answers ({reason}); check redis.url") from error
    return client


def parse(url: str) -> RedisAddress:
    """Take a URL apart: ``redis://``, ``rediss://`` (TLS), ``unix://``, or plain ``host:port``, and

    - ``redis+sentinel://[user:password@]host:port[,host:port…]/service[/db]``, with ``sentinel_username`` and
      ``sentinel_password`` in the query if the Sentinels want their own;
    - ``redis+cluster://[user:password@]host:port[,host:port…]``.

    ``rediss+sentinel`` and ``rediss+cluster`` use TLS.

    Raises:
        ValueError: it is none of these; says what is wrong, without any part that may be secret.
    """
    parts = urlsplit(url if "://" in url else f"redis://{url}")
    if parts.scheme not in _SCHEMES:
        raise ValueError(f"the scheme must be one of {', '.join(f'{name}://' for name in _SCHEMES)}")
    if parts.fragment:
        raise ValueError("'#' in a user name or password is written %23")
    if parts.scheme == "unix":
        if not parts.path:
            raise ValueError("the path of the socket is missing")
        return RedisAddress("server", (), _options(parts, "", unix=True))
    tls, _, kind = parts.scheme.partition("+")
    default_port = 26379 if kind == "sentinel" else 6379
    hosts = tuple(_host(name, default_port) for name in parts.netloc.rpartition("@")[2].split(","))
    path = [unquote(part) for part in parts.path.strip("/").split("/") if part]
    service = path.pop(0) if kind == "sentinel" and path else ""
    options = _options(parts, path.pop(0) if path else "")
    if path or (kind == "cluster" and options.get("db")):
        raise ValueError(
            "a cluster has no database numbers" if kind == "cluster" else "the path has too many parts"
        )
    if kind == "" and len(hosts) > 1:
        raise ValueError("several hosts need redis+sentinel:// or redis+cluster://")
    if kind == "sentinel" and not service:
        raise ValueError("the service name is missing: redis+sentinel://host:port/service/db")
    if tls == "rediss":
        options["ssl"] = True
    own = {
        "username": options.pop("sentinel_username", None),
        "password": options.pop("sentinel_password", None),
    }
    sentinel = {name: value for name, value in own.items() if value is not None}
    return RedisAddress(kind or "server", hosts, options, service, sentinel)


def mask_url(url: str) -> str:
    """The URL with every password replaced by ``***``; of a wrong URL rather too much is hidden."""
    masked = re.sub(r"^([a-z+]*://)?(?:([^:@/]*):)?.*@", _mask_user, url, flags=re.DOTALL)
    return re.sub(r"([?&][^=&]*password=)[^&]*", r"\1***", masked)


def _mask_user(found: re.Match[str]) -> str:
    scheme, user = found.group(1) or "", found.group(2)
    return f"{scheme}***@" if user is None else f"{scheme}{user}:***@"


def _host(name: str, default_port: int) -> tuple[str, int]:
    if name.count(":") > 1 and not name.startswith("["):
        raise ValueError("an IPv6 address is written in brackets: [::1]:6379")
    parts = urlsplit(f"//{name}")
    try:
        host, port = parts.hostname, parts.port
    except ValueError:  # its message may quote a password that was not escaped
        raise ValueError(
            "the port must be a number up to 65535 (special characters are written %XX)"
        ) from None
    if not host:
        raise ValueError("the host is missing")
    return unquote(host), default_port if port is None else port


def _options(parts: SplitResult, database: str, *, unix: bool = False) -> dict[str, Any]:
    """User, password and query as connection arguments; redis-py knows the types of those in the query."""
    user, at, _ = parts.netloc.rpartition("@")
    options: dict[str, Any] = parse_url(f"redis://{user}{at}host/?{parts.query}")  # type: ignore[no-untyped-call]
    options.pop("host")
    if unix:
        options["path"] = unquote(parts.path)
    if database:
        if not database.isdecimal():
            raise ValueError("the database must be a number")
        options["db"] = int(database)
    return options


def _client(address: RedisAddress, timeout: float) -> AnyRedis:
    limits = {"socket_timeout": timeout, "socket_connect_timeout": timeout, "socket_keepalive": True}
    if "path" in address.options:
        del limits["socket_keepalive"]
    # Forced, whatever the query says: registers are bytes, and the second protocol is what every server,
    # proxy and reply parser agrees on.
    forced = {"decode_responses": False, "protocol": 2, "retry": Retry(NoBackoff(), 0)}
    options = {"health_check_interval": _HEALTH_CHECK, **limits, **address.options, **forced}
    tls = options.pop("ssl", False)
    kind: type[Any] = (
        UnixDomainSocketConnection if "path" in options else SSLConnection if tls else Connection
    )
    kind(**options)  # connects nothing; finds out about arguments that do not exist
    if address.kind == "cluster":
        options.pop("db", None)
        nodes = [ClusterNode(*host) for host in address.hosts]  # type: ignore[no-untyped-call]
        return RedisCluster(startup_nodes=nodes, ssl=tls, **options)
    if address.kind == "sentinel":
        own = {**limits, **address.sentinel, "ssl": tls}
        sentinel: Any = _Sentinel(address.hosts, sentinel_kwargs=own, ssl=tls, **options)  # type: ignore[no-untyped-call]
        primary: Redis = sentinel.master_for(address.service)
        return primary
    if address.hosts:
        options["host"], options["port"] = address.hosts[0]
    return Redis.from_pool(ConnectionPool(connection_class=kind, **options))


class _Sentinel(Sentinel):
    """Says in a line's length that no primary was found; redis-py describes every Sentinel's client."""

    def discover_master(self, service_name: str) -> tuple[str, int]:
        try:
            found: tuple[str, int] = super().discover_master(service_name)  # type: ignore[no-untyped-call]
        except MasterNotFoundError as error:
            silent = str(error).count(" - ")  # one for each that did not answer
            raise MasterNotFoundError(
                f"no Sentinel names a primary for {service_name!r} "
                f"({silent} of {len(self.sentinels)} do not answer); check redis.url"
            ) from None
        return found


def _reason(error: Exception) -> str:
    unknown = re.search(r"unexpected keyword argument '(\w+)'", str(error))
    return f"unknown option {unknown.group(1)!r}" if unknown else str(error)
