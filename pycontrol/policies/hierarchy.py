"""Max-min shares of a cluster's GPUs, in virtual time: by weight among groups, queues and users, level by level, and
alike among a user's apps.

None gets more than it can use, or more than its limit; the others share what it leaves, at each level.

An app that is limited by its width is done at a time that no other app changes. The other apps of a user are served at
one rate, and the user's clock counts that service: each of them is done when the clock shows a value that no other app
changes, whoever comes or goes (virtual time, as in weighted fair queueing and in PSBS). So an arrival or an end changes
the rates of the accounts above it, and only those apps that it makes or stops being limited by their width.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence

from pycontrol.model.accounts import NO_ACCOUNTS, PLAIN, Account, Accounts
from pycontrol.model.value import value


@value
class VirtualApp:
    """An app in the ideal; work in serial GPU-seconds."""

    queue: str
    user: str
    declared_gpu_s: float
    """The work that it declared at submission."""
    width_gpus: int
    """The GPUs that it can use at the same time: those that it declared at submission, or when it first asked for more
    than one gang; without an Agent, the most that it asked for."""
    need_gpu_s: float
    """Its work in the ideal: the declared work, more if it has used more, less if it ended early."""
    done_s: float | None = None
    """When `need_gpu_s` was served; None before."""
    gone: bool = False
    """Whether it has ended on the real cluster."""


@value
class Weights:
    """Whose weights and limits are respected."""

    gpus: int
    """GPUs of the cluster, or of the virtual cluster."""
    root: Account = PLAIN
    """The accounts that share them."""
    accounts: Accounts = NO_ACCOUNTS
    """Which of them are above an app."""

    def path(self, app: VirtualApp) -> tuple[str, ...]:
        """The names of the nodes above the app, the highest first; the last is its user's."""
        return self.accounts.path(app.queue, app.user)


class Sharing:
    """Apps that share GPUs alike. The narrowest are limited by their widths, the others by their share."""

    __slots__ = ("by_clock", "by_time_s", "clock", "gpus", "level", "limited", "limited_gpus", "since_s", "width",
                 "widths")  # fmt: skip

    def __init__(self) -> None:
        self.width = 0
        """GPUs that all of them can use."""
        self.widths: list[tuple[int, str]] = []
        """(width, app), the narrowest first."""
        self.limited, self.limited_gpus = 0, 0
        """How many of them are limited by their widths, and their GPUs."""
        self.by_time_s: dict[str, float] = {}
        """App limited by its width -> when it is done, Unix seconds."""
        self.by_clock: dict[str, float] = {}
        """App limited by its share -> what the clock shows when it is done."""
        self.clock, self.since_s, self.level = 0.0, 0.0, 0.0
        """Service of each app limited by its share, GPU-s, until `since_s`; and its rate since, GPUs."""

    def copy(self) -> Sharing:
        """An independent copy."""
        other = Sharing()
        other.width, other.limited, other.limited_gpus = self.width, self.limited, self.limited_gpus
        other.widths, other.by_time_s, other.by_clock = self.widths.copy(), self.by_time_s.copy(), self.by_clock.copy()
        other.clock, other.since_s, other.level = self.clock, self.since_s, self.level
        return other

    def put(self, app_id: str, width_gpus: int, left_gpu_s: float, now_s: float) -> None:
        """Adds an app with this work left."""
        self._advance(now_s)
        place = bisect_left(self.widths, (width_gpus, app_id))
        self.widths.insert(place, (width_gpus, app_id))
        self.width += width_gpus
        if place < self.limited:
            self.limited += 1
            self.limited_gpus += width_gpus
            self.by_time_s[app_id] = now_s + left_gpu_s / width_gpus
        else:
            self.by_clock[app_id] = self.clock + left_gpu_s

    def remove(self, app_id: str, width_gpus: int) -> None:
        """Removes an app."""
        del self.widths[bisect_left(self.widths, (width_gpus, app_id))]
        self.width -= width_gpus
        if self.by_clock.pop(app_id, None) is None:
            del self.by_time_s[app_id]
            self.limited -= 1
            self.limited_gpus -= width_gpus

    def divide(self, gpus: float, now_s: float) -> float:
        """Shares these GPUs from now on; returns how many are used."""
        self._advance(now_s)
        widths, n = self.widths, len(self.widths)
        while self.limited < n and self.limited_gpus + widths[self.limited][0] * (n - self.limited) <= gpus:
            width_gpus, app_id = widths[self.limited]
            self.limited += 1
            self.limited_gpus += width_gpus
            self.by_time_s[app_id] = now_s + (self.by_clock.pop(app_id) - self.clock) / width_gpus
        while self.limited and self.limited_gpus + widths[self.limited - 1][0] * (n - self.limited) > gpus:
            self.limited -= 1
            width_gpus, app_id = widths[self.limited]
            self.limited_gpus -= width_gpus
            self.by_clock[app_id] = self.clock + (self.by_time_s.pop(app_id) - now_s) * width_gpus
        if not self.by_clock:
            self.level = 0.0
            return self.limited_gpus
        self.level = (gpus - self.limited_gpus) / (n - self.limited)
        return gpus

    def next_s(self) -> float:
        """When its next app is done."""
        first_s = min(self.by_time_s.values(), default=math.inf)
        if self.level <= 0.0:
            return first_s
        return min(first_s, self._time_s(min(self.by_clock.values())))

    def done(self, now_s: float) -> list[str]:
        """The apps that are done now."""
        found = [a for a, at_s in self.by_time_s.items() if at_s <= now_s]
        if self.level > 0.0:
            found += [a for a, clock in self.by_clock.items() if self._time_s(clock) <= now_s]
        return found

    def rate(self, app_id: str, width_gpus: int) -> float | None:
        """The app's rate in GPUs; None if it is not here."""
        return self.level if app_id in self.by_clock else width_gpus if app_id in self.by_time_s else None

    def left_gpu_s(self, app_id: str, width_gpus: int, now_s: float) -> float:
        """The app's work left; 0 if it is not here."""
        at_s = self.by_time_s.get(app_id)
        if at_s is not None:
            return max(0.0, at_s - now_s) * width_gpus
        clock = self.by_clock.get(app_id)
        return max(0.0, clock - self._clock(now_s)) if clock is not None else 0.0

    def _clock(self, now_s: float) -> float:
        return self.clock + self.level * (now_s - self.since_s)

    def _time_s(self, clock: float) -> float:
        return self.since_s + (clock - self.clock) / self.level

    def _advance(self, now_s: float) -> None:
        self.clock = self._clock(now_s) if self.by_clock else 0.0
        self.since_s = now_s


