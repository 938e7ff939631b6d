"""Placers to compare ours with: exactly OEF's (section 4.3), and by priority as in Gavel's rounds (section 5).

`Placed` is a policy by shares with one of them.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from pycontrol.lab.policies.variants import Unpacked
from pycontrol.model.auction import Bid, Offer, Plan, Snapshot, gang_of
from pycontrol.model.topology import Scope
from pycontrol.policies.hosts import HostPool, gpus_by_type
from pycontrol.policies.sharing import Shared, Shares, Sharing
from pycontrol.shares.placer import ANY_TYPE, Devices, Placement, PlacerJob

Placer = Literal["whole", "paper", "priority", "unpacked"]
"""`whole`: the product's. `paper`: exactly OEF's. `priority`: by share over GPUs received, as in Gavel's rounds;
`unpacked`: the same without packing."""


class _Paper(Shared):
    """The paper's placer, which decides once per lease."""

    def plan(self, started_s: float) -> Plan:
        at_s = self.memory.at_s
        early = at_s is not None and self.s.now_s - at_s < self.s.lease_s
        if not early or any(v.ending_gangs for v in self.views):
            return super().plan(started_s)
        return Plan(
            round_id=self.s.round_id,
            awards=(),
            unused_gpus={h: n for h, n in self.s.free.items() if n > 0},
            solve_s=time.perf_counter() - started_s,
            note=f"{self.policy.name}: the paper's placer decides once a lease",
            memory=self.s.memory,
        )

    def placed(self, free: Shares, held: Shares, hosts: HostPool) -> Placement:
        return paper_placement(self.shares, free, hosts)


class _ByPriority(Shared):
    def placed(self, free: Shares, held: Shares, hosts: HostPool) -> Placement:
        found = priority_round(self.shares, self.carried, 1.0, hosts.jobs, hosts)
        for user, received in found.deviation.items():
            received.update({t: received.get(t, 0.0) + n for t, n in held[user].items()})
        return found


class _Unpacked(_ByPriority):
    """Gangs take free GPUs in the order of host names, however far apart."""

    def hosts(self) -> HostPool:
        found = super().hosts()
        order = {host: k for k, host in enumerate(sorted(self.s.free))}
        found.pool = Unpacked(self.s.free, self.s.topology, order)
        return found


ROUNDS: Mapping[Placer, type[Shared]] = {
    "whole": Shared,
    "paper": _Paper,
    "priority": _ByPriority,
    "unpacked": _Unpacked,
}


@dataclass(frozen=True)
class Placed:
    """A policy by shares with a placer."""

    policy: Sharing
    placer: Placer
    asks_agents: ClassVar[bool] = False

    @property
    def name(self) -> str:
        """The policy's."""
        return self.policy.name

    def offer(self, snapshot: Snapshot) -> Offer | None:
        """None: no Agent is asked for bids."""
        return None

    def decide(self, snapshot: Snapshot, bids: Mapping[str, Bid], rng: random.Random) -> Plan:
        """The plan: the policy's shares, and the placer's gangs."""
        return ROUNDS[self.placer](self.policy, snapshot).plan(time.perf_counter())


def _settle_mixed(hosts: HostPool, job: PlacerJob, parts: Mapping[str, int]) -> bool:
    """Gives the job a gang with `parts` (type -> GPUs): its home if that matches, else a new place; returns
    whether it fits the job's scope and size."""
    home = hosts.home[job.job_id]
    wanted = {t: n for t, n in parts.items() if n}
    if home is not None and gpus_by_type(home, hosts.topology) == wanted and hosts.stay(job):
        return True
    gang: dict[str, int] = {}
    for gpu_type, n in parts.items():
        part = hosts.pool.place(n, Scope.CLUSTER, gpu_type) if n else ()
        if part is None:
            return False
        gang.update(part)
    view = hosts.view[job.job_id]
    if hosts.topology.scope_of(gang) > view.demand.scope or job.gpus != view.demand.gang_gpus:
        return False
    return hosts.take(job, gang_of(gang))


