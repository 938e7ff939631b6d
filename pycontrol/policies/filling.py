"""The base of policies that order apps: gang by gang, the pool goes to the first app in the policy's order.

A policy orders apps by `key` (smallest first), and may order queues before apps (`queue_key`). The first app keeps one
of its ending gangs in place, else gets a new gang. This repeats until no app can use what is left.

Two steps keep restarts rare. First gangs are picked by GPU counts only, which decides which running gangs stay; then
new gangs are placed, in order, on the remaining GPUs. A gang displaces one that comes later in the order only if it
finds no other room.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush, heapreplace
from typing import ClassVar, Literal

from pycontrol.auction.limits import queue_limits
from pycontrol.auction.placing import ELSE, FreeIndex
from pycontrol.model.auction import AppView, Award, Bid, Demand, Gang, Offer, Plan, Snapshot, gang_gpus
from pycontrol.model.topology import Scope

MANY = 1 << 30
"""Stands for no limit on GPUs."""
_Shape = tuple[int, Scope, str, tuple[int, ...]]
"""GPUs, widest scope, GPU type and members of a new gang."""
_Entry = tuple[tuple[int, float], bool, float, str, int]
"""Priority (the highest first) and key, whether it is as well revoked, tie-break, app id, and its position in the
snapshot."""


@dataclass(frozen=True)
class Filling(ABC):
    """A policy that needs no bids."""

    packing: Literal["tight", "first", "random"] = "tight"
    """How new gangs are placed: as close together as possible, or unpacked by host name or in a random order."""
    ties: Literal["fifo", "random"] = "fifo"
    """How ties are broken: by submission time, or by a draw for each gang."""

    name: ClassVar[str]
    asks_agents: ClassVar[bool] = False
    by_queue: ClassVar[bool] = False
    """Whether queues are ordered by `queue_key` before apps."""
    migrates: ClassVar[bool] = False
    """Whether `moves` may return True."""
    one_type: ClassVar[bool] = False
    """Whether a gang gets GPUs of one type, unless its app mixes types: the type that suits it best (`_Filler`)."""
    measure: ClassVar[tuple[str, str]] = ("", "")
    """Name and unit of `standing`, to be shown to users; no name if the key is not a meaningful number."""

    @abstractmethod
    def key(self, view: AppView, gpus: int, pool: Offered) -> float:
        """The app's key; the smallest is next. `gpus`: those it keeps and those picked for it in this round."""

    @abstractmethod
    def why(self, view: AppView, pool: Offered) -> str:
        """One sentence on why the app got GPUs."""

    def prepared(self, snapshot: Snapshot) -> Snapshot:
        """The snapshot in the form that `key` needs: with the policy's memory brought up to the snapshot's time."""
        return snapshot

    def standing(self, view: AppView, pool: Offered) -> float:
        """The app's position in the order, in the unit of `measure`; `pool` must have a prepared snapshot."""
        return self.key(view, view.retained_gpus, pool)

    def queue_key(self, view: AppView, gpus: int, used_gpus: int, pool: Offered) -> tuple[float, ...]:
        """The queue's key; the smallest is next. `view`, `gpus`: its first app and that app's GPUs, as in `key`.

        `used_gpus`: GPUs of all the queue's apps. Needed only with `by_queue`.
        """
        raise NotImplementedError

    def moves(self, view: AppView, old: Scope, new: Scope, lease_s: float) -> bool:
        """Whether to restart a gang that could stay in a narrower scope."""
        return False

    def regains(self, speedup: float, lease_s: float) -> bool:
        """Whether to restart a gang that could stay on a type on which its app is this many times as fast."""
        return False

    def offer(self, snapshot: Snapshot) -> Offer | None:
        """None: no Agent is asked for bids."""
        return None

    def decide(self, snapshot: Snapshot, bids: Mapping[str, Bid], rng: random.Random) -> Plan:
        """The plan, by filling the pool in the policy's order."""
        seed = rng.randrange(1 << 30)
        return _Filler(self, snapshot, random.Random(seed)).plan(seed)


