"""What goes into the cells and what comes out: requests, decisions, and how things stand."""

from __future__ import annotations

import enum

from pycontrol.model.topology import Gpu
from pycontrol.model.value import value

OPPORTUNISTIC = -1
"""The priority of groups without a guarantee: they run anywhere and give way to everybody."""
HIGHEST = 1000


class CellsError(Exception):
    """A request that cannot be meant; nothing has changed."""


class GroupState(enum.StrEnum):
    """The life of an affinity group."""

    PENDING = "Pending"
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
    """What becomes of a request."""

    PLACED = "placed"
    PREEMPT = "preempt"
    WAIT = "wait"


Worker = tuple[str, tuple[int, ...]]
"""A worker's host and its GPU indices there."""


@value
class GroupRequest:
    """An affinity group (gang): `members` are (workers, GPUs of each); each worker is on one host.

    `hosts`: the only hosts it may use. `on`: GPUs by host, exactly, one worker an entry (instead of `members`).
    `within`: a cell type; the whole gang must lie in one such cell (each worker, where `on` or `inside` is given).
    `pinned`: use this pinned cell.
    `lazy`: may be downgraded to opportunistic rather than killed.
    """

    group: str
    vc: str
    priority: int
    members: tuple[tuple[int, int], ...]
    gpu_type: str | None = None
    pinned: str | None = None
    lazy: bool = True
    hosts: frozenset[str] | None = None
    within: str | None = None
    on: tuple[tuple[str, int], ...] = ()
    inside: tuple[tuple[int, int, int, int], ...] = ()
    """(chain, level, number, GPUs): these virtual cells of its own; one worker an entry."""
    avoid: frozenset[str] = frozenset()
    """Hosts to which these are not to be bound."""
    strictly: bool = False
    """When it is taken over where it runs: no other cells than those `inside`."""

    @property
    def gpus(self) -> int:
        """GPUs of the whole gang."""
        return sum(count * gpus for count, gpus in self.members)


@value
class Decision:
    """The answer to a request.

    PLACED: `workers` run, largest first. PREEMPT: `victims` must end (after their grace), then the group is placed
    where `workers` says. WAIT: `reason` says why.
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
    """What the end of a group brought: groups whose victims are all gone (request them again to place them)."""

    ready: tuple[str, ...] = ()
    restored: tuple[str, ...] = ()
    """Victims of a cancelled preemption that run on as before."""
