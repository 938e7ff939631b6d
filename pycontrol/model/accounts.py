"""The tree of accounts: groups of groups and users, with weights and limits, as Slurm's associations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace

from pycontrol.model.cluster import BEST_EFFORT
from pycontrol.model.value import value

OTHERS = "others"
"""The group of the users that no group names. They share it as without a tree: by queue, then by user."""


PERIODS = ("day", "week", "month")
"""Calendar periods in UTC; a week begins on Monday."""


@value
class Limits:
    """The most that an account may use; None: as much as it gets. GPU-hours count on the reference type."""

    gpus: float | None = None
    """At the same time."""
    gpu_hours_day: float | None = None
    gpu_hours_week: float | None = None
    gpu_hours_month: float | None = None


UNLIMITED = Limits()


@value
class Account:
    """A group, a queue or a user: its weight among its siblings, its limits, and the accounts that share its GPUs."""

    weight: float = 1.0
    limits: Limits = UNLIMITED
    below: Mapping[str, Account] = field(default_factory=dict)
    """By name."""
    rest: Account | None = None
    """Each of those that are not named: of weight 1; None: without limits and accounts of its own."""

    def at(self, name: str) -> Account:
        """The account of this name below it."""
        return self.below.get(name) or self.rest or PLAIN


PLAIN = Account()


@value
class Accounts:
    """All accounts of isonomy.yaml; without any, queues share the GPUs, then their users."""

    groups: Mapping[str, Account] = field(default_factory=dict)
    """The groups at the top, with `OTHERS`; empty: there is no tree."""
    users: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """User of a group -> the names of the groups above, the highest first, and the user's."""
    queues: Mapping[str, Limits] = field(default_factory=dict)
    """Queue -> the limits of all its apps."""
    queue_weights: Mapping[str, float] = field(default_factory=dict)
    """Queue -> its weight for the users of no group; its capacity, as a fraction, if it is not named."""
    queue_users: Mapping[str, Account] = field(default_factory=dict)
    """Users of no group, with a weight among the users of their queue, and limits over all queues."""

    def path(self, queue: str, user: str) -> tuple[str, ...]:
        """The accounts above the user's apps in this queue, the highest first; the last is the user's."""
        return self.users.get(user) or ((OTHERS, queue, user) if self.groups else (queue, user))

    def tree(self, queues: Mapping[str, Account]) -> Account:
        """The root: the groups, and the queues, with their capacities as weights, for the users of no group."""
        # A queue of which YARN has not told yet gets what the others leave.
        rest, named = Account(BEST_EFFORT, below=self.queue_users), queues.keys() | self.queue_weights.keys()
        below = {
            q: Account(self.queue_weights.get(q, known.weight), known.limits, self.queue_users)
            for q, known in ((q, queues.get(q, rest)) for q in sorted(named))
        }
        if not self.groups:
            return Account(below=below, rest=rest)
        others = replace(self.groups.get(OTHERS, PLAIN), below=below, rest=rest)
        return Account(below={**self.groups, OTHERS: others})

    def names(self, queue: str, user: str) -> tuple[str, ...]:
        """The accounts for whose limits the user's apps in this queue count, as `group a/b`, `user u` and `queue q`."""
        groups = self.users.get(user, (OTHERS, "") if self.groups else ("",))[:-1]
        parents = queue.split(".")
        return (
            *(f"group {'/'.join(groups[: k + 1])}" for k in range(len(groups))),
            f"user {user}",
            *(f"queue {'.'.join(parents[: k + 1])}" for k in range(len(parents))),
        )

    def limited(self) -> dict[str, Limits]:
        """The limits of isonomy.yaml by account, named as in `names`."""
        found = {f"queue {q}": limits for q, limits in self.queues.items()}
        found |= {f"user {u}": x.limits for u, x in self.queue_users.items()}
        open_: list[tuple[tuple[str, ...], Account]] = [((name,), x) for name, x in self.groups.items()]
        while open_:
            path, x = open_.pop()
            is_user = self.users.get(path[-1]) == path
            found[f"user {path[-1]}" if is_user else f"group {'/'.join(path)}"] = x.limits
            open_ += [((*path, name), y) for name, y in x.below.items()]
        return {name: limits for name, limits in found.items() if limits != UNLIMITED}

    def groups_named(self) -> set[str]:
        """The groups as `group a/b`."""
        above = {path[:k] for path in self.users.values() for k in range(1, len(path))} | {(g,) for g in self.groups}
        return {f"group {'/'.join(path)}" for path in above}


NO_ACCOUNTS = Accounts()
