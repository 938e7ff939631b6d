"""The life of a gang: planned, requested, launched, started, stopped, ended; all workers or none at each step."""

from __future__ import annotations

import json
import re
from dataclasses import replace

from pycontrol.model.topology import Gpu, count_by_host
from pycontrol.wire.v1 import agent_pb2 as pb
from pycontrol.wire.v1 import am_pb2 as am
from submarine_patch.agent import jobs, results
from submarine_patch.agent.agent_state import SavedState
from submarine_patch.agent.jobs import Job, Worker
from submarine_patch.agent.launch import checkpoint_dir, launch_of
from submarine_patch.agent.schedulers.port import Verdict
from submarine_patch.worker import EXIT_NO_START, EXIT_STOPPED, servers

GANG_TIMEOUT_S = 120.0
"""How long all workers may take to register, from the time when their GPUs are free."""
COPY_S = 540.0
"""How long that may take once all have new containers, to which YARN copies the files first; less than START_S."""
STOP_GRACE_S = 10.0
"""Time for a last checkpoint if a stop has no lease's deadline."""
STOP_AGAIN_S = 5.0
GONE_S = 600.0
"""After this silence a stopping worker's container counts as gone even if YARN does not report it: a restarted
ResourceManager does not know what ran on a machine that did not return. Equals an RM's wait for a NodeManager."""
SILENCE_S = 60.0
EXIT_GRACE_S = 15.0
"""A container that still runs this long after its worker reported its exit is stopped."""
SETTLE_S = 3.0
"""How long to wait for the final message of a worker that ended with 0."""
UNSAVED = "was stopped without a checkpoint: it starts again after each revocation (docs/submit.md says what helps)"
SOON_S = 60.0
"""Two equal failures so soon after the start are the script's: a third attempt would be the same."""
EXCEPTION = re.compile(r"[\w.]+(?:Error|Exception|Exit|Interrupt)\b")
PLAN_REFUSALS = 8
"""Refusals after which a plan is given up; resends are 0.25 s to 4 s apart, as its GPUs may soon be free."""
SIGNALLED = 128
"""Exit codes from here on are of signals: a program that was killed may do better the next time."""
NOT_ITS_FAULT = {-100, -101, -102, -105, -106, -107, -108, EXIT_NO_START}
"""YARN's exit codes of lost, preempted and killed containers, and that of a worker whose gang never started."""

# ---- launching


def launch(s: SavedState, job: Job, gpus: list[Gpu], now_s: float) -> None:
    """Plan a gang on these GPUs: one worker per machine, the one with the most GPUs (the chief) first.

    Ranks of a segment follow each other: they go rack by rack, the rack with the most GPUs first.
    """
    job.launches += 1
    suffix = "" if s.attempt == 1 else f".{s.attempt}"
    job.use_id = f"{job.job_id}/{job.launches}{suffix}"
    job.state = jobs.STARTING
    job.until_step, job.rung = s.scheduler.until_step(job.job_id), s.scheduler.rung(job.job_id)
    job.use_accepted, job.use_refusals, job.use_again_s = False, 0, 0.0
    job.since_s = max(now_s, *(s.held[g].available_s for g in gpus))
    job.first_step_s = job.settle_s = 0.0
    job.stop_deadline_s = job.stop_again_s = 0.0
    job.stop_reason, job.stop_failed, job.settled = "", False, False
    job.workers = []
    sizes = count_by_host(gpus)
    in_rack = count_by_host(Gpu(s.topology.rack_of(g.host), 0) for g in gpus) if s.spec.segments[0] else {}

    def near(host: str) -> tuple[int, str, int, str]:
        rack = s.topology.rack_of(host) if in_rack else ""
        return -in_rack.get(rack, 0), rack, -sizes[host], host

    for rank, host in enumerate(sorted(sizes, key=near)):
        ids = sorted(g.index for g in gpus if g.host == host)
        job.workers.append(Worker(f"{job.use_id}/{rank}", host, ids, s.next_request, last_heard_s=now_s))
        s.next_request += 1
    _go_on(s, job)
    results.launched(job, now_s)
    send_use(s, job)
    s.mark()


