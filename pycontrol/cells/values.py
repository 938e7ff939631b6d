"""Requests to the cells, and what they are given."""

from __future__ import annotations

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
class Placed:
    """The GPUs of a placed gang, and the groups that borrow some of them and are evicted for it."""

    gpus: tuple[Gpu, ...]
    evicted: tuple[str, ...] = ()
