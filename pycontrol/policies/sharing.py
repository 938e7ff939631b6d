"""The base of policies by shares: turns a snapshot into a share problem, and shares into gangs on hosts.

A tenant is an app's user, its queue, or the app itself. A tenant's apps with the same speedup vector form a virtual
user, which gets a part of the tenant's weight in proportion to 1 + the highest priority of its apps (OEF, section
4.2.4). Shares never exceed demand. A lease is the placer's round: shares accrue with time, at most one lease's worth
per round, and a gang is charged for a whole lease when it is given.
"""

from __future__ import annotations

import random
import time
from abc import ABC, abstractmethod
from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np

from pycontrol.model.auction import AppView, Award, Bid, Gang, Hold, Offer, Plan, Snapshot, gang_gpus
from pycontrol.policies.hosts import HostPool, paper_placement
from pycontrol.shares.capped import within_demand
from pycontrol.shares.placer import ANY_TYPE, PlacerJob, place_round, priority_round
from pycontrol.shares.problem import Matrix, Scheme, ShareProblem

Tenant = Literal["user", "queue", "app"]


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
    placer: Literal["whole", "paper", "priority", "unpacked"] = "whole"
    """`whole`: each gang has one type, spare GPUs are used, no app starves. For comparison: `paper`, exactly OEF,
    section 4.3; `priority`, by share over GPUs received, as in Gavel's rounds; `unpacked`, the same without packing."""

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
        """The plan: computes shares, then whole gangs by carried deviation."""
        started_s = time.perf_counter()
        return _Shared(self, snapshot).plan(started_s)


@dataclass(frozen=True)
class _User:
    """A virtual user: a tenant's apps with one speedup vector."""

    name: str
    tenant: str
    vector: tuple[float, ...]