def _go_on(s: SavedState, job: Job) -> None:
    """Take over the process that waits on these very GPUs, if there is one."""
    worker = job.workers[0]
    found = next((c for c, w in s.waiting.items() if w.gpus == worker.gpus and len(job.workers) == 1), "")
    if found:
        worker.container_id, worker.asked, worker.goes_on_from = found, True, s.waiting.pop(found).worker_id


def stop_waiting(s: SavedState, now_s: float) -> None:
    """Tell the processes that no job goes on with to end, and stop containers that did not."""
    for container_id, worker in s.waiting.items():
        _end_process(s, worker, container_id, "no job goes on with it", now_s)
    s.waiting = {}
    for container_id, (worker, stop_s) in list(s.leaving.items()):
        if now_s >= stop_s:
            s.leaving[container_id] = worker, now_s + EXIT_GRACE_S
            s.shell(stop=am.AmStop(container_id=container_id))
        if now_s >= worker.reported_exit_s + GONE_S:
            del s.leaving[container_id]


def _end_process(s: SavedState, worker: Worker, container_id: str, why: str, now_s: float) -> None:
    s.stop_worker(worker.worker_id, now_s + STOP_GRACE_S, why, now_s)
    s.leaving[container_id] = worker, now_s + EXIT_GRACE_S


def send_use(s: SavedState, job: Job) -> None:
    """Send the Arbiter the plan of the workers that have no container yet."""
    job.use_again_s = 0.0
    plans = [
        pb.WorkerPlan(
            worker_id=w.worker_id,
            job_id=job.job_id,
            host=w.host,
            gpu_ids=w.gpu_ids,
            allocation_request_id=w.request_id,
            container_id=w.container_id,
        )
        for w in job.workers
        if w.planned
    ]
    s.send(use=pb.Use(use_id=job.use_id, workers=plans))


def use_reply(s: SavedState, m: pb.UseReply, now_s: float) -> None:
    """Handle UseReply: request containers for an accepted plan; resend a refused one later, or give it up."""
    job = next((j for j in s.jobs.values() if j.use_id == m.use_id and j.state == jobs.STARTING), None)
    if job is None or job.use_accepted:
        return
    if m.accepted:
        job.use_accepted, job.use_again_s = True, 0.0
        for rank, worker in enumerate(job.workers):
            if worker.goes_on_from:
                command = s.spec.command(job.configuration)
                following = pb.Next(worker_id=worker.worker_id, job_id=job.job_id, command=command)
                s.send(to_worker=pb.WorkerCommand(worker_id=worker.goes_on_from, next=following))
            _ask(s, worker, len(range(rank, s.spec.servers, len(job.workers))))
        s.mark()
        return
    for worker in job.workers:
        if worker.goes_on_from:  # then in a container of its own
            older = replace(worker, worker_id=worker.goes_on_from)
            _end_process(s, older, worker.container_id, f"plan refused: {m.reason}", now_s)
            worker.container_id, worker.asked, worker.goes_on_from = "", False, ""
    job.use_refusals += 1
    if job.use_refusals < PLAN_REFUSALS:
        job.use_again_s = now_s + min(4.0, 0.125 * 2**job.use_refusals)
        return
    gpus = job.gpus
    stop(s, job, now_s + STOP_GRACE_S, f"plan refused: {m.reason}", now_s)
    s.give_back(gpus, f"plan refused: {m.reason}")


def _ask(s: SavedState, worker: Worker, servers_beside: int) -> None:
    if worker.asked or worker.container_id:
        return
    worker.asked = True
    ask = am.AmAsk(
        allocation_request_id=worker.request_id,
        gpus=len(worker.gpu_ids),
        memory_mb=s.spec.memory_mb + servers_beside * s.spec.server_memory_mb,
        vcores=s.spec.vcores + servers_beside * s.spec.server_vcores,
        priority=1,
    )
    s.shell(ask=ask)


def allocated(s: SavedState, m: am.AmContainer, now_s: float) -> None:
    """Handle a new container: launch the worker that requested it, or release it if it does not match the plan."""
    for job, worker in s.workers():
        if worker.request_id != m.allocation_request_id or worker.container_id or worker.exit_code is not None:
            continue
        if m.gpu_ids and (sorted(m.gpu_ids) != worker.gpu_ids or m.host != worker.host):
            break
        worker.container_id, worker.last_heard_s = m.container_id, now_s
        s.shell(launch=launch_of(s.spec, job, worker, m.container_id))
        s.mark()
        return
    s.shell(release=am.AmRelease(container_id=m.container_id))


