"""The tree of accounts: groups of groups and users, with weights and limits, as Slurm's associations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field

from pycontrol.model.value import value

OTHERS = "others"
"""The group of the users that no group names. They share it as without a tree: by queue, then by user."""


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
    """By name; one that is not named has weight 1 and no limits."""


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
    """Queue -> its weight for the users of no group; its capacity if it is not named."""
    queue_users: Mapping[str, Account] = field(default_factory=dict)
    """Users of no group, with a weight among the users of their queue, and limits over all queues."""

    def path(self, queue: str, user: str) -> tuple[str, ...]:
        """The accounts above the user's apps in this queue, the highest first; the last is the user's."""
        return self.users.get(user) or ((OTHERS, queue, user) if self.groups else (queue, user))

    def tree(self, queues: Mapping[str, Account]) -> Account:
        """The root: the groups, and the queues, with their capacities as weights, for the users of no group."""
        below = {
            q: Account(self.queue_weights.get(q, queues[q].weight if q in queues else 1.0),
                       queues[q].limits if q in queues else UNLIMITED, self.queue_users)
            for q in (*queues, *(self.queue_weights.keys() - queues.keys()))
        }  # fmt: skip
        others = self.groups.get(OTHERS, PLAIN)
        return Account(below={**self.groups, OTHERS: Account(others.weight, others.limits, below)} if self.groups
                       else below)  # fmt: skip

    def limits(self, queue: str, user: str) -> Iterator[tuple[str, Limits]]:
        """Each limited account that an app of this user in this queue counts for, as `group a/b`, `user u`, `queue q`;
        the widest first."""
        at, above = self.groups, ""
        for name in self.users.get(user, (OTHERS,)):
            found = at.get(name, PLAIN)
            above = f"{above}/{name}" if above else name
            if found.limits != UNLIMITED:
                yield f"user {user}" if name == user and not found.below else f"group {above}", found.limits
            at = found.below
        if queue in self.queues:
            yield f"queue {queue}", self.queues[queue]
        if user in self.queue_users and self.queue_users[user].limits != UNLIMITED:
            yield f"user {user}", self.queue_users[user].limits


NO_ACCOUNTS = Accounts()
