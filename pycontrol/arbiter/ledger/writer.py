"""The ledger: the durable state, facts that are not journaled yet, and which apps changed since the last picture."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice

from pycontrol.arbiter.ledger.durable import Durable
from pycontrol.arbiter.ledger.facts import (
    AppArrived,
    AppChanged,
    AppEnded,
    AppMoved,
    AppsForgotten,
    Fact,
    LimitsSet,
    Restored,
)
from pycontrol.arbiter.ledger.lease import REVOKING, LeaseTable, Step
from pycontrol.arbiter.ledger.limits import LimitBook
from pycontrol.model.accounts import NO_ACCOUNTS, Accounts
from pycontrol.model.topology import Gpu


class Ledger:
    """Writes facts: `write` is the only way to change `Durable`, so the journal has every change."""

    def __init__(self, durable: Durable, accounts: Accounts = NO_ACCOUNTS) -> None:
        self.durable = durable
        self.facts: list[Fact] = []
        """Facts since the last `take`."""
        self.touched: Touched | None = None
        """What changed since the last picture; None unless pictures are taken."""
        self.limits = LimitBook(accounts, durable)

    def write(self, fact: Fact) -> Step | None:
        """Applies a fact and queues it for the journal; returns what it did to leases (`Durable.apply`)."""
        self.facts.append(fact)
        step = self.durable.apply(fact)
        self.limits.outdated()
        if isinstance(fact, LimitsSet | Restored):
            self.limits.set_anew()
        if self.touched is not None:
            if step is None:
                self.touched.note(fact)
            else:
                self.touched.app_ids.update(x.app_id for x in step.all)
        return step

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
        d, counted = self.durable, LeaseTable()
        for x in d.claims():
            counted.load(x)
        for claims, right in ((d.leases, counted.leases), (d.reservations, counted.reservations)):
            for gpu in claims.keys() ^ right.keys():
                yield gpu, "its lease does not name it, or names it and is not there"
            for app_id in claims.by_app.keys() | right.by_app.keys():
                mine, theirs = claims.by_app.get(app_id, {}), right.by_app.get(app_id, {})
                for gpu in mine.keys() | theirs.keys():
                    if mine.get(gpu) is not theirs.get(gpu):
                        yield gpu, f"{app_id} does not have what the GPU says, or has more"
        for gpu, reservation in d.reservations.items():
            present = d.leases.get(gpu)
            if present is None or present.state != REVOKING:
                yield gpu, f"it is reserved for {reservation.app_id} and not being revoked"
        for counts, right_counts in ((d.held, counted.held), (d.grants, counted.grants)):
            for name in counts.keys() | right_counts.keys():
                if counts.get(name, 0) != right_counts.get(name, 0):
                    yield name, f"it holds {right_counts.get(name, 0)} GPUs, {counts.get(name, 0)} were counted"
        running = dict[tuple[str, str], float]()
        for lease in d.leases.each():
            key = d.apps[lease.app_id].queue, d.apps[lease.app_id].user
            running[key] = running.get(key, 0.0) + lease.running
        for key, use in d.uses.items():
            if abs(use.running - running.get(key, 0.0)) > 1e-3:
                yield None, f"{key} uses {running.get(key, 0.0)} GPUs, {use.running} are counted"
        if d.live.keys() | d.ended.keys() != d.apps.keys() or d.live.keys() & d.ended.keys():
            yield None, "the live and the ended apps are not all apps"


class Touched:
    """Apps that changed since the last picture; `all`: every app may have."""

    def __init__(self) -> None:
        self.app_ids: set[str] = set()
        self.all = False

    def note(self, fact: Fact) -> None:
        """Notes a fact that is not about a GPU."""
        if isinstance(fact, AppArrived | AppChanged | AppEnded | AppMoved):
            self.app_ids.add(fact.app_id)
        elif isinstance(fact, AppsForgotten):
            self.app_ids.update(fact.app_ids)
        elif isinstance(fact, Restored):
            self.all = True


ENDED_APPS_MAX = 10_000
"""Beyond this many records, the oldest are dropped before their time."""
ENDED_APPS_MIN_S = 600.0
"""No record is dropped sooner than this after the app's end."""


def forgettable(d: Durable, is_known: Callable[[str], bool], keep_s: float, now_s: float) -> Iterator[str]:
    """The apps that ended first and have records to drop, at most 100; none that YARN may know (`is_known`), or that
    has a lease or a reservation. `keep_s`: how long records are retained."""
    too_many, found = len(d.ended) - ENDED_APPS_MAX, 0
    for app_id, app in islice(d.ended.items(), 100):
        age_s = now_s - (app.finished_s or now_s)
        if age_s < keep_s and (found >= too_many or age_s < ENDED_APPS_MIN_S):
            return
        if not is_known(app_id) and app_id not in d.leases.by_app and app_id not in d.reservations.by_app:
            found += 1
            yield app_id
