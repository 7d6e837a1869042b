"""The API keeps to its own description, whatever it is sent."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from published import PREFIX, numbered, publish
from pydantic import SecretStr
from redis import Redis
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from serving import SETTINGS, publish_history, served

from counters.api.app import create_app
from counters.config import ApiSettings
from counters.objects.spec import Count, CounterSpec

BROKEN = CounterSpec("broken", precision=14)
CHECKS = (
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
)


class Nothing:
    def read(self) -> list[Count]:
        return []


# An endless answer is no case for a tool that reads answers to their end; it has tests of its own.
schema = schemathesis.openapi.from_dict(create_app(SETTINGS, Nothing()).openapi()).exclude(
    path="/api/v1/stream"
)


@pytest.fixture(scope="module")
def address(redis_server: str) -> Iterator[str]:
    """A server with something of everything: a counter, a broken one, a history, a token."""
    with Redis.from_url(redis_server) as redis:
        redis.flushdb()
        publish(redis, CounterSpec("content", precision=14), numbered(10), messages=20, stamp=1)
        publish(redis, BROKEN)
        redis.set(BROKEN.keys(PREFIX)[0], "foreign")
        publish_history(redis, content=[(1_700_000_000 + n, n) for n in range(50)])
    guarded = SETTINGS.model_copy(update={"api": ApiSettings(token=SecretStr("correct horse"))})
    with served(redis_server, settings=guarded, refresh=lambda: None) as client:
        yield str(client.base_url).rstrip("/")


@schema.parametrize()
@settings(
    max_examples=40,
    derandomize=True,
    database=None,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
def test_every_answer_is_as_described(case: schemathesis.Case, address: str) -> None:
    case.call_and_validate(base_url=address, checks=CHECKS)


@pytest.mark.parametrize(
    "path", ["/api/v1/counts", "/api/v1/counts/content", "/api/v1/counts/broken", "/api/v1/history"]
)
def test_answers_with_numbers_are_as_described(path: str, address: str) -> None:
    answer = httpx.get(address + path)
    assert answer.status_code == 200
    template = path.replace("/content", "/{type}").replace("/broken", "/{type}")
    schema[template]["GET"].validate_response(answer)
