"""Accounting: GPU time used, lost and borrowed, waiting times and costs, by who used it and when.

It is read from the journal's facts as long as it has all of them, then from its totals by day, which are kept for
ever. Each result says what time its records cover: time without records is not time without use.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pycontrol.fairness.use import DAY_S
from pycontrol.model.accounts import NO_ACCOUNTS, Accounts
from pycontrol.model.value import value
from pycontrol.runtime.gpu_time import GAP_S, AppTimes, Tally, Totals, Usage, Who, without
from pycontrol.runtime.journal import read_totals
from pycontrol.runtime.spans import Journal

TIMES = ("day", "month")
KEPT = (*TIMES, "user", "account", "queue", "type", "kind")
"""What is kept for ever; the others are known as long as the facts are."""
KEYS = (*KEPT, "vc", "app", "name")
HOUR_S = 3600.0


@value
class Entry:
    """What one app, or one account on one day, used of GPUs of one type."""

    at_s: float
    who: Who
    gpu_type: str
    tally: Tally
    wait_s: float | None = None


@dataclass
class Group:
    """The sum of a row."""

    tally: Tally = field(default_factory=Tally)
    app_ids: set[str] = field(default_factory=set)
    waits_s: list[float] = field(default_factory=list)
    by_type: dict[str, float] = field(default_factory=dict)
    """GPU-seconds used."""


@dataclass
class Records:
    """What the records have of a time."""

    since_s: float
    until_s: float
    entries: list[Entry]
    covered: list[tuple[float, float]]
    """Times in which all containers were seen."""
    first_s: float | None = None
    last_s: float = 0.0
    whole_days: bool = False
    """Whether they are totals by day: waits have no median, and apps are those that began."""
    unknown: int = 0


def with_older(journal: Path) -> list[Path]:
    """The journal, after those that were set aside when another control plane had taken over."""
    return [*sorted(journal.parent.glob(f"{journal.stem}-2*{journal.suffix}")), journal]


def of_facts(journals: Iterable[Journal], since_s: float, until_s: float) -> Records:
    """The facts of consecutive control planes."""
    found = Usage(since_s, until_s)
    found.read(*journals)
    # Leases that were open when a control plane ended for good are open for ever.
    found.close(until_s if until_s <= found.newest_s + GAP_S else found.last_s)
    entries = [Entry(day * DAY_S, who, of, tally) for (day, who, of), tally in found.tallies.items()]
    types = {e.who.app_id: e.gpu_type for e in entries if e.tally.apps}
    for app in found.apps.values():
        if (wait_s := _wait_s(app, since_s, found.until_s)) is not None:
            at_s = min(app.submitted_s + wait_s, until_s - 1.0)  # one that waits still does so before midnight
            entries.append(Entry(at_s, app.who, types.get(app.who.app_id, ""), Tally(), wait_s))
    return Records(since_s, until_s, entries, found.covered, found.first_s, found.last_s, False, found.unknown)


def _wait_s(app: AppTimes, since_s: float, until_s: float) -> float | None:
    """Seconds until its first container, else until its end or `until_s`; None if it waited only before `since_s`."""
    end_s = app.first_s if app.first_s is not None else app.ended_s or until_s
    return None if end_s < since_s else max(0.0, end_s - app.submitted_s)


def of_totals(journals: Iterable[Totals], since_s: float, until_s: float) -> Records:
    """The totals of each journal, for the whole days (UTC) from that of `since_s` to that of `until_s`."""
    first, last = int(since_s // DAY_S), int(-(-until_s // DAY_S))
    found = Records(first * DAY_S, last * DAY_S, [], [], whole_days=True)
    for x in journals:
        for (day, user, queue, gpu_type, kind), tally in x.rows.items():
            if first <= day < last:
                found.entries.append(Entry(day * DAY_S, Who("", "", user, queue, "", kind), gpu_type, tally))
        found.covered += x.covered
        found.first_s = min(x.first_s, found.first_s if found.first_s is not None else x.first_s)
        found.last_s = max(x.last_s, found.last_s)
    return found


def last_year(
    journal: Path, by: Sequence[str], accounts: Accounts, prices: Mapping[str, float] | None
) -> dict[str, Any] | None:
    """The newest 366 days that a running control plane has counted, until at most an hour ago; None if there are none.

    Raises JournalError.
    """
    totals = [x for file in with_older(journal) if (x := read_totals(file, newest=False)) is not None]
    if not totals:
        return None
    last_s = max(x.last_s for x in totals)
    since_s = max(min(x.first_s for x in totals), last_s - 366 * DAY_S)
    return accounted(of_totals(totals, since_s, last_s), by, accounts, prices)


def accounted(
    found: Records, by: Sequence[str], accounts: Accounts = NO_ACCOUNTS, prices: Mapping[str, float] | None = None
) -> dict[str, Any]:
    """A row for each group, in the order of time, then most GPU time first; times in hours.

    By account, a row has the use of all accounts below it. A day or month without use has a row, its other keys empty:
    that says whether it is covered. `prices`: by GPU type, of an hour with a container.
    """
    groups: dict[tuple[str, ...], Group] = {}
    whole = Group()
    for e in found.entries:
        for key in itertools.product(*(_values(e, name, accounts) for name in by)):
            _add(groups.setdefault(key, Group()), e)
        _add(whole, e)
    begin_s, end_s = max(found.since_s, found.first_s or found.until_s), min(found.until_s, found.last_s)
    gaps = [x for x in without(found.covered, begin_s, end_s) if x[1] - x[0] > GAP_S]
    times = [name for name in by if name in TIMES]
    used = {tuple(value for name, value in zip(by, key, strict=True) if name in times) for key in groups}
    for at_s in range(int(begin_s // DAY_S * DAY_S), math.ceil(end_s), int(DAY_S)) if times and groups else ():
        if tuple(_time(name, at_s) for name in times) not in used:
            groups.setdefault(tuple(_time(name, at_s) if name in times else "" for name in by), Group())
    rows = []
    for key, group in groups.items():
        row = dict(zip(by, key, strict=True)) | _row(group, prices, found.whole_days)
        if time := next((row[name] for name in TIMES if name in by), ""):
            row["covered_h"] = round(_covered_s(time, begin_s, end_s, gaps) / HOUR_S, 2)
        rows.append(row)
    others = [name for name in by if name not in TIMES]
    rows.sort(key=lambda r: (*(r[t] for t in times), -r["gpu_h_used"], *(r[name] for name in others)))
    unpriced = [t for t in whole.by_type if t not in prices] if prices else []
    return {
        "since_s": found.since_s, "until_s": found.until_s, "by": list(by), "rows": rows,
        "total": _row(whole, prices, found.whole_days) if found.entries else None, "unknown_facts": found.unknown,
        "covered": {"from_s": begin_s, "to_s": end_s, "gaps": [list(x) for x in gaps]} if begin_s <= end_s else None,
        "records_from_s": found.first_s, "records_to_s": found.last_s if found.first_s is not None else None,
        "whole_days": found.whole_days, "without_price": sorted(unpriced),
    }  # fmt: skip


def _values(e: Entry, name: str, accounts: Accounts) -> Iterator[str]:
    if name in TIMES:
        yield _time(name, e.at_s)
    elif name == "account":
        *path, _ = accounts.path(e.who.queue, e.who.user)
        yield from ("/".join(path[: k + 1]) for k in range(len(path)))
    elif name == "type":
        yield e.gpu_type
    else:
        yield str(getattr(e.who, "app_id" if name == "app" else name))


def _time(name: str, at_s: float) -> str:
    return f"{datetime.fromtimestamp(at_s, UTC):{'%Y-%m-%d' if name == 'day' else '%Y-%m'}}"


def _add(group: Group, e: Entry) -> None:
    group.tally += e.tally
    if e.tally.used_gpu_s:
        group.by_type[e.gpu_type] = group.by_type.get(e.gpu_type, 0.0) + e.tally.used_gpu_s
    if e.who.app_id:
        group.app_ids.add(e.who.app_id)
    if e.wait_s is not None:
        group.waits_s.append(e.wait_s)


def _row(group: Group, prices: Mapping[str, float] | None, whole_days: bool) -> dict[str, Any]:
    t = group.tally
    hours = {name: round(getattr(t, f"{name}_gpu_s") / HOUR_S, 4) for name in ("held", "used", "lost", "borrowed")}
    cost = sum((prices or {}).get(of, 0.0) * used_s / HOUR_S for of, used_s in group.by_type.items())
    return {
        "apps": t.apps if whole_days else len(group.app_ids),
        "gpu_h_used": hours["used"],
        "gpu_h_unused": round(max(0.0, hours["held"] - hours["used"]), 4),
        "gpu_h_lost": hours["lost"],
        "gpu_h_lost_by": {cause: round(gpu_s / HOUR_S, 4) for cause, gpu_s in sorted(t.causes.items())},
        "gpu_h_borrowed": hours["borrowed"],
        "revocations": t.revocations,
        "wait_h": round((t.wait_s if whole_days else sum(group.waits_s)) / HOUR_S, 4),
        "wait_median_s": quantile(group.waits_s, 0.5),
        "wait_p95_s": quantile(group.waits_s, 0.95),
        "cost": round(cost, 2) if prices else None,
    }


def _covered_s(time: str, begin_s: float, end_s: float, gaps: Sequence[tuple[float, float]]) -> float:
    """Seconds of a day or month within the time that the records cover."""
    first = datetime.fromisoformat(time if len(time) > 7 else f"{time}-01").replace(tzinfo=UTC)
    length = 1 if len(time) > 7 else 32
    last_s = first.timestamp() + length * DAY_S
    if length > 1:
        last_s = datetime.fromtimestamp(last_s, UTC).replace(day=1).timestamp()
    low_s, high_s = max(begin_s, first.timestamp()), min(end_s, last_s)
    missing_s = sum(max(0.0, min(b, high_s) - max(a, low_s)) for a, b in gaps)
    return max(0.0, high_s - low_s - missing_s)


def quantile(values: Sequence[float], q: float) -> float | None:
    """The q-quantile with linear interpolation; None without values."""
    if not values:
        return None
    ordered = sorted(values)
    at = q * (len(ordered) - 1)
    low, high = math.floor(at), math.ceil(at)
    return ordered[low] + (ordered[high] - ordered[low]) * (at - low)
