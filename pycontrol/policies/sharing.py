"""The base of policies by shares: turns a snapshot into a share problem, and shares into gangs on hosts.

A tenant is an app's user, its queue, or the app itself. A tenant's apps with the same speedup vector form a virtual
user, boosted ones another; each gets a part of the tenant's weight in proportion to 1 + the highest priority of its
apps (OEF, section 4.2.4). Shares never exceed demand. A tenant's deviation is what it was due less what it held, over
time. Between two rounds that gave something, both are as the first left them: how many rounds were held makes no
difference.
"""

from __future__ import annotations

import random
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar, Literal

import numpy as np

from pycontrol.model.auction import AppView, Award, Bid, Gang, Hold, Offer, Plan, Snapshot, gang_gpus
from pycontrol.model.grouping import summed
from pycontrol.policies.classes import in_classes, is_boosted
from pycontrol.policies.hosts import HostPool, gpus_by_type
from pycontrol.policies.share_memory import GAP, Account, ShareMemory
from pycontrol.shares.capped import within_demand
from pycontrol.shares.placer import ANY_TYPE, Placement, PlacerJob, PlacerRound
from pycontrol.shares.problem import Matrix, Scheme, ShareProblem

Tenant = Literal["user", "queue", "app"]
Shares = Mapping[str, Mapping[str, float]]
"""Virtual user -> GPU type -> GPUs."""


@dataclass(frozen=True)
class Sharing(ABC):
    """A policy that decides by shares."""

    tenant: Tenant = "user"
    """What shares are computed for: users, queues (weighted by capacity unless `weights` names them), or apps."""
    weights: Mapping[str, float] = field(default_factory=dict)
    """Tenant -> weight; 1 if not named."""
    patience: float = 12.0
    """Leases that an app waits before its tenant saves for it (the starvation threshold)."""
    stint: float = 1.0
    """Leases that a gang stays before its tenant's debt can displace it (the minimum residency): a larger value gives
    fewer restarts and longer turns."""

    name: ClassVar[str]
    asks_agents: ClassVar[bool] = False
    migrates: ClassVar[bool] = True
    """True: a gang may have to move to the GPU type that is due to its tenant."""
    one_type: ClassVar[bool] = True
    """True: a gang gets GPUs of one type, unless it is larger than each type."""

    @abstractmethod
    def scheme(self) -> Scheme:
        """The scheme that computes the shares."""

    def offer(self, snapshot: Snapshot) -> Offer | None:
        """None: no Agent is asked for bids."""
        return None

    def decide(self, snapshot: Snapshot, bids: Mapping[str, Bid], rng: random.Random) -> Plan:
        """The plan: computes shares, then whole gangs by carried deviation; first those of boosted apps."""
        started_s = time.perf_counter()
        return in_classes(lambda s, _: Shared(self, s).plan(started_s), snapshot, bids, is_boosted)


@dataclass(frozen=True)
class _User:
    """A virtual user: a tenant's apps with one speedup vector."""

    name: str
    tenant: str
    vector: tuple[float, ...]


