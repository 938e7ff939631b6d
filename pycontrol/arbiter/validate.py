"""What must hold between the parts of the Arbiter's state after every event, and the story of what does not.

Switched on by `Settings.validate`: in tests, by `isonomy simulate --validate` and by ISONOMY_VALIDATE=1 for a control
plane. A check costs about as much as the cluster is large.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

from pycontrol.arbiter.gpu_index import GpuState
from pycontrol.arbiter.lease import REVOKING
from pycontrol.arbiter.state import State
from pycontrol.model.topology import Gpu

STORY_MAX = 20_000
"""Events, facts and effects that are remembered."""
LINES_SHOWN = 40


class Inconsistent(Exception):
    """Two parts of the state contradict each other."""

    def __init__(self, problem: str, about: Gpu | str | None, story: Iterable[str]) -> None:
        super().__init__("\n  ".join([f"{about}: {problem}" if about is not None else problem, *story]))
        self.problem, self.about = problem, about


class Story:
    """The newest events, facts and effects, each with its time."""

    def __init__(self) -> None:
        self._told: deque[tuple[float, Any]] = deque(maxlen=STORY_MAX)

    def tell(self, now_s: float, things: Iterable[Any]) -> None:
        """These happened now, in this order."""
        self._told.extend((now_s, x) for x in things)

    def of(self, about: Gpu | str | None, limit: int = LINES_SHOWN) -> list[str]:
        """What happened to a GPU or an app in order, the newest lines; all of it for None."""
        lines = [f"{at_s:.3f} {x}"[:300] for at_s, x in self._told if about is None or _is_about(x, about)]
        return lines[-limit:]


def _is_about(x: Any, about: Gpu | str) -> bool:
    """Whether an event, fact or effect, or a part of it, names the GPU or the app."""
    if isinstance(about, Gpu):
        parts = [x, *(getattr(x, name, None) for name in ("container", "grant")), *getattr(x, "workers", ())]
        return any(about == getattr(p, "gpu", None) or about in getattr(p, "gpus", ()) for p in parts)
    parts = [x, *(getattr(x, name, None) for name in ("app", "ask", "container"))]
    return any(getattr(p, "app_id", None) == about for p in parts)


def classify(s: State, gpu: Gpu) -> GpuState:
    """What state a GPU is in."""
    lease = s.durable.leases.get(gpu)
    if lease is None:
        if gpu in s.container_at:
            return GpuState.OCCUPIED
        if gpu.host not in s.node_at:
            return GpuState.AWAY
        if s.bad(gpu):
            return GpuState.BAD
        return GpuState.FREE if s.free_to_lease(gpu) else GpuState.WITHHELD
    if lease.state == REVOKING:
        return GpuState.RESERVED if gpu in s.durable.reservations else GpuState.REVOKING
    if lease.container_id:
        return GpuState.ACTIVE
    if gpu in s.container_at:
        return GpuState.STARTING
    worker = s.workers.at.get(gpu)
    if gpu in s.workers.placing:
        return GpuState.PLACING
    return GpuState.PLANNED if worker is not None and worker.app_id == lease.app_id else GpuState.GRANTED


def problems(s: State, now_s: float) -> Iterator[tuple[Gpu | str | None, str]]:
    """(GPU or app, what is wrong) for each contradiction."""
    yield from _leases(s)
    yield from _health(s, now_s)
    if s.seen_cluster:  # the index is made with the first snapshot
        free = {g for node in s.nodes.values() for g in _gpus(node.host, node.gpus) if classify(s, g) is GpuState.FREE}
        yield from s.gpus.validate(s.durable.leases, free)
    yield from _workers(s)
    yield from _apps(s)
    if s.seen_cluster:
        yield from s.groups.validate(s.durable)


def _gpus(host: str, count: int) -> list[Gpu]:
    return [Gpu(host, i) for i in range(count)]


def _leases(s: State) -> Iterator[tuple[Gpu | str | None, str]]:
    d = s.durable
    for gpu, lease in d.leases.items():
        if lease.gpu != gpu or d.leases_by_app.get(lease.app_id, {}).get(gpu) is not lease:
            yield gpu, f"{lease} is not under its GPU or its app"
    if sum(map(len, d.leases_by_app.values())) != len(d.leases):
        yield None, "an app has leases that are none"
    for gpu, reservation in d.reservations.items():
        present = d.leases.get(gpu)
        if present is None or present.state != REVOKING:
            yield gpu, f"it is reserved for {reservation.app_id} and not being revoked"
        if d.reservations_by_app.get(reservation.app_id, {}).get(gpu) is not reservation:
            yield gpu, f"{reservation} is not under its app"
    for gpu, container_id in s.container_at.items():
        if container_id not in s.containers:
            yield gpu, f"{container_id} is said to use it and is not there"


def _health(s: State, now_s: float) -> Iterator[tuple[Gpu | str | None, str]]:
    if not s.ready or now_s < s.recovering_until_s:
        return
    for gpu, lease in s.durable.leases.items():
        if lease.state != REVOKING and s.bad(gpu) and not s.is_foreign(lease.app_id):
            yield gpu, f"it is out of order, and the lease of {lease.app_id} stays"
    for gpu in s.durable.reservations:
        if s.bad(gpu):
            yield gpu, "it is out of order and reserved"


def _workers(s: State) -> Iterator[tuple[Gpu | str | None, str]]:
    waiting = {w.gang for w in s.workers if not w.container_id and not w.directive_id}
    for gang in sorted(waiting ^ set(s.workers.pending)):
        yield gang[0], f"gang {gang} waits to be placed, or does not, and the list of those says otherwise"
    for worker in s.workers:
        for gpu in worker.plan.gpus:
            newest = s.workers.at.get(gpu)
            if newest is not worker and not worker.container_id and (newest is None or newest.app_id == worker.app_id):
                yield gpu, f"worker {worker.plan.worker_id} of {worker.app_id} is planned there and not known there"


def _apps(s: State) -> Iterator[tuple[Gpu | str | None, str]]:
    d, held = s.durable, dict[str, int]()
    for x in d.leases.values():
        held[x.app_id] = held.get(x.app_id, 0) + (x.state != REVOKING)
    for r in d.reservations.values():
        held[r.app_id] = held.get(r.app_id, 0) + 1
    for app_id in {*held, *d.held, *s.agents}:
        if s.holding(app_id) != held.get(app_id, 0):
            yield app_id, f"it holds {held.get(app_id, 0)} GPUs, {s.holding(app_id)} were counted"
        agent = s.agents.get(app_id)
        wants = agent is not None and app_id in d.live and agent.demand.gpus > s.holding(app_id)
        if (app_id in s.unmet) != wants:
            yield app_id, f"it wants {'' if wants else 'no '}more GPUs, and the list of those that do says otherwise"


def validate(s: State, now_s: float, story: Story | None = None) -> None:
    """Raises Inconsistent, with the story of the GPU or the app, for the first contradiction."""
    for about, problem in problems(s, now_s):
        raise Inconsistent(problem, about, story.of(about) if story is not None else ())
