"""The full check of the cells' state against first principles, leaf by leaf."""

from __future__ import annotations

from pycontrol.cells.space import FREE, Space
from pycontrol.lab.hived.groups import GroupCells
from pycontrol.lab.hived.states import GroupState


def check(cells: GroupCells) -> None:
    """Checks: no leaf is used twice, owners lose nothing, counts are right, gangs are whole, equation (2) holds."""
    for space in cells.spaces:
        space.buddy.check()
        assert not space.kept
        _check_leaves(cells, space)
        _check_binding(space)
        _check_counts(space)
        _check_buddy(space)
    for group in cells.groups.values():
        _check_group(cells, group)


def _check_leaves(cells: GroupCells, space: Space) -> None:
    owners: dict[int, str] = {}
    guests: dict[int, str] = {}
    for group in cells.groups.values():
        for part in group.held:
            if part.space is space:
                for leaf in space.chain.leaves(part.physical):
                    side = guests if part.borrowed else owners
                    assert leaf not in side, f"leaf {leaf} held twice"
                    side[leaf] = group.name
        for parts in cells.lost.get(group.name, {}).values():
            for part in parts:
                if part.space is space:
                    for leaf in space.chain.leaves(part.physical):
                        assert leaf not in guests
                        guests[leaf] = group.name
    for leaf in range(len(space.chain.indices)):
        owner, borrower = space.owner_of(leaf), space.borrower[leaf]
        assert (owner.name if owner else None) == owners.get(leaf)
        assert (borrower.name if borrower else None) == guests.get(leaf)
        if owner and borrower:
            assert cells.groups[owner.name].state is GroupState.PREEMPTING
            assert cells.groups[borrower.name].state is GroupState.BEING_PREEMPTED
            assert borrower.name in cells.groups[owner.name].victims
        low_free = owner is None and borrower is None and leaf not in space.bad
        whole = any((k, leaf // space.sizes[k]) in space.borrowable.forest.whole for k in range(len(space.sizes)))
        assert (space.borrowable.forest.free[0][leaf] == 1 and not whole) == low_free, f"low view of leaf {leaf}"


def _check_binding(space: Space) -> None:
    for k in range(len(space.sizes)):
        for virtual, physical in enumerate(space.v2p[k]):
            if physical != FREE:
                assert space.p2v[k][physical] == virtual
                root = space.root_of((k, virtual))
                assert root[0] >= k
                if root[0] > k:
                    fan = space.fans[k + 1]
                    assert space.v2p[k + 1][virtual // fan] == physical // fan
                if (root not in space.fixed) and not _inside_taken(space, (k, virtual)):
                    assert space.forest.free[k][virtual] < space.sizes[k], f"bound but free: {k} {virtual}"
        assert sum(p != FREE for p in space.v2p[k]) == sum(v != FREE for v in space.p2v[k])
    for leaf, virtual in space.marks.items():
        assert leaf in space.bad
        assert space.v2p[0][virtual] == leaf
    for leaf in space.bad:  # a bad GPU in a bound tree is visible unless a group is on it
        bound = any(space.p2v[k][leaf // space.sizes[k]] != FREE for k in range(len(space.sizes)))
        if bound and space.owner_of(leaf) is None:
            assert leaf in space.marks


def _inside_taken(space: Space, cell: tuple[int, int]) -> bool:
    leaf = cell[1] * space.sizes[cell[0]]
    return any((k, leaf // space.sizes[k]) in space.forest.whole for k in range(cell[0], len(space.sizes)))


def _check_counts(space: Space) -> None:
    taken = [0] * len(space.forest.roots)
    for pool in space.pools.values():
        assert pool.free_gpus == sum(free for free, _ in pool.bins())
    owners: dict[int, int] = {}
    for k, groups in enumerate(space.owner):
        for number, group in groups.items():
            part = next(p for p in group.held if p.space is space and p.physical == (k, number))
            assert not part.borrowed
            assert space.v2p[k][part.cell[1]] == number
            assert space.holder[space.root_of(part.cell)] == group.key
            assert part.pool is space.pools[group.key]
            for leaf in space.chain.leaves(part.cell):
                taken[leaf] += 1
    for virtual in space.marks.values():
        taken[virtual] += 1
    assert max(taken, default=0) <= 1
    del owners
    for root, key in space.holder.items():
        leaves = space.chain.leaves(root)
        free = space.sizes[root[0]] - sum(taken[leaf] for leaf in leaves)
        assert space.forest.free[root[0]][root[1]] == free
        assert key in space.pools
    for number, leaf_guest in enumerate(space.borrower):
        assert space.buddy.guests[0][number] == (leaf_guest is not None)
    for k, size in enumerate(space.sizes):
        for number in range(space.chain.count(k)):
            cell = space.borrower[number * size : (number + 1) * size]
            assert space.buddy.guests[k][number] == sum(g is not None for g in cell)


def _check_buddy(space: Space) -> None:
    for k, cells in enumerate(space.buddy.free):
        for number, key in cells.items():
            leaves = space.chain.leaves((k, number))
            bad = any(leaf in space.bad for leaf in leaves)
            assert key == (-1 if bad else space.buddy.guests[k][number])
            assert space.p2v[k][number] == FREE
    unbound = [0] * len(space.sizes)
    for root in space.holder:
        if space.v2p[root[0]][root[1]] == FREE:
            unbound[root[0]] += 1
    assert space.buddy.need == unbound


def _check_group(cells: GroupCells, group) -> None:
    held = list(group.held) + [p for some in cells.lost.get(group.name, {}).values() for p in some]
    gpus = sum(p.space.sizes[p.physical[0]] for p in held)
    assert gpus == group.request.gpus, f"{group.name} is not whole"
    mine = {(w, i) for w, indices in group.workers for i in indices}
    assert len(mine) == gpus
    assert (group.state is GroupState.PREEMPTING) == bool(group.victims) or group.state is GroupState.PREEMPTING
    assert (group.state is GroupState.BEING_PREEMPTED) == bool(group.preemptors)
    if group.guaranteed:
        assert cells.owners[group.key][group.name] is group
    else:
        assert all(p.borrowed for p in group.held)