def ready(s: SavedState, job: Job, worker: Worker, m: pb.WorkerReady, now_s: float) -> None:
    """Handle a worker's registration: start the gang once all are ready; resend Start if no step came yet, and Stop."""
    worker.address = f"{m.host}:{m.port}"
    if job.state == jobs.STARTING and all(w.address for w in job.workers):
        job.state = jobs.RUNNING
        send_start(s, job)
        if not s.start_told:
            s.start_told = True
            s.notify("started", now_s, gpus=sorted(map(str, job.gpus)))
    elif job.state == jobs.RUNNING and not job.first_step_s:
        send_start(s, job)
    elif job.state == jobs.STOPPING:
        s.stop_worker(worker.worker_id, job.stop_deadline_s, job.stop_reason, now_s)
    s.mark()


def send_start(s: SavedState, job: Job) -> None:
    """Send Start to each worker of a gang, with TF_CONFIG if there are several workers, or parameter servers."""
    addresses, sizes = [w.address for w in job.workers], [len(w.gpu_ids) for w in job.workers]
    configs = servers.configurations(addresses, sizes, s.spec.servers)
    for worker, config in zip(job.workers, configs, strict=True):
        start = pb.Start(
            tf_config=config if len(job.workers) > 1 or s.spec.servers else "",
            until_step=job.until_step,
            checkpoint_dir=checkpoint_dir(s.spec, job),
            configuration=job.configuration,
            pacing=_pacing(s, job),
            again=s.reuse and len(job.workers) == 1,
        )
        s.send(to_worker=pb.WorkerCommand(worker_id=worker.worker_id, start=start))


def _pacing(s: SavedState, job: Job) -> str:
    """The pacing of a job on virtual GPUs, as JSON; empty for a job that is not paced.

    A step takes the declared serial time x S(placement) / GPUs, less on GPUs that their machine declares faster.
    """
    if s.spec.iteration_s is None or not s.virtual.intersection(job.hosts):
        return ""
    slowdown = s.spec.slowdown[s.scope_of(job) - 1]
    pacing = {"serial_iter_s": s.spec.iteration_s, "slowdown": slowdown, "gpus": len(job.gpus)}
    return json.dumps({**pacing, "gpu_bound": s.spec.gpu_bound})


def resend(s: SavedState, job: Job, now_s: float) -> None:
    """Resend on a new stream what the lost one may not have carried; all these messages are idempotent."""
    if job.state == jobs.STARTING and any(w.planned for w in job.workers):
        job.use_accepted = False
        send_use(s, job)
    elif job.state == jobs.RUNNING and not job.first_step_s:
        send_start(s, job)
    elif job.state == jobs.STOPPING:
        _send_stop(s, job, now_s)
    if job.settle_s:
        job.settle_s = now_s + SETTLE_S


# ---- stopping


def stop(s: SavedState, job: Job, deadline_s: float, reason: str, now_s: float, failed: bool = False) -> None:
    """Ask all workers to checkpoint and end by the deadline; withdraw those without a container."""
    if not job.active:
        return
    if job.state == jobs.STOPPING:
        if deadline_s < job.stop_deadline_s:
            job.stop_deadline_s = deadline_s
            job.stop_again_s = min(job.stop_again_s, deadline_s)
            _send_stop(s, job, now_s)
        return
    job.state, job.stop_reason, job.stop_failed = jobs.STOPPING, reason, failed
    job.stop_deadline_s = job.stop_again_s = deadline_s
    for worker in job.workers:
        if not worker.container_id and worker.exit_code is None:
            if worker.asked:
                s.shell(withdraw=am.AmWithdraw(allocation_request_id=worker.request_id))
            worker.exit_code = EXIT_STOPPED
    _send_stop(s, job, now_s)
    s.mark()
    over(s, job, now_s)


def _send_stop(s: SavedState, job: Job, now_s: float) -> None:
    for worker in job.workers:
        if worker.exit_code is None:
            s.stop_worker(worker.worker_id, job.stop_deadline_s, job.stop_reason, now_s)


def _stop_containers(s: SavedState, workers: list[Worker]) -> None:
    for worker in workers:
        if worker.exit_code is None and worker.container_id:
            s.shell(stop=am.AmStop(container_id=worker.container_id))


