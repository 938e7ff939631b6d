"""Limits of accounts: the most GPUs at once, and budgets of GPU-hours by day, week and month.

At a limit nothing new starts. Gangs within a limit on GPUs are renewed; those beyond one that was lowered, and all
gangs of an account with a used-up budget, end with their leases. What an administrator set with `isonomy budget`
replaces what isonomy.yaml says of the account.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields
from functools import lru_cache
from typing import Protocol

from pycontrol.arbiter.ledger.facts import BudgetSpent, LimitsSet
from pycontrol.fairness.use import Use, spans
from pycontrol.model.accounts import PERIODS, UNLIMITED, Accounts, Limits
from pycontrol.model.auction import NO_ROOM
from pycontrol.model.reasons import Cause, EndReason
from pycontrol.model.value import value
from pycontrol.words import utc

KINDS = tuple(f.name for f in fields(Limits))
TOLD = (1.0, 0.8, 0.0)
"""The shares of a budget that are told when they are used."""
HOUR_S = 3600.0


@value
class Level:
    """How much of a limit is used: GPUs, or GPU-hours on the reference type."""

    account: str
    kind: str
    """A field of `Limits`."""
    limit: float
    used: float
    running: float
    """GPUs of the reference type that the account's gangs run on."""
    ends_s: float | None = None
    """When a budget's period ends, Unix seconds."""

    @property
    def share(self) -> float:
        """The used part; 1 if the limit is 0."""
        return self.used / self.limit if self.limit else 1.0

    def __str__(self) -> str:
        """Names the limit and what is used."""
        if self.ends_s is None:
            return f"{self.account} has {self.used:g} of {self.limit:g} GPUs"
        period = self.kind.rpartition("_")[2]
        return f"{self.account} has used {self.used:.2f} of {self.limit:g} GPU-hours of this {period}"


@lru_cache(10_000)
def places(queue: str, user: str, partition: str) -> tuple[str, ...]:
    """What a user's GPUs in a queue count for, there or in a partition: the queue, each above it, its user there."""
    above = [queue[:k] for k, c in enumerate(queue) if c == "."]
    at = f" in partition {partition}" if partition else ""
    return tuple(f"{name}{at}" for name in (queue, *reversed(above), f"{user} in {queue}"))


class Owned(Protocol):
    """An app's record."""

    queue: str
    user: str


class Known(Protocol):
    """The part of the durable state that limits follow from."""

    limits: dict[str, LimitsSet]
    held: dict[str, int]
    uses: dict[tuple[str, str], Use]
    spent: dict[tuple[str, str], BudgetSpent]

    @property
    def live(self) -> Mapping[str, Owned]:
        """The apps that have not ended."""

    def lease_ends(self, whose: Callable[[Owned], bool]) -> Iterable[float]:
        """The ends of these apps' leases, Unix seconds."""


Counts = tuple[dict[str, int], dict[str, tuple[tuple[str, ...], int]]]


