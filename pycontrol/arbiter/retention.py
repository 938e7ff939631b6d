"""How long records of ended apps are retained."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice

from pycontrol.arbiter.durable import Durable

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