class User:
    """A user's apps: first the ended ones share the user's GPUs, then the others what these leave."""

    __slots__ = ("ended", "going", "gpus", "next_s", "width")

    def __init__(self) -> None:
        self.ended, self.going = Sharing(), Sharing()
        self.gpus: float | None = None
        """Its share; None: its apps have changed since it was divided. Only then may it be changed."""
        self.width: float = 0
        """GPUs that it can use."""
        self.next_s = math.inf
        """When its next app is done."""

    def copy(self) -> User:
        """An independent copy, to be changed."""
        other = User()
        other.ended, other.going, other.width = self.ended.copy(), self.going.copy(), self.width
        return other

    def those_with(self, app: VirtualApp) -> Sharing:
        """Those of its apps that an app shares with."""
        return self.ended if app.gone else self.going

    def measure(self, gpus: int, account: Account) -> bool:
        """Finds the width in a cluster of these GPUs; returns whether any app is left."""
        self.width = most(gpus, account, self.ended.width + self.going.width)
        return bool(self.ended.widths or self.going.widths)

    def divide(self, gpus: float, now_s: float, account: Account) -> None:
        """Shares these GPUs among its apps from now on."""
        self.going.divide(gpus - self.ended.divide(gpus, now_s), now_s)
        self.gpus, self.next_s = gpus, min(self.ended.next_s(), self.going.next_s())

    def done(self, now_s: float) -> list[str]:
        """The apps that are done now."""
        return self.ended.done(now_s) + self.going.done(now_s)

    def finish_s(self, now_s: float) -> dict[str, float]:
        """App that has not ended -> when it is done if the user keeps its present share.

        The apps share it equally, after the ended ones are served; when a smaller app is done, the others speed up.
        """
        going = self.going
        if len(going.widths) == 1 and not self.ended.width:  # as most often
            return {going.widths[0][1]: going.next_s()}
        before = sum([self.ended.left_gpu_s(a, width_gpus, now_s) for width_gpus, a in self.ended.widths])
        here = sorted([(going.left_gpu_s(a, width_gpus, now_s), a, width_gpus) for width_gpus, a in going.widths])
        total_gpus = min(self.gpus or 0.0, self.ended.width + going.width)
        found = {}
        for k, (left_gpu_s, a, width_gpus) in zip(range(len(here), 0, -1), here, strict=True):
            served_s = (before + k * left_gpu_s) / total_gpus if total_gpus > 0 else math.inf
            found[a] = now_s + max(served_s, left_gpu_s / width_gpus)
            before += left_gpu_s
        return found


