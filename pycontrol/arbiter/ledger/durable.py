"""The durable state, which is the fold of all facts, and the ledger that writes them.

Only `Durable.apply(fact)` changes the state, so replaying the journal gives the same state.
"""

from __future__ import annotations

import statistics
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, TypeVar

from pycontrol.arbiter.ledger import facts
from pycontrol.arbiter.ledger.lease import (
    REVOKING,
    Lease,
    LeaseTable,
    Reservation,
    Step,
    dump_lease,
    dump_reservation,
    gpus_in,
    load_lease,
    load_reservation,
)
from pycontrol.arbiter.ledger.limits import LimitBook
from pycontrol.fairness.contention import ContentionClock
from pycontrol.fairness.use import PERIOD_MAX_S, Use
from pycontrol.model.accounts import NO_ACCOUNTS, Accounts
from pycontrol.model.grouping import summed
from pycontrol.model.reasons import EndReason
from pycontrol.model.topology import Gpu

K = TypeVar("K")
V = TypeVar("V")
FOREIGN = "foreign"
"""`AppRecord.kind` of an unmanaged app."""
PREEMPTIONS_KEPT = 60
LAUNCHES_MIN = 3
ACTS_KEPT = 20
LAUNCHES_KEPT = 30
"""Measured launches kept of each kind."""


@dataclass(slots=True)
class AppRecord:
    """The fairness clock and the counters of one app."""

    app_id: str
    name: str
    queue: str
    user: str
    kind: str
    """The app scheduler that its Agent named (hyperband, ...), "job" for one job; "foreign" for an unmanaged app."""
    submitted_s: float
    arrived_s: float
    clock_at_arrival: float
    vc: str = ""
    """Its virtual cluster; empty where there are none."""
    finished_s: float | None = None
    final_state: str = ""
    n_avg: float | None = None
    """N_avg at the app's end; None before."""
    leases: int = 0
    renewals: int = 0
    revocations: int = 0
    preempted_s: list[float] = field(default_factory=list)
    """When an unmanaged app's newest containers lost in rounds had to end, one entry a round."""
    launches: dict[str, int] = field(default_factory=dict)
    """Gang launches by job."""
    work_done_gpu_s: float = 0.0
    attained_gpu_s: float = 0.0
    """Attained service in containers that have ended, GPU-s; running containers are not included."""
    slowed_gpu_s: float = 0.0
    """The part of `attained_gpu_s` lost to slow placements: the fraction 1 - 1 / S."""
    launching_gpu_s: float = 0.0
    """The part of `attained_gpu_s` that launches on new grants take on this cluster; 0 until it was measured."""
    demand_gpus: int = 0
    """Largest demand seen, GPUs."""
    elastic: bool = False
    """Whether its jobs run on a varying number of GPUs."""
    best: dict[str, Any] | None = None
    done: bool = False
    model_path: str = ""
    message: str = ""

    @property
    def restarts(self) -> int:
        """Gang launches after each job's first."""
        return sum(max(0, n - 1) for n in self.launches.values())


