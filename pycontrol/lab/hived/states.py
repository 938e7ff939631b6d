"""The states of groups that preempt each other, and the answers to their requests."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from pycontrol.cells.space import AffinityGroup
from pycontrol.cells.values import Worker
from pycontrol.model.value import value


class GroupState(enum.StrEnum):
    """The states of an affinity group."""

    PREEMPTING = "Preempting"
    ALLOCATED = "Allocated"
    BEING_PREEMPTED = "BeingPreempted"
    DELETED = "Deleted"


class LeafState(enum.StrEnum):
    """The states of a GPU."""

    FREE = "Free"
    USED = "Used"
    RESERVING = "Reserving"
    RESERVED = "Reserved"


class PlacementOutcome(enum.StrEnum):
    """The outcome of a request."""

    PLACED = "placed"
    PREEMPT = "preempt"
    WAIT = "wait"


@dataclass(slots=True, eq=False)
class PriorityGroup(AffinityGroup):
    """A group that may preempt others, or be preempted."""

    order: int = 0
    """Later groups are preempted first among equals."""
    state: GroupState = GroupState.ALLOCATED
    victims: dict[str, PriorityGroup] = field(default_factory=dict)
    preemptors: dict[str, PriorityGroup] = field(default_factory=dict)


@value
class Decision:
    """The answer to a request.

    PLACED: `workers` may run, largest first. PREEMPT: `victims` must end (after their grace period), then the group is
    placed on `workers`. WAIT: `reason` says why.
    """

    outcome: PlacementOutcome
    workers: tuple[Worker, ...] = ()
    victims: tuple[str, ...] = ()
    downgraded: tuple[str, ...] = ()
    """Groups that continue as opportunistic ones (lazy preemption)."""
    reason: str = ""


@value
class Released:
    """The result of releasing a group. `ready`: groups with no victims left; request them again to place them."""

    ready: tuple[str, ...] = ()
    restored: tuple[str, ...] = ()
    """Victims of a cancelled preemption that continue as before."""
