"""Turns Agents' plans into containers: a gang is placed whole, once its asks have arrived and its GPUs are free."""

from __future__ import annotations

from collections import Counter

from pycontrol.arbiter import leases
from pycontrol.arbiter.ledger.lease import REVOKING
from pycontrol.arbiter.round import standin
from pycontrol.arbiter.state import Clerk, Holdings
from pycontrol.arbiter.views.workers import REPORTED, WAITING, AskKey, PlannedWorker
from pycontrol.model.cluster import STANDIN, Ask
from pycontrol.model.events import DirectiveDone, Place, SendUseReply, UsePlanned, WorkerPlan
from pycontrol.model.reasons import Cause, EndReason
from pycontrol.model.topology import Gpu

RETRY_MAX_S = 5.0


def use_planned(s: Holdings, clerk: Clerk, e: UsePlanned) -> None:
    """Accepts an Agent's plan if it holds or has reserved the GPUs; a refusal says why."""
    known = any(w.use_id == e.use_id for w in s.workers.of(e.app_id))
    problem = "" if known else _problem(s, e)
    if not known and not problem:
        for plan in e.workers:
            _add(s, clerk, PlannedWorker(e.app_id, e.use_id, plan))
    clerk.emit(SendUseReply(e.app_id, e.use_id, not problem, problem))


def _add(s: Holdings, clerk: Clerk, worker: PlannedWorker) -> None:
    """Adds a planned worker; one that goes on in a container of its app takes the place of the worker there."""
    container_id = worker.plan.container_id
    for older in s.workers.of(worker.app_id) if container_id else ():
        if older.container_id == container_id:
            clerk.drop_worker(older)
    s.workers.add(worker)
    if container_id:
        s.workers.carried(worker, container_id)
        leases.goes_on(s, clerk, s.cluster.containers[container_id], worker.plan.job_id, s.event_s)


def _problem(s: Holdings, e: UsePlanned) -> str:
    """Why a plan is refused; empty if it is accepted."""
    if not e.workers:
        return "the plan has no workers"
    seen: set[Gpu] = set()
    for plan in e.workers:
        problem = _worker_problem(s, e.app_id, plan, seen)
        if problem:
            return f"worker {plan.worker_id}: {problem}"
        seen.update(plan.gpus)
    return ""


def _worker_problem(s: Holdings, app_id: str, plan: WorkerPlan, seen: set[Gpu]) -> str:
    if not plan.gpus:
        return "no GPUs"
    if len({g.host for g in plan.gpus}) > 1:
        return "its GPUs lie on several machines; a worker is one job on one machine"
    if s.workers.has(app_id, plan.worker_id):
        return "is planned already"
    there = s.cluster.containers.get(plan.container_id)
    if plan.container_id and (there is None or (there.app_id, sorted(there.gpus)) != (app_id, sorted(plan.gpus))):
        return f"{plan.container_id} is no container of {app_id} with these GPUs"
    for gpu in plan.gpus:
        lease = s.durable.leases.get(gpu)
        coming = s.durable.reservations.get(gpu)
        if gpu in seen:
            return f"GPU {gpu} is named twice"
        held = lease is not None and lease.app_id == app_id and lease.state != REVOKING
        if not held and not (coming is not None and coming.app_id == app_id):
            return f"GPU {gpu} is not leased to {app_id}"
        other = s.workers.at.get(gpu)
        # The app may know before the Arbiter that a container has ended; the new one waits for that anyway.
        if other is not None and other.app_id == app_id and not other.container_id and not other.void:
            return f"GPU {gpu} is planned for worker {other.plan.worker_id}"
    return ""


