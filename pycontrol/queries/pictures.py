"""Pictures of the Arbiter for readers: views are made from a copy of its state, on the reader's thread.

A picture is taken on the Arbiter's thread between two batches. It shares all that is immutable, leases among it; of
apps' records, which change in place, only those that changed since the last picture are copied. So it takes
milliseconds, and no reader waits for a round, or for one another.
"""

from __future__ import annotations

import dataclasses
import math
import operator
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from pycontrol.arbiter.core import Arbiter
from pycontrol.arbiter.durable import AppRecord, Durable
from pycontrol.arbiter.touched import Touched
from pycontrol.runtime.driver import Overloaded

T = TypeVar("T")
FRESH_S = 0.25
"""A picture is good for so long, unless a command was given meanwhile."""
SHARE = 0.05
"""Of the Arbiter's time that pictures may take: of a very large cluster they are taken less often."""
PATIENCE_S = 0.3
"""So long a reader waits for a new picture while there is an older one; its time is in each view (`now_s`)."""
FIRST_S = 5.0
COPIED = (
    "cluster", "agents", "gpus", "groups", "workers", "timer", "kills_sent", "receipts",
)  # fmt: skip
"""Fields of the state that are copied as they are (`copy()`)."""
SHARED = (
    "placements_full_s", "hosts_due_s", "counter", "supply", "epoch",
)  # fmt: skip
"""Those that are not changed in place."""


class Caller(Protocol):
    """What runs something on the Arbiter's thread."""

    def call(self, fn: Callable[[Arbiter, float], T], timeout_s: float = 5.0) -> T:
        """Runs `fn(arbiter, now)`; raises TimeoutError, Overloaded."""


class Camera:
    """Takes pictures, on the Arbiter's thread; keeps copies of apps' records between them."""

    def __init__(self) -> None:
        self._apps: dict[str, AppRecord] = {}
        self._touched: Touched | None = None
        """What the Arbiter has changed since the last picture, if that was this camera's."""

    def take(self, a: Arbiter) -> Arbiter:
        """An Arbiter that nobody drives: the state of this moment."""
        touched, d = a.ledger.touched, a.durable
        whole = touched is None or touched is not self._touched or touched.all
        app_ids = {*d.apps, *self._apps} if touched is None or whole else touched.app_ids
        self._touched = a.ledger.watch()
        _follow(self._apps, d.apps, app_ids)
        picture = Arbiter(a.settings, a.rounds.policy, self._durable(d), a.configured, a.epoch)
        for name in COPIED:
            setattr(picture, name, getattr(a, name).copy())
        for name in SHARED:
            setattr(picture, name, getattr(a, name))
        picture.policy_name = a.policy_name
        return picture

    def _durable(self, d: Durable) -> Durable:
        """All but the indices by app, which `complete` makes."""
        own = Durable()
        own.leases, own.reservations = dict(d.leases), dict(d.reservations)
        own.apps = {app_id: self._apps[app_id] for app_id in d.apps}  # in the order of their arrival
        own.held, own.switches, own.rounds = dict(d.held), set(d.switches), d.rounds
        own.memory, own.clocks, own.exchange = dict(d.memory), dict(d.clocks), d.exchange
        apps = own.apps
        own.live = {app_id: apps[app_id] for app_id in d.live}
        own.ended = OrderedDict((app_id, apps[app_id]) for app_id in d.ended)
        return own


_APP = operator.attrgetter(*(f.name for f in dataclasses.fields(AppRecord)))


def _follow(ours: dict[str, AppRecord], theirs: Mapping[str, AppRecord], app_ids: Iterable[str]) -> None:
    for app_id in app_ids:
        found = theirs.get(app_id)
        if found is None:
            ours.pop(app_id, None)
        else:
            ours[app_id] = _app(found)


def _app(x: AppRecord) -> AppRecord:
    return AppRecord(*_APP(x))


def complete(picture: Arbiter) -> Arbiter:
    """The indices by app, made on the reader's thread."""
    d = picture.durable
    for gpu, lease in d.leases.items():
        d.leases_by_app.setdefault(lease.app_id, {})[gpu] = lease
    for gpu, reservation in d.reservations.items():
        d.reservations_by_app.setdefault(reservation.app_id, {})[gpu] = reservation
    return picture


@dataclass(slots=True)
class Picture:
    """The state at one moment, and what was answered from it."""

    arbiter: Arbiter
    now_s: float
    """Of the Arbiter's clock."""
    taken_s: float
    """Monotonic."""
    cost_s: float = 0.0
    """What it took of the Arbiter's time."""
    answers: dict[Any, dict[str, Any]] = field(default_factory=dict)


class Pictures:
    """The newest picture, from any thread."""

    def __init__(self, driver: Caller, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._driver, self._clock_s, self._camera = driver, clock_s, Camera()
        self._taking = threading.Lock()
        self._newest: Picture | None = None
        self._expired_s = -math.inf

    def expire(self) -> None:
        """Something was commanded: whoever looks from now on sees what became of it."""
        self._expired_s = self._clock_s()

    def newest(self) -> Picture:
        """A fresh picture; the last one where the Arbiter is busy; TimeoutError, Overloaded while there is none."""
        have = self._newest
        if have is not None and self._fresh(have):
            return have
        patience_s = PATIENCE_S if have is not None and have.taken_s > self._expired_s else FIRST_S
        try:
            return self._take(patience_s)
        except (TimeoutError, Overloaded):
            have = self._newest
            if have is None:
                raise
            return have

    def _take(self, patience_s: float) -> Picture:
        if not self._taking.acquire(timeout=patience_s):
            raise TimeoutError
        try:
            have = self._newest  # somebody else may have taken it meanwhile
            if have is None or not self._fresh(have):
                begun_s = self._clock_s()
                arbiter, now_s, cost_s = self._driver.call(self._timed, patience_s)
                have = self._newest = Picture(complete(arbiter), now_s, begun_s, cost_s)
            return have
        finally:
            self._taking.release()

    def _timed(self, a: Arbiter, now_s: float) -> tuple[Arbiter, float, float]:
        begin_s = self._clock_s()
        return self._camera.take(a), now_s, self._clock_s() - begin_s

    def _fresh(self, picture: Picture) -> bool:
        age_s = self._clock_s() - picture.taken_s
        return picture.taken_s > self._expired_s and age_s < max(FRESH_S, picture.cost_s / SHARE)
