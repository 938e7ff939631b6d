"""The ledger: the durable state, and the facts that are not journaled yet."""

from __future__ import annotations

from collections.abc import Iterator

from pycontrol.arbiter.durable import Durable
from pycontrol.arbiter.facts import OF_GPU, Fact, LeaseGranted
from pycontrol.arbiter.lease import REVOKING, Lease, Reservation
from pycontrol.arbiter.touched import Touched
from pycontrol.model.topology import Gpu

Held = tuple[Lease | None, Reservation | None]
NOTHING: Held = (None, None)


class Ledger:
    """Writes facts: `write` is the only way to change `Durable`, so the journal has every change."""

    def __init__(self, durable: Durable) -> None:
        self.durable = durable
        self.facts: list[Fact] = []
        """Facts since the last `take`."""
        self.touched: Touched | None = None
        """What changed since the last picture; None unless pictures are taken."""
        self._held_by_queue: dict[str, int] | None = None
        """Queue -> GPUs that its apps hold; None: to be counted again, as a fact came."""

    def write(self, fact: Fact) -> Held:
        """Applies a fact and queues it for the journal.

        Returns the lease and the reservation that its GPU had before; NOTHING for a fact that is not about a GPU.
        """
        self.facts.append(fact)
        self._held_by_queue = None
        d, touched = self.durable, self.touched
        if not isinstance(fact, OF_GPU):
            d.apply(fact)
            if touched is not None:
                touched.note(fact)
            return NOTHING
        before, coming = d.leases.get(fact.gpu), d.reservations.get(fact.gpu)
        d.apply(fact)
        if touched is not None:
            touched.app_ids.update(x.app_id for x in (before, coming) if x is not None)
            if isinstance(fact, LeaseGranted):
                touched.app_ids.add(fact.app_id)
        return before, coming

    def held_in(self, queue: str) -> int:
        """GPUs that the apps of a queue hold or have reserved, less those being revoked."""
        if self._held_by_queue is None:
            self._held_by_queue = self._count_by_queue()
        return self._held_by_queue.get(queue, 0)

    def _count_by_queue(self) -> dict[str, int]:
        counts = dict[str, int]()
        for app_id, gpus in self.durable.held.items():
            app = self.durable.live.get(app_id)
            if app is not None:
                counts[app.queue] = counts.get(app.queue, 0) + gpus
        return counts

    def take(self) -> list[Fact]:
        """Returns the facts since the last call."""
        facts, self.facts = self.facts, []
        return facts

    def watch(self) -> Touched:
        """Begins to note what changes, for one reader who takes pictures; replaces the previous reader's note."""
        self.touched = Touched()
        return self.touched

    def validate(self) -> Iterator[tuple[Gpu | str | None, str]]:
        """Yields (GPU, app or None, what is wrong) where indexes and counts contradict the leases."""
        d, held = self.durable, dict[str, int]()
        for gpu, lease in d.leases.items():
            held[lease.app_id] = held.get(lease.app_id, 0) + (lease.state != REVOKING)
            if lease.gpu != gpu or d.leases_by_app.get(lease.app_id, {}).get(gpu) is not lease:
                yield gpu, f"{lease} is not under its GPU or its app"
        if sum(map(len, d.leases_by_app.values())) != len(d.leases):
            yield None, "an app's list has leases that do not exist"
        for gpu, reservation in d.reservations.items():
            held[reservation.app_id] = held.get(reservation.app_id, 0) + 1
            present = d.leases.get(gpu)
            if present is None or present.state != REVOKING:
                yield gpu, f"it is reserved for {reservation.app_id} and not being revoked"
            if d.reservations_by_app.get(reservation.app_id, {}).get(gpu) is not reservation:
                yield gpu, f"{reservation} is not under its app"
        for app_id in held.keys() | d.held.keys():
            if d.held.get(app_id, 0) != held.get(app_id, 0):
                yield app_id, f"it holds {held.get(app_id, 0)} GPUs, {d.held.get(app_id, 0)} were counted"
        if d.live.keys() | d.ended.keys() != d.apps.keys() or d.live.keys() & d.ended.keys():
            yield None, "the live and the ended apps are not all apps"
