"""The state of the cells as JSON values: groups, the physical cluster and the virtual clusters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any

from pycontrol.cells.cluster_cells import Cells
from pycontrol.cells.machines import Place, Room, free_in, virtual_leaf
from pycontrol.cells.space import FREE, Space

AS_CONFIGURED = "as in isonomy.yaml"
"""Shown as the policy of a virtual cluster for which the cells file names none."""


def groups(cells: Cells) -> list[dict[str, Any]]:
    """All affinity groups."""
    return [
        {
            "group": group.name,
            "virtual_cluster": group.request.vc,
            "priority": group.priority,
            "lazily_preempted": group.lazily_preempted,
            "workers": [{"host": host, "gpus": list(indices)} for host, indices in group.workers],
        }
        for group in cells.groups.values()
    ]


def vc_cells(cells: Cells, vc: str) -> list[dict[str, Any]]:
    """The cells that a virtual cluster owns, with binding, health and use.

    Of its unbound cells of a level, those beyond the number of healthy cells that could be bound are shown as bad.
    """
    found: list[dict[str, Any]] = []
    for space in cells.spaces:
        unbound: dict[int, int] = {}
        for root, (owner, pinned) in space.holder.items():
            if owner != vc:
                continue
            physical = space.v2p[root[0]][root[1]]
            marks = len(space.root_marks.get(root, ()))
            used = space.sizes[root[0]] - space.forest.free[root[0]][root[1]] - marks
            healthy = physical not in space.buddy.bad[root[0]]
            if physical == FREE:
                unbound[root[0]] = unbound.get(root[0], 0) + 1
                healthy = unbound[root[0]] <= space.buddy.healthy(root[0])
            found.append(
                {
                    "chain": space.chain.name,
                    "type": space.chain.names[root[0]],
                    "cell": root[1],
                    "pinned": space.pins.get(root, pinned),
                    "gpus": space.sizes[root[0]],
                    "used": used,
                    "healthy": healthy,
                    "bound_to": None if physical == FREE else space.chain.label((root[0], physical)),
                }
            )
    return found


def virtual_clusters(cells: Cells) -> dict[str, Any]:
    """All virtual clusters with their cells and groups."""
    return {
        vc.name: {
            "gpus": cells.layout.gpus(vc),
            "weight": vc.weight,
            "policy": vc.policy or AS_CONFIGURED,
            "cells": vc_cells(cells, vc.name),
            "groups": [g.name for g in cells.groups.values() if g.request.vc == vc.name],
        }
        for vc in cells.layout.vcs
    }


def physical_cluster(cells: Cells) -> list[dict[str, Any]]:
    """All hosts with their GPUs: state, health, group, and the virtual cluster to which each is bound."""
    found = []
    for space in cells.spaces:
        per_node = space.sizes[space.chain.node]
        for node, host in enumerate(space.chain.hosts):
            gpus = [_gpu(space, leaf) for leaf in range(node * per_node, (node + 1) * per_node)]
            found.append({"chain": space.chain.name, "host": host, "gpus": gpus})
    return found


def _gpu(space: Space, leaf: int) -> dict[str, Any]:
    user, inside = space.borrower[leaf] or space.owner_of(leaf), virtual_leaf(space, leaf)
    return {
        "index": space.chain.indices[leaf],
        "state": "Used" if user else "Free",
        "healthy": leaf not in space.bad,
        "group": user.name if user else None,
        "priority": user.priority if user else None,
        "virtual_cluster": None if inside is None else space.holder[space.root_of((0, inside))][0],
    }


def idle_gpus(cells: Cells) -> dict[str, int]:
    """Host -> healthy GPUs that nobody uses."""
    found: dict[str, int] = {}
    for space in cells.spaces:
        forest, level, hosts = space.borrowable.forest, space.chain.node, space.chain.hosts
        for node, n in enumerate(forest.free[level]):
            if n and not (forest.whole and forest.covered((level, node))):
                found[hosts[node]] = found.get(hosts[node], 0) + n
    return found


def idle_within(cells: Cells, kind: str, coming: Collection[Place] = ()) -> dict[str, Room]:
    """Host -> the room in its cells of type `kind`, in idle healthy GPUs.

    `coming`: GPUs in use that count as idle.
    """
    found: dict[str, Room] = {}
    for at, space in enumerate(cells.spaces):
        level = space.chain.level_of(kind)
        if level is None or level > space.chain.node:
            continue
        more = Counter(leaf // space.sizes[level] for chain, leaf in coming if chain == at)
        for node, host in enumerate(space.chain.hosts):
            free = free_in(space, space.borrowable.forest, (space.chain.node, node), level, more)
            before, size = found.get(host, ((), 0))
            found[host] = (*before, *free), max(size, space.sizes[level])
    return found


def cell_types(cells: Cells) -> dict[str, int]:
    """Cell type smaller than a machine -> GPUs of such a cell, the largest if chains differ."""
    found: dict[str, int] = {}
    for space in cells.spaces:
        for level in range(1, space.chain.node):
            name = space.chain.names[level]
            found[name] = max(found.get(name, 0), space.sizes[level])
    return found


def summary(cells: Cells) -> Mapping[str, Any]:
    """The whole state: groups, physical cluster, virtual clusters and cell types."""
    return {
        "groups": groups(cells),
        "physical_cluster": physical_cluster(cells),
        "virtual_clusters": virtual_clusters(cells),
        "cell_types": cell_types(cells),
    }
