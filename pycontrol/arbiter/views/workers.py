"""Asks, the workers planned to serve them (by app, GPU and directive, and the gangs that wait), and refused placements.

The table `LEADS` has what changes the state of a worker; docs/architecture.md draws it.
"""

from __future__ import annotations

import enum
import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from pycontrol.model.cluster import Ask, Container
from pycontrol.model.events import WorkerPlan
from pycontrol.model.grouping import NOTHING, Tables
from pycontrol.model.topology import Gpu

AskKey = tuple[str, int, int, int]
"""`Ask.key`."""


class Asks:
    """The newest ask under each key, without those for no containers."""

    def __init__(self, asks: Iterable[Ask] = (), now_s: float = 0.0, since_s: Mapping[str, float] = NOTHING) -> None:
        self._by_app = Tables[str, AskKey, Ask]()
        self._by_request = Tables[tuple[str, int], AskKey, Ask]()
        self.local = 0
        """How many asks name hosts or racks outside which they may not start."""
        self.since_s: dict[str, float] = {}
        """App -> since when it has had asks without a break."""
        for ask in asks:
            self.put(ask, since_s.get(ask.app_id, now_s))

    def __len__(self) -> int:
        return sum(map(len, self._by_app.by_key.values()))

    def copy(self) -> Asks:
        """An independent copy."""
        other = Asks()
        other._by_app, other._by_request = self._by_app.copy(), self._by_request.copy()
        other.local, other.since_s = self.local, dict(self.since_s)
        return other

    def apps(self) -> list[str]:
        """Apps with asks."""
        return list(self._by_app.by_key)

    def of(self, app_id: str) -> Mapping[AskKey, Ask]:
        """The asks of an app."""
        return self._by_app.at(app_id)

    def under(self, app_id: str, request_id: int) -> Iterable[Ask]:
        """The asks of an app under an allocationRequestId."""
        return self._by_request.at((app_id, request_id)).values()

    def put(self, ask: Ask, now_s: float) -> None:
        """Adds or replaces an ask; a count of 0 removes it. An ask for no GPUs is ignored."""
        if ask.gpus <= 0:
            return
        request = ask.app_id, ask.allocation_request_id
        before = self.of(ask.app_id).get(ask.key)
        self.local += bool(ask.only_on and ask.count > 0) - bool(before is not None and before.only_on)
        if ask.count > 0:
            self._by_app.put(ask.app_id, ask.key, ask)
            self._by_request.put(request, ask.key, ask)
            self.since_s.setdefault(ask.app_id, now_s)
        else:
            self._by_app.drop(ask.app_id, ask.key)
            self._by_request.drop(request, ask.key)
            if not self.of(ask.app_id):
                self.since_s.pop(ask.app_id, None)

    def drop(self, app_id: str, attempt_id: str | None = None) -> None:
        """Removes the asks of an app, or of one of its attempts."""
        for ask in list(self.of(app_id).values()):
            if attempt_id is None or ask.attempt_id == attempt_id:
                self.put(Ask(ask.attempt_id, app_id, ask.allocation_request_id, ask.gpus, 0, ask.priority), 0.0)


GangKey = tuple[str, str, str]

WINDOW_FIRST, WINDOW_LEAST, WINDOW_MOST = 256, 32, 2_000
"""Limit of simultaneous placements: initial, least and largest."""
QUICK_S = 5.0
"""An answer within this time means that the ResourceManager could take more placements."""


class WorkerState(enum.StrEnum):
    """How far a planned worker's container is."""

    WAITING = "waiting"
    """Its gang waits: for its asks, for GPUs that others still use, or to try again."""
    PLACING = "placing"
    """A placement was sent; the ResourceManager has not answered."""
    PLACED = "placed"
    """The ResourceManager allocated a container, which has not been reported."""
    REPORTED = "reported"
    """Its container was reported, as allocated or as running."""


class WorkerChange(enum.StrEnum):
    """What changes the state of a planned worker; each is a method of `WorkerPlans`."""

    ADD = "add"
    SENT = "sent"
    ACKNOWLEDGED = "acknowledged"
    CARRIED = "carried"
    BACK = "back"
    DROP = "drop"


