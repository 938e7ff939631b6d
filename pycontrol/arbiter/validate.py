"""Checks the invariants of the Arbiter's state, and tells what led to a violation.

A control plane always checks what its facts and effects are about (`contradicted`), before it journals the facts. The
whole state (`problems`) takes time proportional to the size of the cluster; `Settings.validate` has it checked after
every event: in tests, by `isonomy simulate --validate`, and by ISONOMY_VALIDATE=1 for a control plane.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

from pycontrol.arbiter.ledger import facts
from pycontrol.arbiter.ledger.lease import REVOKING
from pycontrol.arbiter.state import LOSES, Holdings
from pycontrol.arbiter.views.gpu_index import GpuState
from pycontrol.model import events as ev
from pycontrol.model.topology import Gpu, count_by_host

STORY_MAX = 5_000
"""The most events, facts and effects that a story keeps, with their times."""
_LARGE_FACTS = {facts.PolicyMemory, facts.ExchangeChanged, facts.Restored}
LARGE = {ev.ClusterSnapshot, ev.StandbyRestored, ev.Solve, ev.Decided} | _LARGE_FACTS
"""Of these it keeps only that they were, as each may be as large as the cluster."""
_OF_LEASE = frozenset(facts.OF_LEASE)
LINES_SHOWN = 40


class Inconsistent(Exception):
    """Parts of the state contradict each other."""

    def __init__(self, problem: str, about: Gpu | str | None, story: Story) -> None:
        told = f"{about}: {problem}" if about is not None else problem
        super().__init__("\n  ".join([told, *story.of(about)]))
        self.problem, self.about, self.whole = problem, about, story.of(None, STORY_MAX)


class Story:
    """The newest events, facts and effects, each with its time."""

    def __init__(self) -> None:
        self._told: deque[Any] = deque(maxlen=STORY_MAX)
        """A number is the time of what follows it."""

    def tell(self, thing: Any) -> None:
        """Appends the present time, an event, a fact or an effect."""
        self._told.append(thing if type(thing) not in LARGE else type(thing).__name__)

    def of(self, about: Gpu | str | None, limit: int = LINES_SHOWN) -> list[str]:
        """The newest `limit` lines about a GPU or an app, or about anything (None), in order."""
        at_s, lines = 0.0, deque[str](maxlen=limit)
        for x in self._told:
            if isinstance(x, float):
                at_s = x
            elif about is None or _is_about(x, about):
                lines.append(f"{at_s:.3f} {x}"[:300])
        return list(lines)


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
    if not s.cluster.settled(now_s):
        return
    for gpu, lease in s.durable.leases.items():
        if lease.state != REVOKING and s.cluster.bad(gpu) and not s.is_unmanaged(lease.app_id):
            yield gpu, f"it is bad, but the lease of {lease.app_id} stays"
    for gpu in s.durable.reservations:
        if s.cluster.bad(gpu):
            yield gpu, "it is bad but reserved"


def contradicted(s: Holdings, told: Iterable[facts.Fact], effects: Iterable[ev.Effect]) -> Iterator[tuple[Gpu, str]]:
    """As `problems`, but only of the GPUs that new facts and effects are about: its cost depends on what changed."""
    if not s.cluster.seen:
        return
    leases, coming, index, before = s.durable.leases, s.durable.reservations, s.gpus, None
    for fact in told:
        for gpu in fact.gpus if type(fact) in _OF_LEASE else ():  # type: ignore[union-attr]
            lease = leases.get(gpu)
            revoking = lease is not None and lease.state == REVOKING
            if revoking != (gpu in index.revoking):
                yield gpu, f"it is {'' if revoking else 'not '}being revoked, but the index disagrees"
            if gpu in coming and not revoking:
                yield gpu, f"it is reserved for {coming[gpu].app_id} and not being revoked"
            if (gpu in index.free) != (lease is None and classify(s, gpu) is GpuState.FREE):
                yield gpu, f"it is {'not ' if gpu in index.free else ''}free, but the index disagrees"
            if lease is not None and lease is not before:
                for other in lease.gpus:
                    if leases.get(other) is not lease:
                        yield other, f"the lease of {lease.app_id} names it, but it is not its"
            before = lease
    for e in effects:
        if type(e) is ev.SendGrant:
            app_id, gpus = e.app_id, e.grant.gpus
        elif type(e) is ev.Place:
            app_id, gpus = e.ask.app_id, e.gpus
        else:
            continue
        for gpu in gpus:
            lease = leases.get(gpu)
            if lease is None or lease.app_id != app_id:
                promised = coming.get(gpu)
                # unless its lease changed hands after the effect: what comes next tells its app
                lost = (f for f in told if type(f) in LOSES and gpu in f.gpus)  # type: ignore[union-attr]
                if (promised is None or promised.app_id != app_id) and not any(lost):
                    yield gpu, f"{app_id} is to use it, and has no lease of it"


def validate(s: Holdings, now_s: float, story: Story, *derived: Iterable[tuple[str | None, str]]) -> None:
    """Raises Inconsistent for the first contradiction, with the story of its GPU or app.

    `derived`: (app or None, what is wrong) where what stands between rounds is not what a recomputation makes it.
    """
    for about, problem in itertools.chain(problems(s, now_s), *derived):
        raise Inconsistent(problem, about, story)