def place_ready(s: Holdings, clerk: Clerk, now_s: float) -> None:
    """Places every pending gang with all asks arrived and all GPUs leased and free of containers.

    The number of placements in progress is limited to what the ResourceManager carries out in seconds
    (`WorkerPlans.room_for`); the grant timeout does not run for gangs that wait here.
    """
    if not s.cluster.ready:
        return
    if not s.workers.room_for(1):
        s.workers.wait_for_room(now_s)  # some gang waits, or nobody would have called
        return
    known, served = not leases.suspended(s, now_s), Counter[AskKey]()  # apps repeat their asks to a new ResourceManager
    for key in list(s.workers.pending):
        gang = list(s.workers.pending.get(key, {}).values())
        if not gang:
            continue  # it was dropped with the gang before
        if not s.workers.room_for(len(gang)):
            s.workers.wait_for_room(now_s)
            return
        whole = len(gang)
        gang = [w for w in gang if not _dropped_as_void(s, clerk, w)]
        standins = bool(gang) and gang[0].use_id == STANDIN  # an Agent repairs its gang itself
        if standins and len(gang) < whole:
            _leave(s, clerk, gang, now_s, "a container of its gang lost its GPUs")
            continue
        if standins and known and _withdrawn(s, gang, served):
            _leave(s, clerk, gang, now_s, "its application no longer asks for its containers")
            continue
        asks = [_ready_ask(s, worker, now_s) for worker in gang]
        if all(asks):
            for worker, ask in zip(gang, asks, strict=True):
                assert ask is not None
                _place(s, clerk, worker, ask, now_s)


def _dropped_as_void(s: Holdings, clerk: Clerk, worker: PlannedWorker) -> bool:
    """Drops a worker with GPUs that its app neither holds nor has reserved, or with a cancelled reservation."""
    if worker.void:
        clerk.drop_worker(worker)
        return True
    for gpu in worker.plan.gpus:
        lease, coming = s.durable.leases.get(gpu), s.durable.reservations.get(gpu)
        held = lease is not None and lease.app_id == worker.app_id and lease.state != REVOKING
        if not held and (coming is None or coming.app_id != worker.app_id):
            clerk.drop_worker(worker)
            return True
    return False


def _withdrawn(s: Holdings, gang: list[PlannedWorker], served: Counter[AskKey]) -> bool:
    """Whether its asks are for fewer containers than it has, besides those of gangs before it; else it adds to them."""
    mine, asks = Counter(w.ask_key for w in gang if w.ask_key is not None), s.cluster.asks.of(gang[0].app_id)
    withdrawn = any(key not in asks or served[key] + n > asks[key].count for key, n in mine.items())
    served.update({} if withdrawn else mine)
    return withdrawn


def _leave(s: Holdings, clerk: Clerk, gang: list[PlannedWorker], now_s: float, text: str) -> None:
    """Releases the remaining GPUs of a gang that cannot start."""
    why = Cause(EndReason.RELEASED, text)
    for worker in gang:
        clerk.drop_worker(worker)
        coming = [x for x in s.durable.reservations.parts(worker.plan.gpus) if x.app_id == worker.app_id]
        leases.cancel_reservations(s, clerk, coming, now_s, why)
        held = [x for x in s.durable.leases.parts(worker.plan.gpus) if x.app_id == worker.app_id]
        leases.revoke(s, clerk, held, now_s, now_s + s.lead_s, why)
    clerk.request_round(now_s + s.settings.settle_s)


def _ready_ask(s: Holdings, worker: PlannedWorker, now_s: float) -> Ask | None:
    """The ask that this worker's container can serve now; if None, `worker.problem` says what it waits for."""
    if worker.retry_at_s > now_s:
        return None
    for gpu in worker.plan.gpus:
        lease = s.durable.leases.get(gpu)
        if lease is None or lease.app_id != worker.app_id or lease.state == REVOKING:
            worker.problem = f"WaitingForRevocation of GPU {gpu}"
            return None
        if gpu in s.cluster.container_at:
            worker.problem = f"WaitingForRevocation: container {s.cluster.container_at[gpu]} still holds GPU {gpu}"
            return None
    if s.cluster.node_at.get(worker.plan.host) is None:
        worker.problem = f"host {worker.plan.host} is down"
        return None
    ask = _ask_of(s, worker)
    worker.problem = "" if ask else "its ask has not reached YARN yet"
    if ask is not None and not standin.admits(s, ask, worker.plan.host):
        worker.problem = f"its ask does not allow {worker.plan.host}: other hosts or another node label"
        return None
    return ask


def _ask_of(s: Holdings, worker: PlannedWorker) -> Ask | None:
    if worker.ask_key is not None:
        return s.cluster.asks.of(worker.app_id).get(worker.ask_key)
    app = s.cluster.apps.get(worker.app_id)
    for ask in s.cluster.asks.under(worker.app_id, worker.plan.allocation_request_id):
        if app is not None and ask.attempt_id == app.attempt_id and ask.gpus == len(worker.plan.gpus):
            return ask
    return None


