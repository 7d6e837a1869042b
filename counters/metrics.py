"""The name of every metric of published counts and of tasks, with what it means and what to do about it.

Every replica exports the same figures: aggregate with ``max by (object_type)`` or ``max by (task)``, never
with ``sum``.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """How Prometheus is to read the samples."""

    GAUGE = "gauge"
    COUNTER = "counter"


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric family. ``labels`` are the names of its labels, in order."""

    name: str
    documentation: str
    kind: Kind = Kind.GAUGE
    labels: tuple[str, ...] = ()


# The figure itself. Absent, never 0, where it could not be read or is suspect.
OBJECTS = Metric(
    "counters_objects",
    "Estimated number of different objects.",
    labels=("object_type",),
)

# Depends on the precision only: to lower it, rebuild the counter with a higher one.
STANDARD_ERROR = Metric(
    "counters_objects_standard_error_ratio",
    "Relative standard error of the estimate, as a fraction.",
    labels=("object_type",),
)

# Grows while nothing is written: harmless on a quiet topic, a stopped worker on a busy one.
AGE = Metric(
    "counters_objects_age_seconds",
    "Seconds since a worker last wrote to the counter.",
    labels=("object_type",),
)

# Data was lost in the store. It is being read again; find out who evicted, deleted or restored it.
SUSPECT = Metric(
    "counters_objects_suspect",
    "1 if the count fell or a part of it vanished from the store, else 0.",
    labels=("object_type",),
)

# A foreign or corrupt key stands where the counter should be; the reason is in /api/v1/counts.
UNREADABLE = Metric(
    "counters_objects_unreadable",
    "1 if the counter is registered but has no readable value, else 0.",
    labels=("object_type",),
)

# Its rate is the speed of the workers together; exact, also when records are read twice.
MESSAGES = Metric(
    "counters_objects_messages",
    "Records that went into the counter, repetitions included.",
    kind=Kind.COUNTER,
    labels=("object_type",),
)

# Rising: the store is down or refuses; /readyz says why.
READ_ERRORS = Metric(
    "counters_read_errors",
    "Attempts to read the counts that failed as a whole.",
    kind=Kind.COUNTER,
)

# Above a few seconds: what the API answers is stale. Absent before the first successful read.
READ_AGE = Metric(
    "counters_read_age_seconds",
    "Seconds since the counts were last read from the store.",
)

# 1: this process could not read the counts, which are absent meanwhile; its /readyz says why.
STORE_UNAVAILABLE = Metric(
    "counters_store_unavailable",
    "1 if the counts could not be read, else 0.",
)

# Both modes 0: a restart of Redis empties the counters. Set appendonly yes; if it is on, its last write
# failed. Absent where the server does not tell.
REDIS_PERSISTENCE = Metric(
    "counters_redis_persistence",
    "1 if Redis keeps its data on disk in this mode (aof, rdb) and last did so successfully, else 0.",
    labels=("mode",),
)

# 1: out of memory, Redis drops counters without a word. Set maxmemory-policy noeviction.
REDIS_EVICTING = Metric(
    "counters_redis_evicting",
    "1 if the eviction policy of Redis may remove counters, else 0.",
)

# Far above history.refresh_every: nothing refreshes it. Absent before the first refresh.
HISTORY_AGE = Metric(
    "counters_history_age_seconds",
    "Seconds since the published history was last rebuilt.",
)

# The last good history stays published; `counters history show` says what is wrong.
HISTORY_STALE = Metric(
    "counters_history_stale",
    "1 if the history could not be rebuilt when it was last due, else 0.",
)

# 1 for long: somebody forgot to resume it. Absent, like the other two, where the tasks cannot be read.
TASK_PAUSED = Metric(
    "task_paused",
    "1 if an operator paused the task, else 0.",
    labels=("task",),
)

# Far in the past while the task should run: `counters checkpoints show` says who has its claim.
TASK_LAST_PROGRESS = Metric(
    "task_last_progress_timestamp_seconds",
    "Unix time at which a batch of the task was last recorded.",
    labels=("task",),
)

# Items that failed were stepped over; the log of the runner names them.
BATCH_ITEMS = Metric(
    "batch_items",
    "Items in the recorded batches of the task, of all its runs, by result (ok, failed).",
    kind=Kind.COUNTER,
    labels=("task", "result"),
)

PUBLISHED = (
    OBJECTS,
    STANDARD_ERROR,
    AGE,
    SUSPECT,
    UNREADABLE,
    MESSAGES,
    READ_ERRORS,
    READ_AGE,
    STORE_UNAVAILABLE,
    REDIS_PERSISTENCE,
    REDIS_EVICTING,
    HISTORY_AGE,
    HISTORY_STALE,
    TASK_PAUSED,
    TASK_LAST_PROGRESS,
    BATCH_ITEMS,
)
