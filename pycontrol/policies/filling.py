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
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from pycontrol.auction.handout import ByKey, Caps, Shape, hand_out
from pycontrol.auction.placing import ELSE, FreeIndex
from pycontrol.fairness.plausible import slowdowns_of
from pycontrol.model.auction import BOOSTED, AppView, Award, Bid, Demand, Gang, Offer, Plan, Snapshot, gang_gpus
from pycontrol.model.topology import Scope

MANY = 1 << 30
"""Stands for no limit on GPUs."""
_Key = tuple[Any, ...]


@dataclass(frozen=True)
class Filling(ABC):
    """A policy that needs no bids."""

    name: ClassVar[str]
    asks_agents: ClassVar[bool] = False
    by_queue: ClassVar[bool] = False
    """Whether queues are ordered by `queue_key` before apps."""
    migrates: ClassVar[bool] = False
    """Whether `moves` may return True."""
    one_type: ClassVar[bool] = False
    """Whether a gang gets GPUs of one type, unless its app mixes types: the type that suits it best."""
    by_progress: ClassVar[bool] = True
    """Whether keys depend on apps' progress, which the simulator then reports before each round."""
    by_unsaved: ClassVar[bool] = False
    """Whether keys depend on what gangs would train again, so that the simulator reports checkpoints before a round."""
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

    def tie(self, view: AppView, rng: random.Random) -> float:
        """Which of the apps with equal keys is next: the earliest submission."""
        return view.submitted_s

    def pool(self, snapshot: Snapshot, rng: random.Random) -> FreeIndex:
        """The GPUs on offer; it says where new gangs go: as close together as possible."""
        return FreeIndex(snapshot.free, snapshot.topology)

    def moves(self, view: AppView, old: Gang, new: Gang, pool: Offered) -> bool:
        """Whether to restart a gang in `new` that could stay in `old`; never if it is not faster there."""
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

    def slowdown_in(self, gang: Gang, demand: Demand) -> float:
        """S of a gang where it lies / its app's speed on its slowest GPU."""
        return slowdowns_of(gang, demand, self.snapshot.topology)[1]

    def tightest(self, demand: Demand) -> Scope:
        """The narrowest scope in which the whole offer has room for a gang."""
        shape = demand.gang_gpus, demand.gpu_type
        scope = self._tightest.get(shape)
        if scope is None:
            narrow = (x for x in (Scope.MACHINE, Scope.RACK) if self._free.has_place(shape[0], x, shape[1]))
            scope = self._tightest[shape] = next(narrow, Scope.CLUSTER)
        return scope


def _type_choice(snapshot: Snapshot) -> Callable[[AppView], str]:
    """App -> the GPU types for its new gangs, joined by `ELSE`, the best first; with an empty one if it mixes types.

    The best is the type on which the app is fastest relative to the others that want GPUs, where they want more than is
    free there; where they do not, it is just the fastest.
    """
    wanting = [v.demand for v in snapshot.apps if v.demand.gpus > v.retained_gpus]
    all_wanted_gpus = sum(d.gpus for d in wanting)
    speeds = {kind: sum(d.speedups.get(kind, 1.0) for d in wanting) for kind in snapshot.topology.types}
    on_offer = Counter[str]()
    for host, n in snapshot.free.items():
        on_offer[snapshot.topology.type_of(host)] += n

    def chosen(view: AppView) -> str:
        d = view.demand
        if d.gpu_type:
            return d.gpu_type
        wants = d.gpus > view.retained_gpus
        others, wanted_gpus = len(wanting) - wants, all_wanted_gpus + (0 if wants else d.gpus)

        def worth(kind: str) -> tuple[float, float]:
            own = d.speedups.get(kind, 1.0)
            contended = others and wanted_gpus > on_offer[kind]
            return own * others / (speeds[kind] - own * wants) if contended else own, own

        best_first = sorted(speeds, key=lambda kind: (*(-x for x in worth(kind)), kind))
        return ELSE.join([*best_first, ""] if d.mixes else best_first)

    return chosen


