"""Results of policies on the same apps beside each other, in sentences and tables, and against what happened."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import RenderableType

from pycontrol.cli.tables import Data, lines, table
from pycontrol.lab.recorded import Actual, median
from pycontrol.simulation.result import AppResult, Result
from pycontrol.words import count, span

SIZES = ((1, "1 GPU"), (4, "2 to 4 GPUs"), (16, "5 to 16 GPUs"), (1 << 30, "more GPUs"))
CLEAR_S, CLEAR = 60.0, 0.1
"""A change of a median wait that is said: more than a minute, and a tenth."""


def compared(results: Mapping[str, Result], actual: Actual) -> dict[str, Any]:
    """The sentences, waits by group, who gains and who loses, and the replay against what happened."""
    reference, *others = results
    base = results[reference]
    groups = {kind: _waits(results, kind) for kind in ("queue", "user", "size")}
    return {
        "reference": reference,
        "policies": list(results),
        "sentences": [sentence(base, results[name], reference, name) for name in others],
        "waits": groups,
        "totals": {name: _totals(r) for name, r in results.items()},
        "gains": {name: _gains(base, results[name]) for name in others},
        "calibration": _calibration(base, actual),
    }


def _size(app: AppResult) -> str:
    return next(label for most, label in SIZES if app.demand_gpus <= most)


def _wait_s(app: AppResult) -> float | None:
    return None if app.started_s is None else app.started_s - app.submitted_s


def _waits(results: Mapping[str, Result], kind: str) -> list[dict[str, Any]]:
    groups: dict[str, dict[str, list[float]]] = {}
    for name, r in results.items():
        for app in r.apps:
            wait_s = _wait_s(app)
            if wait_s is not None:
                key = _size(app) if kind == "size" else str(getattr(app, kind))
                groups.setdefault(key, {}).setdefault(name, []).append(wait_s)
    return [
        {
            kind: key,
            "apps": max(map(len, found.values())),
            "median_s": {name: median(values) for name, values in found.items()},
            "p95_s": {name: sorted(values)[math.ceil(0.95 * len(values)) - 1] for name, values in found.items()},
        }
        for key, found in sorted(groups.items())
    ]


def _totals(r: Result) -> dict[str, Any]:
    done = [a for a in r.apps if a.finished_s is not None]
    return {
        "finished": len(done),
        "apps": len(r.apps),
        "median_wait_s": median(w for a in r.apps if (w := _wait_s(a)) is not None),
        "median_rho": median(a.rho for a in done),
        "restarts": sum(a.restarts for a in r.apps),
        "lost_gpu_h": sum(a.lost_gpu_s for a in r.apps) / 3600.0,
    }


def _gains(base: Result, other: Result) -> dict[str, int]:
    """Apps that end at least a tenth sooner, or later, and those that do not finish."""
    times = {a.app_id: a.finished_s - a.submitted_s for a in base.apps if a.finished_s is not None}
    pairs = [
        (times[a.app_id], a.finished_s - a.submitted_s)
        for a in other.apps
        if a.finished_s is not None and a.app_id in times
    ]
    return {
        "sooner": sum(new < 0.9 * old for old, new in pairs),
        "later": sum(new > 1.1 * old for old, new in pairs),
        "compared": len(pairs),
    }


def _calibration(base: Result, actual: Actual) -> dict[str, Any] | None:
    """The replay under the reference policy against what happened: median waits, and how many apps are close.

    Close is within half of the real wait, or a minute.
    """
    pairs = []
    for app in base.apps:
        started_s = actual.get(app.app_id, (None, None))[0]
        wait_s = _wait_s(app)
        if started_s is not None and wait_s is not None:
            pairs.append((started_s - app.submitted_s, wait_s))
    if not pairs:
        return None
    close = sum(abs(real - said) <= max(60.0, 0.5 * real) for real, said in pairs)
    return {
        "apps": len(pairs),
        "real_median_s": median(r for r, _ in pairs),
        "replayed_median_s": median(s for _, s in pairs),
        "close": close / len(pairs),
    }


def sentence(base: Result, other: Result, reference: str, name: str) -> str:
    """What would have been different, in a sentence that needs no explanation."""
    changes = []
    for row in _waits({reference: base, name: other}, "queue"):
        old_s, new_s = row["median_s"].get(reference), row["median_s"].get(name)
        if old_s is not None and new_s is not None and abs(new_s - old_s) > max(CLEAR_S, CLEAR * old_s):
            changes.append((new_s - old_s, row["queue"].rpartition(".")[2], old_s, new_s))
    changes.sort()
    parts = [_change(*change) for change in (changes[:2] + [c for c in changes[2:] if c[0] > 0][-2:])]
    restarts, before = (sum(a.restarts for a in r.apps) for r in (other, base))
    if before and restarts != before:
        parts.append(f"{abs(restarts - before) / before:.0%} {'more' if restarts > before else 'fewer'} restarts")
    elif restarts:
        parts.append(f"{count(restarts, 'restart')} instead of none" if not before else "as many restarts")
    lost = sum(a.finished_s is None for a in other.apps) - sum(a.finished_s is None for a in base.apps)
    if lost:
        parts.append(f"{count(abs(lost), 'app')} {'fewer' if lost > 0 else 'more'} would have finished")
    start = "" if changes else "no queue's median wait would have changed much; "
    return f"{name} instead of {reference}: {start}{'; '.join(parts) or 'nothing else'}"


def _change(by_s: float, queue: str, old_s: float, new_s: float) -> str:
    if by_s < 0 and new_s <= 0.6 * old_s and new_s >= 0.4 * old_s:
        return f"it would have halved {queue}'s median wait, {span(old_s)} to {span(new_s)}"
    word = "cut" if by_s < 0 else "lengthened"
    return f"it would have {word} {queue}'s median wait from {span(old_s)} to {span(new_s)}"


def draw(d: Data) -> RenderableType:
    """The sentences, then waits by group, totals, gains and losses."""
    names: Sequence[str] = d["policies"]
    parts: list[RenderableType | None] = [*d["sentences"], ""]
    found = d["calibration"]
    if found is None:
        parts.append("What really happened is not known, or not comparable (faster=): this replay cannot be checked.")
    else:
        of = count(found["apps"], "app")
        parts.append(
            f"The replay under {d['reference']} gives a median wait of {span(found['replayed_median_s'])}, really it"
            f" was {span(found['real_median_s'])}; {found['close']:.0%} of {of} within half of their wait or a minute."
        )
    for kind, rows in d["waits"].items():
        if not rows:
            continue
        cells = [[r[kind], r["apps"], *(span(r[m].get(n)) for m in ("median_s", "p95_s") for n in names)] for r in rows]
        head = [kind.upper(), ">APPS", *(f">{n}" for n in names), *(f">{n} p95" for n in names)]
        parts += ["", table([f"WAIT BY {head[0]}", *head[1:]], cells)]
    totals = [
        [
            n,
            f"{t['finished']}/{t['apps']}",
            span(t["median_wait_s"]),
            t["median_rho"],
            t["restarts"],
            f"{t['lost_gpu_h']:.1f}",
        ]
        for n, t in d["totals"].items()
    ]
    parts += ["", table(["POLICY", ">FINISHED", ">WAIT", ">RHO", ">RESTARTS", ">LOST GPU-H"], totals), ""]
    parts += [
        f"{n}: {g['sooner']} of {count(g['compared'], 'app')} end sooner by a tenth or more, {g['later']} later"
        for n, g in d["gains"].items()
    ]
    parts += [
        f"{n}: {count(t['apps'] - t['finished'], 'app')} did not finish: larger than the cluster or a queue's limit,"
        " behind such an app, or the replay ended first; waits are of those that started"
        for n, t in d["totals"].items()
        if t["finished"] < t["apps"]
    ]
    source = d.get("workload") or ""
    parts.append(f"assumed: {d['assumed']}" if d["assumed"] and d["assumed"] not in source else None)
    parts.append(f"of {source}" if source else None)
    return lines(*parts)
