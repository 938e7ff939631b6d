"""The leases and reservations of all GPUs, as the fold of the facts about them.

`Durable` and the readers of journals (`pycontrol.runtime.spans`) share it.
"""

from __future__ import annotations

import dataclasses
from typing import TypeVar

from pycontrol.arbiter.facts import LeaseBorrowed, LeaseEnded, LeaseGranted, LeaseOwned, NextDropped, OfGpu
from pycontrol.arbiter.lease import REVOKING, Lease, Reservation, after, granted, reserved
from pycontrol.model.topology import Gpu
from pycontrol.model.value import value

T = TypeVar("T", Lease, Reservation)


@value
class Step:
    """The effect of one fact on one GPU's lease."""

    before: Lease | None
    after: Lease | None
    reservation: Reservation | None = None
    """The reservation that was made or cancelled, or that became the lease `after`."""


class LeaseTable:
    """Leases and reservations by GPU and by app."""

    def __init__(self) -> None:
        self.leases: dict[Gpu, Lease] = {}
        self.reservations: dict[Gpu, Reservation] = {}
        self.leases_by_app: dict[str, dict[Gpu, Lease]] = {}
        self.reservations_by_app: dict[str, dict[Gpu, Reservation]] = {}
        self.held: dict[str, int] = {}
        """App -> GPUs that it holds or has reserved, less those being revoked."""

    def take(self, f: OfGpu) -> Step:
        """Applies one fact; one about a GPU without a lease changes nothing, unless it grants one."""
        match f:
            case LeaseGranted():
                return self._granted(f)
            case LeaseEnded():
                return self._ended(f)
            case NextDropped():
                lease = self.leases.get(f.gpu)
                return Step(lease, lease, self.cancel(f.gpu))
            case LeaseBorrowed() | LeaseOwned():
                return self._guarantee_changed(f)
        before = self.leases.get(f.gpu)
        if before is None:
            return Step(None, None)
        now = after(before, f)
        if now.state == REVOKING and before.state != REVOKING:
            self._hold(before.app_id, -1)
        self.put(now)
        return Step(before, now)

    def load(self, x: Lease | Reservation) -> None:
        """Adds a lease or a reservation of a GPU that has none."""
        self._hold(x.app_id, int(isinstance(x, Reservation) or x.state != REVOKING))
        if isinstance(x, Reservation):
            self._reserve(x)
        else:
            self.put(x)

    def forget(self, gpu: Gpu) -> None:
        """Removes the lease of a GPU, if there is one."""
        ended = self.leases.pop(gpu, None)
        if ended is not None:
            _drop(self.leases_by_app, ended)
            if ended.state != REVOKING:
                self._hold(ended.app_id, -1)

    def _granted(self, f: LeaseGranted) -> Step:
        before = self.leases.get(f.gpu)
        if f.after_current:
            self.cancel(f.gpu)
            reservation = reserved(f)
            self._hold(f.app_id, 1)
            self._reserve(reservation)
            return Step(before, before, reservation)
        self.forget(f.gpu)
        now = granted(f)
        self._hold(f.app_id, 1)
        self.put(now)
        return Step(before, now)

    def _guarantee_changed(self, f: LeaseBorrowed | LeaseOwned) -> Step:
        """Changes `guaranteed` of the lease, of the reservation, or of both."""
        before, reservation = self.leases.get(f.gpu), self.reservations.get(f.gpu)
        now = before
        if before is not None and f.grant_id in ("", before.grant_id):
            now = after(before, f)
            self.put(now)
        if reservation is not None and f.grant_id in ("", reservation.grant_id):
            self._reserve(dataclasses.replace(reservation, guaranteed=isinstance(f, LeaseOwned)))
        return Step(before, now)

    def _ended(self, f: LeaseEnded) -> Step:
        before = self.leases.get(f.gpu)
        self.forget(f.gpu)
        reservation = self.reservations.pop(f.gpu, None)
        if reservation is None:
            return Step(before, None)
        _drop(self.reservations_by_app, reservation)
        now = reservation.begun(f.at_s)
        self.put(now)
        return Step(before, now, reservation)

    def cancel(self, gpu: Gpu) -> Reservation | None:
        """Removes the reservation of a GPU and returns it, if there was one."""
        reservation = self.reservations.pop(gpu, None)
        if reservation is not None:
            _drop(self.reservations_by_app, reservation)
            self._hold(reservation.app_id, -1)
        return reservation

    def put(self, lease: Lease) -> None:
        """Adds a lease, or replaces the GPU's lease of the same app."""
        self.leases[lease.gpu] = lease
        self.leases_by_app.setdefault(lease.app_id, {})[lease.gpu] = lease

    def _reserve(self, x: Reservation) -> None:
        self.reservations[x.gpu] = x
        self.reservations_by_app.setdefault(x.app_id, {})[x.gpu] = x

    def _hold(self, app_id: str, change: int) -> None:
        held = self.held.get(app_id, 0) + change
        if held:
            self.held[app_id] = held
        else:
            self.held.pop(app_id, None)


def _drop(by_app: dict[str, dict[Gpu, T]], x: T) -> None:
    mine = by_app[x.app_id]
    del mine[x.gpu]
    if not mine:
        del by_app[x.app_id]
