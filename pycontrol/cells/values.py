"""Requests to the cells, their decisions, and states."""

from __future__ import annotations

import enum

from pycontrol.model.topology import Gpu
from pycontrol.model.value import value

OPPORTUNISTIC = -1
"""The priority of groups without a guarantee: they may use any idle GPUs and are evicted for guaranteed groups."""

Key = tuple[str, str | None]
"""(virtual cluster, its pinned cell or None): a holder of cells."""
IDLE: Key = ("", "")
"""The holder of the GPUs that no guaranteed group uses: opportunistic groups borrow them."""


class CellsError(Exception):
    """An invalid request; nothing has changed."""


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


Worker = tuple[str, tuple[int, ...]]
"""A worker's host and its GPU indices there."""


@value
class GroupRequest:
    """A request for an affinity group (gang): `members` are (workers, GPUs of each); each worker is on one host.

    A guaranteed group names cells of its virtual cluster (`inside`), an opportunistic one hosts (`on`).
    `within`: a cell type; each worker must lie in one such cell. Several workers may name the same host or cell.
    `pinned`: the pinned cell to use.
    """

    group: str
    vc: str
    priority: int
    members: tuple[tuple[int, int], ...]
    pinned: str | None = None
    within: str | None = None
    on: tuple[tuple[str, int], ...] = ()
    """(host, idle GPUs) to use; one worker per entry."""
    inside: tuple[tuple[int, int, int, int], ...] = ()
    """(chain, level, number, GPUs): own virtual cells to use; one worker per entry."""
    avoid: tuple[frozenset[str], ...] = ()
    """For each of the cells `inside`, the hosts to which it must not be bound; empty: it may be bound to any."""
    strictly: bool = False
    """Whether a group that is adopted may use only the cells `inside`."""

    @property
    def gpus(self) -> int:
        """GPUs of the whole gang."""
        return sum(count * gpus for count, gpus in self.members)


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

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        """All GPUs of the group."""
        return tuple(Gpu(host, index) for host, indices in self.workers for index in indices)


@value
class Released:
    """The result of releasing a group. `ready`: groups with no victims left; request them again to place them."""

    ready: tuple[str, ...] = ()
    restored: tuple[str, ...] = ()
    """Victims of a cancelled preemption that continue as before."""
