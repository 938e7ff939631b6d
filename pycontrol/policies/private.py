"""The private schedule: a virtual cluster's private cluster, simulated with the same policy alone on its machines.

Apps' work is what they declare, until they really end. Stops and moves cost nothing: a gang continues immediately. The
state is stored as of the last event; progress is linear between events, so a round between two events changes nothing.
A policy that asks for bids gets them from here, by the Agents' own formulas, as of apps whose jobs are alike.
"""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pycontrol.auction.bid_validation import as_demanded
from pycontrol.auction.placing import take
from pycontrol.fairness.bidding import Bidder, OwnGang, mean_speed, rho_of
from pycontrol.fairness.elastic import Elastic
from pycontrol.fairness.plausible import alike, app_left, slowdowns_of
from pycontrol.model.auction import AppView, Bid, Demand, Gang, Plan, Snapshot, gang_gpus
from pycontrol.model.grouping import grouped
from pycontrol.model.topology import Scope, Topology
from pycontrol.policies.policy_port import Policy

TINY = 1e-6
EVENTS_MAX = 100_000
"""Limit of simulated events per round."""


@dataclass
class PrivateApp:
    """One app on the private cluster; work in serial GPU-seconds."""

    demand: Demand
    queue: str
    user: str
    submitted_s: float
    priority: int
    need: float
    """Its total work: the declared work, or what it had attained when it really ended."""
    done: float = 0.0
    attained_gpu_s: float = 0.0
    gangs: list[tuple[Gang, float]] = field(default_factory=list)
    """(gang, end of its leases) for each running gang."""
    width: int = 0
    """Number of gangs when it last ran."""
    ended_s: float | None = None
    contended_s: float = 0.0
    """Its age here times N_avg."""
    gone: bool = False
    """Whether it has really ended."""

    def rate(self, topology: Topology) -> float:
        """Work per second, in serial GPU-seconds."""
        return sum(gang_gpus(gang) / slowdowns_of(gang, self.demand, topology)[1] for gang, _ in self.gangs)

    @property
    def left(self) -> float:
        """Work left, in serial GPU-seconds."""
        return max(0.0, self.need - self.done)