class _Shared:
    """Decides one round."""

    def __init__(self, policy: Sharing, snapshot: Snapshot) -> None:
        self.policy, self.s = policy, snapshot
        self.views = [v for v in snapshot.apps if v.demand.gang_gpus > 0 and v.demand.gpus > 0]
        self.supply = self._supply()
        self.types = self._types()
        self.whole = self._whole()
        self.known_types = sorted({m.gpu_type for m in snapshot.topology.machines.values()} | self.supply.keys())
        self.users = {v.app_id: self._user(v) for v in self.views}
        self.names = {user.name for user in self.users.values()}
        self.seen_s: dict[str, float] = {}
        """Virtual user -> when it last took part; it is dropped two leases later."""
        self.carried = self._carried(snapshot.memory)
        self.waited: Mapping[str, float] = snapshot.memory.get("waited", {})
        self.part = self._leases_since(float(snapshot.memory.get("at_s", snapshot.now_s - snapshot.lease_s)))
        """Leases since the last round, at most 1."""
        self.part_of = {u: self._leases_since(self.seen_s[u]) if u in self.seen_s else self.part for u in self.names}
        """Virtual user -> leases since it last took part, at most 1; a satisfied one skips rounds."""
        idle_round = self.part < 1.0 and not any(v.ending_gangs for v in self.views)
        self.idle_round = policy.placer == "paper" and idle_round
        """Whether the paper's placer, which decides once per lease, skips this round."""
        self.shares = {} if self.idle_round else self._shares()

    def _type(self, host: str) -> str:
        machine = self.s.topology.machines.get(host)
        return machine.gpu_type if machine else ANY_TYPE

    def _supply(self) -> dict[str, int]:
        """GPUs by type that this round divides: those on offer, and those that its apps retain."""
        supply: dict[str, int] = {}
        held = [pair for v in self.s.apps for gang in v.retained_gangs for pair in gang]
        for host, n in [*self.s.free.items(), *held]:
            if n > 0:
                supply[self._type(host)] = supply.get(self._type(host), 0) + n
        return supply

    def _whole(self) -> Mapping[str, int]:
        """GPUs of the cluster by type: a gang mixes types only if it is larger than a whole type."""
        whole: dict[str, int] = {}
        for machine in self.s.topology.machines.values():
            whole[machine.gpu_type] = whole.get(machine.gpu_type, 0) + machine.gpus
        return {**self.supply, **whole}

    def _types(self) -> list[str]:
        """The GPU types from slow to fast, by the apps' mean speedup."""
        mean = {t: sum(v.demand.speedups.get(t, 1.0) for v in self.views) for t in self.supply}
        return sorted(self.supply, key=lambda t: (mean[t], t))

    def _speedup(self, view: AppView, gpu_type: str) -> float:
        """The app's speed on a type; 1 if it was not measured, 0 if it does not take the type."""
        wish = view.demand.gpu_type
        return 0.0 if wish and wish != gpu_type else float(view.demand.speedups.get(gpu_type, 1.0))

    def _user(self, view: AppView) -> _User:
        tenant = {"user": view.user, "queue": view.queue, "app": view.app_id}[self.policy.tenant]
        vector = tuple(self._speedup(view, t) for t in self.types)
        kinds = ", ".join(f"{t} {self._speedup(view, t):g}" for t in self.known_types)
        return _User(f"{tenant} ({kinds})", tenant, vector)

    def _leases_since(self, then_s: float) -> float:
        """Leases that have passed since `then_s`, at most 1."""
        return min(1.0, max(0.0, (self.s.now_s - then_s) / self.s.lease_s))

    def _carried(self, memory: Mapping[str, Any]) -> dict[str, dict[str, float]]:
        """Virtual user -> type -> deviation, also for virtual users that are not in this round.

        If new measurements moved all apps of a virtual user to others, these share its deviation.
        """
        was: Mapping[str, str] = memory.get("users", {})
        seen: Mapping[str, float] = memory.get("seen_s", {})
        carried: dict[str, dict[str, float]] = {}
        for user, own in memory.get("deviation", {}).items():
            apps = [] if user in self.names else [a for a, u in was.items() if u == user]
            successors = [self.users[a].name for a in apps if a in self.users]
            if len(successors) < len(apps) or not successors:
                successors = [user]
            for successor in successors:
                kept = carried.setdefault(successor, {})
                for t, n in own.items():
                    kept[t] = kept.get(t, 0.0) + n / len(successors)
                if user in seen:
                    self.seen_s[successor] = max(seen[user], self.seen_s.get(successor, seen[user]))
        return carried

    def _memory(self, deviation: Mapping[str, Mapping[str, float]], got: Container[str]) -> dict[str, Any]:
        """The memory for the next round. `deviation`: that of this round's virtual users; `got`: apps that won."""
        old: Mapping[str, str] = self.s.memory.get("users", {})
        fresh = {u: at_s for u, at_s in self.seen_s.items() if at_s > self.s.now_s - 2 * self.s.lease_s}
        seen_s = fresh | dict.fromkeys(self.names, self.s.now_s)
        rows = {u: {**self.carried.get(u, {}), **deviation.get(u, {})} for u in seen_s}
        away = {a: u for a, u in old.items() if u in seen_s and u not in self.names and a not in self.users}
        return {
            "at_s": self.s.now_s,
            "seen_s": seen_s,
            "deviation": {u: {t: round(n, 9) for t, n in own.items()} for u, own in rows.items()},
            "users": away | {a: u.name for a, u in self.users.items()} if len(self.known_types) > 1 else {},
            "waited": {
                v.app_id: self._now_waited(v) for v in self.views if v.app_id not in got and not v.retained_gpus
            },
        }

    def _weight(self, tenant: str) -> float:
        given = self.policy.weights.get(tenant)
        if given is None and self.policy.tenant == "queue" and tenant in self.s.queues:
            given = self.s.queues[tenant].capacity
        return 1.0 if given is None or given <= 0 else given

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
        kinds: dict[str, float] = {}
        for user in users:
            kinds[user.tenant] = kinds.get(user.tenant, 0.0) + standing[user]
        demand, left, came_s = dict.fromkeys(users, 0), dict.fromkeys(users, 0.0), dict.fromkeys(users, self.s.now_s)
        for view in self.views:
            user = self.users[view.app_id]
            demand[user] += view.demand.gpus
            left[user] += view.demand.work_left_gpu_s or self.s.lease_s * view.demand.gang_gpus
            came_s[user] = min(came_s[user], view.submitted_s)
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
        fast = sorted((t for t in self.types if self._speedup(view, t) > 0), key=lambda t: -self._speedup(view, t))
        if fast and all(self.whole[t] < d.gang_gpus for t in fast) and not d.gpu_type:
            fast = [ANY_TYPE]
        waited = 0.0 if view.retained_gpus or view.ending_gangs else self.waited.get(view.app_id, 0.0) + self.part
        homes = sorted(view.ending_gangs, key=lambda g: (gang_gpus(g) != d.gang_gpus, g))
        if d.gpu_type:
            homes = [g for g in homes if all(self._type(h) == d.gpu_type for h, _ in g)]
        more = max(0, d.gpus - view.retained_gpus) // d.gang_gpus - sum(gang_gpus(g) == d.gang_gpus for g in homes)
        jobs: list[tuple[PlacerJob, Gang | None]] = []
        for k, gang in enumerate([*homes, *[None] * max(0, more)]):
            home, gpus = None, d.gang_gpus
            if gang is not None:
                kinds = {self._type(h) for h, _ in gang}
                home, gpus = (kinds.pop() if len(kinds) == 1 else ANY_TYPE), gang_gpus(gang)
            types = tuple(fast) if gpus == d.gang_gpus else ()
            job = PlacerJob(f"{view.app_id}#{k:05d}", user.name, gpus, types, waited, home, view.priority)
            jobs.append((job, gang))
        return jobs

    def plan(self, started_s: float) -> Plan:
        """The plan of the round."""
        if self.idle_round:
            return self._wait(started_s)
        hosts = HostPool(self.s, self.supply, packed=self.policy.placer != "unpacked")
        for view in self.views:
            for job, home in self._jobs(view):
                hosts.know(job, view, home)
        ideal = {u: {t: n * self.part_of[u] for t, n in own.items()} for u, own in self.shares.items()}
        if self.policy.placer == "paper":
            placed = paper_placement(ideal, self.carried, hosts)
        elif self.policy.placer in ("priority", "unpacked"):
            placed = priority_round(self.shares, self.carried, self.part, hosts.jobs, hosts)
        else:
            placed = place_round(ideal, self.carried, hosts.jobs, hosts, self.policy.patience, self.policy.stint)
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
            memory=self._memory(placed.deviation, hosts.got) | self._held_until(hosts),
            holds=tuple(Hold(a, gang, self._until_s(a)) for a, gang in hosts.held),
        )

    def _until_s(self, app_id: str) -> float:
        """When a hold for an app ends: one lease after it began, as every present lease has ended once by then.

        Later rounds keep this time, so that all loans of held GPUs end together.
        """
        until_s = float(self.s.memory.get("holds", {}).get(app_id, 0.0))
        return until_s if until_s > self.s.now_s else self.s.now_s + self.s.lease_s

    def _held_until(self, hosts: HostPool) -> dict[str, Any]:
        return {"holds": {a: self._until_s(a) for a, _ in hosts.held}} if hosts.held else {}

    def _wait(self, started_s: float) -> Plan:
        """An empty plan: rounds are a lease apart (OEF, section 4.3), and shares accrue from the last one."""
        return Plan(
            round_id=self.s.round_id,
            awards=(),
            unused_gpus={h: n for h, n in self.s.free.items() if n > 0},
            solve_s=time.perf_counter() - started_s,
            note=f"{self.policy.name}: placer {self.policy.placer} decides once a lease",
            memory=self.s.memory,
        )

    def _now_waited(self, view: AppView) -> float:
        return round(self.waited.get(view.app_id, 0.0) + self.part, 9)

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
