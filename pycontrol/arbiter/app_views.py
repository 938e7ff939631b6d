"""Policies' views of the apps in a round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pycontrol.arbiter import standin
from pycontrol.arbiter.lease import Lease
from pycontrol.arbiter.state import State
from pycontrol.arbiter.supply import RoundPart
from pycontrol.model.auction import AppView, Demand

UNLIMITED_GPUS = 1 << 30


def view(
    s: State,
    app_id: str,
    rho: float | None,
    ending: Sequence[Sequence[Lease]],
    now_s: float,
    part: RoundPart | None = None,
    demand: Demand | None = None,
) -> AppView:
    """The view of one app.

    `ending`: its gangs on offer. `demand`: the demand with which it takes part; None: all that it wants.
    Where a virtual cluster shares out its own machines (`part`), borrowed GPUs do not count: a private cluster
    would not have them.
    """
    app = s.durable.apps[app_id]
    ending_gpus = frozenset(x.gpu for gang in ending for x in gang)
    private = part is not None and part.private
    borrowed = s.borrowing(app_id) if private else 0
    wants = demand or demand_of(s, app_id, now_s)
    return AppView(
        app_id=app_id,
        queue=app.queue,
        rho=rho,
        demand=wants,
        ending=ending_gpus,
        ending_gangs=tuple(s.places((x.gpu for x in gang), private) for gang in ending),
        retained_gpus=s.holding(app_id) - borrowed - len(ending_gpus),
        queue_room_gpus=s.queue_room(app.queue) + borrowed + len(ending_gpus),
        submitted_s=app.submitted_s,
        user=app.user,
        attained_gpu_s=s.attained_gpu_s(app_id, now_s),
        slowed_gpu_s=s.slowed_gpu_s(app_id, now_s),
        revoked_gpus=app.revocations,
        retained_gangs=s.retained_gangs(app_id, ending_gpus, private),
        priority=_priority(s, app_id) if app.vc else 0,
        spared=wants.unsaved and s.settings.unsaved_last,
    )


def _priority(s: State, app_id: str) -> int:
    app = s.cluster.apps.get(app_id)
    return app.priority if app is not None else 0


def demand_of(s: State, app_id: str, now_s: float, size: int = 0) -> Demand:
    """What the app could use, limited to what the cluster could hold.

    `size`: of an unmanaged app, count only containers of this many GPUs; 0: see `standin.demand`.
    """
    agent = s.agents.get(app_id)
    return within_cluster(s, app_id, agent.demand if agent is not None else standin.demand(s, app_id, now_s, size))


def within_cluster(s: State, app_id: str, demand: Demand) -> Demand:
    """An app's demand, limited to what the cluster could hold: policies' running time grows with the gangs."""
    size, gpus = max(1, demand.gang_gpus), s.cluster.machines.gpus
    if demand.gangs <= gpus // size:
        return demand
    held = s.holding(app_id)  # containers of other sizes may leave room for a gang
    most = max(1, -(-held // size) + max(0, gpus - held) // size)
    return demand if demand.gangs <= most else replace(demand, gangs=most)