class PrivateSchedule:
    """The private cluster at `at_s`; `advance` continues with it."""

    def __init__(self, at_s: float, apps: dict[str, PrivateApp], memory: Mapping[str, Any]) -> None:
        self.at_s, self.apps, self.memory = at_s, apps, memory

    # ---- JSON form

    @staticmethod
    def load(data: Mapping[str, Any], now_s: float) -> PrivateSchedule:
        """The inverse of `dump`; a new schedule at `now_s` if there are no data."""
        if not data:
            return PrivateSchedule(now_s, {}, {})
        return PrivateSchedule(data["at_s"], {a: _app(row) for a, row in data["apps"].items()}, data["memory"])

    def dump(self) -> dict[str, Any]:
        """The private schedule as JSON values, apps as a journal gives them back."""
        return {"at_s": self.at_s, "apps": {a: _row(app) for a, app in self.apps.items()}, "memory": self.memory}

    # ---- time

    def advance(self, s: Snapshot, policy: Policy) -> None:
        """Advances the simulation to the snapshot's time, with apps' arrivals, new declarations and real ends.

        `s.topology`: the private cluster's machines.
        """
        self._retire(s)
        self._fit(s.topology)
        for at_s, came in self._arrivals(s):
            self._run(at_s, s, policy)
            self._catch_up(at_s, s.topology)
            for v in came:
                need = v.demand.work_total_gpu_s
                self.apps[v.app_id] = PrivateApp(v.demand, v.queue, v.user, v.submitted_s, v.priority, need)
            self._round(at_s, s, policy)
        self._declared(s)
        self._run(s.now_s, s, policy)

    def with_next_leases(self, s: Snapshot, policy: Policy) -> PrivateSchedule:
        """The schedule after its round about the leases that end soon; itself if there are none, or none are on offer.

        The real round may revoke leases up to half a lead earlier than the private cluster would.
        """
        horizon_s = _horizon_s(s.now_s, s.lead_s)
        ends = [end_s for app in self.apps.values() for _, end_s in app.gangs if end_s <= horizon_s]
        if not ends or not any(v.ending_gangs for v in s.apps):
            return self
        apps = {a: dataclasses.replace(app, gangs=list(app.gangs)) for a, app in self.apps.items()}
        later = PrivateSchedule(self.at_s, apps, self.memory)
        later._run(max(s.now_s, max(ends) - s.lead_s) + TINY, s, policy)
        return later

    def _arrivals(self, s: Snapshot) -> list[tuple[float, list[AppView]]]:
        """(time, new apps) in order of arrival, no earlier than `at_s`."""
        new = sorted((v for v in s.apps if v.app_id not in self.apps), key=lambda v: (v.submitted_s, v.app_id))
        return list(grouped((max(self.at_s, min(v.submitted_s, s.now_s)), v) for v in new).items())

    def _retire(self, s: Snapshot) -> None:
        """Reduces the work of apps that really ended to what they attained; drops those that ended here too."""
        for app_id, app in list(self.apps.items()):
            if app_id in s.present:
                continue
            if not app.gone:
                app.gone, app.need = True, min(app.need, s.ended.get(app_id, math.inf))
            if app.ended_s is not None:
                del self.apps[app_id]

    def _declared(self, s: Snapshot) -> None:
        for v in s.apps:
            app = self.apps[v.app_id]
            same = (app.demand.gang_gpus, app.demand.gangs) == (v.demand.gang_gpus, v.demand.gangs)
            if abs(app.need - v.demand.work_total_gpu_s) > TINY * app.need or not same:
                self._catch_up(s.now_s, s.topology)
                app.need, app.demand = v.demand.work_total_gpu_s, v.demand
                if app.ended_s is not None and app.left > TINY:
                    app.ended_s = None
            app.priority = v.priority

    def _fit(self, topology: Topology) -> None:
        """Stops gangs on machines that are gone or have fewer GPUs now."""
        left = {host: m.gpus for host, m in topology.machines.items()}
        for app in self.apps.values():
            for gang, end_s in list(app.gangs):
                if all(left.get(host, 0) >= n for host, n in gang):
                    for host, n in gang:
                        left[host] -= n
                else:
                    app.gangs.remove((gang, end_s))

    def done(self, app_id: str, now_s: float, topology: Topology) -> float:
        """Work that the app has done in the private schedule by now, in serial GPU-seconds."""
        app = self.apps[app_id]
        return min(app.need, app.done + (now_s - self.at_s) * app.rate(topology))

    def _catch_up(self, now_s: float, topology: Topology) -> None:
        span_s, active = now_s - self.at_s, sum(app.ended_s is None for app in self.apps.values())
        for app in self.apps.values() if span_s > 0 else ():
            app.contended_s += span_s * active
            app.done = min(app.need, app.done + span_s * app.rate(topology))
            app.attained_gpu_s += span_s * sum(gang_gpus(gang) for gang, _ in app.gangs)
        self.at_s = max(self.at_s, now_s)

    def _next_s(self, topology: Topology, lead_s: float) -> float:
        """The next event: an app ends, or leases end while an app waits."""
        first_s = math.inf
        waits = any(self._waits(app) for app in self.apps.values())
        for app in self.apps.values():
            if app.gangs:
                first_s = min(first_s, self.at_s + app.left / max(TINY, app.rate(topology)))
                if waits:
                    first_s = min(first_s, *(max(self.at_s, end_s - lead_s) for _, end_s in app.gangs))
        return first_s

    def _waits(self, app: PrivateApp) -> bool:
        return app.ended_s is None and len(app.gangs) < app.demand.gangs

    def _run(self, until_s: float, s: Snapshot, policy: Policy) -> None:
        for _ in range(EVENTS_MAX):
            next_s = self._next_s(s.topology, s.lead_s)
            if next_s > until_s:
                return
            self._round(next_s, s, policy)

    def _renew(self, at_s: float, lease_s: float, lead_s: float) -> None:
        """Extends leases that ended while no app waited, by whole leases."""
        for app in self.apps.values():
            if any(end_s < at_s + lead_s - TINY for _, end_s in app.gangs):
                app.gangs = [
                    (gang, end_s + lease_s * max(0, math.ceil((at_s + lead_s - TINY - end_s) / lease_s)))
                    for gang, end_s in app.gangs
                ]

    # ---- a round

    def decide(self, policy: Policy, s: Snapshot) -> Plan:
        """The policy's plan for these apps, with their bids if it asks for any."""
        bids: dict[str, Bid] = {}
        if policy.asks_agents:
            each = {v.app_id: (v, self._bidder(v, s)) for v in s.apps}
            views = (dataclasses.replace(v, rho=rho_of(x.app, x.kept, s.lease_s)) for v, x in each.values())
            s = dataclasses.replace(s, apps=tuple(views))
            offer = policy.offer(s)
            bids = {a: as_demanded(each[a][1].bid(a), each[a][0].demand) for a in (offer.app_ids if offer else ())}
        return policy.decide(s, bids, random.Random(f"{s.vc} {s.now_s}"))

    def _bidder(self, v: AppView, s: Snapshot) -> Bidder:
        """Writes the app's bid; a start costs nothing. N_avg is the schedule's, or the apps present if it has none."""
        d, app, age_s = v.demand, self.apps.get(v.app_id), s.now_s - v.submitted_s
        n_avg = app.contended_s / age_s if app and age_s > 0 else float(len(s.present))
        work = app_left(alike(d), d, s.cluster_gpus, n_avg, d.gpus, age_s, mean_speed(d.speedups, s.topology))
        kept = [slowdowns_of(gang, d, s.topology)[0] for gang in v.retained_gangs]
        own = [OwnGang(gang, slowdowns_of(gang, d, s.topology)[0]) for gang in v.ending_gangs]
        scopes = {x: d.slowdown[x - 1] for x in Scope if x <= d.scope}
        sizes = Elastic(work.gang_gpus, max(work.gang_gpus, work.job_gpus_max), d.slowdown, 0.0)
        how = d.speedups, d.mixes, sizes
        return Bidder(work, kept, own, s.free, d.gangs - len(kept), scopes, s.topology, 0.0, s.lease_s, *how)

    def _round(self, at_s: float, s: Snapshot, policy: Policy) -> None:
        """A round of the schedule: apps that are done end, and the policy shares out free GPUs and leases that end."""
        self._renew(at_s, s.lease_s, s.lead_s)
        self._catch_up(at_s, s.topology)
        ended = {}
        for app_id, app in self.apps.items():
            if app.ended_s is None and app.left <= TINY * max(1.0, app.need):
                app.ended_s, app.gangs = at_s, []
                ended[app_id] = app.attained_gpu_s
        live = {a: app for a, app in self.apps.items() if app.ended_s is None}
        free = {host: m.gpus for host, m in s.topology.machines.items()}
        views = []
        horizon_s = _horizon_s(at_s, s.lead_s)
        for app_id, app in live.items():
            ending = [gang for gang, end_s in app.gangs if end_s <= horizon_s]
            kept = [gang for gang, end_s in app.gangs if end_s > horizon_s]
            take(free, kept)
            if ending or self._waits(app):
                views.append(self._view(app_id, app, ending, kept))
        left = {host: n for host, n in free.items() if n > 0}
        if not views or not left:
            return
        inner = dataclasses.replace(s, now_s=at_s, free=left, apps=tuple(views), queues={})
        inner = dataclasses.replace(inner, memory=self.memory, present=frozenset(live), ended=ended)
        plan = self.decide(policy, inner)
        self.memory = plan.memory
        won = {award.app_id: award.gangs for award in plan.awards}
        for app_id, app in live.items():
            kept_leases = [x for x in app.gangs if x[1] > horizon_s]
            app.gangs = [*kept_leases, *((gang, _end_s(at_s, s.lease_s)) for gang in won.get(app_id, ()))]
            app.width = len(app.gangs) or app.width

    def _view(self, app_id: str, app: PrivateApp, ending: list[Gang], kept: list[Gang]) -> AppView:
        d = dataclasses.replace(
            app.demand, work_left_gpu_s=app.left, work_total_gpu_s=app.need, work_done_gpu_s=app.done
        )
        return AppView(
            app_id, app.queue, None, d, ending_gangs=tuple(ending), retained_gpus=sum(map(gang_gpus, kept)),
            submitted_s=app.submitted_s, user=app.user, attained_gpu_s=app.attained_gpu_s, priority=app.priority,
            retained_gangs=tuple(kept),
        )  # fmt: skip