class Durable:
    """The fold of all facts."""

    def __init__(self, table: LeaseTable | None = None) -> None:
        self.apps: dict[str, AppRecord] = {}
        self.live: dict[str, AppRecord] = {}
        """The apps that have not ended, in the order of their arrival."""
        self.ended: OrderedDict[str, AppRecord] = OrderedDict()
        """The apps that have ended, in the order of their end."""
        self.table = table or LeaseTable()
        self.leases, self.reservations = self.table.leases, self.table.reservations
        self.held, self.grants = self.table.held, self.table.grants
        self.switches: set[str] = set()
        self.acts: tuple[facts.Switched, ...] = ()
        """The newest that operators did, the oldest first."""
        self.boosts: dict[str, facts.Boosted] = {}
        """Target -> the boost in force."""
        self.rounds = 0
        self.memory: dict[str, Mapping[str, Any]] = {}
        """Virtual cluster -> what its policy remembers from its last plan."""
        self.clocks: dict[str, ContentionClock] = {}
        """Virtual cluster -> the clock of its active apps."""
        self.exchange: Mapping[str, Any] = {}
        """The cell exchange as last recorded; empty before the first posting."""
        self.behind_s = 0.0
        """Seconds by which this clock is behind the cluster's, as last recorded."""
        self.first_launches_s: tuple[float, ...] = ()
        """Seconds from a grant to the first step in the newest first launches of jobs."""
        self.restarts_s: tuple[float, ...] = ()
        """The same for the newest later launches."""
        self.uses: dict[tuple[str, str], Use] = {}
        """(queue, user) -> what its apps used of late."""
        self.limits: dict[str, facts.LimitsSet] = {}
        """Account -> its limits that an administrator set."""
        self.spent: dict[tuple[str, str], facts.BudgetSpent] = {}
        """(account, period) -> what was told of it last."""
        self.plain: dict[tuple[str, str, str, str], int] = {}
        """(user, queue, kind, GPU type) -> GPUs of containers without a lease, as last recorded."""

    # ---- the N_avg clocks (Themis, section 4.3: time-weighted mean number of apps in the app's life)

    def n_avg(self, app_id: str, now_s: float) -> float:
        """Time-weighted mean number of active apps in its virtual cluster since it arrived; at least 1."""
        app = self.apps[app_id]
        if app.n_avg is not None:
            return app.n_avg
        return self.clocks.get(app.vc, ContentionClock()).n_avg(app.arrived_s, app.clock_at_arrival, now_s)

    def _turn_clock(self, vc: str, now_s: float, change: int) -> float:
        self.clocks[vc] = self.clocks.get(vc, ContentionClock()).turned(now_s, change)
        return self.clocks[vc].value

    def claims(self) -> list[Lease | Reservation]:
        """All leases, then all reservations."""
        return [*self.leases.each(), *self.reservations.each()]

    def claims_of(self, app_id: str) -> list[Lease | Reservation]:
        """The leases of an app, then its reservations."""
        return [*self.leases.of(app_id), *self.reservations.of(app_id)]

    def is_whole(self, gang: Sequence[Lease]) -> bool:
        """Whether these leases are all that is left of one grant."""
        return len({x.grant_id for x in gang}) == 1 and self.grants.get(gang[0].grant_id) == len(gpus_in(gang))

    def attained_gpu_s(self, app_id: str, now_s: float) -> float:
        """The app's attained service, GPU-s."""
        return self.apps[app_id].attained_gpu_s + sum(x.attained_gpu_s(now_s) for x in self.leases.of(app_id))

    # ---- the fold

    def apply(self, fact: facts.Fact) -> Step | None:
        """Changes the state by one fact; returns what it did to leases, None for a fact about something else."""
        step: Step | None = _FOLDS[type(fact)](self, fact)
        return step

    def _on_AppArrived(self, f: facts.AppArrived) -> None:
        clock = self._turn_clock(f.vc, f.at_s, 1)
        self.apps[f.app_id] = self.live[f.app_id] = AppRecord(
            f.app_id, f.name, f.queue, f.user, f.kind, f.submitted_s, f.at_s, clock, f.vc
        )

    def _on_AppChanged(self, f: facts.AppChanged) -> None:
        app = self.apps[f.app_id]
        for name, changed in f.changes.items():
            if name == "launched":
                app.launches = app.launches | changed  # not in place: pictures and loaded facts share the old dict
            else:
                setattr(app, name, changed)

    def _on_AppEnded(self, f: facts.AppEnded) -> None:
        app = self.apps[f.app_id]
        if app.finished_s is None:
            app.n_avg = self.n_avg(f.app_id, f.at_s)
            self._turn_clock(app.vc, f.at_s, -1)
            app.finished_s = f.at_s
            self.live.pop(f.app_id, None)
            self.ended[f.app_id] = app
        app.final_state = f.final_state or app.final_state

    def _changed(self, f: facts.OfLease) -> Step:
        """Folds a fact about leases; raises KeyError if one of its GPUs has none."""
        for gpu in f.gpus:
            self.leases[gpu]
        return self.table.take(f)

    def _on_LeaseGranted(self, f: facts.LeaseGranted) -> Step:
        self.apps[f.app_id].leases += 1
        return self.table.take(f)

    def _on_LeaseStarted(self, f: facts.LeaseStarted) -> Step:
        step = self._changed(f)
        self._count(step.before, f.at_s, -1)
        self._count(step.after, f.at_s, 1)
        return step

    def _on_LeaseExtended(self, f: facts.LeaseExtended) -> Step:
        step = self._changed(f)
        for app_id, _ in {(x.app_id, x.grant_id) for x in step.before} if f.counted else ():
            self.apps[app_id].renewals += 1
        return step

    def _on_LeaseRevoking(self, f: facts.LeaseRevoking) -> Step:
        known = self.table.being_revoked(f.gpus)
        step = self._changed(f)
        for before in step.before:
            if before.state != REVOKING and before.container_id:
                app = self.apps[before.app_id]
                app.revocations += before.grant_id not in known
                known.add(before.grant_id)
                if app.kind == FOREIGN and f.cause is EndReason.LOST_ROUND and f.end_s not in app.preempted_s:
                    app.preempted_s = [*app.preempted_s, f.end_s][-PREEMPTIONS_KEPT:]  # not in place, as below
        return step

    def _on_LeaseIdle(self, f: facts.LeaseIdle) -> Step:
        return self._attain(self._changed(f), f.at_s)

    def _on_LeaseEnded(self, f: facts.LeaseEnded) -> Step:
        return self._attain(self.table.take(f), f.at_s)

    def _count(self, leases: Iterable[Lease], now_s: float, sign: int) -> None:
        """Turns the clocks of use: these leases begin to run, or end."""
        for lease in leases:
            if lease.started_s is not None:
                app = self.apps[lease.app_id]
                key = app.queue, app.user
                if key not in self.uses:  # others whose last use is of no period any more make room
                    self.uses = {k: x for k, x in self.uses.items() if x.running or now_s - x.at_s < PERIOD_MAX_S}
                self.uses[key] = self.uses.get(key, Use()).turned(now_s, sign * lease.running)

    def _attain(self, step: Step, now_s: float) -> Step:
        self._count(step.before, now_s, -1)
        for lease in step.before:
            if lease.started_s is not None:
                app = self.apps[lease.app_id]
                app.attained_gpu_s += lease.attained_gpu_s(now_s)
                app.slowed_gpu_s += lease.slowed_gpu_s(now_s)
                app.launching_gpu_s += self.launching_gpu_s(lease, now_s)
        return step

    def lease_ends(self, whose: Callable[[AppRecord], bool]) -> Iterator[float]:
        """The ends of these apps' leases, Unix seconds."""
        mine = (x for app_id, x in self.leases.by_app.items() if whose(self.apps[app_id]))
        return (lease.end_s for x in mine for lease in x.values())

    def launching_gpu_s(self, lease: Lease, now_s: float) -> float:
        """The part of the attained service in its present container that a launch takes on this cluster, GPU-s.

        Only the first container of a lease counts: the Arbiter chose it, not the app.
        """
        if lease.container_id != lease.first_container:
            return 0.0
        return min(lease.attained_gpu_s(now_s), len(lease.gpus) * self.launch_s)

    @property
    def launch_s(self) -> float:
        """The median of the newest measured launches and restarts, seconds; 0 while there are too few."""
        found = (*self.first_launches_s, *self.restarts_s)
        return statistics.median(found) if len(found) >= LAUNCHES_MIN else 0.0

    def _on_AppMoved(self, f: facts.AppMoved) -> None:
        """The app's clock continues in the new virtual cluster from its reading in the old one."""
        app = self.apps[f.app_id]
        if f.vc != app.vc:
            since = self._turn_clock(app.vc, f.at_s, -1) - app.clock_at_arrival
            app.clock_at_arrival = self._turn_clock(f.vc, f.at_s, 1) - since
        self._count(self.leases.of(f.app_id), f.at_s, -1)
        app.vc, app.queue = f.vc, f.queue or app.queue
        self._count(self.leases.of(f.app_id), f.at_s, 1)

    def _on_LimitsSet(self, f: facts.LimitsSet) -> None:
        _put(self.limits, f.account, f if f.limits is not None else None)

    def _on_BudgetSpent(self, f: facts.BudgetSpent) -> None:
        self.spent[f.account, f.period] = f

    def _on_PlainUse(self, f: facts.PlainUse) -> None:
        _put(self.plain, (f.user, f.queue, f.kind, f.gpu_type), f.count or None)

    def _on_other(self, f: facts.Fact) -> Step | None:
        """Folds a fact that is about leases alone, or for accounting only."""
        return self.table.take(f) if isinstance(f, facts.OF_LEASE) else None

    def _on_Switched(self, f: facts.Switched) -> None:
        (self.switches.add if f.on else self.switches.discard)(f.switch)
        self.acts = (*self.acts, f)[-ACTS_KEPT:]

    def _on_Boosted(self, f: facts.Boosted) -> None:
        _put(self.boosts, f.target, f if f.until_s > f.at_s else None)

    def _on_RoundHeld(self, f: facts.RoundHeld) -> None:
        self.rounds += 1

    def _on_PolicyMemory(self, f: facts.PolicyMemory) -> None:
        bare = f.vc.removeprefix("root.")  # the name may have had it, or not, in the cells file before
        self.memory = {k: of for k, of in self.memory.items() if k.removeprefix("root.") != bare} | {f.vc: f.values}

    def _on_AppsForgotten(self, f: facts.AppsForgotten) -> None:
        for app_id in f.app_ids:
            del self.apps[app_id]
            self.ended.pop(app_id, None)

    def _on_ExchangeChanged(self, f: facts.ExchangeChanged) -> None:
        self.exchange = f.values

    def _on_ClockBehind(self, f: facts.ClockBehind) -> None:
        self.behind_s = f.by_s

    def _on_AllocationChanged(self, f: facts.AllocationChanged) -> None:
        """A measurement: only estimates use it."""
        app = self.apps.get(f.app_id)
        name = "restarts_s" if app is not None and app.launches.get(f.job_id, 1) > 1 else "first_launches_s"
        setattr(self, name, (*getattr(self, name), f.seconds)[-LAUNCHES_KEPT:])

    def _on_Restored(self, f: facts.Restored) -> None:
        kept = Durable.load(f.data)
        for name in ("apps", "live", "ended", "switches", "boosts", "memory", "clocks", "limits", "spent"):
            getattr(self, name).update(getattr(kept, name))
        for name in ("acts", "rounds", "exchange", "first_launches_s", "restarts_s"):
            setattr(self, name, getattr(kept, name))
        self.uses |= {key: use.turned(f.at_s, -use.running) for key, use in kept.uses.items()}

    @property
    def is_empty(self) -> bool:
        """Whether nothing has happened yet."""
        known = self.apps, self.leases, self.switches, self.boosts, self.rounds, self.clocks, self.limits
        return not any(known)

    def kept(self) -> dict[str, Any]:
        """What a standby needs to take over: dump() without ended apps and leases; container tags tell the leases."""
        return {**self._dump_rest(), "apps": [asdict(a) for a in self.live.values()]}

    def kept_here(self) -> dict[str, Any]:
        """dump() without leases, for a journal that has lost its tail: container tags tell the leases."""
        data = self.dump()
        uses = [[queue, user, at_s, 0.0, gpu_s] for queue, user, at_s, _, gpu_s in data["uses"]]
        return {**data, "leases": [], "next": [], "uses": uses}

    # ---- JSON form, for the journal's snapshots and for comparing two states

    def dump(self) -> dict[str, Any]:
        """The state as JSON values."""
        return _joined(self.dump_lines())

    def dump_lines(self) -> Iterator[Any]:
        """dump() in small pieces: first everything but the records, then [list, record] for each record."""
        yield self._dump_rest()
        for app in self.apps.values():
            yield ["apps", asdict(app)]
        for lease in self.leases.each():
            yield ["leases", dump_lease(lease)]
        for reservation in self.reservations.each():
            yield ["next", dump_reservation(reservation)]

    def _dump_rest(self) -> dict[str, Any]:
        return {
            "apps": [],
            "leases": [],
            "next": [],
            "switches": sorted(self.switches),
            "acts": [asdict(x) for x in self.acts],
            "boosts": [asdict(b) for b in self.boosts.values()],
            "rounds": self.rounds,
            "memory": facts.plain(self.memory),
            "clocks": {vc: [c.value, c.at_s, c.count] for vc, c in self.clocks.items()},
            "exchange": dict(self.exchange),
            "behind_s": self.behind_s,
            "first_launches_s": list(self.first_launches_s),
            "restarts_s": list(self.restarts_s),
            "uses": [[*key, use.at_s, use.running, list(use.gpu_s)] for key, use in self.uses.items()],
            "limits": [asdict(x) for x in self.limits.values()],
            "spent": [asdict(x) for x in self.spent.values()],
            "plain": [[*key, gpus] for key, gpus in self.plain.items()],
        }

    @classmethod
    def load(cls, data: Mapping[str, Any]) -> Durable:
        """The inverse of dump()."""
        state = cls()
        state.apps = {a["app_id"]: AppRecord(**a) for a in data["apps"]}
        state.live = {a.app_id: a for a in state.apps.values() if a.finished_s is None}
        ended = [(a.finished_s, a) for a in state.apps.values() if a.finished_s is not None]
        state.ended = OrderedDict((a.app_id, a) for _, a in sorted(ended, key=lambda x: x[0]))
        for lease in map(load_lease, data["leases"]):
            state.table.load(lease)
        for reservation in map(load_reservation, data["next"]):
            state.table.load(reservation)
        state.switches = set(data["switches"])
        state.acts = tuple(facts.Switched(**x) for x in data.get("acts", ()))
        state.boosts = {b["target"]: facts.Boosted(**b) for b in data.get("boosts", ())}
        state.rounds = data["rounds"]
        state.memory = dict(data.get("memory", {}))
        state.exchange = dict(data.get("exchange", {}))
        state.behind_s = data.get("behind_s", 0.0)
        state.first_launches_s = tuple(data.get("first_launches_s", ()))
        state.restarts_s = tuple(data.get("restarts_s", ()))
        state.uses = {(queue, user): Use(at_s, n, tuple(gpu_s)) for queue, user, at_s, n, gpu_s in data.get("uses", ())}
        state.limits = {x["account"]: facts.LimitsSet(**x) for x in data.get("limits", ())}
        state.spent = {(x["account"], x["period"]): facts.BudgetSpent(**x) for x in data.get("spent", ())}
        state.plain = {(user, queue, kind, of): gpus for user, queue, kind, of, gpus in data.get("plain", ())}
        for lease in () if "uses" in data else sorted(state.leases.each(), key=lambda x: x.started_s or 0.0):
            state._count([lease], lease.started_s or 0.0, 1)  # a journal from before uses were counted
        clocks = data["clocks"] if "clocks" in data else {"": data["clock"]}
        state.clocks = {vc: ContentionClock(*values) for vc, values in clocks.items()}
        return state

    @classmethod
    def load_lines(cls, lines: Iterable[Any]) -> Durable:
        """The inverse of dump_lines()."""
        return cls.load(_joined(lines))


