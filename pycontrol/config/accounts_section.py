"""The key `accounts` of isonomy.yaml."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Self

from pydantic import Field, model_validator

from pycontrol.config.strict_yaml import Section
from pycontrol.model.accounts import OTHERS, UNLIMITED, Account, Accounts, Limits

Name = Annotated[str, Field(pattern=r"^[^\s/]+$")]
Weight = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Hours = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class LimitsSection(Section):
    """The most that an account may use."""

    gpus: Annotated[int, Field(ge=0)] | None = None
    """GPUs at the same time."""
    gpu_hours_day: Hours | None = None
    """GPU-hours in a day."""
    gpu_hours_week: Hours | None = None
    """GPU-hours in a week."""
    gpu_hours_month: Hours | None = None
    """GPU-hours in a month."""

    def value(self) -> Limits:
        """As the Arbiter knows it."""
        return Limits(**dict(self)) if dict(self) != dict(LimitsSection()) else UNLIMITED


class UserSection(Section):
    """A user of a group."""

    weight: Weight = 1.0
    """The weight among the accounts beside it."""
    limits: LimitsSection = LimitsSection()
    """The most that it may use over all queues."""


class QueueSection(Section):
    """A queue, for the users of no group."""

    weight: Weight | None = None
    """The weight among the queues, 0.4 for 40 percent; default: its capacity in capacity-scheduler.xml."""
    limits: LimitsSection = LimitsSection()
    """The most that all its apps may use."""


class GroupSection(UserSection):
    """A group of groups and users. The one called `others` has queues in place of groups."""

    groups: Mapping[Name, GroupSection] = {}
    """The groups in it, by name."""
    users: Mapping[str, UserSection] = {}
    """The users in it; those of `others` keep their share of each queue, with another weight."""
    queues: Mapping[str, QueueSection] = {}
    """Of `others` alone: weights and limits of queues."""

    @model_validator(mode="after")
    def _names_differ(self) -> Self:
        for name in self.groups.keys() & self.users.keys():
            raise ValueError(f"accounts: {name} is a group and a user of the same group; rename the group")
        return self

    def value(self) -> Account:
        """As the policies know it."""
        users = {u: Account(x.weight, x.limits.value()) for u, x in self.users.items()}
        return Account(self.weight, self.limits.value(), {**{g: x.value() for g, x in self.groups.items()}, **users})

    def members(self, above: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
        """The path of each user in it or below."""
        yield from ((*above, user) for user in self.users)
        for name, group in self.groups.items():
            yield from group.members((*above, name))


def accounts_of(tree: Mapping[str, GroupSection]) -> Accounts:
    """The tree as a value; raises ValueError that names the key to change."""
    others, users = tree.get(OTHERS, GroupSection()), dict[str, tuple[str, ...]]()
    if others.groups:
        raise ValueError(f"accounts.{OTHERS}.groups: {OTHERS} has the users of no group; put groups beside it")
    groups = {name: group for name, group in tree.items() if name != OTHERS}
    for name, group in _all(groups, "accounts"):
        if group.queues:
            raise ValueError(f"{name}.queues: only accounts.{OTHERS} has queues; a group's users count over all")
    for path in (path for name, group in groups.items() for path in group.members((name,))):
        if path[-1] in users or path[-1] in others.users:
            raise ValueError(f"accounts: {path[-1]} is in two groups; leave one entry")
        users[path[-1]] = path
    return Accounts(
        {name: group.value() for name, group in {**groups, OTHERS: others.model_copy(update={"users": {}})}.items()}
        if groups or others.limits != LimitsSection()
        else {},
        users,
        {q: x.limits.value() for q, x in others.queues.items() if x.limits != LimitsSection()},
        {q: x.weight for q, x in others.queues.items() if x.weight is not None},
        {u: Account(x.weight, x.limits.value()) for u, x in others.users.items()},
    )


def _all(groups: Mapping[str, GroupSection], above: str) -> Iterator[tuple[str, GroupSection]]:
    for name, group in groups.items():
        yield f"{above}.{name}", group
        yield from _all(group.groups, f"{above}.{name}.groups")