class Offered:
    """What keys may use besides the app: the pool as it was offered, before any gang was placed."""

    def __init__(self, snapshot: Snapshot, free: FreeIndex) -> None:
        self.snapshot = snapshot
        self.gpus = free.gpus
        self.cluster_gpus = snapshot.cluster_gpus
        self.lease_s = snapshot.lease_s
        self._free = free
        self._tightest: dict[tuple[int, str], Scope] = {}

    def slowdown(self, demand: Demand) -> float:
        """S of a gang in the narrowest scope in which the whole offer has room for it."""
        return demand.slowdown[self.tightest(demand) - 1]

    def tightest(self, demand: Demand) -> Scope:
        """The narrowest scope in which the whole offer has room for a gang."""
        shape = demand.gang_gpus, demand.gpu_type
        scope = self._tightest.get(shape)
        if scope is None:
            narrow = (x for x in (Scope.MACHINE, Scope.RACK) if self._free.has_place(shape[0], x, shape[1]))
            scope = self._tightest[shape] = next(narrow, Scope.CLUSTER)
        return scope


@dataclass(slots=True, eq=False)
class _Pick:
    """One gang for one app: its running gang `home`, which it keeps if possible, or a new one."""

    app: int
    gpus: int
    home: Gang | None = None
    done: bool = field(default=False)