def paper_placement(
    ideal: Mapping[str, Mapping[str, float]], carried: Mapping[str, Mapping[str, float]], hosts: HostPool
) -> Placement:
    """The placer of OEF, section 4.3: whole devices by rounding with carried deviation; `_fill` assigns them to jobs.

    `ideal`: virtual user -> type -> GPUs due in this round. `carried`: virtual user -> type -> deviation before it.
    """
    smallest: dict[str, int] = {}
    for job in hosts.jobs:
        smallest[job.user] = min(smallest.get(job.user, job.gpus), job.gpus)
    outcome = paper_round(ideal, carried, smallest, gpus_by_type(hosts.pool.left.items(), hosts.topology))
    return _fill(outcome.real, outcome.deviation, hosts)


def _fill(real: Mapping[str, Mapping[str, int]], deviation: dict[str, dict[str, float]], hosts: HostPool) -> Placement:
    """Assigns each user's devices to its jobs, the longest waiting first; jobs mix types if they must.

    Larger jobs choose their hosts first. Devices that no job of their user can use stay idle.
    """
    left = {user: dict(own) for user, own in real.items()}
    chosen: list[tuple[PlacerJob, dict[str, int]]] = []
    for job in sorted(hosts.jobs, key=lambda j: (-j.waited, j.home is None, -j.gpus, j.job_id)):
        own, parts, need = left[job.user], dict[str, int](), job.gpus
        usable = own if ANY_TYPE in job.types or not job.types else {t: own.get(t, 0) for t in job.types}
        if sum(usable.values()) < need:
            continue
        for t in sorted(usable, key=lambda t: (t != job.home, -usable[t], t)):
            parts[t] = min(need, own[t])
            own[t] -= parts[t]
            need -= parts[t]
        chosen.append((job, parts))
    result = Placement(deviation)
    for job, parts in sorted(chosen, key=lambda c: (-c[0].gpus, c[0].job_id)):
        ran = hosts.home[job.job_id]
        if _settle_mixed(hosts, job, parts):
            types = [t for t, n in parts.items() if n]
            result.how[job.job_id] = types[0] if len(types) == 1 else ANY_TYPE, "entitled"
            result.migrations += ran is not None and hosts.got[hosts.view[job.job_id].app_id][-1] != ran
    return result


@dataclass(frozen=True)
class PaperRound:
    """User -> type -> whole devices in a round (`real`), and the deviation after it."""

    real: dict[str, dict[str, int]]
    deviation: dict[str, dict[str, float]]


def paper_round(
    ideal: Mapping[str, Mapping[str, float]],
    carried: Mapping[str, Mapping[str, float]],
    smallest: Mapping[str, int],
    devices: Mapping[str, int],
) -> PaperRound:
    """The paper's rule: real = round(ideal + dev); 0 if a user's devices are fewer than its `smallest` job needs.

    If rounding needs more than the `devices` of a type, the largest remainders are served. As in the paper, the caller
    chooses hosts and whether a job mixes types.
    """
    want = {u: {t: s + carried.get(u, {}).get(t, 0.0) for t, s in shares.items()} for u, shares in ideal.items()}
    real: dict[str, dict[str, int]] = {u: {} for u in want}
    for t, total in devices.items():
        floors = {u: max(0, math.floor(w.get(t, 0.0) + 1e-9)) for u, w in want.items()}
        left = total
        for u in sorted(floors, key=lambda u: (-want[u].get(t, 0.0), u)):
            real[u][t] = min(floors[u], left)
            left -= real[u][t]
        for u in sorted(floors, key=lambda u: (floors[u] - want[u].get(t, 0.0), u)):
            if left > 0 and real[u][t] == floors[u] and want[u].get(t, 0.0) - floors[u] >= 0.5 - 1e-9:
                real[u][t] += 1
                left -= 1
    for u, own in real.items():
        if sum(own.values()) < smallest.get(u, 0):
            real[u] = dict.fromkeys(own, 0)
    deviation = {u: {t: want[u].get(t, 0.0) - real[u].get(t, 0) for t in want[u]} for u in want}
    return PaperRound(real, deviation)