def _horizon_s(at_s: float, lead_s: float) -> float:
    """A round decides about leases that end by this time, as the Arbiter's rounds do (`Rounds._ending`)."""
    return at_s + 1.5 * lead_s + TINY


def next_end_s(s: Snapshot) -> float:
    """The first common end of leases after those that a round now decides about."""
    return math.ceil(_horizon_s(s.now_s, s.lead_s) / s.lease_s) * s.lease_s


def _end_s(from_s: float, lease_s: float) -> float:
    """The first common end of leases that is at least half a lease away."""
    return math.ceil((from_s + lease_s / 2) / lease_s) * lease_s


def _row(app: PrivateApp) -> dict[str, Any]:
    row = {f.name: getattr(app, f.name) for f in dataclasses.fields(app)}
    d = row["demand"] = {f.name: getattr(app.demand, f.name) for f in dataclasses.fields(app.demand)}
    d |= {"scope": int(app.demand.scope), "speedups": dict(app.demand.speedups)}
    d |= {name: list(d[name]) for name in ("slowdown", "members")}
    row["gangs"] = [[[list(part) for part in gang], end_s] for gang, end_s in app.gangs]
    return row


def _app(row: Mapping[str, Any]) -> PrivateApp:
    d = row["demand"]
    demand = Demand(
        **{**d, "scope": Scope(d["scope"]), "slowdown": tuple(d["slowdown"]), "members": tuple(d["members"])}
    )
    gangs = [(tuple((host, n) for host, n in gang), end_s) for gang, end_s in row["gangs"]]
    return PrivateApp(**{**row, "demand": demand, "gangs": gangs})