def failed(s: SavedState, job: Job, why: str, now_s: float, counts: bool = True, how: str = "") -> None:
    """Stop the whole gang because a worker failed; the job is retried from its newest checkpoint.

    `counts`: whether the failure counts towards `max_retries`; `how`: what makes two failures of a script equal.
    """
    if counts:
        how = (how and now_s < job.since_s + SOON_S and f"{how} at step {job.step}") or ""
        job.hopeless, job.failed_as = how != "" and how == job.failed_as, how
        job.failures += 1
        job.problem = f"{why} (twice, so it is not tried again)" if job.hopeless else why
    stop(s, job, now_s + STOP_GRACE_S, why, now_s, failed=True)


# ---- the end


def reported_exit(s: SavedState, job: Job, worker: Worker, m: pb.WorkerExit, now_s: float) -> None:
    """Handle a worker's exit report; its GPUs are free only once its container has ended."""
    worker.reported_exit, worker.reported_exit_s, worker.exit_message = m.code, now_s, m.message
    job.step = max(job.step, m.step)
    if m.unsaved and worker is job.workers[0]:
        job.note = UNSAVED
    if m.waits and m.code == 0 and job.state == jobs.RUNNING and len(job.workers) == 1:
        worker.exit_code = 0
        s.waiting[worker.container_id] = worker
    _end_with_coordinator(s, job, worker, now_s)
    over(s, job, now_s)


def container_gone(s: SavedState, container_id: str, status: int, why: str, now_s: float) -> None:
    """Handle the end of a worker's container; stop the gang if it did not end with 0."""
    if s.waiting.pop(container_id, None) or s.leaving.pop(container_id, None):
        s.mark()
    found = s.worker_in(container_id)
    if found is None or found[1].exit_code is not None:
        return
    job, worker = found
    own = worker.reported_exit
    code = own if own in (0, EXIT_STOPPED, EXIT_NO_START) else status
    worker.exit_code = code
    if job.state != jobs.STOPPING and not _served(s, job, worker):
        if code == EXIT_STOPPED:
            stop(s, job, now_s + STOP_GRACE_S, f"worker {worker.worker_id} was stopped", now_s)
        elif code != 0:
            words = _quoted(worker.exit_message or why)
            text = f"worker {worker.worker_id} on {worker.host} ended with {code}: {words}"
            how = f"{code}: {words}" if 0 < code < SIGNALLED else ""
            s.reuse = s.reuse and not worker.goes_on_from  # perhaps its script cannot run twice in one process
            failed(s, job, text, now_s, counts=not (code in NOT_ITS_FAULT or worker.goes_on_from), how=how)
    if own is None:
        _end_with_coordinator(s, job, worker, now_s)
    s.mark()
    over(s, job, now_s)


def _quoted(text: str) -> str:
    """The last exception that a text names, or its last line."""
    lines = [line.strip() for part in text.strip().splitlines() for line in part.split(" | ") if line.strip()]
    named = next((k for k in reversed(range(len(lines))) if EXCEPTION.match(lines[k])), len(lines) - 1)
    return "; ".join(lines[named:])[:300] if lines else ""


def over(s: SavedState, job: Job, now_s: float) -> None:
    """If every worker has ended, close the launch: the rung is done, the job waits again, or it has failed."""
    if not job.active or any(w.exit_code is None for w in job.workers):
        return
    done = all(w.exit_code == 0 for w in job.workers) or _coordinated_to_end(s, job)
    if done and job.workers[0].reported_exit is None and not _settled(s, job, now_s):
        return
    results.ended(job, now_s, "" if done else job.stop_reason)
    job.workers = []
    if done:
        job.step = max(job.step, job.until_step)
        verdict = s.scheduler.on_result(job.job_id, job.value)
        job.state = jobs.PENDING if verdict is Verdict.CONTINUE else jobs.PAUSED
    elif job.stop_failed and (job.hopeless or job.failures > s.spec.max_retries):
        job.state = jobs.FAILED
        s.scheduler.on_failure(job.job_id)
    else:
        job.state = jobs.PENDING
    _restate(s)
    s.mark()


def _end_with_coordinator(s: SavedState, job: Job, ended: Worker, now_s: float) -> None:
    """Stop the containers that only serve once the coordinator's worker has ended, however it did."""
    if s.spec.servers and ended is job.workers[0]:
        _stop_containers(s, job.workers[1:])
        for worker in job.workers[1:]:
            worker.reported_exit_s = now_s


