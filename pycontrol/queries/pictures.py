"""Pictures of the Arbiter: copies of its state, from which readers make views on their own threads.

A picture is taken on the Arbiter's thread between two batches. It shares immutable values such as leases. Apps'
records change in place, so a picture copies those that changed since the last one. Taking a picture therefore takes
milliseconds, and readers wait neither for a round nor for each other.
"""

from __future__ import annotations

import dataclasses
import math
import operator
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pycontrol.arbiter.core import Arbiter
from pycontrol.arbiter.ledger.durable import AppRecord, Durable
from pycontrol.arbiter.state import COPIED, Holdings
from pycontrol.runtime.driver import Driver, Overloaded

_APP = operator.attrgetter(*(f.name for f in dataclasses.fields(AppRecord)))
FRESH_S = 0.25
"""How long a picture is served, unless a command expires it."""
SHARE = 0.05
"""The share of the Arbiter's time that pictures may take: on a very large cluster they are taken less often."""
PATIENCE_S = 0.1
"""How long a reader waits for a new picture before it gets the last one; each view says its time (`now_s`)."""
FIRST_S = 5.0
VIEW_SHARE = 0.1
"""The part of a core that one view may take, whoever asks for it: a costly one is served for longer."""
ANSWERS_KEPT = 64
"""The most answers. One without parameters stays: what a single caller asks for must not push out what all share."""
Key = tuple[Sequence[str], ...]


class Camera:
    """Takes pictures on the Arbiter's thread and caches copies of apps' records between them."""

    def __init__(self) -> None:
        self._apps: dict[str, AppRecord] = {}
        self._touched: set[str] | None = None
        """The Arbiter's note of the apps that changed since the last picture, if this camera took it."""

    def take(self, a: Arbiter) -> Arbiter:
        """A copy of the Arbiter in its present state."""
        touched, d = a.ledger.touched, a.durable
        app_ids = {*d.apps, *self._apps} if touched is None or touched is not self._touched else touched
        self._touched = a.ledger.watch()
        for app_id in app_ids:
            record = d.apps.get(app_id)
            if record is None:
                self._apps.pop(app_id, None)
            else:
                self._apps[app_id] = AppRecord(*_APP(record))
        holdings = a.holdings.copy(self._durable(d))
        picture = Arbiter(a.settings, a.rounds.policy, epoch=a.clerk.epoch, holdings=holdings)
        picture.policy_name = a.policy_name
        return picture

    def _durable(self, d: Durable) -> Durable:
        """A copy of the durable state."""
        own = Durable(d.table.copy())
        own.apps = {app_id: self._apps[app_id] for app_id in d.apps}  # in the order of their arrival
        own.switches, own.acts, own.boosts, own.rounds = set(d.switches), d.acts, dict(d.boosts), d.rounds
        own.memory, own.clocks, own.exchange = dict(d.memory), dict(d.clocks), d.exchange
        own.uses, own.limits, own.spent = dict(d.uses), dict(d.limits), dict(d.spent)
        own.plain, own.behind_s = dict(d.plain), d.behind_s
        own.first_launches_s, own.restarts_s = d.first_launches_s, d.restarts_s
        apps = own.apps
        own.live = {app_id: apps[app_id] for app_id in d.live}
        own.ended = OrderedDict((app_id, apps[app_id]) for app_id in d.ended)
        return own


@dataclass(slots=True)
class Picture:
    """The state at one time."""

    arbiter: Arbiter
    now_s: float
    """Time on the Arbiter's clock."""
    taken_s: float
    """Monotonic time at which the picture was requested."""
    cost_s: float = 0.0
    """Seconds that it took on the Arbiter's thread."""

    def __del__(self) -> None:
        """The parts of an Arbiter refer to it. Without its state the cycle that nobody reads any more weighs little.

        Else memory would grow until the collector of cycles runs, which stops all threads.
        """
        for name, empty in _nothing(self.arbiter).items():
            for whole in (self.arbiter, self.arbiter.holdings):
                if hasattr(whole, name):
                    setattr(whole, name, empty)