@dataclass(slots=True, eq=False)
class _Pick:
    """One gang for one app: its running gang `home`, which it keeps if possible, or a new one."""

    app: int
    gpus: int
    home: Gang | None = None
    done: bool = False


def runs(view: AppView, gpus: int) -> bool:
    """Whether the app's next gang is one that runs, if it has `gpus` already; these come before new ones."""
    return gpus < view.retained_gpus + sum(map(gang_gpus, view.ending_gangs))


class _Filler:
    """Decides one round."""

    def __init__(self, policy: Filling, snapshot: Snapshot, rng: random.Random) -> None:
        self.policy, self.s, self.apps, self.rng = policy, snapshot, snapshot.apps, rng
        self.free = policy.pool(snapshot, rng)
        """GPUs that no app has been given yet."""
        self.spare = self.free.copy()
        """The free GPUs that no pick is to keep."""
        self.unpicked_gpus = self.free.gpus
        self.offered = Offered(snapshot, self.free)
        self.caps = Caps(snapshot.apps)
        self.types = _type_choice(snapshot) if policy.one_type and len(snapshot.topology.types) > 1 else None
        self.queue_gpus = Counter[str]()
        """Queue -> GPUs of its apps; only if queues are ordered."""
        for view in self.apps if policy.by_queue else ():
            self.queue_gpus[view.queue] += view.retained_gpus
        self.homes: dict[int, list[Gang]] = {}
        """App -> its ending gangs that are not picked, best first."""
        self.stays: list[_Pick] = []
        """Picks that are to keep their gang in place, in order."""
        self.got: dict[int, list[Gang]] = {}
        self.shapes = self._shapes()
        """App that can use part of the offer -> the shape of its new gangs."""
        sizes = {shape for shape in self.shapes.values() if shape[0] > 0}
        self.full = {shape for shape in sizes if not self.free.has_place(*shape)}
        """Shapes of new gangs for which there is no room left."""
        if not policy.migrates or not any(view.ending_gangs for view in self.apps):  # moves may make room
            sizes -= self.full
        homes = (gang_gpus(home) for i in self.shapes for home in self.apps[i].ending_gangs)
        self.smallest_gpus = min([*(shape[0] for shape in sizes), *homes], default=MANY)
        able = [i for i, shape in self.shapes.items() if self.apps[i].ending_gangs or shape in sizes]
        self.ranks = ByKey(able, self._key, lambda i: self.apps[i].queue if policy.by_queue else "", self._queue_key)
        """The order of apps, by their positions in the snapshot."""

    # ---- the beginning

    def _shapes(self) -> dict[int, Shape]:
        shapes, types = {}, self.types
        for i, view in enumerate(self.apps):
            d = view.demand
            gpus = d.gang_gpus
            if view.ending_gangs or 0 < gpus <= gpus * d.gangs - view.retained_gpus:
                shapes[i] = gpus, d.scope, types(view) if types else d.gpu_type, d.members
        return shapes

    # ---- which app is next

    def plan(self, seed: int) -> Plan:
        """The plan: ranks gangs by GPU counts, then places them; again, as long as apps may find room after all."""
        while picks := [pick for _, pick in hand_out(self.ranks, self._pick, self._more)]:
            settled = [self._settle(pick) for pick in picks]
            if not all(settled):
                self.ranks.add([i for i in sorted(self.ranks.out) if self._may_find_room(i)])
                self.ranks.drop_all(self._finds_no_room)
        return Plan(
            round_id=self.s.round_id,
            awards=tuple(Award(self.apps[i].app_id, tuple(gangs)) for i, gangs in self.got.items()),
            unused_gpus=self.free.unused,
            seed=seed,
            why={self.apps[i].app_id: self.policy.why(self.apps[i], self.offered) for i in self.got},
        )

    def _key(self, i: int) -> _Key:
        """Priority (the highest first), key, tie-break, and app id."""
        view = self.apps[i]
        key = self.policy.key(view, self.caps.gpus(view), self.offered)
        return -view.priority, key, self.policy.tie(view, self.rng), view.app_id

    def _queue_key(self, queue: str, i: int) -> _Key:
        view = self.apps[i]
        first = view.priority < BOOSTED
        return first, self.policy.queue_key(view, self.caps.gpus(view), self.queue_gpus[queue], self.offered), queue

    def _more(self) -> bool:
        return self.unpicked_gpus >= self.smallest_gpus

    def _pick(self, i: int) -> _Pick | None:
        """The app's next gang, by GPU counts; None if it has all that it can use, or finds no room."""
        view = self.apps[i]
        room = min(self.caps.of(view), self.unpicked_gpus)
        homes = self._homes_of(i) if view.ending_gangs else []
        home = next((home for home in homes if gang_gpus(home) <= room and self.spare.holds(home)), None)
        gpus = gang_gpus(home) if home else self._size(i, room)
        if not gpus:
            return None
        pick = _Pick(i, gpus, home)
        if home is not None:
            homes.remove(home)
            self.spare.take(home)
            self.stays.append(pick)
        self._count(i, gpus)
        return pick

    def _size(self, i: int, room: int) -> int:
        """GPUs of the app's next new gang; 0 if none fits.

        An elastic app gets its largest fitting size if that does not change its key, else its smallest.
        """
        view, sizes = self.apps[i], [shape[0] for shape in self._open(i, room)]
        if len(sizes) < 2:
            return sizes[0] if sizes else 0
        now = self.caps.gpus(view)
        key = self.policy.key(view, now, self.offered)
        alike = (n for n in reversed(sizes) if self.policy.key(view, now + n, self.offered) == key)
        return sizes[0] if self.policy.by_queue else next(alike, sizes[0])

    def _open(self, i: int, most: int) -> list[Shape]:
        """The shapes that a new gang of up to `most` GPUs may have and that are not full, the smallest first."""
        shape, d = self.shapes[i], self.apps[i].demand
        each = [(n, *shape[1:]) for n in d.sizes] if d.job_demand_max > d.gang_gpus else [shape]
        return [shape for shape in each if 0 < shape[0] <= most and shape not in self.full]

    def _homes_of(self, i: int) -> list[Gang]:
        """The app's ending gangs that may stay: those of the right size first, then the closest together, then those
        that would train most minutes again.
        """
        homes = self.homes.get(i)
        if homes is None:
            d, ending = self.apps[i].demand, self.apps[i].ending_gangs
            lost_s = dict.fromkeys(ending, 0.0) | dict(zip(ending, self.apps[i].unsaved_s, strict=False))
            homes = [g for g in ending if not d.gpu_type or all(self.s.topology.type_of(h) == d.gpu_type for h, _ in g)]
            if d.job_demand_max > d.gang_gpus:
                homes.sort(key=lambda g: (-gang_gpus(g), self._scope(g), len(g), -lost_s[g] // 60))
            else:
                homes.sort(key=lambda g: (gang_gpus(g) != d.gang_gpus, self._scope(g), len(g), -lost_s[g] // 60))
            self.homes[i] = homes
        return homes

    def _scope(self, gang: Gang) -> Scope:
        return self.s.topology.scope_of(h for h, _ in gang)

    def _count(self, i: int, gpus: int) -> None:
        view = self.apps[i]
        self.caps.use(view, gpus)
        self.unpicked_gpus -= gpus
        if self.policy.by_queue:
            self.queue_gpus[view.queue] += gpus

    def _may_find_room(self, i: int) -> bool:
        """Whether an app that was dropped may get a gang now."""
        wanted, homes = self.caps.wanted(self.apps[i]), self.homes.get(i, ())
        wants = 0 < self.shapes[i][0] <= wanted or any(gang_gpus(home) <= wanted for home in homes)
        return wants and (bool(homes) or self.shapes[i] not in self.full)

    def _finds_no_room(self, i: int) -> bool:
        d = self.apps[i].demand
        return self.shapes[i] in self.full and d.job_demand_max <= d.gang_gpus and not self.apps[i].ending_gangs

    # ---- where gangs go

    def _settle(self, pick: _Pick) -> bool:
        """Places a pick; False if apps may find room that found none: it got fewer GPUs, or moved."""
        pick.done = True
        home = pick.home or self._another_home(pick)
        if home is not None:
            gang = self._better(pick, home)
            as_picked = gang is None
            if gang is None:
                gang = home
            else:  # the GPUs that it leaves may be room for others
                self.spare.give(home)
                self.spare.take(gang)
                self.full.clear()
        else:
            gang = self._new_place(pick)
            missing = pick.gpus - gang_gpus(gang or ())
            as_picked = not missing
            self._count(pick.app, -missing)
        if gang is not None:
            self.free.take(gang)
            self.got.setdefault(pick.app, []).append(gang)
        return as_picked

    def _another_home(self, pick: _Pick) -> Gang | None:
        """Another running gang of the app, of the same size, if one is left."""
        for home in self.homes.get(pick.app, ()):
            if gang_gpus(home) == pick.gpus and self.spare.holds(home):
                self.homes[pick.app].remove(home)
                self.spare.take(home)
                return home
        return None

    def _new_place(self, pick: _Pick) -> Gang | None:
        """Takes spare GPUs for a new gang; an elastic one goes where it is fastest, on fewer GPUs if necessary."""
        d = self.apps[pick.app].demand
        if pick.gpus != d.gang_gpus and len(d.sizes) == 1:
            return None
        best, speed, shapes = None, 0.0, self._open(pick.app, pick.gpus)[::-1]
        for shape in shapes:
            if shape[0] <= speed:
                break
            gang = self.spare.place(*shape)
            if gang is not None and shape[0] / d.slowdown[self._scope(gang) - 1] > speed:
                best, speed = gang, shape[0] / d.slowdown[self._scope(gang) - 1]
        if best is not None:
            self.spare.take(best)
            return best
        for shape in shapes:
            best = self._displace(shape)
            if best is not None:
                return best
            self.full.add(shape)
        return None

    def _better(self, pick: _Pick, home: Gang) -> Gang | None:
        """A place of the type that suits it best, and close together, on spare GPUs, if that is worth the restart."""
        view, narrow = self.apps[pick.app], self._scope(home) is Scope.MACHINE
        d = view.demand
        # Containers of an app without an Agent cannot move; and machines do not say where cells inside them have room.
        if not self.policy.migrates or view.new_gangs_max < MANY or d.within:
            return None
        if pick.gpus not in d.sizes or (narrow and not self.types):
            return None
        here = {self.s.topology.type_of(host) for host, _ in home}
        for kind in self.shapes[pick.app][2].split(ELSE):
            if narrow and here == {kind}:
                break
            self.spare.give(home)
            gang = self.spare.place(pick.gpus, d.scope, kind, d.members)
            self.spare.take(home)
            if gang is not None and self.policy.moves(view, home, gang, self.offered):
                return gang
        return None

    def _displace(self, shape: Shape) -> Gang | None:
        """Takes the homes of the last picks in the order for a gang; None if even those are not enough."""
        if not self.free.has_place(*shape):
            return None
        asked = []
        while not self.spare.has_place(*shape):
            pick = self.stays.pop()
            if pick.home is not None and not pick.done:
                self.spare.give(pick.home)
                asked.append((pick, pick.home))
        gang = self.spare.place(*shape)
        assert gang is not None
        self.spare.take(gang)
        for pick, home in reversed(asked):
            if self.spare.holds(home):
                self.spare.take(home)
                self.stays.append(pick)
            else:
                pick.home = None
        return gang
