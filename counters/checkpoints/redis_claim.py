"""A claim in Redis: it is held as long as one connection to the server is.

The key of a claim holds who took it: the run id of the server and the id of the client, that is, of the
connection. A contender reads it and asks the server whether that client is still connected. A server that was
restarted has another run id, and none of the connections from before. Client ids are never given twice.

    WATCH claim / GET claim / CLIENT LIST ID <client> / INCR epoch / MULTI / SET claim / EXEC

``CLIENT LIST`` is refused inside scripts, hence the watched transaction; of several contenders one wins.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any

import msgspec
from redis import Redis, RedisCluster
from redis.exceptions import RedisError, ResponseError, WatchError

from counters.answering import answering
from counters.checkpoints.claim import Claim
from counters.checkpoints.model import AlreadyRunning, ClaimLost, Fence
from counters.errors import StoreError, StoreUnavailable
from counters.redis import AnyRedis

_RELEASE = """\
if redis.call('GET', KEYS[1]) == ARGV[1] then
  return redis.call('DEL', KEYS[1])
end
return 0
"""


@dataclass(frozen=True, slots=True)
class ClaimKeys:
    """What a claim on ``name`` is kept in: its own key, and the number of claims taken so far."""

    name: str
    claim: str
    epoch: str


class _Holder(msgspec.Struct, frozen=True):
    """What stands in the key of a claim."""

    epoch: int
    run_id: str
    client: int
    runner: str

    def __str__(self) -> str:
        return f"{self.runner} (claim {self.epoch})"


class RedisClaim(Claim):
    """A claim that is held, by a connection of its own that is never opened again."""

    def __init__(self, client: Redis, connection: Redis, keys: ClaimKeys, holder: _Holder) -> None:
        super().__init__(keys.name, holder.epoch, Fence(keys.claim, msgspec.json.encode(holder).decode()))
        self._client = client
        self._connection = connection
        self._id = holder.client

    def check(self) -> None:
        """Make sure that it is still held; keeps the connection from growing idle.

        Raises:
            ClaimLost: the connection is gone, or the claim went to another.
        """
        try:
            # the client opens a connection anew without saying so: then it has another id
            client, token = self._connection.client_id(), self._connection.get(self.fence.key)
        except (RedisError, OSError) as error:
            raise ClaimLost(f"the connection that held the claim on {self.name} ended: {error}") from error
        if client != self._id:
            raise ClaimLost(f"the connection that held the claim on {self.name} ended")
        if token != self.fence.token.encode():
            raise ClaimLost(f"the claim on {self.name} went to another runner")

    def release(self) -> None:
        """Give it back. Never raises: where Redis does not answer, the connection has ended."""
        with contextlib.suppress(RedisError, OSError):
            self._client.eval(_RELEASE, 1, self.fence.key, self.fence.token)
        _hang_up(self._connection)


def take(client: AnyRedis, keys: ClaimKeys, runner: str) -> RedisClaim:
    """Take the claim.

    Raises:
        AlreadyRunning: somebody holds it.
        StoreUnavailable: Redis does not answer, or refuses one of the commands above.
    """
    with answering(keys.claim):
        node = _node(client, keys.claim)
        connection = Redis(connection_pool=node.connection_pool, single_connection_client=True)
        try:
            connection.client_setname(f"counters:{keys.name}")
            holder = _contend(node, connection, keys, runner)
        except BaseException:  # whether it was taken may be unknown: then it ends here
            _hang_up(connection)
            raise
    return RedisClaim(node, connection, keys, holder)


def holder_of(client: AnyRedis, keys: ClaimKeys) -> str | None:
    """Who holds the claim; None: nobody.

    Raises:
        StoreUnavailable: Redis does not answer.
    """
    with answering(keys.claim):
        node = _node(client, keys.claim)
        holder = _decode(node.get(keys.claim))
        return None if holder is None or not _lives(node, holder) else str(holder)


def _hang_up(connection: Redis) -> None:
    """End the connection, which ``close()`` would only give back to its pool."""
    with contextlib.suppress(RedisError, OSError):
        if connection.connection is not None:
            connection.connection.disconnect()  # type: ignore[no-untyped-call]
        connection.close()


def _contend(node: Redis, connection: Redis, keys: ClaimKeys, runner: str) -> _Holder:
    mine = int(connection.client_id())
    with node.pipeline() as pipeline:
        pipeline.watch(keys.claim)  # type: ignore[no-untyped-call]
        holder = _decode(pipeline.get(keys.claim))
        if holder is not None and _lives(pipeline, holder):
            raise AlreadyRunning(keys.name, str(holder))
        run_id = pipeline.info("server")["run_id"]
        new = _Holder(_next_epoch(pipeline, keys), str(run_id), mine, runner)
        pipeline.multi()
        pipeline.set(keys.claim, msgspec.json.encode(new))
        try:
            pipeline.execute()
        except WatchError:
            winner = _decode(node.get(keys.claim))
            text = "another contender was faster" if winner is None else str(winner)
            raise AlreadyRunning(keys.name, text) from None
    return new


def _next_epoch(connection: Any, keys: ClaimKeys) -> int:
    try:
        return int(connection.incr(keys.epoch))
    except ResponseError as error:
        if "integer" not in str(error) and "WRONGTYPE" not in str(error):
            raise
        raise StoreError(f"{keys.epoch} in Redis holds no number; delete it") from error


def _lives(connection: Any, holder: _Holder) -> bool:
    """Whether the connection that took the claim is there."""
    if connection.info("server")["run_id"] != holder.run_id:
        return False
    return bool(connection.client_list(client_id=[holder.client]))


def _decode(value: Any) -> _Holder | None:
    """Who took the claim; None where nobody did, or something else stands there, which protects nothing."""
    try:
        return None if value is None else msgspec.json.decode(value, type=_Holder)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def _node(client: AnyRedis, key: str) -> Redis:
    """The server that has ``key``."""
    if not isinstance(client, RedisCluster):
        return client
    node = client.get_node_from_key(key)  # type: ignore[no-untyped-call]
    if node is None or node.redis_connection is None:
        raise StoreUnavailable(f"no node of the cluster has {key}; check redis.url")
    connection: Redis = node.redis_connection
    return connection
