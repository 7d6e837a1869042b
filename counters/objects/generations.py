"""A counter counted once more into new strata, while it goes on: begin, then switch or abandon.

Between ``begin`` and ``switch`` the registry entry of the counter names a successor, and every flush goes
into both generations: flushes compare the entry, so that none passes which knows less. What was flushed
before lies below the positions stored at ``begin``; whoever rebuilds counts that into the successor, and
then switches. Keys that came from clients instead of the journal are in the successor from ``begin`` on only.

When either generation lost keys, whoever repairs the counter gives up the successor: ``switch`` then refuses,
and ``begin`` begins anew.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from counters.config import MAX_PRECISION, MIN_PRECISION
from counters.errors import InputError, StoreError
from counters.objects.server import EMPTY, Server
from counters.objects.spec import CounterSpec, Successor, decode_spec, encode_spec
from counters.objects.store import Stale
from counters.redis import AnyRedis


class Generations:
    """Which generations the counters under ``prefix`` have.

    Every method is one atomic step, and raises :class:`~journal_client.errors.Unavailable` when Redis is
    down, full or read-only.
    """

    def __init__(self, client: AnyRedis, prefix: str) -> None:
        self._server = Server(client)
        self._prefix = prefix
        self._registry = f"{{{prefix}}}:registry"
        self._succeed = self._server.script("succeed")

    def begin(self, name: str, precision: int) -> CounterSpec:
        """Give a counter a successor, empty. A successor of this precision that it has already is kept.

        Raises:
            InputError: there is no such counter, or no such precision.
            StoreError: it has a successor of another precision.
        """
        if not MIN_PRECISION <= precision <= MAX_PRECISION:
            raise InputError(f"precision {precision} is not {MIN_PRECISION} to {MAX_PRECISION}")
        while True:  # until nobody else changes the entry in between
            entry, spec = self._entry(name)
            if spec.successor is not None and spec.successor.precision != precision:
                raise StoreError(
                    f"counter {name} is being rebuilt to precision {spec.successor.precision}, not to "
                    f"{precision}; finish or abandon that rebuild first"
                )
            if spec.following is not None and self._is_whole(spec.following):
                return spec
            successor = CounterSpec(name, precision, spec.generation + 1)
            begun = msgspec.structs.replace(
                spec, epoch=spec.epoch + 1, successor=Successor(precision, successor.generation)
            )
            strata = successor.keys(self._prefix)
            if self._change(entry, begun, created=strata, deleted=self._possible(spec)[len(strata) :]):
                return begun

    def switch(self, spec: CounterSpec) -> CounterSpec:
        """Let the successor of ``spec`` take its place; what it replaces is deleted. Switching again changes
        nothing.

        Raises:
            Stale: the counter is not as ``spec`` says any more, or its successor lost keys: begin anew.
            StoreError: a key of the successor holds something that is not a HyperLogLog.
        """
        following = spec.following
        if following is None:
            raise Stale
        # Not adopted any more: it holds what the journal held, and nothing from before.
        switched = msgspec.structs.replace(following, epoch=spec.epoch + 1)
        entry, registered = self._entry(spec.name)
        if registered == switched:
            return switched
        old, new = spec.keys(self._prefix), following.keys(self._prefix)
        if registered != spec or not self._change(entry, switched, needed=new, deleted=old):
            raise Stale
        return switched

    def abandon(self, name: str) -> bool:
        """Leave nothing of a successor. Returns whether there was one.

        Raises:
            InputError: there is no such counter.
        """
        while True:  # until nobody else changes the entry in between
            entry, spec = self._entry(name)
            if spec.successor is None:
                return False
            alone = msgspec.structs.replace(spec, epoch=spec.epoch + 1, successor=None)
            if self._change(entry, alone, deleted=self._possible(spec)):
                return True

    def _entry(self, name: str) -> tuple[bytes, CounterSpec]:
        with self._server.available():
            registry = self._server.client.hgetall(self._registry)
        entry = registry.get(name.encode())
        if entry is None:
            known = sorted(bytes(other).decode(errors="replace") for other in registry)  # type: ignore[arg-type]
            raise InputError(f"no counter {name} in Redis; there are: {', '.join(known) or 'none'}")
        return bytes(entry), decode_spec(bytes(entry))  # type: ignore[arg-type]

    def _is_whole(self, spec: CounterSpec) -> bool:
        with self._server.available():
            return self._server.client.exists(*spec.keys(self._prefix)) == spec.strata

    def _possible(self, spec: CounterSpec) -> list[str]:
        """Every key that a successor can have, in order. One whose entry was lost may have had more than the
        next one."""
        return CounterSpec(spec.name, MAX_PRECISION, spec.generation + 1).keys(self._prefix)

    def _change(
        self,
        entry: bytes,
        after: CounterSpec,
        *,
        needed: Sequence[str] = (),
        created: Sequence[str] = (),
        deleted: Sequence[str] = (),
    ) -> bool:
        """Whether ``entry`` still held and the ``needed`` keys were there; False: nothing was done."""
        keys = [self._registry, *needed, *created, *deleted]
        arguments = (after.name, entry, encode_spec(after), EMPTY, len(needed), len(created))
        with self._server.available():
            return bool(self._succeed(keys=keys, args=arguments))