WAITING, PLACING, PLACED, REPORTED = EACH = tuple(WorkerState)
LEADS: Mapping[WorkerChange, tuple[Sequence[WorkerState | None], WorkerState | None]] = {
    WorkerChange.ADD: ((None,), WAITING),
    WorkerChange.SENT: ((WAITING,), PLACING),
    WorkerChange.ACKNOWLEDGED: ((PLACING, PLACED), PLACED),
    WorkerChange.CARRIED: (EACH, REPORTED),
    WorkerChange.BACK: (EACH, WAITING),
    WorkerChange.DROP: (EACH, None),
}
"""Change -> the states in which it may come, and the state to which it leads; None: there is no such worker."""


@dataclass(slots=True)
class PlannedWorker:
    """A worker that an Agent or the stand-in planned, and the progress of its container."""

    app_id: str
    use_id: str
    plan: WorkerPlan
    state: WorkerState | None = None
    """None until it is added, and once it is dropped."""
    container_id: str = ""
    directive_id: str = ""
    sent_s: float = 0.0
    """When its placement was sent."""
    placing_until_s: float = 0.0
    """When a placement without a container is given up."""
    retry_at_s: float = 0.0
    """When a refused placement may be tried again; 0 before the first refusal."""
    refusals: int = 0
    problem: str = ""
    ask_key: AskKey | None = None
    """The ask that its container will serve, if the stand-in chose one."""
    void: bool = False
    """A reservation that it was planned for was cancelled; the app may have another of the same GPU since."""
    coming: bool = False
    """Whether `WorkerPlans.coming` counts it."""
    saved_s: float = 0.0
    """When it told its newest complete checkpoint, Unix seconds."""

    @property
    def gang(self) -> GangKey:
        """The key of its gang: workers with the same key are placed together or not at all."""
        return (self.app_id, self.use_id, self.plan.job_id)