class LimitBook:
    """The limits in force, and how much of them is used."""

    def __init__(self, accounts: Accounts, durable: Known) -> None:
        self.accounts, self._durable = accounts, durable
        self.in_force: dict[str, Limits] = {}
        """By account, named as in `Accounts.names`."""
        self._names: dict[tuple[str, str], tuple[str, ...]] = {}
        """(queue, user) -> the accounts with limits that its apps count for."""
        self.partition_of: Callable[[str], str] = lambda _: ""
        """App -> the partition that its GPUs are in."""
        self.labelled: Callable[[], bool] = lambda: False
        """Whether nodes have labels: then asks and nodes move apps between partitions without a fact."""
        self._counts: Counts = {}, {}
        """As `held_in`; and app -> what its GPUs were counted for, and how many."""
        self._changed: set[str] | None = None
        """The apps to be counted again, as facts came; None: all."""
        self._were_labelled = False
        """Whether nodes had labels when all were counted."""
        self._used: tuple[float, dict[str, tuple[Level, ...]]] = -math.inf, {}
        """The levels of all budgets at a time; leases that begin and end at that time do not change them."""
        self.look_s = -math.inf
        """When to look for `news`, if no fact comes earlier."""
        self.set_anew()

    def __bool__(self) -> bool:
        return bool(self.in_force)

    def set_anew(self) -> None:
        """Reads the limits again, after an administrator set some."""
        own = {name: Limits(**x.limits) for name, x in self._durable.limits.items() if x.limits is not None}
        merged = {**self.accounts.limited(), **own}
        self.in_force = {name: limits for name, limits in merged.items() if limits != UNLIMITED}
        self._names.clear()
        self._used = -math.inf, {}
        self.outdated()

    def outdated(self, app_ids: Iterable[str] | None = None) -> None:
        """Notes that a fact came, about these apps; None: about any."""
        self.look_s = -math.inf
        if app_ids is None or self.labelled():
            self._changed = None
        elif self._changed is not None:
            self._changed.update(app_ids)

    def of(self, queue: str, user: str) -> tuple[str, ...]:
        """The accounts with limits that the user's apps in the queue count for."""
        if not self.in_force:
            return ()
        key = queue, user
        if key not in self._names:
            self._names[key] = tuple(x for x in self.accounts.names(queue, user) if x in self.in_force)
        return self._names[key]

    def held_in(self, name: str) -> int:
        """GPUs that the apps of an account with limits, or of one of `places`, hold or have reserved, less those being
        revoked."""
        if self._changed is None or self._were_labelled != self.labelled():
            self._were_labelled = self.labelled()  # readers of a picture share the counts: they see none or all
            self._counts, self._changed = self._counted(({}, {}), self._durable.held), set()
        elif self._changed:
            self._counted(self._counts, self._changed)
            self._changed.clear()
        return self._counts[0].get(name, 0)

    def _counted(self, counts: Counts, app_ids: Iterable[str]) -> Counts:
        """With what these apps hold now, in place of what was counted for them."""
        (held, of), live = counts, self._durable.live
        for app_id in app_ids:
            names, n = of.pop(app_id, ((), 0))
            for each in names:
                held[each] -= n
            if (n := self._durable.held.get(app_id, 0)) and app_id in live:
                app = live[app_id]
                names = places(app.queue, app.user, self.partition_of(app_id)) + self.of(app.queue, app.user)
                of[app_id] = names, n
                for each in names:
                    held[each] = held.get(each, 0) + n
        return counts

    def validate(self) -> Iterator[tuple[None, str]]:
        """Yields (None, what is wrong) where the standing counts contradict the leases."""
        if self._changed is not None and not self.labelled():
            right = self._counted(({}, {}), self._durable.held)[0]
            for name in {*right, *self._counts[0]}:
                if self.held_in(name) != right.get(name, 0):
                    yield None, f"{name} holds {right.get(name, 0)} GPUs, {self.held_in(name)} were counted"

    def first_end_s(self, name: str) -> float:
        """When the first lease of an account ends; infinite if none does."""
        return min(self._durable.lease_ends(lambda app: name in self.of(app.queue, app.user)), default=math.inf)

    def rooms(self, app: Owned, now_s: float) -> dict[str, int]:
        """Account that the app counts for -> GPUs that it may still get; negative: its apps have too many."""
        found = {}
        for name in self.of(app.queue, app.user):
            if any(x.share >= 1 for x in self._budgets(now_s)[name]):
                found[name] = NO_ROOM
            elif (most := self.in_force[name].gpus) is not None:
                found[name] = int(most) - self.held_in(name)
        return found

    def over(self, app: Owned, now_s: float) -> Cause | None:
        """The limit beyond which the app's gangs are not renewed; None: there is none."""
        found = (name for name, room in self.rooms(app, now_s).items() if room < 0)
        return next((Cause(EndReason.LIMIT, self.reached(name, now_s)) for name in found), None)

    def reached(self, name: str, now_s: float) -> str:
        """What an account has used of the limit that it reached, and when it frees."""
        level = max(self.levels(name, now_s), key=lambda x: (x.ends_s is not None and x.share >= 1, x.share))
        if level.ends_s is not None:
            return f"{level}; it is free again at {utc(level.ends_s)}"
        end_s = self.first_end_s(name)
        return f"{level}; its next lease ends at {utc(end_s)}" if end_s < math.inf else str(level)

    def levels(self, name: str, now_s: float) -> tuple[Level, ...]:
        """How much of each limit of an account is used."""
        most = self.in_force[name].gpus
        own = () if most is None else (Level(name, "gpus", most, self.held_in(name), 0.0),)
        return own + self._budgets(now_s)[name]

    def _budgets(self, now_s: float) -> Mapping[str, tuple[Level, ...]]:
        if self._used[0] != now_s:
            used: dict[str, list[tuple[Use, tuple[float, ...]]]] = {name: [] for name in self.in_force}
            for key, use in self._durable.uses.items():
                for name in self.of(*key):
                    used[name].append((use, use.seen(now_s)))
            self._used = now_s, {name: tuple(self._of_periods(name, used[name], now_s)) for name in self.in_force}
        return self._used[1]

    def _of_periods(self, name: str, used: list[tuple[Use, tuple[float, ...]]], now_s: float) -> Iterator[Level]:
        running = sum(use.running for use, _ in used)
        for k, (period, (_, ends_s)) in enumerate(zip(PERIODS, spans(now_s), strict=True)):
            limit = getattr(self.in_force[name], f"gpu_hours_{period}")
            if limit is not None:
                hours = sum(seen[k] for _, seen in used) / HOUR_S
                yield Level(name, f"gpu_hours_{period}", limit, hours, running, ends_s)

    def news(self, now_s: float) -> Iterator[BudgetSpent]:
        """The budgets of which another share of `TOLD` is used than was told; sets when to look again."""
        self._used = -math.inf, {}  # other gangs may run than when it was last computed
        self.look_s = math.inf
        for name in self.in_force:
            for x in self._budgets(now_s)[name]:
                share = next(part for part in TOLD if x.share >= part)
                period = x.kind.rpartition("_")[2]
                told = self._durable.spent.get((name, period))
                if share != (told.share if told is not None else 0.0):
                    yield BudgetSpent(name, period, share, now_s)
                assert x.ends_s is not None
                more = min((part * x.limit - x.used for part in TOLD if part > share), default=math.inf)
                soon_s = now_s + max(0.01, more * HOUR_S / x.running) if x.running and more < math.inf else math.inf
                self.look_s = min(self.look_s, soon_s, x.ends_s)
