"""Why an app waits, and when it starts, in one sentence for every view."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from pycontrol.arbiter.core import Arbiter
from pycontrol.arbiter.round.eligibility import Eligibility, fits, shape_of, types_for
from pycontrol.model.auction import Demand
from pycontrol.model.reasons import Pending, Reason
from pycontrol.model.topology import Scope
from pycontrol.words import clock, count, span

VAGUE = frozenset({Pending.WAITING_FOR_ROUND, Pending.NO_FREE_GPUS, Pending.OUTRANKED})
"""Reasons that do not say whether the free GPUs have room for the app's gang."""
WHERE = {Scope.MACHINE: "no machine has", Scope.RACK: "no rack has"}
SHAPES_MAX = 32
"""Of so many kinds of gangs a view says whose leases make room; users choose the kinds, and each costs time."""
NAMED = 3
"""The most apps that a sentence names."""


class Waiting:
    """Of one Arbiter at one moment; answers that are the same for several apps are computed once."""

    def __init__(self, a: Arbiter, now_s: float) -> None:
        self._a, self._now_s, self._rules = a, now_s, Eligibility(a.holdings)
        self._texts: dict[tuple[object, ...], tuple[str, set[str], str]] = {}

    def told(self, app_id: str, demand: Demand | None, why: Reason) -> tuple[Pending, str]:
        """The code and the sentence for the user: that there is no room for a gang, and which leases end when that make
        some. Apps whose virtual cluster owns cells have reasons of their own."""
        if why.code not in VAGUE or demand is None:
            return why.code, why.sentence
        if not self._a.supply.whole and self._a.durable.apps[app_id].vc and not demand.opportunistic:
            return why.code, why.sentence
        closed = self._rules.closed_hosts(app_id)
        types = types_for(demand, self._a.holdings.topology, self._a.rounds.typed(self._a.durable.apps[app_id].vc))
        alike = shape_of(demand), tuple(types), tuple(sorted(closed))
        if alike not in self._texts:
            self._texts[alike] = self._no_room(demand, types, closed)
        text, whose, ends = self._texts[alike]
        if not text:
            return why.code, why.sentence
        text += "" if app_id in whose else ends  # its own lease's end makes no more room for it
        if why.code is Pending.OUTRANKED:
            return why.code, f"{why.sentence}; {text}"
        return Pending.NO_FREE_GPUS, text

    def _no_room(self, demand: Demand, types: Sequence[str], closed: Mapping[str, str]) -> tuple[str, set[str], str]:
        """That the GPUs that are free where an app may start have no room for a gang, empty if they have; the apps
        whose leases make some, and when these end."""
        topology = self._a.holdings.topology
        free = {host: n for host, n in self._a.gpus.free.counts().items() if host not in closed}
        if any(fits(demand, free, topology, kind) for kind in types):
            return "", set(), ""
        what = WHERE.get(demand.scope, "the cluster does not have")
        text = f"{what} {count(demand.gang_gpus, 'free GPU')}"
        text += f" of type {demand.gpu_type}" if demand.gpu_type else " of one type" if len(types) > 1 else ""
        ended = self._ended(demand, free, types, closed) if len(self._texts) < SHAPES_MAX else []
        if not ended:
            return text, set(), ""
        names = list(dict.fromkeys(self._a.durable.apps[holder].name or holder for _, holder in ended))
        whose = ", ".join(names[-NAMED:]) + (f" and {len(names) - NAMED} more" if len(names) > NAMED else "")
        left_s = max(0.0, ended[-1][0] - self._now_s)
        end = f"the lease of {whose} ends in" if len(ended) == 1 else f"leases of {whose} end within"
        return text, {holder for _, holder in ended}, f"; {end} {span(left_s)}"

    def _ended(
        self, demand: Demand, free: Mapping[str, int], types: Sequence[str], closed: Mapping[str, str]
    ) -> list[tuple[float, str]]:
        """(end, app) of the leases that make room for a gang where that is first; empty if none does."""
        topology, ends = self._a.holdings.topology, [x for x in self._ends if x[2] not in closed]

        def room(n: int) -> Counter[str]:
            return Counter(free) + Counter(host for _, _, host in ends[:n])

        def holds(n: int) -> bool:
            return any(fits(demand, room(n), topology, kind) for kind in types)

        n = bisect_left(range(len(ends) + 1), True, key=holds)
        if n > len(ends):
            return []
        enough = demand.gang_gpus if demand.scope is Scope.MACHINE else 1
        there = {host for host, gpus in room(n).items() if gpus >= enough}
        return list(dict.fromkeys((end_s, app_id) for end_s, app_id, host in ends[:n] if host in there))

    @cached_property
    def _ends(self) -> list[tuple[float, str, str]]:
        """(end, app, host) of the lease of each GPU that others may have then, the first end first."""
        s = self._a.holdings
        end = (x for x in self._a.durable.leases.each() if x.end_s < math.inf and not s.renews_itself(x))
        return sorted((x.end_s, x.app_id, g.host) for x in end for g in x.gpus if s.may_be_reserved(g))


_STARTED = {Pending.RUNNING, Pending.IDLE, Pending.FINISHED, Pending.STARTING}
_TOO_LARGE = {Pending.EXCEEDS_CLUSTER_SIZE, Pending.NO_MACHINE_LARGE_ENOUGH}
STARTS_SAID = frozenset(Pending) - _STARTED - _TOO_LARGE - {Pending.EXCEEDS_GPU_TYPE, Pending.NO_SUCH_CELLS}
"""Reasons of apps that wait for a start which may come by itself."""


def with_start(code: str, sentence: str, gpus_held: int, start_s: Any, now_s: float) -> str:
    """The sentence, with when an app without GPUs starts by the newest forecast: its 10, 50 and 90 % quantiles.

    Local times of the control plane. Nothing is added that the forecast does not know, or that is over.
    """
    if gpus_held or code not in STARTS_SAID or not start_s or start_s[1] is None:
        return sentence
    low, middle, high = start_s
    if high is not None and high < now_s:
        return sentence
    first, about, last = (clock(max(x, now_s), now_s) if x else "" for x in (low, middle, high))
    between = "" if first == last else f" ({first} to {last})" if last else f" ({first} or later)"
    return f"{sentence}; you start about {about}{between}"