def _served(s: SavedState, job: Job, worker: Worker) -> bool:
    """Whether this worker only served a coordinator that has ended, whose own end says how the launch ended."""
    first = job.workers[0]
    ended = first.reported_exit is not None or first.exit_code is not None
    return s.spec.servers > 0 and worker is not first and ended


def _coordinated_to_end(s: SavedState, job: Job) -> bool:
    """Whether the coordinator of parameter servers has finished; its servers and workers never end by themselves."""
    return s.spec.servers > 0 and 0 in (job.workers[0].reported_exit, job.workers[0].exit_code)


def _settled(s: SavedState, job: Job, now_s: float) -> bool:
    """Whether the wait for the chief's final metric, which decides the rung, is over; not while the Arbiter is away."""
    if not job.settle_s:
        job.settle_s = now_s + SETTLE_S
    return s.registered and now_s >= job.settle_s


def _restate(s: SavedState) -> None:
    """Update the states of jobs without a gang, after the app scheduler's decision."""
    runnable = set(s.scheduler.runnable())
    for job in s.jobs.values():
        if job.active or job.state == jobs.FAILED:
            continue
        if job.job_id in runnable:
            job.state = jobs.PENDING
        elif s.scheduler.waits(job.job_id):
            job.state = jobs.PAUSED
        else:
            whole = job.until_step == s.spec.max_iterations and job.step >= job.until_step
            job.state = jobs.DONE if whole else jobs.STOPPED


# ---- time


def watch(s: SavedState, job: Job, now_s: float) -> None:
    """Enforce the timeouts: incomplete gangs, silent workers, and stops that were not obeyed."""
    over(s, job, now_s)
    if not job.active:
        return
    if job.state == jobs.STOPPING:
        if now_s >= job.stop_again_s:
            _stop_containers(s, job.workers)
            job.stop_again_s = now_s + STOP_AGAIN_S
        _lose_untold(s, job, now_s)
        return
    _stop_leftover(s, job, now_s)
    if not s.registered:
        return
    if job.use_again_s and now_s >= job.use_again_s:
        send_use(s, job)
    missing = [w for w in job.workers if not w.container_id]
    own = not missing and not job.workers[0].goes_on_from
    limit_s = COPY_S if own else GANG_TIMEOUT_S
    if job.state == jobs.STARTING and now_s > job.since_s + limit_s:
        names = ", ".join(w.worker_id for w in missing or job.workers if not w.address)
        why = ": its files are still being copied, or its container did not start" if own else ""
        failed(s, job, f"no gang within {limit_s:g} s: {names}{why}", now_s, counts=own)
        s.give_back([g for w in missing for g in w.gpus], "no container came")
    elif job.state == jobs.RUNNING:
        silent = next((w for w in job.workers if w.exit_code is None and now_s > w.last_heard_s + SILENCE_S), None)
        if silent is not None:
            failed(s, job, f"worker {silent.worker_id} on {silent.host} is silent", now_s)


def _lose_untold(s: SavedState, job: Job, now_s: float) -> None:
    for worker in list(job.workers):
        silent = now_s > max(job.stop_deadline_s, worker.last_heard_s) + GONE_S
        if silent and s.registered and worker.container_id and worker.exit_code is None:
            why = f"YARN did not tell of its end within {GONE_S:g} s"
            container_gone(s, worker.container_id, -100, why, now_s)


def _stop_leftover(s: SavedState, job: Job, now_s: float) -> None:
    for worker in job.workers:
        said = worker.reported_exit is not None or _coordinated_to_end(s, job)
        if said and worker.exit_code is None and now_s > worker.reported_exit_s + EXIT_GRACE_S:
            worker.reported_exit_s = now_s
            s.shell(stop=am.AmStop(container_id=worker.container_id))


def lose_unadopted(s: SavedState, now_s: float) -> None:
    """After a restart: treat workers as lost if YARN has not reported their containers within ADOPT_S."""
    if s.adopt_until_s is None or now_s < s.adopt_until_s:
        return
    s.adopt_until_s = None
    for _, worker in list(s.workers()):
        if worker.container_id and worker.container_id not in s.adopted:
            container_gone(s, worker.container_id, -100, "not there after the restart", now_s)