class WorkerPlans:
    """All planned workers."""

    def __init__(self) -> None:
        self._by_app = Tables[str, str, PlannedWorker]()
        self._by_directive: dict[str, PlannedWorker] = {}
        self.at: dict[Gpu, PlannedWorker] = {}
        """The newest plan for each GPU."""
        self.placing: dict[Gpu, PlannedWorker] = {}
        """GPU -> the worker with a placement that was sent and a container that has not come."""
        self.pending: dict[GangKey, dict[str, PlannedWorker]] = {}
        """Gang -> worker id -> worker, for those without a container and without a directive in progress."""
        self.refused: dict[tuple[str, str], PlannedWorker] = {}
        """App and worker id -> worker, for those in `pending` with a placement that was refused before."""
        self._coming: dict[str, Mapping[AskKey | None, int]] = {}
        """App -> ask -> planned workers without a container; replaced when it changes, as copies share it."""
        self._window = WINDOW_FIRST
        self.full_s = -math.inf
        """When gangs last waited only for the limit of placements in progress."""

    def copy(self) -> WorkerPlans:
        """A copy for readers, who place nothing, so it lists no pending gangs.

        It has its own indexes but shares the worker objects, so their fields may change later.
        """
        other = WorkerPlans()
        other._by_app = self._by_app.copy()
        other._by_directive, other.at, other.placing = dict(self._by_directive), dict(self.at), dict(self.placing)
        other._coming = dict(self._coming)
        other._window, other.full_s = self._window, self.full_s
        return other

    def __iter__(self) -> Iterator[PlannedWorker]:
        return (w for workers in self._by_app.by_key.values() for w in workers.values())

    def room_for(self, gang_workers: int) -> bool:
        """Whether this many more placements may be sent now; always true if none is in progress.

        A busy ResourceManager needs seconds for each. Gangs that wait here do not use up their grant timeout.
        """
        under_way = len(self._by_directive)
        return not under_way or under_way + gang_workers <= self._window

    def wait_for_room(self, now_s: float) -> None:
        """Notes that a gang waits only for the limit of placements in progress."""
        self.full_s = now_s

    def of(self, app_id: str) -> list[PlannedWorker]:
        """The workers of an app."""
        return list(self._by_app.at(app_id).values())

    def coming(self, app_id: str, ask_key: AskKey) -> int:
        """The app's planned workers without a container that will serve this ask."""
        counts: Mapping[AskKey | None, int] = self._coming.get(app_id, NOTHING)
        return counts.get(ask_key, 0)

    def has(self, app_id: str, worker_id: str) -> bool:
        """Whether the app has a planned worker with this id."""
        return worker_id in self._by_app.at(app_id)

    def add(self, worker: PlannedWorker) -> None:
        """Adds a planned worker, which waits to be placed."""
        self._by_app.put(worker.app_id, worker.plan.worker_id, worker)
        for gpu in worker.plan.gpus:
            self.at[gpu] = worker
        _change(worker, WorkerChange.ADD)
        self._count(worker)
        self._wait(worker)

    def drop(self, worker: PlannedWorker) -> None:
        """Removes a planned worker; one that is removed already stays so."""
        if worker.state is None:
            return
        _change(worker, WorkerChange.DROP)
        self._count(worker)
        self._by_app.drop(worker.app_id, worker.plan.worker_id)
        for gpu in worker.plan.gpus:
            if self.at.get(gpu) is worker:
                self._newest_is_gone(worker, gpu)
        self._no_longer_placed(worker)
        self._no_longer_waits(worker)

    def sent(self, worker: PlannedWorker, directive_id: str, now_s: float, until_s: float) -> None:
        """The worker's placement was sent; it is given up at `until_s`."""
        _change(worker, WorkerChange.SENT)
        worker.directive_id, worker.sent_s, worker.placing_until_s = directive_id, now_s, until_s
        self._by_directive[directive_id] = worker
        self.placing.update(dict.fromkeys(worker.plan.gpus, worker))
        self._no_longer_waits(worker)

    def answered(self, worker: PlannedWorker, now_s: float) -> None:
        """The ResourceManager answered a placement: raises the limit if it was quick, else lowers it."""
        step = 1 if now_s - worker.sent_s <= QUICK_S else -1
        self._window = min(WINDOW_MOST, max(WINDOW_LEAST, self._window + step))

    def acknowledged(self, worker: PlannedWorker, container_id: str) -> None:
        """The worker's placement succeeded; its container has yet to be reported."""
        _change(worker, WorkerChange.ACKNOWLEDGED)
        worker.container_id = worker.container_id or container_id
        self._count(worker)
        self._no_longer_waits(worker)

    def carried(self, worker: PlannedWorker, container_id: str) -> None:
        """The worker's container was reported."""
        _change(worker, WorkerChange.CARRIED)
        worker.container_id = container_id
        self._count(worker)
        self._no_longer_placed(worker)
        self._no_longer_waits(worker)

    def reported(self, container: Container) -> str:
        """A container was reported: its worker is carried; returns the worker's job, empty if there is no worker."""
        worker = self._of(container)
        if worker is None:
            return ""
        self.carried(worker, container.container_id)
        return worker.plan.job_id

    def _of(self, container: Container) -> PlannedWorker | None:
        """The planned worker that the container carries; None if there is none.

        The newest plan for its GPUs may be newer than the container and belong to another worker or app.
        """
        here = [found.get(gpu) for found in (self.placing, self.at) for gpu in container.gpus[:1]]
        mine = [w for w in here if w is not None and w.app_id == container.app_id]
        for worker in mine:
            if container.container_id == worker.container_id or worker.state is PLACING:
                return worker
        if not mine:
            return None
        older = (w for w in self.of(container.app_id) if w.container_id == container.container_id)
        return next(older, None) or next((w for w in mine if not w.container_id), None)

    def back(self, worker: PlannedWorker) -> None:
        """The worker's placement failed, or its container is lost: it waits again."""
        _change(worker, WorkerChange.BACK)
        self._no_longer_placed(worker)
        worker.directive_id = worker.container_id = ""
        self._count(worker)
        self._wait(worker)

    def sent_as(self, directive_id: str) -> PlannedWorker | None:
        """The worker of a directive; None if there is none."""
        return self._by_directive.get(directive_id)

    def _newest_is_gone(self, worker: PlannedWorker, gpu: Gpu) -> None:
        """Makes the worker that is being placed on the GPU its newest plan again."""
        before = self.placing.get(gpu)
        if before is None or before is worker:
            del self.at[gpu]
        else:
            self.at[gpu] = before

    def _count(self, worker: PlannedWorker) -> None:
        """Counts the worker as coming or no longer so."""
        comes = worker.state is not None and not worker.container_id
        if comes == worker.coming:
            return
        worker.coming = comes
        before = self._coming.get(worker.app_id, NOTHING)
        counts = {**before, worker.ask_key: before.get(worker.ask_key, 0) + (1 if comes else -1)}
        if not counts[worker.ask_key]:
            del counts[worker.ask_key]
        if counts:
            self._coming[worker.app_id] = counts
        else:
            del self._coming[worker.app_id]

    def _wait(self, worker: PlannedWorker) -> None:
        self.pending.setdefault(worker.gang, {})[worker.plan.worker_id] = worker
        if worker.retry_at_s:
            self.refused[worker.app_id, worker.plan.worker_id] = worker

    def _no_longer_placed(self, worker: PlannedWorker) -> None:
        self._by_directive.pop(worker.directive_id, None)
        for gpu in worker.plan.gpus:
            if self.placing.get(gpu) is worker:
                del self.placing[gpu]

    def _no_longer_waits(self, worker: PlannedWorker) -> None:
        gang = self.pending.get(worker.gang)
        if gang is not None and gang.pop(worker.plan.worker_id, None) is not None and not gang:
            del self.pending[worker.gang]
        self.refused.pop((worker.app_id, worker.plan.worker_id), None)

    def validate(self) -> Iterator[tuple[Gpu | str, str]]:
        """Yields (GPU or app, what is wrong) for each contradiction between the workers and their indexes."""
        waiting = {w.gang for w in self if w.state is WAITING}
        for gang in sorted(waiting ^ set(self.pending)):
            yield gang[0], f"gang {gang} waits to be placed although it is not listed, or the other way round"
        coming: dict[str, Counter[AskKey | None]] = {}
        for worker in self:
            if not worker.container_id:
                coming.setdefault(worker.app_id, Counter())[worker.ask_key] += 1
        for app_id in sorted(coming.keys() | self._coming.keys()):
            if coming.get(app_id) != self._coming.get(app_id):
                yield app_id, "its workers without a container are miscounted"
        for worker in self:
            for gpu in worker.plan.gpus:
                newest = self.at.get(gpu)
                if newest is worker or worker.container_id or worker.void or self.placing.get(gpu) is worker:
                    continue  # a newer plan may follow a worker with a container or a placement
                if newest is None or newest.app_id == worker.app_id:
                    yield gpu, f"worker {worker.plan.worker_id} of {worker.app_id} is planned there but not indexed"


