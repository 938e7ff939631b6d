"""The loop that hands GPUs to apps, gang by gang, in an order.

The leftovers of an auction, worst rho first, the last pass and relocation all hand out gangs by it, and policies that
order apps rank by it who gets the next one. They differ in the order, in the index of free GPUs, and in the caps.
"""

from __future__ import annotations

import functools
import itertools
import random
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush, heapreplace
from typing import Any, Generic, TypeVar

from pycontrol.auction.placing import ELSE, NOBODY, FreeIndex, fitting
from pycontrol.auction.round_limits import rooms
from pycontrol.model.auction import AppView, Award, Gang, gang_gpus
from pycontrol.model.grouping import grouped
from pycontrol.model.topology import Scope, Topology

T = TypeVar("T")
G = TypeVar("G")
Shape = tuple[int, Scope, str, tuple[int, ...]]
"""GPUs, widest scope, GPU types (joined by `ELSE`) and members of a new gang, as `FreeIndex.place` takes them."""
KeptOut = Callable[[str], Collection[str]]
"""App -> hosts where none of its new containers may start."""


class ByKey(Generic[T]):
    """The first by `key` is next, of equal ones the one added first; with the key None it wants nothing more.

    With `queue_key`, the first queue comes first; it is given the queue and its first taker.
    """

    def __init__(
        self,
        takers: Iterable[T],
        key: Callable[[T], Any],
        queue_of: Callable[[T], str] = lambda _: "",
        queue_key: Callable[[str, T], Any] = lambda queue, _: queue,
    ) -> None:
        self._key, self._queue_of, self._queue_key = key, queue_of, queue_key
        self._added = itertools.count()
        self._heaps: dict[str, list[tuple[Any, int, T]]] = {}
        """Queue -> a heap of its takers."""
        self._heap: list[tuple[Any, int, T]] = []
        """The heap of the first queue."""
        self.out: set[T] = set()
        """Those that were dropped."""
        self.add(takers)

    def add(self, takers: Iterable[T]) -> None:
        """Adds takers, also such as were dropped."""
        for taker in takers:
            self.out.discard(taker)
            key = self._key(taker)
            if key is not None:
                heappush(self._heaps.setdefault(self._queue_of(taker), []), (key, next(self._added), taker))

    def first(self) -> T | None:
        """The first taker of the first queue."""
        open_ = [queue for queue, heap in self._heaps.items() if heap]
        if len(open_) > 1:
            open_ = [min(open_, key=lambda queue: self._queue_key(queue, self._heaps[queue][0][2]))]
        self._heap = self._heaps[open_[0]] if open_ else []
        return self._heap[0][2] if open_ else None

    def drop(self) -> None:
        """Removes the first."""
        self.out.add(heappop(self._heap)[2])

    def drop_all(self, those: Callable[[T], bool]) -> None:
        """Removes many at once."""
        for heap in self._heaps.values():
            dropped = {taker for _, _, taker in heap if those(taker)}
            heap[:] = [entry for entry in heap if entry[2] not in dropped]
            heapify(heap)
            self.out |= dropped

    def again(self) -> None:
        """Gives the first its new key."""
        _, k, taker = self._heap[0]
        key = self._key(taker)
        if key is None:
            heappop(self._heap)
        else:
            heapreplace(self._heap, (key, k, taker))


class AtRandom(Generic[T]):
    """Each time one of the takers is drawn."""

    def __init__(self, takers: Iterable[T], rng: random.Random) -> None:
        self._open, self._rng = list(takers), rng

    def first(self) -> T | None:
        """Draws one."""
        self._drawn = self._rng.choice(self._open) if self._open else None
        return self._drawn

    def drop(self) -> None:
        """Removes the one that was drawn."""
        self._open = [taker for taker in self._open if taker is not self._drawn]

    def again(self) -> None:
        """It stays among the others."""


Order = ByKey[T] | AtRandom[T]
"""Who is next, and what becomes of it: dropped, or back in the order with one gang more."""


def hand_out(
    order: Order[T], give: Callable[[T], G | None], more: Callable[[], bool] = lambda: True
) -> Iterator[tuple[T, G]]:
    """Yields what the first in the order is given, again and again, until nobody is left or there is no `more`.

    `give` returns None for one that can be given nothing; that is final, as free GPUs and caps only shrink.
    """
    while more() and (first := order.first()) is not None:
        given = give(first)
        if given is None:
            order.drop()
        else:
            yield first, given
            order.again()


