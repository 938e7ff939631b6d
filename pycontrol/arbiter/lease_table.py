"""The leases and reservations of all GPUs, as the fold of the facts about them.

`Durable` and the readers of journals (`pycontrol.runtime.spans`) share it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from typing import Generic, TypeVar

from pycontrol.arbiter.facts import Gpus, LeaseBorrowed, LeaseEnded, LeaseGranted, LeaseOwned, NextDropped, OfLease
from pycontrol.arbiter.lease import REVOKING, Claim, Lease, Reservation, after, granted, reserved
from pycontrol.model.topology import Gpu
from pycontrol.model.value import value

T = TypeVar("T", Lease, Reservation)


@value
class Step:
    """The effect of one fact: the leases with the GPUs that it names, before it and after it."""

    before: tuple[Lease, ...] = ()
    after: tuple[Lease, ...] = ()
    rest: tuple[Lease, ...] = ()
    """Leases that keep only the GPUs that the fact does not name."""
    reservations: tuple[Reservation, ...] = ()
    """The reservations that were made or cancelled, or that became leases."""

    @property
    def all(self) -> list[Claim]:
        """All leases and reservations that it changed."""
        return [*self.before, *self.after, *self.reservations]


class Claims(dict[Gpu, T], Generic[T]):
    """GPU -> its lease, or its reservation; each is there once for each of its GPUs."""

    def __init__(self) -> None:
        super().__init__()
        self.by_app: dict[str, dict[Gpu, T]] = {}
        """App -> first GPU -> lease."""

    def each(self) -> Iterator[T]:
        """Each lease once."""
        return (x for gpu, x in self.items() if x.gpus[0] == gpu)

    def index(self) -> None:
        """Makes `by_app` from what is there by GPU."""
        for x in self.values():
            self.by_app.setdefault(x.app_id, {})[x.gpus[0]] = x

    def of(self, app_id: str) -> list[T]:
        """Those of one app, sorted by their first GPUs."""
        mine = self.by_app.get(app_id)
        return [mine[gpu] for gpu in sorted(mine)] if mine else []

    def put(self, x: T) -> None:
        """Adds a lease, or replaces that of the same GPUs."""
        for gpu in x.gpus:
            self[gpu] = x
        self.by_app.setdefault(x.app_id, {})[x.gpus[0]] = x

    def drop(self, x: T) -> None:
        """Removes a lease."""
        for gpu in x.gpus:
            del self[gpu]
        mine = self.by_app[x.app_id]
        del mine[x.gpus[0]]
        if not mine:
            del self.by_app[x.app_id]

    def parts(self, gpus: Iterable[Gpu]) -> list[T]:
        """The leases of these GPUs, each with those of them that it has."""
        gpus = tuple(gpus)
        whole = self.get(gpus[0]) if gpus else None
        if whole is not None and whole.gpus == gpus:
            return [whole]
        found: dict[int, tuple[T, list[Gpu]]] = {}
        for gpu in gpus:
            x = self.get(gpu)
            if x is not None:
                found.setdefault(id(x), (x, []))[1].append(gpu)
        return [x if len(mine) == len(x.gpus) else part(x, mine) for x, mine in found.values()]

    def parted(self, gpus: Iterable[Gpu]) -> tuple[list[T], list[T]]:
        """Makes the parts of leases with these GPUs leases of their own; returns them, and those with the others."""
        found, rest = self.parts(gpus), list[T]()
        for x in found:
            whole = self[x.gpus[0]]
            if x is not whole:
                del self.by_app[x.app_id][whole.gpus[0]]
                others = part(whole, set(whole.gpus).difference(x.gpus))
                self.put(x)
                self.put(others)
                rest.append(others)
        return found, rest


def part(x: T, gpus: Iterable[Gpu]) -> T:
    """The lease with these of its GPUs only."""
    return dataclasses.replace(x, gpus=tuple(sorted(gpus)))


class LeaseTable:
    """Leases and reservations by GPU and by app."""

    def __init__(self) -> None:
        self.leases, self.reservations = Claims[Lease](), Claims[Reservation]()
        self.held: dict[str, int] = {}
        """App -> GPUs that it holds or has reserved, less those being revoked."""
        self.grants: dict[str, int] = {}
        """Grant -> its GPUs, counted in the same way."""

    def take(self, f: OfLease) -> Step:
        """Applies one fact; GPUs that it names and that have no lease change nothing, unless it grants them."""
        match f:
            case LeaseGranted():
                return self._granted(f)
            case LeaseEnded():
                return self._ended(f)
            case NextDropped():
                return Step(reservations=tuple(self.cancel(f.gpus)))
            case LeaseBorrowed() | LeaseOwned():
                return self._guarantee_changed(f)
        found, rest = self.leases.parted(f.gpus)
        now = [after(x, f) for x in found]
        for x, y in zip(found, now, strict=True):
            if y.state == REVOKING and x.state != REVOKING:
                self._hold(x, -1)
            self.leases.put(y)
        return Step(tuple(found), tuple(now), tuple(rest))

    def load(self, x: Claim) -> None:
        """Adds a lease or a reservation of GPUs that have none."""
        if isinstance(x, Reservation):
            self._hold(x, 1)
            self.reservations.put(x)
        else:
            if x.state != REVOKING:
                self._hold(x, 1)
            self.leases.put(x)

    def forget(self, gpus: Iterable[Gpu]) -> Step:
        """Removes the leases of these GPUs."""
        found, rest = self.leases.parted(gpus)
        for x in found:
            self.leases.drop(x)
            if x.state != REVOKING:
                self._hold(x, -1)
        return Step(before=tuple(found), rest=tuple(rest))

    def cancel(self, gpus: Iterable[Gpu]) -> list[Reservation]:
        """Removes the reservations of these GPUs and returns them."""
        found, _ = self.reservations.parted(gpus)
        for x in found:
            self.reservations.drop(x)
            self._hold(x, -1)
        return found

    def _granted(self, f: LeaseGranted) -> Step:
        step, coming = Step(), list[Reservation]()
        if f.after:
            self.cancel(f.after)
            coming = [reserved(f)]
        now = tuple(sorted(set(f.gpus).difference(f.after) if f.after else f.gpus))
        begun = [granted(f, now)] if now else []
        if now:
            step = self.forget(now)
        claims: list[Claim] = [*begun, *coming]
        for gpu, lease in ((gpu, lease) for lease in begun for gpu in f.gpus if gpu not in f.after):
            self.leases[gpu] = lease  # in the order in which they were chosen
        for x in claims:
            self.load(x)
        return Step(step.before, tuple(begun), step.rest, tuple(coming))

    def _ended(self, f: LeaseEnded) -> Step:
        step = self.forget(f.gpus)
        coming, _ = self.reservations.parted(f.gpus)
        begun = [x.begun(f.at_s) for x in coming]
        for x, lease in zip(coming, begun, strict=True):
            self.reservations.drop(x)
            self.leases.put(lease)
        return Step(step.before, tuple(begun), step.rest, tuple(coming))

    def _guarantee_changed(self, f: LeaseBorrowed | LeaseOwned) -> Step:
        """Changes `guaranteed` of the leases, of the reservations, or of both."""
        before, rest = self.leases.parted(_of_grant(self.leases, f))
        now = [after(x, f) for x in before]
        for x in now:
            self.leases.put(x)
        for coming in self.reservations.parted(_of_grant(self.reservations, f))[0]:
            self.reservations.put(dataclasses.replace(coming, guaranteed=isinstance(f, LeaseOwned)))
        return Step(tuple(before), tuple(now), tuple(rest))

    def _hold(self, x: Claim, sign: int) -> None:
        for counts, name in ((self.held, x.app_id), (self.grants, x.grant_id)):
            held = counts.get(name, 0) + sign * len(x.gpus)
            if held:
                counts[name] = held
            else:
                counts.pop(name, None)


def _of_grant(claims: Claims[T], f: LeaseBorrowed | LeaseOwned) -> Gpus:
    if not f.grant_id:
        return f.gpus
    return tuple(g for g in f.gpus if (x := claims.get(g)) is not None and x.grant_id == f.grant_id)
