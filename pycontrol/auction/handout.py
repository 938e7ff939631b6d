"""The loop that hands GPUs to apps, gang by gang, in an order.

The leftovers of an auction, worst rho first, the last pass and relocation all hand out gangs by it, and policies that
order apps rank by it who gets the next one. They differ in the order, in the index of free GPUs, and in the caps.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heapreplace
from typing import Any, Generic, Protocol, TypeVar

from pycontrol.auction.instance import Limit
from pycontrol.auction.placing import ELSE, NOBODY, FreeIndex, fitting
from pycontrol.model.auction import AppView, Gang, gang_gpus
from pycontrol.model.topology import Scope, Topology

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
G = TypeVar("G")
Shape = tuple[int, Scope, str, tuple[int, ...]]
"""GPUs, widest scope, GPU types (joined by `ELSE`) and members of a new gang, as `FreeIndex.place` takes them."""
KeptOut = Callable[[str], Collection[str]]
"""App -> hosts where none of its new containers may start."""


class Order(Protocol[T_co]):
    """Who is next."""

    def first(self) -> T_co | None:
        """The next one, which `drop` and `again` are about; None if nobody is left."""

    def drop(self) -> None:
        """The first gets nothing more."""

    def again(self) -> None:
        """The first got a gang, and takes its new place in the order."""


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


class ByKey(Generic[T]):
    """The smallest key is next, of equal ones the first in `takers`; one with the key None wants nothing more."""

    def __init__(self, takers: Iterable[T], key: Callable[[T], Any]) -> None:
        self._key = key
        keyed = ((key(taker), k, taker) for k, taker in enumerate(takers))
        self._heap = [entry for entry in keyed if entry[0] is not None]
        heapify(self._heap)

    def first(self) -> T | None:
        """The one with the smallest key."""
        return self._heap[0][2] if self._heap else None

    def drop(self) -> None:
        """Removes the first."""
        heappop(self._heap)

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


class Caps:
    """The GPUs that each app may still get, by its demand and by the limits, of which an app has at most one."""

    def __init__(self, limits: Sequence[Limit], kept: Mapping[str, Sequence[Gang]] = NOBODY) -> None:
        """`kept`: app -> gangs that it got before."""
        self._got = {a: sum(map(gang_gpus, gangs)) for a, gangs in kept.items()}
        self._limit_of = {a: k for k, limit in enumerate(limits) for a in limit.app_ids}
        self._left = [limit.gpus for limit in limits]
        for app_id, gpus in self._got.items():
            self._share(app_id, gpus)

    def gpus(self, view: AppView) -> int:
        """The app's GPUs by now; those on offer only as far as it got them."""
        return view.retained_gpus + self._got.get(view.app_id, 0)

    def wanted(self, view: AppView) -> int:
        """GPUs that the app could still use, whatever the limits."""
        return view.demand.gang_gpus * view.demand.gangs - self.gpus(view)

    def of(self, view: AppView) -> int:
        """GPUs that the app may still get."""
        gpus, k = self.wanted(view), self._limit_of.get(view.app_id)
        return max(0, gpus if k is None else min(gpus, self._left[k]))

    def use(self, view: AppView, gpus: int) -> None:
        """Counts GPUs that the app got; a negative number gives them back."""
        self._got[view.app_id] = self._got.get(view.app_id, 0) + gpus
        self._share(view.app_id, gpus)

    def _share(self, app_id: str, gpus: int) -> None:
        k = self._limit_of.get(app_id)
        if k is not None:
            self._left[k] -= gpus


@dataclass(slots=True, eq=False)
class Taker:
    """One that is to get gangs: an app, or in relocation one gang of an app."""

    view: AppView
    shape: Shape
    """The shape of its new gangs."""
    own: list[Gang]
    """Gangs on which it runs, and which it keeps before it gets new ones."""
    got: list[Gang] = field(default_factory=list)


def taker(view: AppView, kept: Iterable[Gang], topology: Topology) -> Taker:
    """An app that is to get gangs besides those that it keeps, of the GPU type that it asks for."""
    d = view.demand
    own = less(view.ending_gangs, kept)
    if d.gpu_type:
        own = [g for g in own if all(topology.type_of(h) == d.gpu_type for h, _ in g)]
    return Taker(view, shape_of(view, topology), own)


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


class Giver:
    """Gives gangs of an index of free GPUs within caps; None: there are none."""

    def __init__(self, room: FreeIndex, caps: Caps | None = None, kept_out: KeptOut = lambda _: ()) -> None:
        self.room, self.caps = room, caps
        self._closed = functools.cache(lambda app_id: frozenset(kept_out(app_id)))
        self._full: set[tuple[Shape, frozenset[str]]] = set()
        """Shapes of new gangs, and hosts that are closed to them, for which there is no room."""

    def more(self) -> bool:
        """Whether any GPU is left."""
        return self.room.gpus > 0

    def give(self, to: Taker) -> Gang | None:
        """The next gang: one of its own that is still free, else a new one; None if none fits."""
        cap_gpus = self.room.gpus if self.caps is None else self.caps.of(to.view)
        gang = next((g for g in to.own if gang_gpus(g) <= cap_gpus and self.room.holds(g)), None)
        if gang is not None:
            to.own.remove(gang)
        elif 0 < to.shape[0] <= min(cap_gpus, self.room.gpus):
            gang = self._new(to)
        if gang is not None:
            self.room.take(gang)
            to.got.append(gang)
            if self.caps is not None:
                self.caps.use(to.view, gang_gpus(gang))
        return gang

    def _new(self, to: Taker) -> Gang | None:
        closed = self._closed(to.view.app_id)
        if (to.shape, closed) in self._full:
            return None
        gang = self.room.without(closed).place(*to.shape)
        if gang is None:
            self._full.add((to.shape, closed))
        return gang
