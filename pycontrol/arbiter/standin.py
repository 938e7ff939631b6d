"""The stand-in bidder: a fair deal for apps that ask for GPUs and know nothing of Isonomy.

It assumes as much work left as was attained, at least one lease of the whole demand. A gang is one
container. Running containers are renewed outside the auction (see leases), so only asks are bid for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from pycontrol.arbiter.roster import Worker
from pycontrol.arbiter.state import State
from pycontrol.model.auction import AppView, Bid, BidRow, Demand, Gang
from pycontrol.model.cluster import Ask
from pycontrol.model.events import WorkerPlan
from pycontrol.model.topology import Gpu, Scope

STANDIN = "standin"


def open_asks(s: State, app_id: str) -> list[tuple[Ask, int]]:
    """Its asks with their number of containers that are not on their way; those of the most GPUs first.

    A number is cut at what the cluster could hold.
    """
    app = s.yarn_apps.get(app_id)
    if app is None or app_id in s.doomed:
        return []
    in_flight = Counter(w.ask_key for w in s.workers.of(app_id) if not w.container_id)
    result = []
    for ask in s.asks.of(app_id).values():
        left = ask.count - in_flight[ask.key]
        if ask.attempt_id == app.attempt_id and left > 0:
            result.append((ask, min(left, max(1, s.machines.gpus // ask.gpus))))
    return sorted(result, key=lambda entry: (-entry[0].gpus, entry[0].allocation_request_id, entry[0].priority))


def waits(s: State, app_id: str) -> bool:
    """Whether it has open asks."""
    return bool(s.asks.of(app_id)) and bool(open_asks(s, app_id))


def demand(s: State, app_id: str, now_s: float) -> Demand:
    """Its demand: containers it holds and asks for, of the size of its largest open ask that fits a machine."""
    asks = open_asks(s, app_id)
    held = s.holding(app_id)
    largest = s.topology.largest_gpus
    fitting = [entry for entry in asks if entry[0].gpus <= largest] or asks
    size = fitting[0][0].gpus if fitting else max(1, held)
    wanted = sum(n for ask, n in fitting if ask.gpus == size)
    attained = s.attained_gpu_s(app_id, now_s)
    work_left = max(attained, s.lease_s_of(s.durable.apps[app_id].vc) * max(1, held + wanted * size))
    return Demand(
        gang_gpus=size,
        gangs=wanted + -(-held // size),
        job_demand_max=size,
        work_left_gpu_s=work_left,
        work_total_gpu_s=attained + work_left,
        work_done_gpu_s=attained,
        scope=Scope.MACHINE,
    )


def rho(s: State, app_id: str, gpus: int, now_s: float) -> float:
    """rho = T_sh / T_id with this many GPUs; with none the projected one (one lease, then a single gang)."""
    app, want = s.durable.apps[app_id], demand(s, app_id, now_s)
    parallel = max(1, min(s.gpus_of(app.vc), want.gpus))
    t_id_s = want.work_total_gpu_s / parallel * s.durable.n_avg(app_id, now_s)
    elapsed_s = max(0.0, now_s - app.submitted_s)  # the ResourceManager's clock may be ahead
    if gpus:
        return (elapsed_s + want.work_left_gpu_s / gpus) / t_id_s
    return (elapsed_s + s.lease_s_of(app.vc) + want.work_left_gpu_s / want.gang_gpus) / t_id_s


def bid(s: State, view: AppView, offered: Mapping[str, int], now_s: float) -> Bid:
    """One row for each number of further containers that the offer can hold."""
    size = view.demand.gang_gpus
    room = min(view.unmet_gpus // size, sum(n // size for n in offered.values()))
    rows = tuple(
        BidRow(rho(s, view.app_id, view.kept_gpus + q * size, now_s), (), q, size, Scope.MACHINE)
        for q in range(1, room + 1)
    )
    return Bid(view.app_id, rho(s, view.app_id, view.kept_gpus, now_s), rows)


def ask_for(s: State, app_id: str, gang: Gang) -> Ask | None:
    """An open ask that a container on these GPUs would carry."""
    if len(gang) != 1:
        return None
    ((host, gpus),) = gang
    return next((a for a, _ in open_asks(s, app_id) if a.gpus == gpus and admits(s, a, host)), None)


def assign(s: State, app_id: str, gpus: Sequence[Gpu], ask: Ask) -> None:
    """Plans the container of an ask on awarded GPUs."""
    worker_id = s.new_id(f"{STANDIN}-{app_id}-")
    plan = WorkerPlan(worker_id, worker_id, tuple(sorted(gpus)), ask.allocation_request_id)
    s.workers.add(Worker(app_id, STANDIN, plan, ask_key=ask.key))


def admits(s: State, ask: Ask, host: str) -> bool:
    """Whether a container for an ask of any app may start on a host: by locality and by node label."""
    node = s.node_of(host)
    if node is None or (ask.only_on and host not in ask.only_on and node.rack not in ask.only_on):
        return False
    app = s.yarn_apps.get(ask.app_id)
    queue = s.queues.get(app.queue) if app is not None else None
    partition = ask.partition if ask.partition is not None else queue.default_partition if queue is not None else ""
    return node.partition == partition