def _nothing(a: Arbiter) -> dict[str, Any]:
    """The state of an Arbiter that knows nothing, of the kind of another one."""
    empty = Holdings(a.settings, Durable())
    return {name: getattr(empty, name) for name in ("durable", "ledger", *COPIED)}


class _Answer:
    """A view's newest answer; whoever holds `making` makes it."""

    def __init__(self) -> None:
        self.making = threading.Lock()
        self.found: dict[str, Any] = {}
        self.taken_s, self.cost_s = -math.inf, 0.0
        """Of its picture; CPU seconds."""


class Pictures:
    """Serves the newest picture, and views of it, to any thread."""

    def __init__(self, driver: Driver, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._driver, self._clock_s, self._camera = driver, clock_s, Camera()
        self._answers = OrderedDict[Key, _Answer]()
        self._keeping = threading.Lock()
        self._taking = threading.Lock()
        self._newest: Picture | None = None
        self._expired_s = -math.inf

    def expire(self) -> None:
        """Expire the present picture, so that the next reader sees the effect of a command."""
        self._expired_s = self._clock_s()

    def answer(self, key: Key, view: Callable[[Arbiter, float], dict[str, Any]], live: bool = False) -> dict[str, Any]:
        """The view called `key` of a fresh picture, made once for all who ask: those who come meanwhile wait for it.

        `live`: of the state itself, on the Arbiter's thread. Raises what `view` raises, TimeoutError or Overloaded.
        """

        def timed(a: Arbiter, now_s: float) -> tuple[dict[str, Any], float]:
            begin_s = time.thread_time()
            return view(a, now_s), time.thread_time() - begin_s

        with self._keeping:
            answer = self._answers.setdefault(key, _Answer())
            self._answers.move_to_end(key)
            if len(self._answers) > ANSWERS_KEPT:
                del self._answers[next(k for k in self._answers if len(k) > 1)]
        with answer.making:
            age_s = self._clock_s() - answer.taken_s
            if answer.taken_s <= self._expired_s or age_s >= answer.cost_s / VIEW_SHARE:
                begun_s = self._clock_s()
                if live:
                    (answer.found, answer.cost_s), answer.taken_s = self._driver.call(timed), begun_s
                elif (picture := self.newest()).taken_s != answer.taken_s:
                    answer.found, answer.cost_s = timed(picture.arbiter, picture.now_s)
                    answer.taken_s = picture.taken_s
            return answer.found

    def newest(self) -> Picture:
        """A fresh picture, or the last one if the Arbiter is busy; raises TimeoutError or Overloaded without any."""
        have = self._newest
        if have is not None and self._fresh(have):
            return have
        patience_s = PATIENCE_S if have is not None and have.taken_s > self._expired_s else FIRST_S
        try:
            return self._take(patience_s)
        except (TimeoutError, Overloaded):
            if self._newest is None:
                raise
            return self._newest

    def _take(self, patience_s: float) -> Picture:
        if not self._taking.acquire(timeout=patience_s):
            raise TimeoutError
        try:
            have = self._newest  # another reader may have taken one meanwhile
            if have is None or not self._fresh(have):
                begun_s = self._clock_s()
                arbiter, now_s, cost_s = self._driver.call(self._timed, patience_s)
                have = self._newest = Picture(arbiter, now_s, begun_s, cost_s)
            return have
        finally:
            self._taking.release()

    def _timed(self, a: Arbiter, now_s: float) -> tuple[Arbiter, float, float]:
        begin_s = self._clock_s()
        return self._camera.take(a), now_s, self._clock_s() - begin_s

    def _fresh(self, picture: Picture) -> bool:
        age_s = self._clock_s() - picture.taken_s
        return picture.taken_s > self._expired_s and age_s < max(FRESH_S, picture.cost_s / SHARE)