def _put(table: dict[K, V], key: K, value: V | None) -> None:
    """Sets the value of a key; without one drops the key."""
    if value is not None:
        table[key] = value
    else:
        table.pop(key, None)


def _joined(lines: Iterable[Any]) -> dict[str, Any]:
    """One value of the pieces of dump_lines()."""
    pieces = iter(lines)
    data = dict(next(pieces, {}))
    for name, record in pieces:
        data[name].append(record)
    return data


_FOLDS: dict[type[Any], Any] = {
    kind: getattr(Durable, f"_on_{name}", Durable._on_other) for name, kind in facts.FACTS.items()
} | {facts.LeaseMended: Durable._on_LeaseGranted}


class Ledger:
    """Writes facts: `write` is the only way to change `Durable`, so the journal has every change."""

    def __init__(self, durable: Durable, accounts: Accounts = NO_ACCOUNTS) -> None:
        self.durable = durable
        self.facts: list[facts.Fact] = []
        """Facts since the last `take`."""
        self.touched: set[str] | None = None
        """Apps that may have changed since the last picture; None unless pictures are taken."""
        self.limits = LimitBook(accounts, durable)

    def write(self, fact: facts.Fact) -> Step | None:
        """Applies a fact and queues it for the journal; returns what it did to leases (`Durable.apply`)."""
        self.facts.append(fact)
        step = self.durable.apply(fact)
        app_ids: Iterable[str] = ()
        if step is not None:
            app_ids = {x.app_id for x in step.all}
        elif isinstance(fact, facts.AppArrived | facts.AppChanged | facts.AppEnded | facts.AppMoved):
            app_ids = (fact.app_id,)
        elif isinstance(fact, facts.AppsForgotten | facts.Restored):
            app_ids = fact.app_ids if isinstance(fact, facts.AppsForgotten) else self.durable.apps
        self.limits.outdated(app_ids)
        if isinstance(fact, facts.LimitsSet | facts.Restored):
            self.limits.set_anew()
        if self.touched is not None:
            self.touched.update(app_ids)
        return step

    def note_demand(self, app_id: str, gpus: int) -> None:
        """Records the app's demand (GPUs) if it is its largest so far."""
        record = self.durable.apps.get(app_id)
        if record is not None and gpus > record.demand_gpus:
            self.write(facts.AppChanged(app_id, {"demand_gpus": gpus}))

    def take(self) -> list[facts.Fact]:
        """Returns the facts since the last call."""
        told, self.facts = self.facts, []
        return told

    def watch(self) -> set[str]:
        """Begins to note which apps change, for one reader who takes pictures; replaces the previous reader's note."""
        self.touched = set()
        return self.touched

    def validate(self) -> Iterator[tuple[Gpu | str | None, str]]:
        """Yields (GPU, app or None, what is wrong) where indexes and counts contradict the leases."""
        d = self.durable
        yield from d.table.validate()
        yield from self.limits.validate()
        owners = ((d.apps[x.app_id], x) for x in d.leases.each())
        running = summed(((app.queue, app.user), x.running) for app, x in owners)
        for key, use in d.uses.items():
            if abs(use.running - running.get(key, 0.0)) > 1e-3:
                yield None, f"{key} uses {running.get(key, 0.0)} GPUs, {use.running} are counted"
        if d.live.keys() | d.ended.keys() != d.apps.keys() or d.live.keys() & d.ended.keys():
            yield None, "the live and the ended apps are not all apps"
