"""The bounds of every number that comes from outside: messages, REST, tags, YAML, files and options.

A row's name is the number's own name, or `Owner.name` where an owner (a message, a section, a command) needs bounds of
its own. Whoever reads a number from outside refuses or clips it by its row; `tests/model/test_bounds.py` walks all
sources and fails on a number without one. So no wait, sum or quotient inside overflows, and none is NaN.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import Any

from pycontrol.model.value import value

YEAR_S = 366 * 86400.0
LONGEST_S = 10 * YEAR_S
"""The longest duration."""
LAST_S = 2.0**32
"""The last Unix time, in 2106: a time in milliseconds is beyond it."""
GPUS_MAX = 1 << 20
"""An upper bound of the GPUs, gangs or jobs of any cluster or app."""
COUNT_MAX = 1_000_000
INT32 = 2.0**31 - 1
INT64 = 2.0**63 - 1


class OutOfBounds(ValueError):
    """A number out of its bounds; the text names both."""


@value
class Bound:
    """The least and the greatest value that are accepted."""

    low: float
    high: float

    def __str__(self) -> str:
        return f"from {_said(self.low)} to {_said(self.high)}"

    def holds(self, number: float) -> bool:
        """Whether a number lies within; NaN does not."""
        return self.low <= number <= self.high

    def clip(self, number: float) -> float:
        """The nearest number within; the least one for NaN."""
        return min(self.high, max(self.low, number)) if not math.isnan(number) else self.low


def _said(number: float) -> str:
    return f"{number:.0f}" if float(number).is_integer() and abs(number) < 1e15 else f"{number:g}"


DURATION_S, INSTANT_S = Bound(0.0, LONGEST_S), Bound(0.0, LAST_S)
GPUS, COUNT, SHARE = Bound(0.0, GPUS_MAX), Bound(0.0, COUNT_MAX), Bound(0.0, 1.0)
STEP = Bound(0.0, 1e15)
RHO = Bound(1e-6, 1e12)
"""The greatest rho stands for an infinite one (an app that would never end)."""
WORK_GPU_S = Bound(0.0, 1e15)
SLOWDOWN, SPEEDUP = Bound(1.0, 1e3), Bound(1e-3, 1e3)
METRIC = Bound(-1e12, 1e12)
ID = Bound(-INT64, INT64)
ANY_INT32 = Bound(-INT32 - 1, INT32)
_SPANS: Mapping[int, Bound] = {
    1: ANY_INT32,
    2: Bound(-INT64 - 1, INT64),
    3: Bound(0.0, 2.0**32 - 1),
    4: Bound(0.0, 2.0**64 - 1),
    5: Bound(-math.inf, math.inf),
    6: Bound(-math.inf, math.inf),
}
"""What each type of number of a protobuf field can hold, by its cpp_type."""

BOUNDS: Mapping[str, Bound] = {
    # ---- times
    **dict.fromkeys(
        ("lease_s", "lead_s", "grant_timeout_s", "round_retry_s", "rho_s", "bid_s", "solve_s", "interactive_idle_s",
         "every_s", "token_ttl_s", "for_s", "expires_in_s", "left_s", "restart_s", "min_lend_s", "half_life_s",
         "checkpoint_s", "seconds", "gang_deadline", "gpu_time", "wait_s", "retention_s"),
        DURATION_S),
    **dict.fromkeys(
        ("until_s", "now_s", "submitted_s", "deadline_s", "end_s", "available_s", "time_s", "ends_s", "expires_s",
         "since", "submit_elapsed_s"),
        INSTANT_S),
    # Milliseconds, or columns of traces that have either unit.
    **dict.fromkeys(
        ("at_ms", "time_ms", "submit_time_ms", "deadline_ms", "submit_time", "start_time", "end_time", "creation_time",
         "deletion_time", "scheduled_time", "time", "duration"),
        Bound(0.0, LAST_S * 1e3)),
    "wait_ms": Bound(0.0, 3.6e6),
    "iter_time_s": Bound(0.0, 1e7),
    "isonomy.max_hours": Bound(1e-3, 1e5),
    "hours": Bound(0.0, LONGEST_S / 3600),
    "days": Bound(1e-3, LONGEST_S / 86400),
    "retention_days": Bound(1e-3, LONGEST_S / 86400),
    # ---- counts
    **dict.fromkeys(
        ("gpus", "gangs", "gang_gpus", "job_gpus_max", "job_demand_max", "new_gangs", "interactive_gpus", "slot_gpus",
         "gang", "cluster_gpus", "max_gpus", "untagged_gpus", "num_gpus", "count", "leaf_index", "indices", "levels",
         "segments", "cells", "jobs", "num_jobs", "num_replicas", "plan_gpu", "inst_num", "num_gpu", "gpu_num",
         "gpu_count"),
        GPUS),
    "isonomy.gang": Bound(0.0, GPUS_MAX),
    "gpu_ids": Bound(0.0, 1023.0),
    # More GPUs of a NodeManager are a misconfiguration that would cost memory for each.
    "Node.gpus": Bound(0.0, 1024.0),
    **dict.fromkeys(
        ("rung", "launches", "worker_failures", "checkpoints_failed", "runs", "rounds", "n", "limit", "tail", "last",
         "processes", "tenants", "local_bsz"),
        COUNT),
    "preemptions_per_hour": Bound(0.0, 60.0),
    "seed": Bound(0.0, INT32),
    "seeds": Bound(1.0, 1e4),
    **dict.fromkeys(("step", "until_step", "lost_steps"), STEP),
    "max_mb": Bound(16.0, 1e9),
    "port": Bound(0.0, 65535.0),
    **dict.fromkeys(("memory_mb", "vcores"), Bound(0.0, INT32)),
    **dict.fromkeys(("id", "allocation_request_id", "seq", "last_seq"), ID),
    **dict.fromkeys(("priority", "code", "exit_status", "status"), ANY_INT32),
    # ---- shares and measures
    **dict.fromkeys(("f", "network_share", "share", "fraction"), SHARE),
    **dict.fromkeys(("absolute_capacity", "absolute_max_capacity", "user_limit"), SHARE),
    "user_limit_factor": Bound(-1.0, 1e6),
    **dict.fromkeys(("rho", "rho_nothing"), RHO),
    **dict.fromkeys(
        ("work_left_gpu_s", "stepwise_left_gpu_s", "work_total_gpu_s", "work_done_gpu_s", "lost_gpu_s", "serial_s",
         "gpu_seconds", "service"),
        WORK_GPU_S,
    ),
    "slowdown": SLOWDOWN,
    **dict.fromkeys(("speedups",), SPEEDUP),
    "loss_rate": Bound(0.0, 1e12),
    **dict.fromkeys(("speeds", "prices"), Bound(0.0, 1e6)),
    **dict.fromkeys(("loss", "accuracy", "metric", "best_accuracy", "best_metric"), METRIC),
    "n_avg": Bound(0.0, GPUS_MAX),
    **dict.fromkeys(("weight", "weights"), Bound(1e-6, 1e6)),
    **dict.fromkeys(("gpu_hours_day", "gpu_hours_week", "gpu_hours_month"), Bound(0.0, 1e9)),
    # ---- options of policies
    "budget_s": Bound(1e-3, 3600.0),
    "overrun": Bound(1.0, 1e6),
    "threshold_gpu_s": WORK_GPU_S,
    **dict.fromkeys(("patience", "stint"), Bound(0.0, 1e6)),
    # ---- others
    **dict.fromkeys(("contention", "shorter", "faster", "load", "elastic", "scaling"), Bound(0.0, 1e6)),
    **dict.fromkeys(("loss_decay", "step_time"), Bound(0.0, 1e9)),
    **dict.fromkeys(("policy_options", "column"), Bound(-1e15, 1e15)),
}  # fmt: skip
"""Name -> bounds."""


def bound(name: str, owner: str = "") -> Bound:
    """The bounds of a number; KeyError if it has no row."""
    own = BOUNDS.get(f"{owner}.{name}")
    return own if own is not None else BOUNDS[name]


def within(number: float, name: str, owner: str = "") -> float:
    """The number, if it is within its bounds; raises OutOfBounds."""
    row = bound(name, owner)
    if not row.holds(number):
        raise OutOfBounds(f"{name}: must be {row} (got {number:g})")
    return number


def numbers_within(values: Mapping[str, Any]) -> None:
    """Checks numbers by name, and those in lists and mappings by the name of the list; raises OutOfBounds."""
    for name, found in values.items():
        for number in _numbers(found):
            within(number, name)


@value
class _Fields:
    """Of a protobuf message: the fields to check."""

    numbers: tuple[tuple[str, float, float], ...]
    """Name and bounds, of those that may be out of them; `lists`: the repeated ones."""
    lists: tuple[tuple[str, float, float], ...]
    oneofs: tuple[str, ...]
    """Whose messages have numbers; so have the single, the repeated and the mapped ones."""
    one: tuple[str, ...]
    many: tuple[str, ...]
    mapped: tuple[str, ...]


@functools.cache
def _fields(kind: Any) -> _Fields | None:
    """What to check of a protobuf descriptor; None: nothing."""
    found: dict[str, list[Any]] = {name: [] for name in ("numbers", "lists", "oneofs", "one", "many", "mapped")}
    for field in kind.fields:
        repeated = field.is_repeated if hasattr(field, "is_repeated") else field.label == field.LABEL_REPEATED
        inner, span = field.message_type, _SPANS.get(field.cpp_type)
        mapped = inner is not None and inner.GetOptions().map_entry
        if mapped:
            inner = inner.fields_by_name["value"].message_type
        if inner is not None and _fields(inner) is not None:
            oneof = field.containing_oneof
            if oneof is None:
                found["mapped" if mapped else "many" if repeated else "one"].append(field.name)
            elif oneof.name not in found["oneofs"]:
                found["oneofs"].append(oneof.name)
        elif inner is None and span is not None:
            row = bound(field.name, kind.name)
            exact = float if math.isinf(span.high) else int
            if span.low < row.low or row.high < span.high:
                found["lists" if repeated else "numbers"].append((field.name, exact(row.low), exact(row.high)))
    return _Fields(**{name: tuple(x) for name, x in found.items()}) if any(found.values()) else None


def clip(message: Any) -> list[str]:
    """Clips the numbers of a protobuf message, and of those in it, to their bounds; returns which were beyond."""
    found: list[str] = []
    _clip(message, found)
    return found


def _clip(message: Any, found: list[str]) -> None:
    fields = _fields(message.DESCRIPTOR)
    if fields is None:
        return
    for name, low, high in fields.numbers:
        number = getattr(message, name)
        if not low <= number <= high:
            setattr(message, name, _nearest(message, name, number, found))
    for name, low, high in fields.lists:
        for i, number in enumerate(getattr(message, name)):
            if not low <= number <= high:
                getattr(message, name)[i] = _nearest(message, name, number, found)
    for name in fields.oneofs:
        chosen = message.WhichOneof(name)
        if chosen is not None and hasattr(inner := getattr(message, chosen), "DESCRIPTOR"):
            _clip(inner, found)
    for name in fields.one:
        if message.HasField(name):
            _clip(getattr(message, name), found)
    for name in fields.many:
        for each in getattr(message, name):
            _clip(each, found)
    for name in fields.mapped:
        for each in getattr(message, name).values():
            _clip(each, found)


def _nearest(message: Any, name: str, number: Any, found: list[str]) -> Any:
    row = bound(name, message.DESCRIPTOR.name)
    found.append(f"{message.DESCRIPTOR.name}.{name}: must be {row} (got {number:g})")
    return type(number)(row.clip(number))  # a whole one stays whole


def _numbers(found: Any) -> list[float]:
    if isinstance(found, Mapping):
        found = list(found.values())
    if isinstance(found, list | tuple):
        return [number for each in found for number in _numbers(each)]
    return [found] if isinstance(found, int | float) and not isinstance(found, bool) else []
