"""Restores running groups on their GPUs: after a crash, a change of the configuration, or from elsewhere."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from pycontrol.cells.cluster_cells import Cells
from pycontrol.cells.geometry import Cell, cover
from pycontrol.cells.search import take_inside, virtual_for
from pycontrol.cells.space import AffinityGroup, Holding, Space
from pycontrol.cells.transaction import Transaction
from pycontrol.cells.trees import bind_trees
from pycontrol.cells.values import OPPORTUNISTIC, CellsError, GroupRequest, Key, Worker
from pycontrol.model.topology import Gpu
from pycontrol.model.value import value


@value
class Adopted:
    """The result of adopting groups; those that are not listed continue unchanged."""

    cells: Cells
    downgraded: tuple[str, ...]
    """Groups that continue as opportunistic ones."""
    gone: tuple[str, ...]
    """Groups that could not be adopted: none of their GPUs is in the cluster, or another group uses one."""


def adopt(cells: Cells, request: GroupRequest, workers: Sequence[Worker]) -> AffinityGroup:
    """Adopts a group that already runs on these GPUs.

    It is guaranteed if cells of its virtual cluster can be bound there, else it continues as an opportunistic group.
    GPUs that the cells do not know are left out, and such a group is opportunistic. Raises CellsError if the group
    exists, none of its GPUs is known, or another group uses one.
    """
    if request.group in cells.groups:
        raise CellsError(f"group {request.group} exists already")
    found, complete = _locate(cells, workers)
    if not found:
        raise CellsError(f"group {request.group}: none of its GPUs is in the cluster")
    tx = Transaction((request.vc, request.pinned))
    if complete and request.priority > OPPORTUNISTIC:
        gpus = [Gpu(host, index) for host, indices in workers for index in indices]
        inside = bool(request.inside) and take_inside(tx, cells.spaces, request.inside, gpus)
        if not inside and not request.strictly:
            _bind_all(tx, found)
    return cells.add(request, tx.held or found)


def _locate(cells: Cells, workers: Sequence[Worker]) -> tuple[list[Holding], bool]:
    """What borrowers on these GPUs hold, and whether all GPUs were found; CellsError if one is in use."""
    found = _cells_of(cells, workers)
    leaves = [(h.space, leaf) for h in found for leaf in h.space.chain.leaves(h.cell)]
    for space, leaf in leaves:
        other = space.owner_of(leaf) or space.borrower[leaf]
        if other is not None:
            raise CellsError(f"GPU {space.chain.gpu(leaf)} is in use by group {other.name}")
    return found, len(leaves) == sum(len(indices) for _, indices in workers)


def _cells_of(cells: Cells, workers: Sequence[Worker]) -> list[Holding]:
    """What borrowers on these GPUs hold; GPUs that the cells do not know are left out."""
    found: list[Holding] = []
    for number, (host, indices) in enumerate(workers):
        wanted = set(indices)
        for space in cells.spaces:
            leaves = [leaf for leaf in space.leaves_on(host) if space.chain.indices[leaf] in wanted]
            found += [Holding(space, space.borrowable, number, cell, cell) for cell in cover(space.chain, leaves)]
    return found


def _bind_all(tx: Transaction, found: Sequence[Holding]) -> None:
    """Takes virtual cells and binds them to exactly these physical ones; changes nothing if that is impossible."""
    if not all(tx.key in h.space.pools and _bind(tx, h.space, h.worker, h.cell) for h in found):
        tx.roll_back()


def _bind(tx: Transaction, space: Space, worker: int, physical: Cell) -> bool:
    level, number = physical
    virtual = virtual_for(space, tx.key, physical)
    if virtual is not None and tx.take_exactly(space, worker, virtual, number):
        return True
    children = range(number * space.fans[level], (number + 1) * space.fans[level])
    return level > 0 and all(_bind(tx, space, worker, (level - 1, child)) for child in children)


def adopt_all(make: Callable[[], Cells], groups: Sequence[tuple[GroupRequest, Sequence[Worker]]]) -> Adopted:
    """Adopts running groups on the cells that `make` returns, which have no groups; the highest priority comes first.

    If groups are adopted one by one, one may get a tree that another needs. If a group loses its guarantee that way,
    all are adopted again with trees chosen for all of them together, and the result with more guaranteed GPUs counts.
    """
    groups = sorted(groups, key=lambda group: -max(group[0].priority, 0))
    found = _one_by_one(make(), groups)
    if not found.downgraded:
        return found
    cells = make()
    bound = [(space, root) for space in cells.spaces for root in bind_trees(space, _wanted(cells, space, groups))]
    again = _one_by_one(cells, groups)
    for space, root in bound:
        space.unbind(root)
    return max(found, again, key=_guaranteed_gpus)


def _guaranteed_gpus(a: Adopted) -> list[tuple[int, int]]:
    """(priority, GPUs) that are guaranteed, the highest priority first."""
    gpus = Counter[int]()
    for group in a.cells.groups.values():
        if group.guaranteed:
            gpus[group.priority] += group.request.gpus
    return sorted(gpus.items(), reverse=True)


def _one_by_one(cells: Cells, groups: Sequence[tuple[GroupRequest, Sequence[Worker]]]) -> Adopted:
    downgraded, gone = list[str](), list[str]()
    for request, workers in groups:
        try:
            if adopt(cells, request, workers).lazily_preempted:
                downgraded.append(request.group)
        except CellsError:
            gone.append(request.group)
    return Adopted(cells, tuple(downgraded), tuple(gone))


def _wanted(cells: Cells, space: Space, groups: Sequence[tuple[GroupRequest, Sequence[Worker]]]) -> dict[Key, set[int]]:
    """Holder -> level-0 cells of a chain on which its guaranteed groups run."""
    wanted: dict[Key, set[int]] = {}
    for request, workers in groups:
        if request.priority > OPPORTUNISTIC:
            leaves = [
                leaf for h in _cells_of(cells, workers) if h.space is space for leaf in space.chain.leaves(h.cell)
            ]
            wanted.setdefault((request.vc, request.pinned), set()).update(leaves)
    return wanted
