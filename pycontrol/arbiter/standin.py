"""The stand-in bidder: a fair deal for apps that ask for GPUs and know nothing of Isonomy.

It assumes as much work left as was attained, at least one lease of the whole demand. A gang is one
container. Running containers are renewed outside the auction (see leases), so only asks are bid for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pycontrol.arbiter.roster import Worker
from pycontrol.arbiter.state import State
from pycontrol.model.auction import AppView, Bid, BidRow, Demand, Gang
from pycontrol.model.cluster import Ask
from pycontrol.model.events import WorkerPlan
from pycontrol.model.topology import Gpu, Scope

STANDIN = "standin"


def open_asks(s: State, app_id: str) -> list[Ask]:
    """Its asks not yet carried by a container, one entry a container, largest first."""
    app = s.yarn_apps.get(app_id)
    if app is None or app_id in s.doomed:
        return []
    result = []
    for ask in s.asks.get(app_id, {}).values():
        if ask.attempt_id == app.attempt_id:
            in_flight = sum(w.ask_key == ask.key and not w.container_id for w in s.workers.of(app_id))
            result += [ask] * max(0, ask.count - in_flight)
    return sorted(result, key=lambda a: (-a.gpus, a.allocation_request_id, a.priority))


def demand(s: State, app_id: str, now_s: float) -> Demand:
    """Its demand: containers it holds and asks for, of the size of its largest open ask."""
    asks = open_asks(s, app_id)
    held = s.holding(app_id)
    size = asks[0].gpus if asks else max(1, held)
    wanted = sum(a.gpus == size for a in asks)
    attained = s.attained_gpu_s(app_id, now_s)
    work_left = max(attained, s.settings.lease_s * max(1, held + wanted * size))
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
    elapsed_s = now_s - app.submitted_s
    if gpus:
        return (elapsed_s + want.work_left_gpu_s / gpus) / t_id_s
    return (elapsed_s + s.settings.lease_s + want.work_left_gpu_s / want.gang_gpus) / t_id_s


def bid(s: State, view: AppView, offered: Mapping[str, int], now_s: float) -> Bid:
    """One row for each number of further containers that the offer can hold."""
    size = view.demand.gang_gpus
    room = min(view.unmet_gpus // size, sum(n // size for n in offered.values()))
    rows = tuple(
        BidRow(rho(s, view.app_id, view.kept_gpus + q * size, now_s), (), q, size, Scope.MACHINE)
        for q in range(1, room + 1)
    )
    return Bid(view.app_id, rho(s, view.app_id, view.kept_gpus, now_s), rows)


def assign(s: State, app_id: str, gangs: Sequence[Sequence[Gpu]]) -> None:
    """Pairs awarded GPUs with open asks of their size."""
    asks = open_asks(s, app_id)
    for gpus in gangs:
        ask = next((a for a in asks if a.gpus == len(gpus)), None)
        if ask is None:
            continue
        asks.remove(ask)
        worker_id = s.new_id(f"{STANDIN}-{app_id}-")
        plan = WorkerPlan(worker_id, worker_id, tuple(sorted(gpus)), ask.allocation_request_id)
        s.workers.add(Worker(app_id, STANDIN, plan, ask_key=ask.key))


def as_gangs(gpus: Sequence[Gpu], size: int) -> list[Gang]:
    """Ending GPUs of a revocable app as gangs of one machine each."""
    hosts: dict[str, int] = {}
    for gpu in gpus:
        hosts[gpu.host] = hosts.get(gpu.host, 0) + 1
    return [((host, size),) for host, n in hosts.items() for _ in range(n // size)]
