"""The first estimates of apps' starts and ends, compared with what happened."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pycontrol.lab.runreport import spread
from pycontrol.runtime.spans import LeaseInterval

Times = tuple[float, Sequence[float | None]]
"""When an estimate was made, and its 10 %, 50 % and 90 % quantiles; Unix seconds."""
SOON_S = 1.0
"""The end of a lease and the grant of the next may be told in this order or the other."""
NOTE = (
    "the cluster is minutes old: apps are expected to go on coming although no more do, the split of an app's work "
    "among its jobs and rungs is guessed, and nothing was learnt from errors yet"
)
"""Why few of the demo's estimates come true; hundreds are measured by `isonomy experiment estimates`."""


@dataclass
class Foreseen:
    """What the queue said of its apps, by app id."""

    starts: dict[str, Times] = field(default_factory=dict)
    ends: dict[str, Times] = field(default_factory=dict)
    started_s: dict[str, float] = field(default_factory=dict)
    """When each was first seen with GPUs."""

    def look(self, queue: Mapping[str, Any]) -> None:
        """A look at the queue: the first estimate of each app counts, that of its start while it waits."""
        made_s = (queue.get("forecast") or {}).get("made_s")
        for row in queue.get("apps", ()):
            app_id = row["app_id"]
            if row["gpus_held"]:
                self.started_s.setdefault(app_id, queue["now_s"])
            for quantiles, into in ((row.get("start_s"), self.starts), (row.get("end_s"), self.ends)):
                waits = into is self.ends or app_id not in self.started_s
                if quantiles and quantiles[1] is not None and made_s is not None and waits:
                    into.setdefault(app_id, (made_s, quantiles))

    def report(self, names: Mapping[str, str], ended_s: Mapping[str, float]) -> dict[str, Any]:
        """For starts and ends: rows, how many fell into the range, and the errors of the middle, seconds; and NOTE."""
        return {"starts": _compared(self.starts, self.started_s, names), "ends": _compared(self.ends, ended_s, names)}


@dataclass
class Advice:
    """The first answer to `why not me?` of each app that wants more while `holder` holds GPUs, itself too."""

    holder: str
    answers: dict[str, Mapping[str, Any]] = field(default_factory=dict)

    def look(self, queue: Mapping[str, Any], ask: Callable[[str], Mapping[str, Any]]) -> list[str]:
        """A look at the queue; asks, and returns what is new, one line for each change that would help."""
        rows, said = queue.get("apps", ()), list[str]()
        if any(row["name"] == self.holder and row["gpus_held"] for row in rows):
            for row in rows:
                if not row["gpus_wanted"] or row["app_id"] in self.answers:
                    continue
                answer = ask(row["app_id"])
                if answer.get("changes"):
                    self.answers[row["app_id"]] = answer
                    said += [f"why not {row['name']}: {change['sentence']}" for change in answer["changes"]]
        return said

    def report(self, leases: Iterable[LeaseInterval]) -> list[dict[str, Any]]:
        """The answers that name another app's GPUs, and whether as many went to it when it got some of these."""
        had, rows = list(leases), []
        for app_id, answer in self.answers.items():
            for c in (c for c in answer["changes"] if c["kind"] in ("lease", "end")):
                given = {
                    (x.gpu, x.ended_s)
                    for x in had
                    if x.lease.app_id == c["app_id"] and (x.ended_s or 0.0) >= answer["now_s"]
                }
                mine = [x for x in had if x.lease.app_id == app_id]
                with_these_s = {
                    x.granted_s
                    for x in mine
                    if any(gpu == x.gpu and ended_s <= x.granted_s + SOON_S for gpu, ended_s in given)
                }
                got = {x.gpu for x in mine if x.granted_s in with_these_s}
                rows.append(
                    {
                        "app_id": app_id,
                        "sentence": c["sentence"],
                        "came_true": len(got) >= sum(c["gets"]["gpus"].values()),
                    }
                )
        return rows


def _compared(said: Mapping[str, Times], real: Mapping[str, float], names: Mapping[str, str]) -> dict[str, Any]:
    rows = []
    for app_id, (made_s, (low, middle, high)) in said.items():
        real_s = real.get(app_id)
        if real_s is None or middle is None or real_s < made_s:
            continue
        rows.append(
            {
                "app": names.get(app_id, app_id),
                "ahead_s": real_s - made_s,
                "error_s": real_s - middle,
                "in_range": (low is None or low - 1 <= real_s) and (high is None or real_s <= high + 1),
            }
        )
    return {
        "n": len(rows),
        "in_range": sum(r["in_range"] for r in rows),
        "rows": rows,
        "error_s": spread([abs(r["error_s"]) for r in rows]),
        "note": NOTE,
    }
