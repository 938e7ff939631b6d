"""Makes a failing schedule smaller: faults, apps and oddities are left out as long as the same thing breaks."""

from __future__ import annotations

import copy
from collections.abc import Callable

from tests.faults.schedule import Schedule

TRIES = 400
PLAIN = {
    "sqlite": False,
    "old_journal": False,
    "exchange": False,
    "queue_max": {},
    "queue_capacity": 10_000,
    "cells": False,
}


def shrink(schedule: Schedule, play: Callable[[Schedule], tuple[str, str, str]]) -> Schedule:
    """A smaller schedule that breaks the same kind of thing."""
    kind, _, _ = play(schedule)
    if not kind:
        return schedule
    best, tries = schedule, 0

    def still(candidate: Schedule) -> bool:
        nonlocal best, tries
        tries += 1
        if tries > TRIES or play(candidate)[0] != kind:
            return False
        best = candidate
        return True

    for name, plain in PLAIN.items():
        if best.get(name, plain) != plain:
            still({**copy.deepcopy(best), name: plain})
    for name in ("faults", "apps"):
        size = max(1, len(best[name]) // 2)
        while size:
            at = 0
            while at < len(best[name]):
                smaller = copy.deepcopy(best)
                del smaller[name][at : at + size]
                if (name == "apps" and not smaller[name]) or not still(smaller):
                    at += size
            size //= 2
    return best