class _Filler:
    """Decides one round."""

    def __init__(self, policy: Filling, snapshot: Snapshot, rng: random.Random) -> None:
        self.policy, self.s, self.rng = policy, snapshot, rng
        self.apps = snapshot.apps
        self.free = FreeIndex(snapshot.free, snapshot.topology, self._order())
        """GPUs that no app has been given yet."""
        self.spare = self.free.copy()
        """The free GPUs that no pick is to keep."""
        self.offered = Offered(snapshot, self.free)
        self.unpicked_gpus = self.free.gpus
        self.queue_left = self._queue_room()
        self.queue_gpus: dict[str, int] = {}
        self.picked: dict[int, int] = {}
        """App -> GPUs picked for it in this round."""
        self.homes: dict[int, list[Gang]] = {}
        """App -> its ending gangs that are not picked, best first."""
        self.stays: list[_Pick] = []
        """Picks that are to keep their gang in place, in order."""
        self.served: set[int] = set()
        """Apps that get nothing more: they have all that they can use, or found no room."""
        self.aside: set[int] = set()
        """The apps of `served` that found no room."""
        self.retry = False
        """Whether apps set aside may find room now: a pick failed, or a move made room."""
        self.full: set[_Shape] = set()
        """Shapes of new gangs for which there is no room left."""
        self.got: dict[int, list[Gang]] = {}
        self.kinds: dict[int, str] = {}
        """App -> its GPU types, as `_kind` has them."""
        self.types = snapshot.topology.types if policy.one_type and len(snapshot.topology.types) > 1 else ()
        wanting = [v.demand for v in self.apps if self.types and v.demand.gpus > v.retained_gpus]
        self.wanting, self.wanted_gpus = len(wanting), sum(d.gpus for d in wanting)
        self.speeds = {kind: sum(d.speedups.get(kind, 1.0) for d in wanting) for kind in self.types}
        """GPU type -> the sum of the speeds there of the apps that want more."""
        self.on_offer = Counter[str]()
        for host, n in snapshot.free.items() if self.types else ():
            self.on_offer[self.free.type_of(host)] += n
        self.heaps = self._heaps()

    # ---- the beginning

    def _order(self) -> dict[str, int] | None:
        if self.policy.packing == "tight":
            return None
        hosts = sorted(self.s.free)
        if self.policy.packing == "random":
            self.rng.shuffle(hosts)
        return {host: k for k, host in enumerate(hosts)}

    def _queue_room(self) -> dict[str, int]:
        limits = queue_limits(self.s)
        if not limits:
            return {}
        queue_of = {v.app_id: v.queue for v in self.apps}
        return {queue_of[next(iter(limit.app_ids))]: limit.gpus for limit in limits}

    def _heaps(self) -> dict[str, list[_Entry]]:
        """Queue -> heap of its apps that can use part of the offer; one heap "" if queues are not ordered."""
        able: list[tuple[int, _Shape]] = []
        for i, view in enumerate(self.apps):
            d = view.demand
            if view.ending_gangs or 0 < d.gang_gpus <= d.gang_gpus * d.gangs - view.retained_gpus:
                able.append((i, self._shape(i)))
            if self.policy.by_queue:
                self.queue_gpus[view.queue] = self.queue_gpus.get(view.queue, 0) + view.retained_gpus
        shapes = {shape for _, shape in able if shape[0] > 0}
        self.full.update(shape for shape in shapes if not self.free.has_place(*shape))
        if not self.policy.migrates or not self._may_move():  # moves may make room
            shapes -= self.full
        self.smallest_gpus = min((gpus for gpus, *_ in shapes), default=MANY)
        heaps: dict[str, list[_Entry]] = {}
        for i, shape in able:
            view = self.apps[i]
            for home in view.ending_gangs:
                self.smallest_gpus = min(self.smallest_gpus, gang_gpus(home))
            if view.ending_gangs or shape in shapes:
                heaps.setdefault(view.queue if self.policy.by_queue else "", []).append(self._entry(i))
        for heap in heaps.values():
            heapify(heap)
        return heaps

    def _may_move(self) -> bool:
        """Whether a gang may move. With random ties the answer is yes, so that each app has its draw in each round."""
        return self.policy.ties == "random" or any(view.ending_gangs for view in self.apps)

    def _shape(self, i: int) -> _Shape:
        d = self.apps[i].demand
        return d.gang_gpus, d.scope, self._kind(i), d.members

    def _kind(self, i: int) -> str:
        """The GPU types for the app's new gangs, joined by `ELSE`, the best first; empty: any, also mixed.

        The best is the type on which the app is fastest relative to the others that want GPUs, where they want more
        than is free there; where they do not, it is just the fastest.
        """
        view = self.apps[i]
        d = view.demand
        if d.gpu_type or not self.types:
            return d.gpu_type
        if i not in self.kinds:
            wants = d.gpus > view.retained_gpus
            others, wanted_gpus = self.wanting - wants, self.wanted_gpus + (0 if wants else d.gpus)

            def worth(kind: str) -> tuple[float, float]:
                own = d.speedups.get(kind, 1.0)
                contended = others and wanted_gpus > self.on_offer[kind]
                return own * others / (self.speeds[kind] - own * wants) if contended else own, own

            best_first = sorted(self.types, key=lambda kind: (*(-x for x in worth(kind)), kind))
            self.kinds[i] = ELSE.join([*best_first, ""] if d.mixes else best_first)
        return self.kinds[i]

    def _entry(self, i: int) -> _Entry:
        view = self.apps[i]
        key = -view.priority, self.policy.key(view, view.retained_gpus + self.picked.get(i, 0), self.offered)
        loses = not (view.spared and view.ending_gangs and self._homes_of(i))
        if self.policy.ties == "random":
            return key, loses, self.rng.random(), view.app_id, i
        return key, loses, view.submitted_s, view.app_id, i

    # ---- which app is next

    def plan(self, seed: int) -> Plan:
        """The plan: picks and places gangs until nothing more fits."""
        while picks := self._picks():
            for pick in picks:
                self._place(pick)
            if self.retry:
                self._take_up()
        return Plan(
            round_id=self.s.round_id,
            awards=tuple(Award(self.apps[i].app_id, tuple(gangs)) for i, gangs in self.got.items()),
            unused_gpus={h: n for h, n in self.free.left.items() if n},
            seed=seed,
            why={self.apps[i].app_id: self.policy.why(self.apps[i], self.offered) for i in self.got},
        )

    def _picks(self) -> list[_Pick]:
        """The next gangs in the policy's order, as many as the number of GPUs allows."""
        picks = []
        while self.unpicked_gpus >= self.smallest_gpus and (heap := self._first_queue()):
            i = heap[0][-1]
            pick = self._pick(i)
            if pick is None:
                heappop(heap)
                self.served.add(i)
                continue
            picks.append(pick)
            self._count(pick, 1)
            heapreplace(heap, self._entry(i))
        return picks

    def _first_queue(self) -> list[_Entry]:
        if not self.policy.by_queue:
            return self.heaps.get("", [])
        queues = [q for q, heap in self.heaps.items() if heap]
        return self.heaps[min(queues, key=self._queue_key)] if queues else []

    def _queue_key(self, queue: str) -> tuple[tuple[float, ...], str]:
        i = self.heaps[queue][0][-1]
        gpus = self.apps[i].retained_gpus + self.picked.get(i, 0)
        return self.policy.queue_key(self.apps[i], gpus, self.queue_gpus[queue], self.offered), queue

    def _pick(self, i: int) -> _Pick | None:
        """The app's next gang; None if it has all that it can use, or finds no room (then it is set aside)."""
        view = self.apps[i]
        d = view.demand
        room = d.gpus - view.retained_gpus - self.picked.get(i, 0)
        shared = min(self.queue_left.get(view.queue, MANY), self.unpicked_gpus)
        homes = self._homes_of(i) if view.ending_gangs else []
        for home in homes:
            n = gang_gpus(home)
            if n <= min(room, shared) and self.spare.holds(home):
                homes.remove(home)
                self.spare.take(home)
                pick = _Pick(i, n, home)
                self.stays.append(pick)
                return pick
        size = self._size(i, min(room, shared))
        if size:
            return _Pick(i, size)
        if 0 < d.gang_gpus <= room or any(gang_gpus(home) <= room for home in homes):
            self.aside.add(i)
        return None

    def _size(self, i: int, room: int) -> int:
        """GPUs of the app's next new gang; 0 if none fits.

        An elastic app gets its largest fitting size if that does not change its key, else its smallest.
        """
        view, now = self.apps[i], self.apps[i].retained_gpus + self.picked.get(i, 0)
        d = view.demand
        sizes = d.sizes if d.job_demand_max > d.gang_gpus else (d.gang_gpus,)
        fitting = [n for n in sizes if 0 < n <= room and (n, d.scope, self._kind(i), d.members) not in self.full]
        if len(fitting) < 2:
            return fitting[0] if fitting else 0
        key = self.policy.key(view, now, self.offered)
        alike = (n for n in reversed(fitting) if self.policy.key(view, now + n, self.offered) == key)
        return fitting[0] if self.policy.by_queue else next(alike, fitting[0])

    def _homes_of(self, i: int) -> list[Gang]:
        """The app's ending gangs that may stay: those of the right size first, then the closest together."""
        homes = self.homes.get(i)
        if homes is None:
            d = self.apps[i].demand
            homes = [
                g for g in self.apps[i].ending_gangs
                if not d.gpu_type or all(self.free.type_of(h) == d.gpu_type for h, _ in g)
            ]  # fmt: skip
            if d.job_demand_max > d.gang_gpus:
                homes.sort(key=lambda g: (-gang_gpus(g), self._scope(g), len(g)))
            else:
                homes.sort(key=lambda g: (gang_gpus(g) != d.gang_gpus, self._scope(g), len(g)))
            self.homes[i] = homes
        return homes

    def _scope(self, gang: Gang) -> Scope:
        return self.s.topology.scope_of(h for h, _ in gang)

    def _count(self, pick: _Pick, sign: int) -> None:
        queue = self.apps[pick.app].queue
        gpus = sign * pick.gpus
        self.picked[pick.app] = self.picked.get(pick.app, 0) + gpus
        self.unpicked_gpus -= gpus
        if queue in self.queue_left:
            self.queue_left[queue] -= gpus
        if self.policy.by_queue:
            self.queue_gpus[queue] += gpus

    def _take_up(self) -> None:
        """Gives apps that were set aside another turn."""
        self.retry = False
        again = [i for i in sorted(self.aside) if self.homes.get(i) or self._shape(i) not in self.full]
        self.aside.difference_update(again)
        self.served.difference_update(again)
        for i in again:
            heappush(self.heaps.setdefault(self.apps[i].queue if self.policy.by_queue else "", []), self._entry(i))

    # ---- where gangs go

    def _place(self, pick: _Pick) -> None:
        pick.done = True
        if pick.home is None:
            self._another_home(pick)
        if pick.home is not None:
            self._renew(pick, pick.home)
            return
        gang = self._new_place(pick)
        if gang is None or gang_gpus(gang) < pick.gpus:
            self._count(pick, -1)
            if pick.app in self.served:
                self.aside.add(pick.app)
            self.retry = True
        if gang is None:
            return
        if gang_gpus(gang) < pick.gpus:
            pick.gpus = gang_gpus(gang)
            self._count(pick, 1)
        self.spare.take(gang)
        self.free.take(gang)
        self.got.setdefault(pick.app, []).append(gang)

    def _new_place(self, pick: _Pick) -> Gang | None:
        """The place of a new gang; an elastic one goes where it is fastest, on fewer GPUs if necessary."""
        d = self.apps[pick.app].demand
        best, speed = None, 0.0
        shapes = [(n, d.scope, self._kind(pick.app), d.members) for n in reversed(d.sizes) if n <= pick.gpus]
        if not shapes or (len(d.sizes) == 1 and pick.gpus != d.gang_gpus):
            return None
        for shape in shapes:
            if shape[0] <= speed:
                break
            gang = None if shape in self.full else self.spare.place(*shape)
            if gang is not None and shape[0] / d.slowdown[self._scope(gang) - 1] > speed:
                best, speed = gang, shape[0] / d.slowdown[self._scope(gang) - 1]
        for shape in shapes if best is None else ():
            if best is None and shape not in self.full:
                best = self._displace(shape)
                if best is None:
                    self.full.add(shape)
        return best

    def _another_home(self, pick: _Pick) -> None:
        """Gives a pick without a home another running gang of its app, if one is left."""
        for home in self.homes.get(pick.app, ()):
            if gang_gpus(home) == pick.gpus and self.spare.holds(home):
                self.homes[pick.app].remove(home)
                self.spare.take(home)
                pick.home = home
                return

    def _renew(self, pick: _Pick, home: Gang) -> None:
        gang = self._better(pick, home)
        if gang is not None:  # the GPUs that it leaves may be room for others
            self.spare.give(home)
            self.spare.take(gang)
            self.full.clear()
            self.retry = True
        self.free.take(gang or home)
        self.got.setdefault(pick.app, []).append(gang or home)

    def _better(self, pick: _Pick, home: Gang) -> Gang | None:
        """A place of a type that suits it better, else a narrower one, on spare GPUs, if that is worth the restart."""
        view, old = self.apps[pick.app], self._scope(home)
        d = view.demand
        if not self.policy.migrates or pick.gpus not in d.sizes:
            return None
        here = {self.free.type_of(host) for host, _ in home}
        own = min(d.speedups.get(kind, 1.0) for kind in here)
        for kind in self._kind(pick.app).split(ELSE) if self.types and d.speedups else ():
            if here == {kind}:
                break
            if self.policy.regains(d.speedups.get(kind, 1.0) / own, self.s.lease_s):
                gang = self.spare.place(pick.gpus, d.scope, kind, d.members)
                if gang is not None:
                    return gang
        if old is Scope.MACHINE:
            return None
        self.spare.give(home)
        gang = self.spare.place(pick.gpus, min(d.scope, Scope(old - 1)), self._kind(pick.app), d.members)
        self.spare.take(home)
        if gang is None or not self.policy.moves(view, old, self._scope(gang), self.s.lease_s):
            return None
        return gang

    def _last_to_stay(self) -> _Pick:
        """Removes and returns the pick that loses its place next: the last one of an app that is not spared, if any."""
        able = (k for k in reversed(range(len(self.stays))) if not self.apps[self.stays[k].app].spared)
        return self.stays.pop(next(able, -1))

    def _displace(self, shape: _Shape) -> Gang | None:
        """A place made free by taking the homes of the last picks in the order; None if even that is not enough."""
        if not self.free.has_place(*shape):
            return None
        asked = []
        while not self.spare.has_place(*shape):
            pick = self._last_to_stay()
            if pick.home is not None and not pick.done:
                self.spare.give(pick.home)
                asked.append(pick)
        gang = self.spare.place(*shape)
        assert gang is not None
        self.spare.take(gang)
        for pick in reversed(asked):
            if pick.home is not None and self.spare.holds(pick.home):
                self.spare.take(pick.home)
                self.stays.append(pick)
            else:
                pick.home = None
        self.spare.give(gang)
        return gang
