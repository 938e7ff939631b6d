"""Checks the invariants of the Arbiter's state after every event, and tells what led to a violation.

`Settings.validate` switches it on: in tests, by `isonomy simulate --validate`, and by ISONOMY_VALIDATE=1 for a control
plane. A check takes time proportional to the size of the cluster.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any, Protocol

from pycontrol.arbiter.ledger.lease import REVOKING
from pycontrol.arbiter.state import Holdings
from pycontrol.arbiter.views.gpus import GpuState
from pycontrol.model.topology import Gpu, count_by_host

STORY_MAX = 20_000
"""The most events, facts and effects that a story keeps."""
LINES_SHOWN = 40


class Inconsistent(Exception):
    """Parts of the state contradict each other."""

    def __init__(self, problem: str, about: Gpu | str | None, story: Iterable[str]) -> None:
        super().__init__("\n  ".join([f"{about}: {problem}" if about is not None else problem, *story]))
        self.problem, self.about = problem, about


class Story:
    """The newest events, facts and effects, each with its time."""

    def __init__(self) -> None:
        self._told: deque[tuple[float, Any]] = deque(maxlen=STORY_MAX)

    def tell(self, now_s: float, things: Iterable[Any]) -> None:
        """Appends events, facts and effects of this moment, in order."""
        self._told.extend((now_s, x) for x in things)

    def of(self, about: Gpu | str | None, limit: int = LINES_SHOWN) -> list[str]:
        """The newest `limit` lines about a GPU or an app, or about anything (None), in order."""
        lines = [f"{at_s:.3f} {x}"[:300] for at_s, x in self._told if about is None or _is_about(x, about)]
        return lines[-limit:]


def _is_about(x: Any, about: Gpu | str) -> bool:
    """Whether an event, a fact, an effect or a part of it names the GPU or the app."""
    if isinstance(about, Gpu):
        parts = [x, *(getattr(x, name, None) for name in ("container", "grant")), *getattr(x, "workers", ())]
        return any(about == getattr(p, "gpu", None) or about in getattr(p, "gpus", ()) for p in parts)
    parts = [x, *(getattr(x, name, None) for name in ("app", "ask", "container"))]
    return any(getattr(p, "app_id", None) == about for p in parts)


def classify(s: Holdings, gpu: Gpu) -> GpuState:
    """The state of a GPU."""
    lease = s.durable.leases.get(gpu)
    if lease is None:
        if gpu in s.cluster.container_at:
            return GpuState.OCCUPIED
        if gpu.host not in s.cluster.node_at:
            return GpuState.AWAY
        if s.cluster.bad(gpu):
            return GpuState.BAD
        return GpuState.FREE if s.free_to_lease(gpu) else GpuState.WITHHELD
    if lease.state == REVOKING:
        return GpuState.RESERVED if gpu in s.durable.reservations else GpuState.REVOKING
    if lease.container_id:
        return GpuState.ACTIVE
    if gpu in s.cluster.container_at:
        return GpuState.STARTING
    worker = s.workers.at.get(gpu)
    if gpu in s.workers.placing:
        return GpuState.PLACING
    return GpuState.PLANNED if worker is not None and worker.app_id == lease.app_id else GpuState.GRANTED


def problems(s: Holdings, now_s: float) -> Iterator[tuple[Gpu | str | None, str]]:
    """Yields (GPU, app or None, what is wrong) for each contradiction within or between the parts of the state."""
    yield from s.ledger.validate()
    yield from s.cluster.validate()
    yield from s.agents.validate(s.durable.live, s.durable.held)
    yield from s.workers.validate()
    yield from _health(s, now_s)
    if s.cluster.seen:  # the first snapshot builds the index and the groups
        gpus = (Gpu(n.host, i) for n in s.cluster.nodes.values() for i in range(n.gpus))
        free = {g for g in gpus if classify(s, g) is GpuState.FREE}
        yield from s.gpus.validate(s.durable.leases, free, count_by_host(s.usable_gpus()))
        yield from s.groups.validate(s.durable.claims(), s.supply)


def _health(s: Holdings, now_s: float) -> Iterator[tuple[Gpu | str | None, str]]:
    if not s.cluster.ready or now_s < s.cluster.recovering_until_s:
        return
    for gpu, lease in s.durable.leases.items():
        if lease.state != REVOKING and s.cluster.bad(gpu) and not s.is_unmanaged(lease.app_id):
            yield gpu, f"it is bad, but the lease of {lease.app_id} stays"
    for gpu in s.durable.reservations:
        if s.cluster.bad(gpu):
            yield gpu, "it is bad but reserved"


class Owner(Protocol):
    """A part of the state that stands between rounds and follows from the others."""

    def validate(self) -> Iterable[tuple[str | None, str]]:
        """Yields (app or None, what is wrong) where it is not what a recomputation makes it."""


def validate(s: Holdings, now_s: float, story: Story | None = None, owners: Iterable[Owner] = ()) -> None:
    """Raises Inconsistent for the first contradiction, with the story of its GPU or app."""
    derived = (found for owner in owners for found in owner.validate())
    for about, problem in itertools.chain(problems(s, now_s), derived):
        raise Inconsistent(problem, about, story.of(about) if story is not None else ())
