"""What a world reached: each fact, directive, fault, end reason, reason of an app that waits, and alert has a mark."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, get_args

from pycontrol.arbiter.ledger.facts import FACTS, Fact, LeaseEnded, LeaseRevoking, RoundHeld
from pycontrol.model import events as ev
from pycontrol.model.reasons import EndReason, Pending
from pycontrol.queries import views
from pycontrol.queries.pending_reasons import reason
from tests.faults.schedule import ALONE, FAULTS, RARE

RULES = Path(__file__).parents[2] / "confs" / "monitoring" / "isonomy.rules.yml"
LOOK_S = 20.0
"""Between two looks at reasons and alerts, which cost more than the others."""
SERIES = re.compile(r"^isonomy_(\w+?)(?:\{(.*)\})? (\S+)$", re.M)
LATE = re.compile("WaitingForRound|Starting|LateRho|LateBid|BadBid")


class Exposed:
    """The control plane's metrics at one moment."""

    def __init__(self, text: str) -> None:
        self._found = [(name, labels, float(value)) for name, labels, value in SERIES.findall(text)]

    def sum(self, name: str, labels: str | re.Pattern[str] = "") -> float:
        """The sum of the series of this name whose labels have the text."""
        return sum(x for n, found, x in self._found if n == name and re.search(labels, found))


ALERTS: Mapping[str, Callable[[Exposed], bool]] = {
    "IsonomyDown": lambda m: False,
    "IsonomyNotReady": lambda m: m.sum("ready") == 0,
    "IsonomyModeUnreadable": lambda m: m.sum("mode", "unreadable") == 1,
    "IsonomyGpusFreeWhileAppsWait": lambda m: (
        m.sum("gpus", "free") > 0 and m.sum("queue_gpus_pending", LATE) > 0 and m.sum("paused") == 0
    ),
    "IsonomyFirstGpuWaitsLong": lambda m: m.sum("first_gpu_wait_seconds_sum") > 14400,
    "IsonomyManyPreemptions": lambda m: m.sum("preempted_gpu_seconds_total") > 360 * m.sum("gpus", "leased"),
    "IsonomyAgentsLate": lambda m: m.sum("sat_out_total") > 0,
    "IsonomyArbiterBehind": lambda m: m.sum("arbiter_queue_depth") > 1000,
    "IsonomyCheckpointsFail": lambda m: m.sum("jobs_unsaved") > 0,
    "IsonomyBridgeSilent": lambda m: m.sum("bridge_silence_seconds") > 60,
    "IsonomyNodesOut": lambda m: m.sum("nodes", "down") + m.sum("nodes", "closed") > 0,
    "IsonomyNobodyServes": lambda m: m.sum("standing_by") == 1,
    "IsonomyPaused": lambda m: m.sum("paused") == 1,
    "IsonomyDiskFills": lambda m: 0 < m.sum("state_dir_free_bytes") < 2e9,
    "IsonomyClockBehind": lambda m: m.sum("clock_behind_seconds") > 5,
    "IsonomyStandbyStale": lambda m: m.sum("standby_age_seconds") > 600,
    "IsonomyJobsHang": lambda m: m.sum("jobs_hanging") > 0,
    "IsonomyBadGpus": lambda m: m.sum("gpus", "bad") > 0,
}
"""What each alert asks of one moment; how long it must last is not counted. Down: no control plane is there to ask."""

ALL = frozenset(
    [
        *(f"fact {name}" for name in FACTS),
        *(f"effect {kind.__name__}" for kind in get_args(ev.AgentEffect | ev.Directive)),
        *(f"fault {kind}" for kind in (*FAULTS, *RARE, *ALONE)),
        *(f"end {x}" for x in EndReason if x),
        *(f"reason {x}" for x in Pending),
        *(f"alert {name}" for name in ALERTS),
    ]
)


class Marks:
    """How often a world reached each."""

    def __init__(self, world: Any) -> None:
        self._world, self._looked_s = world, 0.0
        self.seen = Counter[str]()

    def fact(self, fact: Fact) -> None:
        """A fact was journaled."""
        self.seen[f"fact {type(fact).__name__}"] += 1
        if isinstance(fact, LeaseEnded | LeaseRevoking):
            self.seen[f"end {fact.cause}"] += 1
        elif isinstance(fact, RoundHeld):
            self.seen.update(f"reason {why.code}" for why in fact.receipt.out.values())

    def effect(self, e: Any) -> None:
        """An effect is carried out."""
        self.seen[f"effect {type(e).__name__}"] += 1

    def fault(self, kind: str) -> None:
        """A fault begins."""
        self.seen[f"fault {kind}"] += 1

    def look(self) -> None:
        """Now and then: what apps would be told, and which alerts would be raised."""
        now_s, plane = self._world.sim.now, self._world.plane
        if not plane.up:
            self.seen["alert IsonomyDown"] += 1
        elif now_s - self._looked_s >= LOOK_S:
            self._looked_s, a = now_s, plane.arbiter
            self.seen.update(f"reason {reason(a, x, now_s).code}" for x in a.durable.live)
            depth = f"\nisonomy_arbiter_queue_depth {plane.driver.waiting}\n"
            found = Exposed(plane.metrics.text(a, views.gpu_counts(a), now_s) + depth)
            self.seen.update(f"alert {name}" for name, raised in ALERTS.items() if raised(found))


def never(seen: Iterable[str]) -> str:
    """A line with the marks that were not reached."""
    return f"never reached: {', '.join(sorted(ALL.difference(seen))) or 'none'}"