class Node:
    """The cluster, a group or a queue: its children share its GPUs by weight. Ideals share nodes: copies change."""

    __slots__ = ("children", "gpus", "next_s", "width")

    def __init__(self) -> None:
        self.children: dict[str, Node | User] = {}
        """By name, in the order of names."""
        self.gpus: float | None = None
        self.width = 0.0
        self.next_s = math.inf
        """All three as in `User`."""

    def copy(self) -> Node:
        """A copy to be changed, with the same children."""
        other = Node()
        other.children, other.width = self.children.copy(), self.width
        return other

    def user(self, path: Sequence[str]) -> User:
        """The user there, to be changed, as is each node on the way; new if there is none."""
        name, *rest = path
        child = self.children.get(name)
        if child is None:
            child = self.children[name] = Node() if rest else User()
            self.children = dict(sorted(self.children.items()))
        elif child.gpus is not None:
            child = self.children[name] = child.copy()
        return child.user(rest) if isinstance(child, Node) else child

    def find(self, path: Sequence[str]) -> User | None:
        """The user there, not to be changed; None if there is none."""
        child: Node | User | None = self
        for name in path:
            child = child.children.get(name) if isinstance(child, Node) else None
        return child if isinstance(child, User) else None

    def settle(self, now_s: float, weights: Weights) -> None:
        """Shares the cluster's GPUs, if this is the cluster, among its apps from now on."""
        self.measure(weights.gpus, weights.root)
        self.divide(weights.gpus, now_s, weights.root)

    def measure(self, gpus: int, account: Account) -> bool:
        """Finds the widths of the nodes that have changed; returns whether any app is left."""
        children = self.children
        for name in [n for n, c in children.items() if c.gpus is None and not c.measure(gpus, account.at(n))]:
            del children[name]
        self.width = most(gpus, account, float(sum([c.width for c in children.values()])))
        return bool(children)

    def divide(self, gpus: float, now_s: float, account: Account) -> None:
        """Shares these GPUs among its children from now on."""
        shares: Sequence[float] = [c.width for c in self.children.values()]
        below, next_s = account.below, math.inf
        if sum(shares) > gpus:
            rest = account.rest or PLAIN
            shares = max_min(gpus, [below.get(n, rest).weight for n in self.children], shares)
        for (name, child), share in zip(self.children.items(), shares, strict=True):
            if child.gpus != share:
                if child.gpus is not None:
                    child = self.children[name] = child.copy()
                child.divide(share, now_s, account.at(name))
            if child.next_s < next_s:
                next_s = child.next_s
        self.gpus, self.next_s = gpus, next_s

    def done(self, now_s: float) -> list[str]:
        """The apps that are done now."""
        return [a for child in self.children.values() if child.next_s <= now_s for a in child.done(now_s)]


def most(gpus: int, account: Account, width: float) -> float:
    """The GPUs that an account with apps of this width can use in a cluster of these GPUs: no more than its limit."""
    limit_gpus = account.limits.gpus
    return min(gpus if limit_gpus is None else limit_gpus, width)


def max_min(total: float, weights: Sequence[float], caps: Sequence[float]) -> list[float]:
    """Weighted max-min shares of `total`, each at most its cap."""
    reached = [cap / weight for cap, weight in zip(caps, weights, strict=True)]
    left, weight = float(total), float(sum(weights))
    shares = [0.0] * len(caps)
    for i in sorted(range(len(caps)), key=reached.__getitem__):
        cap, own = caps[i], left * weights[i] / weight if weight > 0 else 0.0
        share = shares[i] = cap if cap < own else own
        left -= share
        weight -= weights[i]
    return shares
