"""Machines that refuse placements: which apps avoid which machines, for how long, and why.

An app avoids a machine that refused it REFUSALS times in a row over at least REFUSED_S; the time doubles on each
repetition. A machine that apps of several users avoid, and that took no container meanwhile, is closed to all apps,
if each of these refusals was of the machine's own making: an app can bring about others (by its blacklist, its
constraints, its limits, or an ask for more memory than is free) and must not close machines to others.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace

REFUSALS = 5
REFUSED_S = 15.0
AVOIDED_S = 120.0
"""How long an app avoids a machine the first time."""
AVOIDED_MAX_S = 1800.0
CLOSED_USERS = 2
"""If apps of this many users are refused, the fault lies with the machine, not with one user's asks."""


@dataclass(slots=True)
class _Run:
    """Refusals in a row of one app by one machine."""

    user: str
    reason: str
    first_s: float
    machine_at_fault: bool = False
    """Whether the cause of the newest refusal lies with the machine."""
    count: int = 0
    times: int = 0
    until_s: float | None = None
    """Until when the app avoids the machine; None: it does not."""


class Refusals:
    """Refusals by machine and app; times in seconds."""

    def __init__(self) -> None:
        self._runs: dict[str, dict[str, _Run]] = {}
        """Host -> app -> its refusals."""

    def copy(self) -> Refusals:
        """An independent copy."""
        other = Refusals()
        for host, runs in self._runs.items():
            other._runs[host] = {app_id: replace(run) for app_id, run in runs.items()}
        return other

    def __len__(self) -> int:
        return sum(map(len, self._runs.values()))

    def refused(
        self, host: str, app_id: str, user: str, reason: str, now_s: float, machine_at_fault: bool = False
    ) -> bool:
        """Notes a refused placement; returns whether the app avoids the machine from now on."""
        run = self._runs.setdefault(host, {}).setdefault(app_id, _Run(user, reason, now_s))
        run.count += 1
        run.reason, run.machine_at_fault = reason, machine_at_fault
        if run.until_s is not None or run.count < REFUSALS or now_s < run.first_s + REFUSED_S:
            return False
        run.until_s = now_s + min(AVOIDED_MAX_S, AVOIDED_S * 2**run.times)
        run.times += 1
        return True

    def placed(self, host: str, app_id: str) -> bool:
        """Notes that the machine took a container of the app; returns whether that opened the machine to all."""
        closed = host in self.closed()
        runs = self._runs.get(host, {})
        runs.pop(app_id, None)
        if closed:  # the machine is not at fault
            runs.clear()
        if not runs:
            self._runs.pop(host, None)
        return closed

    def avoided(self, app_id: str) -> dict[str, str]:
        """Machine that the app avoids -> its last reason."""
        found = ((host, runs.get(app_id)) for host, runs in self._runs.items())
        return {host: run.reason for host, run in found if run is not None and run.until_s is not None}

    def closed(self) -> dict[str, str]:
        """Machine that is closed to all -> its last reason."""
        found: dict[str, str] = {}
        for host, runs in self._runs.items():
            barred = [r for r in runs.values() if r.until_s is not None and r.machine_at_fault]
            if len({r.user for r in barred}) >= CLOSED_USERS:
                found[host] = max(barred, key=lambda r: r.until_s or 0.0).reason
        return found

    def next_end_s(self) -> float | None:
        """When an app next stops avoiding a machine; None if none does."""
        return min((r.until_s for r in self._all() if r.until_s is not None), default=None)

    def lapse(self, now_s: float) -> bool:
        """Ends avoidance that is due; returns whether any was. One more refusal starts it again."""
        over = [r for r in self._all() if r.until_s is not None and r.until_s <= now_s]
        for run in over:
            run.until_s, run.count, run.first_s = None, REFUSALS - 1, now_s - REFUSED_S
        return bool(over)

    def keep(self, hosts: Collection[str], app_ids: Collection[str]) -> None:
        """Drops the refusals of all other machines and apps."""
        kept = {h: {a: r for a, r in runs.items() if a in app_ids} for h, runs in self._runs.items() if h in hosts}
        self._runs = {host: runs for host, runs in kept.items() if runs}

    def forget(self, host: str) -> None:
        """Drops the refusals of a machine that changed."""
        self._runs.pop(host, None)

    def forget_app(self, app_id: str) -> None:
        """Drops the refusals of an app."""
        for host in [h for h, runs in self._runs.items() if runs.pop(app_id, None) is not None and not runs]:
            del self._runs[host]

    def _all(self) -> Iterator[_Run]:
        runs: Mapping[str, _Run]
        for runs in self._runs.values():
            yield from runs.values()