class Shared:
    """Decides one round."""

    def __init__(self, policy: Sharing, snapshot: Snapshot) -> None:
        self.policy, self.s = policy, snapshot
        self.views = [v for v in snapshot.apps if v.demand.gang_gpus > 0 and v.demand.gpus > 0]
        self.memory = ShareMemory.of(snapshot.memory, snapshot.now_s)
        held: dict[str, Mapping[str, int]] = {
            **{a: own for a, own in self.memory.held.items() if a in snapshot.present},
            **{v.app_id: self._by_type(v.retained_gangs) for v in snapshot.apps},
        }
        offered = self._by_type([tuple(snapshot.free.items())])
        types = {m.gpu_type for m in snapshot.topology.machines.values()}.union(offered, *held.values())
        self.known_types = sorted(types)
        self.user_of = {**self.memory.users, **{v.app_id: self._name(v) for v in snapshot.apps}}
        """App -> its virtual user; apps that want nothing now are known from the memory."""
        self.names = {self.user_of[v.app_id] for v in self.views}
        self.held = {a: own for a, own in held.items() if self.user_of.get(a) in self.names}
        """App -> GPUs by type that it holds and that are not on offer, for all apps of this round's virtual users."""
        self.supply = _total([offered, *self.held.values()])
        """GPUs by type that this round divides: those on offer, and those that its virtual users hold."""
        mean = {t: sum(v.demand.speedups.get(t, 1.0) for v in self.views) for t in self.supply}
        self.types = sorted(self.supply, key=lambda t: (mean[t], t))
        """The GPU types from slow to fast, by the apps' mean speedup."""
        self.whole = {**self.supply, **gpus_by_type(snapshot.topology.gpus_by_host.items(), snapshot.topology)}
        """GPUs of the cluster by type: a gang mixes types only if it is larger than a whole type."""
        each = ((v, tuple(map(v.demand.speed_on, self.types))) for v in self.views)
        self.users = {v.app_id: _User(self.user_of[v.app_id], self._tenant(v), speeds) for v, speeds in each}
        self.carried = self._carried()

    @cached_property
    def shares(self) -> Shares:
        """Virtual user -> type -> its share in GPUs."""
        return self._shares()

    def _by_type(self, gangs: Iterable[Gang]) -> dict[str, int]:
        """GPUs by type."""
        return gpus_by_type((pair for gang in gangs for pair in gang if pair[1] > 0), self.s.topology)

    def _name(self, view: AppView) -> str:
        """The name of the app's virtual user."""
        kinds = ", ".join(f"{t} {view.demand.speed_on(t):g}" for t in self.known_types)
        return f"{self._tenant(view)} ({kinds})" + ", boosted" * is_boosted(view)

    def _tenant(self, view: AppView) -> str:
        return {"user": view.user, "queue": view.queue, "app": view.app_id}[self.policy.tenant]

    def _carried(self) -> dict[str, dict[str, float]]:
        """Virtual user -> type -> deviation now, also for virtual users that are not in this round.

        If new measurements moved all apps of a virtual user to others, these share its deviation.
        """
        carried: dict[str, dict[str, float]] = {}
        for user, account in self.memory.accounts.items():
            apps = [] if user in self.names else [a for a, u in self.memory.users.items() if u == user]
            successors = [self.users[a].name for a in apps if a in self.users]
            if len(successors) < len(apps) or not successors:
                successors = [user]
            now = account.at(self.s.now_s, self.s.lease_s)
            for successor in successors:
                kept = carried.setdefault(successor, {})
                for t, n in now.items():
                    kept[t] = kept.get(t, 0.0) + n / len(successors)
        return carried

    def _memory(self, later: Mapping[str, Mapping[str, float]], hosts: HostPool) -> ShareMemory:
        """The memory for the next round. `later`: the deviations of this round's virtual users in one lease."""
        s, old, got = self.s, self.memory, hosts.got
        accounts = {u: Account(self.carried.get(u, {}), later[u], s.now_s) for u in self.names}
        for user, account in old.accounts.items():  # virtual users that were not in this round stay as they were
            if user in self.carried and user not in self.names and account.seen_s > s.now_s - GAP * s.lease_s:
                accounts[user] = account
        held = {a: own for a, own in old.held.items() if a in s.present and a not in self.users}
        held |= {
            v.app_id: self._by_type([*v.retained_gangs, *got.get(v.app_id, ())])
            for v in self.views
            if v.retained_gangs or v.app_id in got
        }
        known = {a: u for a, u in old.users.items() if a in s.present}
        lost_s = {a: at_s for a, at_s in old.lost_s.items() if a not in held and (a in self.users or a in s.present)}
        lost_s |= {v.app_id: s.now_s for v in self.views if v.ending_gangs and v.app_id not in held}
        users = known | {a: u.name for a, u in self.users.items()}
        others = {a: t for a, t in old.holds.items() if a in s.present and a not in self.users and t > s.now_s}
        holds = others | {a: self._until_s(a) for a, _ in hosts.held}
        return ShareMemory(s.now_s, accounts, users, held, lost_s, holds)

    def _weight(self, tenant: str) -> float:
        given = self.policy.weights.get(tenant)
        if given is None and self.policy.tenant == "queue" and tenant in self.s.queues:
            given = self.s.queues[tenant].fractions(self.s.topology.gpus_in)[0]
        return 1.0 if given is None else given

    def _shares(self) -> dict[str, dict[str, float]]:
        """Virtual user -> type -> its share in GPUs."""
        users = sorted(set(self.users.values()), key=lambda u: u.name)
        if not users or not self.types:
            return {u.name: dict.fromkeys(self.types, 0.0) for u in users}
        standing = dict.fromkeys(users, 1.0)
        """Virtual user -> its relative part of its tenant's weight (OEF, section 4.2.4)."""
        for view in self.views:
            user = self.users[view.app_id]
            standing[user] = max(standing[user], 1.0 + view.priority)
        kinds = summed((user.tenant, standing[user]) for user in users)
        demand, left, came_s = dict.fromkeys(users, 0), dict.fromkeys(users, 0.0), dict.fromkeys(users, self.s.now_s)
        for view in self.views:
            user = self.users[view.app_id]
            demand[user] += view.demand.gpus
            left[user] += view.demand.work_left_gpu_s or self.s.lease_s * view.demand.gang_gpus
            came_s[user] = min(came_s[user], view.submitted_s)
        by_name = {u.name: u for u in users}
        for app_id, own in self.held.items():
            if app_id not in self.users:
                demand[by_name[self.user_of[app_id]]] += sum(own.values())
        problem = ShareProblem.of(
            [u.vector for u in users],
            [float(self.supply[t]) for t in self.types],
            [self._weight(u.tenant) * standing[u] / kinds[u.tenant] for u in users],
            [float(demand[u]) for u in users],
            [left[u] for u in users],
            [self.s.now_s - came_s[u] for u in users],
        )
        x: Matrix = within_demand(self.policy.scheme(), problem)
        return {
            u.name: {t: float(n) for t, n in zip(self.types, row, strict=True)}
            for u, row in zip(users, np.asarray(x), strict=True)
        }

    # ---- whole gangs

    def _jobs(self, view: AppView) -> list[tuple[PlacerJob, Gang | None]]:
        """(job, its running gang or None) for each gang that the app could run, gangs on offer first."""
        d, user = view.demand, self.users[view.app_id]
        fast = sorted((t for t in self.types if view.demand.speed_on(t) > 0), key=lambda t: -view.demand.speed_on(t))
        if fast and all(self.whole[t] < d.gang_gpus for t in fast) and not d.gpu_type:
            fast = [ANY_TYPE]
        lost_s = self.memory.lost_s.get(view.app_id, view.submitted_s)
        waited = 0.0 if view.retained_gpus or view.ending_gangs else max(0.0, self.s.now_s - lost_s) / self.s.lease_s
        homes = sorted(view.ending_gangs, key=lambda g: (gang_gpus(g) != d.gang_gpus, g))
        if d.gpu_type:
            homes = [g for g in homes if set(self._by_type([g])) == {d.gpu_type}]
        more = max(0, d.gpus - view.retained_gpus) // d.gang_gpus - sum(gang_gpus(g) == d.gang_gpus for g in homes)
        jobs: list[tuple[PlacerJob, Gang | None]] = []
        for k, gang in enumerate([*homes, *[None] * max(0, more)]):
            home, gpus = None, d.gang_gpus
            if gang is not None:
                kinds = list(self._by_type([gang]))
                home, gpus = (kinds[0] if len(kinds) == 1 else ANY_TYPE), gang_gpus(gang)
            types = tuple(fast) if gpus == d.gang_gpus else ()
            job = PlacerJob(f"{view.app_id}#{k:05d}", user.name, gpus, types, waited, home, view.priority)
            jobs.append((job, gang))
        return jobs

    def plan(self, started_s: float) -> Plan:
        """The plan of the round."""
        hosts = self.hosts()
        for view in self.views:
            for job, home in self._jobs(view):
                hosts.know(job, view, home)
        held: dict[str, dict[str, int]] = {u: {} for u in self.names}
        for app_id, own in self.held.items():
            held[self.user_of[app_id]] = _total([held[self.user_of[app_id]], own])
        free = {u: {t: self.carried.get(u, {}).get(t, 0.0) - held[u].get(t, 0) for t in self.types} for u in held}
        """Virtual user -> type -> its deviation, less what it holds that is not on offer."""
        placed = self.placed(free, held, hosts)
        ways: dict[str, set[tuple[str, str]]] = {}
        for job_id, way in placed.how.items():
            ways.setdefault(hosts.view[job_id].app_id, set()).add(way)
        return Plan(
            round_id=self.s.round_id,
            awards=tuple(Award(a, tuple(gangs)) for a, gangs in hosts.got.items()),
            unused_gpus=hosts.unused(),
            solve_s=time.perf_counter() - started_s,
            note=f"{self.policy.name}: {placed.migrations} gangs moved",
            why={a: self._why(a, ways[a]) for a in hosts.got},
            memory=self.s.memory if self._nothing_new(hosts) else self._memory(placed.deviation, hosts).to_json(),
            holds=tuple(Hold(a, gang, self._until_s(a)) for a, gang in hosts.held),
        )

    def hosts(self) -> HostPool:
        """The GPUs on offer."""
        return HostPool(self.s, self.supply)

    def placed(self, free: Shares, held: Shares, hosts: HostPool) -> Placement:
        """Whole gangs on hosts. `held`: virtual user -> type -> GPUs that it holds and that are not on offer."""
        busy = {u for u, own in held.items() if own}
        how = self.policy.patience, self.policy.stint
        return PlacerRound(self.shares, free, hosts.jobs, hosts, *how, busy).run()

    def _until_s(self, app_id: str) -> float:
        """When a hold for an app ends: one lease after it began, as every present lease has ended once by then.

        Later rounds keep this time, so that all loans of held GPUs end together.
        """
        until_s = self.memory.holds.get(app_id, 0.0)
        return until_s if until_s > self.s.now_s else self.s.now_s + self.s.lease_s

    def _nothing_new(self, hosts: HostPool) -> bool:
        """Whether the round changed nothing: what is due goes on as the last one left it."""
        gave = hosts.got or hosts.held or self.memory.holds
        return not gave and all(v.app_id in self.memory.users and not v.ending_gangs for v in self.views)

    def _why(self, app_id: str, ways: set[tuple[str, str]]) -> str:
        """The tenant's share, deviation and speedup on each type that the app got."""
        user = self.users[app_id]
        parts = []
        for gpu_type, way in sorted(ways):
            if gpu_type == ANY_TYPE:
                parts.append("GPUs of several types, since no type has enough for its gang or it runs on them")
                continue
            j = self.types.index(gpu_type)
            share, before = self.shares[user.name][gpu_type], self.carried.get(user.name, {}).get(gpu_type, 0.0)
            reason = {
                "first": "its turn after a long wait, paid by what its tenant had saved",
                "stays": "stays where it runs",
                "entitled": "due to its tenant",
                "spare": "spare, charged to its tenant's deviation",
                "spare, stays": "spare where it runs, charged to its tenant's deviation",
            }[way]
            parts.append(
                f"{gpu_type}: {reason}; share {share:.2f} of {self.supply[gpu_type]}, deviation before {before:+.2f}, "
                f"speedup {user.vector[j]:g}"
            )
        return f"{user.tenant or 'nobody'}: " + "; ".join(parts)


def _total(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    return summed(part for own in counts for part in own.items())