MEMORY = 8.0
"""Leases over which received devices fade (Gavel resets its counts every few rounds)."""
UNSERVED = 1e-3
"""The least number of devices that a user counts as having received."""


def priority_round(
    shares: Mapping[str, Mapping[str, float]],
    received: Mapping[str, Mapping[str, float]],
    leases: float,
    jobs: Sequence[PlacerJob],
    hosts: Devices,
) -> Placement:
    """A round by priority, as in Gavel's section 5, for comparison with `PlacerRound`.

    The (user, type) with the largest ratio of share to devices received is next, with the user's longest-waiting job
    that fits. Then devices that are left go to the longest-waiting jobs. A job has one type, unless it is larger than
    each. No user starves: users that received nothing come first, those with the longest wait before others.

    `received`: user -> type -> devices received over about the last `MEMORY` leases; `leases` have passed since. The
    new values are the placement's `deviation`.
    """
    fades = math.exp(-leases / MEMORY)
    now = {u: {t: received.get(u, {}).get(t, 0.0) * fades for t in own} for u, own in shares.items()}
    return _Priority(shares, now, jobs, hosts).run()


class _Priority:
    def __init__(
        self,
        shares: Mapping[str, Mapping[str, float]],
        received: dict[str, dict[str, float]],
        jobs: Sequence[PlacerJob],
        hosts: Devices,
    ) -> None:
        self.shares, self.received, self.hosts = shares, received, hosts
        self.result = Placement(received)
        self.waiting: dict[str, list[PlacerJob]] = {}
        for job in sorted(jobs, key=lambda j: (-j.priority, -j.waited, j.home is None, -j.gpus, j.job_id)):
            self.waiting.setdefault(job.user, []).append(job)

    def run(self) -> Placement:
        """Places jobs by priority, then on devices that are left."""
        open_ = {(u, t) for u in self.waiting for t, share in self.shares.get(u, {}).items() if share > 0}
        while open_:
            user, gpu_type = max(open_, key=self._priority)
            if not any(self._give(job, gpu_type, "entitled") for job in self._able(user, gpu_type)):
                open_.remove((user, gpu_type))
        left = [job for own in self.waiting.values() for job in own]
        for job in sorted(left, key=lambda j: (-j.waited, j.job_id)):
            any(self._give(job, t, "spare") for t in _types(job))
        return self.result

    def _priority(self, of: tuple[str, str]) -> tuple[float, float, str, str]:
        user, gpu_type = of
        longest = max((j.waited for j in self.waiting[user]), default=0.0)
        received = max(self.received[user][gpu_type], UNSERVED)
        return self.shares[user][gpu_type] / received, longest, user, gpu_type

    def _able(self, user: str, gpu_type: str) -> list[PlacerJob]:
        return [j for j in self.waiting[user] if gpu_type in _types(j) or ANY_TYPE in _types(j)]

    def _give(self, job: PlacerJob, gpu_type: str, why: str) -> bool:
        where = gpu_type if gpu_type in _types(job) else ANY_TYPE
        stays = job.home == where and self.hosts.stay(job)
        if not stays and not (job.types and self.hosts.settle(job, where)):
            return False
        self.result.how[job.job_id] = where, why if not stays else "stays" if why == "entitled" else f"{why}, stays"
        self.result.migrations += not stays and job.home is not None
        own = self.received[job.user]
        for t in own if where == ANY_TYPE else (where,):
            own[t] = own.get(t, 0.0) + job.gpus / (len(own) if where == ANY_TYPE else 1)
        self.waiting[job.user].remove(job)
        return True


def _types(job: PlacerJob) -> tuple[str, ...]:
    """The types that the job can use; its present one for a running gang of another size than its app's."""
    return job.types or ((job.home,) if job.home is not None else ())