def _place(s: Holdings, clerk: Clerk, worker: PlannedWorker, ask: Ask, now_s: float) -> None:
    node = s.cluster.node_at.get(worker.plan.host)
    assert node is not None
    s.workers.sent(worker, clerk.new_id("d"), now_s, now_s + s.settings.grant_timeout_s)
    for gpu in worker.plan.gpus:
        s.gpus.look_at(gpu, worker.placing_until_s)
    lease_id = s.durable.leases[worker.plan.gpus[0]].grant_id
    clerk.emit(Place(worker.directive_id, ask, node.node_id, worker.plan.gpus, lease_id))


def directive_done(s: Holdings, clerk: Clerk, e: DirectiveDone, now_s: float) -> None:
    """A `Place` succeeded, so that its container follows, or was refused and is retried with back-off.

    After repeated refusals, or one where it excludes the machine, the app avoids it: a round finds the gang other GPUs.
    """
    worker = s.workers.sent_as(e.directive_id)
    if worker is None:
        return
    s.workers.answered(worker, now_s)
    if e.ok:
        s.workers.acknowledged(worker, e.container_id)
        return
    worker.refusals += 1
    worker.problem = e.reason
    worker.retry_at_s = now_s + min(RETRY_MAX_S, 0.2 * 2 ** min(worker.refusals, 10))
    _wait_again(s, clerk, worker)
    leases.not_placed(s, clerk, worker.plan.gpus, now_s)
    if worker.app_id not in s.cluster.apps:
        return  # it ended meanwhile
    app = s.durable.apps.get(worker.app_id)
    user = app.user if app is not None else ""
    host, fault = worker.plan.host, e.machine_at_fault
    if s.cluster.refusals.refused(host, worker.app_id, user, e.reason, now_s, fault, e.excluded):
        clerk.update_closed()
        if e.excluded:
            s.timer.learned()
        _give_up(s, clerk, worker, now_s, Cause(EndReason.REFUSED, f"{host} refuses its container: {e.reason}"))


def _give_up(s: Holdings, clerk: Clerk, worker: PlannedWorker, now_s: float, why: Cause) -> None:
    """Revokes all leases of a worker's gang; those with containers end a lead from now."""
    held = [x for x in s.durable.leases.parts(worker.plan.gpus) if x.app_id == worker.app_id]
    keys = {s.gang_key(x, gpu) for x in held for gpu in x.gpus}
    gangs = s.gangs_of(worker.app_id)
    gang = [x for gang in gangs if s.gang_key(gang[0], gang[0].gpus[0]) in keys for x in gang]
    for mate in [w for w in s.workers.of(worker.app_id) if w.gang == worker.gang and w.state is WAITING]:
        clerk.drop_worker(mate)
    leases.revoke(s, clerk, gang, now_s, now_s + s.lead_s, why)


def forget_directives(s: Holdings, clerk: Clerk) -> None:
    """After a snapshot: workers with directives but no container wait again; `forget_lost` handles the rest."""
    for worker in list(s.workers):
        if worker.container_id not in s.cluster.containers and worker.state is not REPORTED:
            _wait_again(s, clerk, worker)


def forget_lost(s: Holdings, clerk: Clerk) -> None:
    """Once all containers are known: drops workers without their container; they wait again if the machine is away."""
    for worker in list(s.workers):
        if worker.container_id and worker.container_id not in s.cluster.containers:
            if s.cluster.node_at.get(worker.plan.host) is None:
                _wait_again(s, clerk, worker)
            else:
                clerk.drop_worker(worker)


def _wait_again(s: Holdings, clerk: Clerk, worker: PlannedWorker) -> None:
    """Makes the worker wait again; drops it if its app planned a newer worker on its GPUs, and so knew of its end."""
    newest = [w for g in worker.plan.gpus if (w := s.workers.at.get(g)) is not None and w.app_id == worker.app_id]
    if all(w is worker for w in newest):
        s.workers.back(worker)
    else:
        clerk.drop_worker(worker)


def next_wake_s(s: Holdings) -> float | None:
    """When the next refused placement is retried; None if none is. What was due by now waits for something else."""
    return min((w.retry_at_s for w in s.workers.refused.values() if w.retry_at_s > s.event_s), default=None)
