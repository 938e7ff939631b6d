"""YARN's CapacityScheduler as it works, for replays of what it did; `yarn_cs` is the papers' baseline.

In each partition the queue with the lowest use of its capacity is next, and in it the earliest submission. One that
exceeds the room of its queue or of the partition lets nobody of its queue pass. One with room that fits on no
machine, reserves one until it fits there; nothing else starts there, and that counts as use (Hadoop's LeafQueue and
RegularContainerAllocator). Nothing is preempted.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from pycontrol.arbiter.ledger.limits import places
from pycontrol.auction.placing import take
from pycontrol.model.auction import Award, Bid, Gang, Plan, Snapshot, gang_of
from pycontrol.model.cluster import Queue
from pycontrol.model.grouping import grouped
from pycontrol.policies.max_min import ANY
from pycontrol.policies.yarn_cs import YarnCs
from pycontrol.simulation.trace_apps import TraceApp


@dataclass(frozen=True)
class AsYarn(YarnCs):
    """CapacityScheduler with reservations of machines, for apps of one gang."""

    name: ClassVar[str] = "yarn_cs"
    apps: Mapping[str, TraceApp] = field(default_factory=dict)
    """All apps of the replay: also one that fits nowhere now, of which no snapshot tells, reserves a machine."""

    def decide(self, snapshot: Snapshot, bids: Mapping[str, Bid], rng: random.Random) -> Plan:
        """All that runs stays; then app by app, as far as limits and machines allow."""
        return _Round(self, snapshot, rng).plan()


class _Round:
    """Decides one round."""

    def __init__(self, policy: AsYarn, s: Snapshot, rng: random.Random) -> None:
        self.s, self.rng, self.free, self.reserved = s, rng, dict(s.free), dict[str, str]()
        views = {v.app_id: v for v in s.apps}
        had = {a for a in s.memory.get("apps", ()) if a in s.present}
        had -= {a for a, v in views.items() if not v.retained_gpus and not v.ending_gangs}  # its grant came to nothing
        self.stay = {a: v.ending_gangs for a, v in views.items() if v.ending_gangs}
        for gangs in self.stay.values():
            take(self.free, gangs)
        self.got, self.had = dict[str, Gang](), had | self.stay.keys()
        present = [policy.apps[a] for a in sorted(s.present | views.keys())]
        self.waiting = sorted((a for a in present if a.app_id not in self.had), key=lambda a: (a.submitted_s, a.app_id))
        self.users = {q: set(users) for q, users in grouped((a.queue, a.user) for a in self.waiting).items()}
        """Queue -> those who wait there, among whom its user limit divides it."""
        self.able = views.keys()
        self.before: dict[str, str] = {a: host for host, a in s.memory.get("reserved", {}).items() if a not in self.had}
        """App -> the machine that it reserved earlier."""
        self.used = Counter[str]()
        """One of `places` -> GPUs of its apps, reserved ones too."""
        for app in present:
            if app.app_id in self.had:
                self._count(app)

    def plan(self) -> Plan:
        """The plan."""
        lines: dict[tuple[str, str], list[TraceApp]] = {}
        for app in [a for a in self.waiting if a.app_id in self.before]:
            self._place(app)
        for app in [a for a in self.waiting[::-1] if a.app_id not in self.before]:
            lines.setdefault((app.queue, self._at(app)), []).append(app)
        while lines:
            line = min(lines, key=lambda x: (self._use(*x), x))
            self._serve(lines[line])
            if not lines[line]:
                del lines[line]
        gangs = {**self.stay, **{a: (gang,) for a, gang in self.got.items()}}
        memory = {"apps": sorted({*self.had, *self.got}), "reserved": self.reserved}
        why = dict.fromkeys(gangs, "its turn came")
        return Plan(self.s.round_id, tuple(Award(a, x) for a, x in gangs.items()), why=why, memory=memory)

    def _queue(self, path: str) -> Queue:
        return self.s.queues.get(path, ANY)

    def _at(self, app: TraceApp) -> str:
        return self._queue(app.queue).default_partition if app.partition is None else app.partition

    def _gpus(self, partition: str) -> int:
        return self.s.topology.gpus_in.get(partition, 0)

    def _use(self, queue: str, partition: str) -> float:
        """The used part of the queue's capacity there."""
        least = self._queue(queue).share(partition).capacity * self._gpus(partition)
        return self.used[places(queue, "", partition)[0]] / least if least else math.inf

    def _count(self, app: TraceApp) -> None:
        for name in places(app.queue, app.user, self._at(app)):
            self.used[name] += app.gang_gpus

    def _full(self, app: TraceApp) -> bool:
        """Whether its queue, one above, or the partition has no room for its gang."""
        at, path = self._at(app), app.queue
        for name in places(app.queue, app.user, at)[:-1]:
            most = int(self._queue(path).share(at).max_capacity * self._gpus(at) + 1e-9)
            if self.used[name] + app.gang_gpus > most:
                return True
            path = path.rpartition(".")[0]
        return False

    def _user_is_full(self, app: TraceApp) -> bool:
        """Whether the user has more than the limit, which one container may exceed."""
        at, queue = self._at(app), self._queue(app.queue)
        whole, *_, user = places(app.queue, app.user, at)
        least = queue.share(at).capacity * self._gpus(at)
        now = max(least, self.used[whole] + app.gang_gpus)
        most = now * max(1 / len(self.users[app.queue]), queue.user_limit)
        factor = queue.user_limit_factor
        return self.used[user] > (most if factor < 0 else min(most, least * factor)) + 1e-9

    def _serve(self, line: list[TraceApp]) -> None:
        """Gives the first app of a queue its gang, or reserves a machine for it.

        Without room below the maxima nobody after it is served; only its user's limit is no matter of the others.
        """
        app = line.pop()
        if self._user_is_full(app):
            return
        if self._full(app):
            line.clear()
            return
        self._place(app)

    def _place(self, app: TraceApp) -> None:
        """Gives the app its gang, or reserves a machine for it, if one is large enough and not reserved."""
        size, at, able = app.gang_gpus, self._at(app), app.app_id in self.able
        taken = {*self.reserved, *(host for a, host in self.before.items() if a not in self.got)}
        taken.discard(self.before.get(app.app_id, ""))
        machines = [m for m in self.s.topology.machines.values() if m.partition == at]
        free = {m.host: self.free.get(m.host, 0) for m in machines if m.host not in taken}
        whole = [host for host, n in free.items() if n >= size]
        could = [m.host for m in machines if m.gpus >= size and m.host in free]
        if whole and able:
            self._give(app, gang_of({self.rng.choice(whole): size}))
        elif could:
            first = self.before.get(app.app_id, "")
            self.reserved[first if first in could else max(could, key=lambda host: free[host])] = app.app_id
            self._count(app)
        elif sum(free.values()) >= size and all(m.gpus < size for m in machines) and able:
            self._give(app, _spread(size, free))

    def _give(self, app: TraceApp, gang: Gang) -> None:
        take(self.free, [gang])
        self.got[app.app_id] = gang
        self._count(app)


def _spread(size: int, free: Mapping[str, int]) -> Gang:
    """A gang that no machine holds, on those with the most free GPUs."""
    parts = dict[str, int]()
    for host, n in sorted(free.items(), key=lambda x: -x[1]):
        if n and sum(parts.values()) < size:
            parts[host] = min(n, size - sum(parts.values()))
    return gang_of(parts)
