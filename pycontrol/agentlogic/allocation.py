"""Assigns an app's free GPUs to its waiting jobs, and finds the GPUs that it has no use for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from pycontrol.auction.placing import ELSE, FreeIndex
from pycontrol.model.grouping import grouped
from pycontrol.model.topology import Gpu, Scope, Topology, count_by_host
from pycontrol.model.value import value

Launch = tuple[str, tuple[Gpu, ...]]
"""(job, the GPUs of its gang, sorted)."""


NO_GRANTS: Mapping[Gpu, str] = {}


@value
class Allocation:
    """The use of an app's free GPUs; those in neither list are kept for jobs that are about to wait."""

    launches: tuple[Launch, ...]
    unused: tuple[Gpu, ...]


def allocate(
    idle: Sequence[Gpu],
    waiting: Mapping[str, float],
    stopping: Iterable[Sequence[Gpu]],
    held: Mapping[Gpu, float],
    gang_gpus: int,
    scope: Scope,
    topology: Topology,
    grants: Mapping[Gpu, str] = NO_GRANTS,
) -> Allocation:
    """Gives whole gangs to the waiting jobs, those with the most work left first, as a phase ends with its last job.

    Each gang lies as close together as the free GPUs allow, and within `scope`. `waiting`: job without a gang -> serial
    GPU-seconds left. `stopping`: gangs that are about to end before their job is done, as they lose some of their GPUs;
    GPUs are reserved for each such job, including those that it does not lose. `held`: the app's GPU -> when its
    previous owner is gone. `grants`: GPU -> its grant, if each gang must lie within one grant: the GPUs of one grant
    lie as close together as the app asked for, those of two may not.
    """
    free, launches = list(idle), []
    for job_id in sorted(waiting, key=lambda j: -waiting[j]):
        gang = gang_near(_of_one_grant(free, grants, gang_gpus), held, gang_gpus, scope, topology)
        if gang is None:
            break
        free = _without(free, gang)
        launches.append((job_id, gang))
    if free:
        losing = [gpus for gpus in stopping if not all(g in held for g in gpus)]
        coming = [g for gpus in losing for g in gpus if g in held]
        for _ in losing:
            able = _of_one_grant([*free, *coming], grants, gang_gpus)
            reserved = gang_near(able, held, gang_gpus, scope, topology) or ()
            free, coming = _without(free, reserved), _without(coming, reserved)
    return Allocation(tuple(launches), tuple(free))


def _of_one_grant(gpus: list[Gpu], grants: Mapping[Gpu, str], gang_gpus: int) -> list[Gpu]:
    """The GPUs of the first grant that has enough for a gang; all of them if there are no `grants`."""
    if not grants:
        return gpus
    found = grouped((grants.get(gpu, ""), gpu) for gpu in gpus)
    return next((mine for mine in found.values() if len(mine) >= gang_gpus), [])


def _without(gpus: list[Gpu], taken: Sequence[Gpu]) -> list[Gpu]:
    return [g for g in gpus if g not in taken]


def gang_near(
    free: list[Gpu], held: Mapping[Gpu, float], gang_gpus: int, scope: Scope, topology: Topology
) -> tuple[Gpu, ...] | None:
    """The GPUs of one gang, on each machine those that are free soonest; None if no gang fits."""
    if len(free) < gang_gpus:
        return None
    if len(free) == gang_gpus and topology.scope_of(g.host for g in free) <= scope:
        return tuple(sorted(free))  # the usual case, without a search
    types = [*topology.types, ""] if len(topology.types) > 1 else [""]  # GPUs of one type first
    place = FreeIndex(count_by_host(free), topology).place(gang_gpus, scope, ELSE.join(types))
    if place is None:
        return None
    order = sorted(free, key=lambda g: (held[g], g))
    return tuple(sorted(g for host, n in place for g in [x for x in order if x.host == host][:n]))