class Caps:
    """The GPUs that each app may still get, by its demand and the limits that it counts for."""

    def __init__(self, apps: Sequence[AppView], kept: Mapping[str, Sequence[Gang]] = NOBODY) -> None:
        """`apps`: all of the round; `kept`: app -> gangs that it got before."""
        self._left = rooms(apps)
        self._got: dict[str, int] = {}
        for view in apps if kept else ():
            self.use(view, sum(map(gang_gpus, kept.get(view.app_id, ()))))

    def gpus(self, view: AppView) -> int:
        """The app's GPUs by now; those on offer only as far as it got them."""
        return view.retained_gpus + self._got.get(view.app_id, 0)

    def wanted(self, view: AppView) -> int:
        """GPUs that the app could still use, whatever the limits."""
        return view.demand.gang_gpus * view.demand.gangs - self.gpus(view)

    def of(self, view: AppView) -> int:
        """GPUs that the app may still get."""
        gpus = self.wanted(view)
        for name in view.rooms:
            gpus = min(gpus, self._left[name])
        return max(0, gpus)

    def use(self, view: AppView, gpus: int) -> None:
        """Counts GPUs that the app got; a negative number gives them back."""
        self._got[view.app_id] = self._got.get(view.app_id, 0) + gpus
        for name in view.rooms:
            self._left[name] -= gpus


@dataclass(slots=True, eq=False)
class Taker:
    """One that is to get gangs: an app, or in relocation one gang of an app."""

    view: AppView
    shape: Shape
    """The shape of its new gangs."""
    own: list[Gang]
    """Gangs on which it runs, and which it keeps before it gets new ones."""
    got: list[Gang] = field(default_factory=list)
    new_max: int = 1 << 30
    """How many new gangs it may still get."""


def taker(view: AppView, kept: Sequence[Gang], topology: Topology) -> Taker:
    """An app that is to get gangs besides those that it keeps, of the GPU type that it asks for."""
    d = view.demand
    own = less(view.ending_gangs, kept)
    if d.gpu_type:
        own = [g for g in own if all(topology.type_of(h) == d.gpu_type for h, _ in g)]
    return Taker(view, shape_of(view, topology), own, new_max=view.new_gangs_max - len(less(kept, view.ending_gangs)))


def shape_of(view: AppView, topology: Topology) -> Shape:
    """The shape of an app's new gangs."""
    d = view.demand
    return d.gang_gpus, d.scope, ELSE.join(fitting(d, topology)), d.members


def less(gangs: Iterable[Gang], others: Iterable[Gang]) -> list[Gang]:
    """The gangs without the others, each of which takes away one."""
    left = list(gangs)
    for gang in others:
        if gang in left:
            left.remove(gang)
    return left


def gangs_of(
    room: FreeIndex, caps: Caps | None = None, kept_out: KeptOut = lambda _: ()
) -> Callable[[Taker], Gang | None]:
    """Gives gangs of an index of free GPUs within caps: one of the taker's own that is still free, else a new one."""
    closed_to = functools.cache(lambda app_id: frozenset(kept_out(app_id)))
    full: set[tuple[Shape, frozenset[str]]] = set()
    """Shapes of new gangs, and hosts that are closed to them, for which there is no room."""

    def new(to: Taker) -> Gang | None:
        closed = closed_to(to.view.app_id)
        if (to.shape, closed) in full:
            return None
        gang = room.without(closed).place(*to.shape)
        if gang is None:
            full.add((to.shape, closed))
        return gang

    def give(to: Taker) -> Gang | None:
        cap_gpus = room.gpus if caps is None else caps.of(to.view)
        gang = next((g for g in to.own if gang_gpus(g) <= cap_gpus and room.holds(g)), None)
        if gang is not None:
            to.own.remove(gang)
        elif to.new_max > 0 and 0 < to.shape[0] <= min(cap_gpus, room.gpus):
            gang, to.new_max = new(to), to.new_max - 1
        if gang is not None:
            room.take(gang)
            to.got.append(gang)
            if caps is not None:
                caps.use(to.view, gang_gpus(gang))
        return gang

    return give


def leftovers(
    room: FreeIndex,
    apps: Sequence[AppView],
    caps: Caps,
    kept: Mapping[str, Sequence[Gang]],
    order: Callable[[Sequence[Taker], Caps], Order[Taker]],
) -> list[Award]:
    """Gives GPUs left after payments to apps, gang by gang, so that none stay idle (Themis, Pseudocode 1); returns the
    awards and takes their GPUs from `room`.

    An app keeps its own ending gangs in place, as far as they are free, before it gets new ones. No app gets more than
    it can use, or than its queue's limit leaves after the gangs that the auction gave (`kept`).
    """
    able = sorted((v for v in apps if caps.of(v) > 0), key=lambda v: v.app_id)
    takers = [taker(v, kept.get(v.app_id, ()), room.topology) for v in able]
    got = grouped((to.view.app_id, gang) for to, gang in hand_out(order(takers, caps), gangs_of(room, caps)))
    return [Award(app_id, tuple(gangs), leftover=True) for app_id, gangs in got.items()]
