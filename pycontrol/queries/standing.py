"""The order in which the present policy would serve the apps, and the measure by which it orders them.

Policies that fill by a key order by that key; policies that hold auctions order by rho, worst first. Policies that
compute shares per tenant do not order apps: their apps are listed by submission time, without a measure.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Mapping

from pycontrol.arbiter.core import Arbiter
from pycontrol.arbiter.round.candidates import remembered, view
from pycontrol.arbiter.round.eligibility import within_cluster
from pycontrol.arbiter.round.parts import own_part
from pycontrol.arbiter.supply.gpu_supply import RoundPart
from pycontrol.auction.placing import FreeIndex
from pycontrol.model.auction import AppView, Snapshot
from pycontrol.model.value import value
from pycontrol.policies.by_vc import policy_for
from pycontrol.policies.filling import Filling, Offered
from pycontrol.policies.on_schedule import OnSchedule, policy_memory
from pycontrol.policies.policy_port import Policy
from pycontrol.queries.demands import Demands


@value
class Standing:
    """An app's place in the order of service of its virtual cluster's policy."""

    rank: int | None
    """Rank from 1 among the apps that can use more GPUs; None for an app that has all it can use."""
    measure: str = ""
    """Name of the policy's measure; empty if it has none that can be shown as a number."""
    amount: float | None = None
    """The measure's value in its unit; for the virtual finish time, the seconds until it."""


RHO = ("rho", "")


def measure_of(policy: Policy) -> dict[str, str]:
    """{"name", "unit"} of the measure by which a policy orders apps; empty strings if it has none to show."""
    name, unit = policy.measure if isinstance(policy, Filling) else RHO if policy.asks_agents else ("", "")
    return {"name": name, "unit": unit}


def standings(a: Arbiter, now_s: float, demands: Demands) -> dict[str, Standing]:
    """The standing of each app whose demand is known, by app id; ranks count within a virtual cluster."""
    by_vc: dict[str, list[AppView]] = {}
    parts: dict[str, RoundPart] = {}
    for app_id, record in a.durable.live.items():
        if record.vc not in parts:
            parts[record.vc] = own_part(a.holdings, record.vc, {})
        demand = demands.of(app_id)
        if demand is not None:
            wants = within_cluster(a.holdings, app_id, demand)
            seen = view(a.holdings, app_id, demands.rho_of(app_id), (), now_s, parts[record.vc], wants)
            by_vc.setdefault(record.vc, []).append(seen)
    found: dict[str, Standing] = {}
    for vc, views in by_vc.items():
        found.update(_ranked(policy_of(a, vc), _snapshot(a, parts[vc], views, now_s)))
    return found


def policy_of(a: Arbiter, vc: str) -> Policy:
    found = policy_for(a.rounds.policy, vc)
    return found.policy if isinstance(found, OnSchedule) else found


def _snapshot(a: Arbiter, part: RoundPart, views: list[AppView], now_s: float) -> Snapshot:
    """The snapshot of a round that offers all machines of the virtual cluster, or of the whole cluster."""
    vc, topology = part.vc, part.topology
    present = frozenset(x for x, app in a.durable.live.items() if app.vc == vc)
    memory = policy_memory(remembered(a.holdings, vc, policy_of(a, vc).name))
    s, free, queues = a.holdings, dict(topology.gpus_by_host), {} if part.owner is not None else a.cluster.queues
    now = Snapshot("", now_s, topology, free, tuple(views), s.f_of(vc), s.lease_s_of(vc), queues, vc, memory, present)
    return dataclasses.replace(now, owned_gpus=s.gpus_of(vc), accounts=a.settings.accounts)


def _ranked(policy: Policy, snapshot: Snapshot) -> dict[str, Standing]:
    amounts: dict[str, float] = {}
    if isinstance(policy, Filling):
        snapshot = policy.prepared(snapshot)
        pool = Offered(snapshot, FreeIndex(snapshot.free, snapshot.topology))
        keys = {v.app_id: (-v.priority, policy.key(v, v.retained_gpus, pool)) for v in snapshot.apps}
        order = _by_queue(policy, pool, keys) if policy.by_queue else _sorted(snapshot, lambda v: keys[v.app_id])
        if policy.measure[0]:
            amounts = {v.app_id: policy.standing(v, pool) for v in order}
    elif policy.asks_agents:
        amounts = {v.app_id: v.rho for v in snapshot.apps if v.rho is not None}
        order = _sorted(snapshot, lambda v: (-v.priority, -amounts.get(v.app_id, 0.0)))
    else:
        order = _sorted(snapshot, lambda v: 0.0)
    amounts = {app_id: float(x) for app_id, x in amounts.items() if math.isfinite(x)}
    measure, ranks = measure_of(policy)["name"], itertools.count(1)
    return {
        v.app_id: Standing(next(ranks) if v.demand.gpus > v.retained_gpus else None, measure, amounts.get(v.app_id))
        for v in order
    }


def _sorted(snapshot: Snapshot, key: Callable[[AppView], float | tuple[int, float]]) -> list[AppView]:
    return sorted(snapshot.apps, key=lambda v: (key(v), v.submitted_s, v.app_id))


def _by_queue(policy: Filling, pool: Offered, keys: Mapping[str, tuple[int, float]]) -> list[AppView]:
    """Order by queue: the first queue serves its first app with one gang, then all queues are compared again."""
    waiting: dict[str, list[AppView]] = {}
    used: dict[str, int] = {}
    for v in reversed(_sorted(pool.snapshot, lambda v: keys[v.app_id])):
        waiting.setdefault(v.queue, []).append(v)
        used[v.queue] = used.get(v.queue, 0) + v.retained_gpus

    def key(queue: str) -> tuple[tuple[float, ...], str]:
        head = waiting[queue][-1]
        return policy.queue_key(head, head.retained_gpus, used[queue], pool), queue

    order = []
    while waiting:
        queue = min(waiting, key=key)
        first = waiting[queue].pop()
        order.append(first)
        used[queue] += first.demand.gang_gpus
        if not waiting[queue]:
            del waiting[queue]
    return order