def _change(worker: PlannedWorker, change: WorkerChange) -> None:
    states, then = LEADS[change]
    if worker.state not in states:
        raise ValueError(f"{worker.plan.worker_id} is {worker.state}: no {change}")
    worker.state = then


REFUSALS = 5
REFUSED_S = 15.0
AVOIDED_S = 120.0
"""How long an app avoids a machine the first time."""
AVOIDED_MAX_S = 1800.0
CLOSED_USERS = 2
"""If apps of this many users are refused, the fault lies with the machine, not with one user's asks."""


@dataclass(slots=True)
class _Run:
    """Refusals in a row of one app by one machine."""

    user: str
    reason: str
    first_s: float
    machine_at_fault: bool = False
    """Whether the cause of the newest refusal lies with the machine."""
    count: int = 0
    times: int = 0
    until_s: float | None = None
    """Until when the app avoids the machine; None: it does not."""


class Refusals:
    """Refusals by machine and app; times in seconds.

    An app avoids a machine that it excludes, once it was refused there, or that refused it REFUSALS times in a row over
    at least REFUSED_S; the time doubles on each repetition. A machine that apps of several users avoid, and that took
    no container meanwhile, is closed to all apps, if each of these refusals was of the machine's own making: an app can
    bring about others (by its blacklist, its constraints, its limits, or an ask for more memory than is free) and must
    not close machines to others.
    """

    def __init__(self) -> None:
        self._runs: dict[str, dict[str, _Run]] = {}
        """Host -> app -> its refusals."""

    def copy(self) -> Refusals:
        """An independent copy."""
        other = Refusals()
        for host, runs in self._runs.items():
            other._runs[host] = {app_id: replace(run) for app_id, run in runs.items()}
        return other

    def __len__(self) -> int:
        return sum(map(len, self._runs.values()))

    def refused(
        self, host: str, app_id: str, user: str, reason: str, now_s: float, fault: bool = False, excluded: bool = False
    ) -> bool:
        """Notes a refused placement; returns whether its gang is to leave the machine, which the app avoids now."""
        run = self._runs.setdefault(host, {}).setdefault(app_id, _Run(user, reason, now_s))
        run.count += 1
        run.reason, run.machine_at_fault = reason, fault
        lasts = excluded or (run.count >= REFUSALS and now_s >= run.first_s + REFUSED_S)
        if run.until_s is not None or not lasts:
            return excluded
        run.until_s = now_s + min(AVOIDED_MAX_S, AVOIDED_S * 2**run.times)
        run.times += 1
        return True

    def placed(self, host: str, app_id: str) -> bool:
        """Notes that the machine took a container of the app; returns whether that opened the machine to all."""
        closed, runs = host in self.closed(), self._runs.get(host, {})
        runs.pop(app_id, None)
        if closed or not runs:  # a closed machine is not at fault
            self._runs.pop(host, None)
        return closed

    def avoided(self, app_id: str) -> dict[str, str]:
        """Machine that the app avoids -> its last reason."""
        found = ((host, runs.get(app_id)) for host, runs in self._runs.items())
        return {host: run.reason for host, run in found if run is not None and run.until_s is not None}

    def closed(self) -> dict[str, str]:
        """Machine that is closed to all -> its last reason."""
        found: dict[str, str] = {}
        for host, runs in self._runs.items():
            barred = [r for r in runs.values() if r.until_s is not None and r.machine_at_fault]
            if len({r.user for r in barred}) >= CLOSED_USERS:
                found[host] = max(barred, key=lambda r: r.until_s or 0.0).reason
        return found

    def next_end_s(self) -> float | None:
        """When an app next stops avoiding a machine; None if none does."""
        return min((r.until_s for r in self._all() if r.until_s is not None), default=None)

    def lapse(self, now_s: float) -> bool:
        """Ends avoidance that is due; returns whether any was. One more refusal starts it again."""
        over = [r for r in self._all() if r.until_s is not None and r.until_s <= now_s]
        for run in over:
            run.until_s, run.count, run.first_s = None, REFUSALS - 1, now_s - REFUSED_S
        return bool(over)

    def keep(self, hosts: Collection[str], app_ids: Collection[str]) -> None:
        """Drops the refusals of all other machines and apps."""
        kept = {h: {a: r for a, r in runs.items() if a in app_ids} for h, runs in self._runs.items() if h in hosts}
        self._runs = {host: runs for host, runs in kept.items() if runs}

    def forget(self, host: str) -> None:
        """Drops the refusals of a machine that changed."""
        self._runs.pop(host, None)

    def forget_app(self, app_id: str) -> None:
        """Drops the refusals of an app."""
        for host in [h for h, runs in self._runs.items() if runs.pop(app_id, None) is not None and not runs]:
            del self._runs[host]

    def _all(self) -> Iterator[_Run]:
        for runs in self._runs.values():
            yield from runs.values()
