"""The Agent's mind: a pure state machine from events to commands.

Events are messages of the Arbiter and of the AM shell, and the passing of time; commands are messages to
both, and requests to save or to publish. Invariants: a worker uses GPUs that the app holds; a gang is
launched whole and ended whole; a GPU that no job can use is given back.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pycontrol.auction.placing import place_gang
from pycontrol.model.topology import Gpu, Machine, Scope, Topology
from pycontrol.wire.v1 import agent_pb2 as pb
from pycontrol.wire.v1 import am_pb2 as am
from submarine_patch.agent import bids, jobs
from submarine_patch.agent.jobs import Job, Worker
from submarine_patch.agent.profiler import Profiler
from submarine_patch.agent.schedulers import RungScheduler
from submarine_patch.agent.spec import AppSpec

GANG_TIMEOUT_S = 120.0
STOP_GRACE_S = 15.0
SILENCE_S = 60.0
PROGRESS_S = 1.0
RESTART_PRIOR_S = 10.0
STOPPED_CODE = 75
NOT_ITS_FAULT = {-100, -101, -102, -105, -106, -107, -108}
"""YARN's exit codes for containers that were lost, preempted or killed by the framework."""


@dataclass(frozen=True, slots=True)
class ToArbiter:
    """A message for the Arbiter."""

    message: pb.AgentMessage


@dataclass(frozen=True, slots=True)
class ToShell:
    """A command for the AM shell."""

    command: am.AmCommand


@dataclass(frozen=True, slots=True)
class Publish:
    """Copy the winner's newest checkpoint to where the user wants the model."""

    job_id: str
    from_dir: str
    to_dir: str


@dataclass(frozen=True, slots=True)
class End:
    """Nothing is left to do."""

    succeeded: bool


Command = ToArbiter | ToShell | Publish | End


class Brain:
    """The state of one app, kept in the AM."""

    def __init__(self, spec: AppSpec, attempt_id: str = "", saved: Mapping[str, Any] | None = None) -> None:
        self.spec = spec
        self.attempt_id = attempt_id
        self.profiler = Profiler(spec.iteration_s, spec.slowdown)
        self.scheduler = RungScheduler.load(spec, saved["scheduler"]) if saved else RungScheduler(spec)
        self.jobs: dict[str, Job] = {}
        self.held: dict[Gpu, str] = {}
        """GPUs it may use, with their grant."""
        self.next_request = 1
        self.attempt_failures = 0
        self.topology = Topology()
        self.virtual: set[str] = set()
        self.contention = pb.Contention(cluster_gpus=1, n_avg=1.0, lease_s=600.0)
        self.registered = False
        self.ending: str | None = None
        """Why the app ends, once it does."""
        self.succeeded = False
        self.published = False
        self.model_path = ""
        self.restart_s = RESTART_PRIOR_S
        self.changed = False
        """Something worth saving changed."""
        self._out: list[Command] = []
        self._progress_due_s = 0.0
        self._dirty = True
        self._commands = 0
        self._adopted_until_s: float | None = None
        self._adopted: set[str] = set()
        self._done_said = False
        if saved:
            self._restore(saved)

    # ---- saved state

    def dump(self) -> dict[str, Any]:
        """What a later attempt needs, JSON-able."""
        return {
            "scheduler": self.scheduler.dump(),
            "jobs": [j.dump() for j in self.jobs.values()],
            "next_request": self.next_request,
            "ending": self.ending,
            "succeeded": self.succeeded,
        }

    def _restore(self, saved: Mapping[str, Any]) -> None:
        self.jobs = {j["job_id"]: Job.load(j) for j in saved["jobs"]}
        self.next_request = saved["next_request"]
        self.ending, self.succeeded = saved["ending"], saved["succeeded"]
        for job in self.jobs.values():
            for worker in job.workers:
                self.held.update(dict.fromkeys(worker.gpus, ""))
                worker.asked = bool(worker.container_id)
            job.use_accepted = all(w.container_id for w in job.workers) and job.active

    def restored(self, now_s: float) -> None:
        """After a restart: containers that are not adopted soon are taken for lost."""
        self._adopted_until_s = now_s + 5.0

    # ---- the machine

    def handle(self, event: object, now_s: float) -> list[Command]:
        """Takes one event (a protobuf message, or None for the passing of time)."""
        if isinstance(event, pb.ArbiterMessage):
            kind = event.WhichOneof("kind")
            getattr(self, f"_on_{kind}")(getattr(event, kind), now_s)
        elif isinstance(event, am.AmEvent):
            kind = event.WhichOneof("kind")
            getattr(self, f"_am_{kind}")(getattr(event, kind), now_s)
        self._tick(now_s)
        out, self._out = self._out, []
        return out

    def published_model(self, path: str, problem: str, now_s: float) -> list[Command]:
        """The winner's model is where the user wants it, or could not be put there."""
        self.published, self.model_path = True, path
        if problem:
            self.succeeded, self.ending = False, f"the model could not be published: {problem}"
        return self.handle(None, now_s)

    def _send(self, **kind: Any) -> None:
        self._out.append(ToArbiter(pb.AgentMessage(**kind)))

    def _shell(self, **kind: Any) -> None:
        self._commands += 1
        unique = f"{self.attempt_id}/{self._commands}"
        self._out.append(ToShell(am.AmCommand(id=unique, **kind)))

    def _mark(self) -> None:
        self.changed = self._dirty = True

    # ---- rho and bids

    def _serial_steps(self) -> dict[str, int]:
        return {j.job_id: j.step for j in self.jobs.values()}

    def work_done_gpu_s(self) -> float:
        """Serial GPU-seconds of all steps done."""
        return sum(j.step for j in self.jobs.values()) * self.profiler.serial_s()

    def _app(self, c: pb.Contention) -> bids.AppWork:
        done = self.work_done_gpu_s()
        phases = bids.work_left(self.scheduler, self._serial_steps(), self.profiler, c.lease_s, done)
        return bids.app_work(phases, self.scheduler, c, done)

    def demand(self) -> pb.Demand:
        """What it could use now."""
        runnable = len(self.scheduler.runnable()) if self.ending is None else 0
        done = self.work_done_gpu_s()
        left = self._app(self.contention).left_gpu_s if runnable else 0.0
        return pb.Demand(
            gang_gpus=max(1, self.spec.gang_gpus),
            gangs=runnable if self.spec.gang_gpus else 0,
            job_demand_max=self.spec.gang_gpus,
            work_left_gpu_s=left,
            work_total_gpu_s=done + left,
            work_done_gpu_s=done,
            paced=bool(self.virtual),
        )

    def _gangs(self, ending: set[Gpu]) -> tuple[list[float], list[tuple[pb.Gang, float]]]:
        """Slowdowns of the gangs that stay, and the gangs on offer with theirs."""
        kept, offered = [], []
        for job in self.jobs.values():
            if not job.active or job.state == jobs.STOPPING:
                continue
            slowdown = self.profiler.slowdown(bids.scope_of([w.host for w in job.workers], self.topology))
            if set(job.gpus) & ending:
                gang = pb.Gang(machines=[pb.MachineGpus(host=h, gpus=n) for h, n in _by_host(job.gpus)])
                offered.append((gang, slowdown))
            else:
                kept.append(slowdown)
        return kept, offered

    def _on_ask_rho(self, m: pb.AskRho, now_s: float) -> None:
        self.contention = m.contention
        kept, _ = self._gangs(_gpus(m.ending))
        rho = bids.rho_of(self._app(m.contention), kept, m.contention.lease_s)
        self._send(rho=pb.Rho(round_id=m.round_id, rho=rho, demand=self.demand()))

    def _on_offer(self, m: pb.Offer, now_s: float) -> None:
        self.contention = m.contention
        kept, ending = self._gangs(_gpus(m.ending))
        offered = sum(x.gpus for x in m.machines)
        count = len(self.scheduler.runnable())
        bid = bids.make_bid(
            m.round_id, self._app(m.contention), kept, ending, offered, count, self.profiler,
            m.contention.lease_s, self.restart_s,
        )  # fmt: skip
        self._send(bid=bid)

    # ---- leases

    def _on_registered(self, m: pb.Registered, now_s: float) -> None:
        self.registered = True
        self.contention = m.contention
        self.topology = Topology.of(
            Machine(h.host, h.rack, h.gpus, h.gpu_type or "gpu", h.virtual_gpus) for h in m.hosts
        )
        self.virtual = {h.host for h in m.hosts if h.virtual_gpus}
        granted = {g: grant.grant_id for grant in m.grants for g in _gpus(grant.gpus)}
        lost = [g for g in self.held if g not in granted]
        self.held = granted
        if lost:
            self._lose(set(lost), now_s + STOP_GRACE_S, "the lease is over", now_s)
        for job in self.jobs.values():
            if job.active and not all(w.container_id for w in job.workers):
                self._send_use(job)
        self._dirty = True

    def _on_grant(self, m: pb.Grant, now_s: float) -> None:
        for gpu in _gpus(m.gpus):
            self.held[gpu] = m.grant_id
        if not m.renewal:
            self._mark()

    def _on_revoke(self, m: pb.Revoke, now_s: float) -> None:
        self._lose(_gpus(m.gpus), m.deadline_s, m.reason, now_s)

    def _lose(self, gpus: set[Gpu], deadline_s: float, reason: str, now_s: float) -> None:
        for gpu in gpus:
            self.held.pop(gpu, None)
        for job in self.jobs.values():
            if set(job.gpus) & gpus:
                self._stop(job, deadline_s, reason, now_s)
        self._mark()

    def _on_use_reply(self, m: pb.UseReply, now_s: float) -> None:
        job = next((j for j in self.jobs.values() if j.use_id == m.use_id and j.active), None)
        if job is None:
            return
        if m.accepted:
            job.use_accepted = True
            for worker in job.workers:
                self._ask(worker)
            self._mark()
            return
        stale = [g for g in job.gpus if g in self.held]
        for gpu in stale:
            del self.held[gpu]
        self._give_back(stale, f"plan refused: {m.reason}")
        self._stop(job, now_s, m.reason, now_s)

    def _on_finish(self, m: pb.Finish, now_s: float) -> None:
        if self.ending is None:
            self.ending, self.succeeded = m.reason or "ended by the operator", False
            self._mark()

    # ---- launching gangs

    def _job(self, job_id: str) -> Job:
        if job_id not in self.jobs:
            self.jobs[job_id] = Job(job_id, self.scheduler.configurations[job_id])
        return self.jobs[job_id]

    def _assign(self, now_s: float) -> None:
        """Gives free GPUs to jobs that wait, whole gangs as close together as can be; the rest goes back."""
        if not self.registered or self.ending is not None:
            return
        used = {g for j in self.jobs.values() for g in j.gpus}
        free = sorted(g for g in self.held if g not in used)
        waiting = [j for j in map(self._job, self.scheduler.runnable()) if not j.active]
        while waiting and free and self.spec.gang_gpus:
            gang = place_gang(self.spec.gang_gpus, Scope.CLUSTER, dict(_by_host(free)), self.topology)
            if gang is None:
                break
            gpus = [g for host, n in gang for g in [x for x in free if x.host == host][:n]]
            free = [g for g in free if g not in gpus]
            self._launch(waiting.pop(0), gpus, now_s)
        # A gang that is being stopped waits again in a moment, perhaps for these very GPUs.
        if free and not any(j.state == jobs.STOPPING for j in self.jobs.values()):
            for gpu in free:
                del self.held[gpu]
            self._give_back(free, "no job can use them")

    def _give_back(self, gpus: list[Gpu], reason: str) -> None:
        if gpus:
            by_host = [
                pb.MachineGpuIds(host=h, gpu_ids=[g.index for g in gpus if g.host == h])
                for h in sorted({g.host for g in gpus})
            ]
            self._send(released=pb.Released(gpus=by_host, reason=reason))

    def _launch(self, job: Job, gpus: list[Gpu], now_s: float) -> None:
        job.launches += 1
        job.state, job.started, job.use_accepted = jobs.STARTING, False, False
        job.until_step, job.since_s, job.first_step_s = self.scheduler.until_step(), now_s, 0.0
        job.rung = self.scheduler.bracket.rung if self.scheduler.bracket else 0
        job.stop_deadline_s, job.stop_reason = 0.0, ""
        job.use_id = f"{job.job_id}/{job.launches}"
        job.workers = []
        for rank, host in enumerate(sorted({g.host for g in gpus})):
            ids = [g.index for g in gpus if g.host == host]
            job.workers.append(Worker(f"{job.use_id}/{rank}", host, ids, self.next_request, heard_s=now_s))
            self.next_request += 1
        self._send_use(job)
        self._mark()

    def _send_use(self, job: Job) -> None:
        plans = [
            pb.WorkerPlan(
                worker_id=w.worker_id,
                job_id=job.job_id,
                host=w.host,
                gpu_ids=w.gpu_ids,
                allocation_request_id=w.request_id,
            )
            for w in job.workers
            if not w.container_id
        ]
        self._send(use=pb.Use(use_id=job.use_id, workers=plans))

    def _ask(self, worker: Worker) -> None:
        if worker.asked or worker.container_id:
            return
        worker.asked = True
        self._shell(
            ask=am.AmAsk(
                allocation_request_id=worker.request_id,
                gpus=len(worker.gpu_ids),
                memory_mb=self.spec.memory_mb,
                vcores=self.spec.vcores,
                priority=1,
            )
        )

    def _container(self, job: Job, worker: Worker, container_id: str) -> None:
        env = {
            **self.spec.env,
            "ISONOMY_ARBITER": self.spec.arbiter,
            "ISONOMY_APP_ID": self.spec.app_id,
            "ISONOMY_JOB_ID": job.job_id,
            "ISONOMY_WORKER_ID": worker.worker_id,
            "ISONOMY_HOST": worker.host,
            "ISONOMY_WEBHDFS": self.spec.webhdfs,
            "ISONOMY_CHECKPOINT_DIR": self.checkpoint_dir(job),
            "HADOOP_USER_NAME": self.spec.hdfs_user,
        }
        command = f"{self.spec.python} -m submarine_patch.worker -- {_quote(self.spec.command(job.configuration))}"
        resources = [
            am.AmResource(name=r["name"], uri=r["uri"], archive=bool(r.get("archive"))) for r in self.spec.resources
        ]
        worker.container_id = container_id
        self._shell(launch=am.AmLaunch(container_id=container_id, command=command, env=env, resources=resources))

    def checkpoint_dir(self, job: Job) -> str:
        """Where the job's checkpoints lie: apart for each app and job."""
        return f"{self.spec.checkpoint.rstrip('/')}/{self.spec.app_id}/{job.job_id}"

    def _start_gang(self, job: Job) -> None:
        """All workers have registered: TF_CONFIG for each, chief first."""
        addresses = [f"{w.ready[0]}:{w.ready[1]}" for w in job.workers if w.ready]
        hosts = [w.host for w in job.workers]
        scope = bids.scope_of(hosts, self.topology)
        pacing = ""
        if self.virtual & set(hosts):
            pacing = json.dumps(
                {
                    "serial_iter_s": self.spec.iteration_s or 1.0,
                    "slowdown": self.spec.slowdown[scope - 1],
                    "gpus": len(job.gpus),
                }
            )
        for rank, worker in enumerate(job.workers):
            tf_config = ""
            if len(job.workers) > 1:
                task = {"type": "worker", "index": rank}
                tf_config = json.dumps({"cluster": {"worker": addresses}, "task": task})
            start = pb.Start(
                tf_config=tf_config,
                until_step=job.until_step,
                checkpoint_dir=self.checkpoint_dir(job),
                configuration=job.configuration,
                pacing=pacing,
            )
            self._send(to_worker=pb.WorkerCommand(worker_id=worker.worker_id, start=start))
        job.started, job.state = True, jobs.RUNNING
        self._mark()

    # ---- stopping gangs

    def _stop(self, job: Job, deadline_s: float, reason: str, now_s: float) -> None:
        """Asks all workers of a gang to checkpoint and end; those without a container simply are no more."""
        if not job.active:
            return
        if job.state != jobs.STOPPING or deadline_s < job.stop_deadline_s:
            job.stop_deadline_s = deadline_s
        if job.state == jobs.STOPPING:
            return
        job.state, job.stop_reason = jobs.STOPPING, reason
        for worker in list(job.workers):
            if worker.exit_code is not None:
                continue
            if worker.container_id:
                stop = pb.Stop(deadline_s=deadline_s, reason=reason)
                self._send(to_worker=pb.WorkerCommand(worker_id=worker.worker_id, stop=stop))
            else:
                if worker.asked:
                    self._shell(withdraw=am.AmWithdraw(allocation_request_id=worker.request_id))
                worker.exit_code = STOPPED_CODE
        self._mark()
        self._gang_over(job, now_s)

    def _gang_over(self, job: Job, now_s: float) -> None:
        """Once every worker has ended: the rung is done, or the job waits again, or it failed."""
        if not job.active or any(w.exit_code is None for w in job.workers):
            return
        codes = [w.exit_code for w in job.workers]
        stopping, job.workers = job.state == jobs.STOPPING, []
        if all(c == 0 for c in codes):
            job.step = max(job.step, job.until_step)
            verdict = self.scheduler.on_result(job.job_id, job.loss, job.accuracy)
            job.state = jobs.PENDING if verdict == "continue" else jobs.PAUSED
        elif stopping and not job.stop_reason.startswith("worker failed"):
            job.state = jobs.PENDING
        elif job.failures > self.spec.max_retries:
            job.state = jobs.FAILED
            self.scheduler.on_failure(job.job_id)
        else:
            job.state = jobs.PENDING
        self._mark()

    def _worker_failed(self, job: Job, worker: Worker, code: int, why: str, now_s: float) -> None:
        if code not in NOT_ITS_FAULT:
            job.failures += 1
        self._stop(job, now_s + STOP_GRACE_S, f"worker failed: {worker.worker_id} ended with {code} {why}", now_s)

    # ---- the AM shell's events

    def _find(self, container_id: str) -> tuple[Job, Worker] | None:
        for job in self.jobs.values():
            for worker in job.workers:
                if worker.container_id == container_id:
                    return job, worker
        return None

    def _am_allocated(self, m: am.AmContainer, now_s: float) -> None:
        for job in self.jobs.values():
            for worker in job.workers:
                if (
                    worker.request_id == m.allocation_request_id
                    and not worker.container_id
                    and worker.exit_code is None
                ):
                    worker.heard_s = now_s
                    self._container(job, worker, m.container_id)
                    self._mark()
                    return
        self._shell(release=am.AmRelease(container_id=m.container_id))

    def _am_adopted(self, m: am.AmContainer, now_s: float) -> None:
        found = self._find(m.container_id)
        if found is None:
            for job in self.jobs.values():
                for worker in job.workers:
                    if worker.request_id == m.allocation_request_id and not worker.container_id:
                        worker.container_id, found = m.container_id, (job, worker)
        if found is None:
            self._shell(stop=am.AmStop(container_id=m.container_id))
            return
        found[1].heard_s = now_s
        found[1].asked = True
        self._adopted.add(m.container_id)

    def _am_started(self, container_id: str, now_s: float) -> None:
        """Nothing to do: the worker will register."""

    def _am_start_error(self, m: am.AmContainerError, now_s: float) -> None:
        self._completed(m.container_id, 1, m.message, now_s)
        self._shell(release=am.AmRelease(container_id=m.container_id))

    def _am_completed(self, m: am.AmCompleted, now_s: float) -> None:
        self._completed(m.container_id, m.exit_status, m.diagnostics, now_s)

    def _completed(self, container_id: str, code: int, why: str, now_s: float) -> None:
        found = self._find(container_id)
        if found is None or found[1].exit_code is not None:
            return
        job, worker = found
        worker.exit_code = code
        if code not in (0, STOPPED_CODE) and job.state != jobs.STOPPING:
            self._worker_failed(job, worker, code, why.strip()[-200:], now_s)
        elif code == STOPPED_CODE and job.state != jobs.STOPPING:
            self._stop(job, now_s + STOP_GRACE_S, "a worker was stopped", now_s)
        self._gang_over(job, now_s)

    def _am_preempt(self, m: am.AmPreempt, now_s: float) -> None:
        """The Arbiter's Revoke says the same, with a deadline."""

    def _am_shutdown(self, why: str, now_s: float) -> None:
        self.ending, self.succeeded = why or "the ResourceManager ended the app", False
        self._mark()

    # ---- workers

    def _on_from_worker(self, m: pb.WorkerMessage, now_s: float) -> None:
        found = next(((j, w) for j in self.jobs.values() for w in j.workers if w.worker_id == m.worker_id), None)
        if found is None:
            stop = pb.Stop(deadline_s=now_s + STOP_GRACE_S, reason="unknown to the Agent")
            if m.WhichOneof("kind") == "ready":
                self._send(to_worker=pb.WorkerCommand(worker_id=m.worker_id, stop=stop))
            return
        job, worker = found
        worker.heard_s = now_s
        kind = m.WhichOneof("kind")
        if kind == "ready":
            worker.ready = [m.ready.host, m.ready.port]
            if job.state == jobs.STARTING and all(w.ready for w in job.workers):
                self._start_gang(job)
        elif kind == "progress" and worker is job.workers[0]:
            self._progressed(job, m.progress, now_s)

    def _progressed(self, job: Job, p: pb.WorkerProgress, now_s: float) -> None:
        job.step, job.loss, job.iter_time_s = max(job.step, p.step), p.loss, p.iter_time_s
        if p.accuracy:
            job.accuracy = p.accuracy
        if not job.first_step_s:
            job.first_step_s = now_s
            self.restart_s = 0.5 * self.restart_s + 0.5 * min(120.0, now_s - job.since_s)
        scope = bids.scope_of([w.host for w in job.workers], self.topology)
        self.profiler.add(p.iter_time_s, len(job.gpus), scope)
        self._dirty = True

    def _on_worker_gone(self, m: pb.WorkerGone, now_s: float) -> None:
        """Its container's end decides; a broken stream alone does not."""

    # ---- time

    def _tick(self, now_s: float) -> None:
        self._lose_unadopted(now_s)
        for job in list(self.jobs.values()):
            if job.active:
                self._watch(job, now_s)
        self._assign(now_s)
        self._finish(now_s)
        if self._dirty and self.registered and now_s >= self._progress_due_s:
            self._dirty, self._progress_due_s = False, now_s + PROGRESS_S
            self._send(progress=self._progress())

    def _lose_unadopted(self, now_s: float) -> None:
        if self._adopted_until_s is None or now_s < self._adopted_until_s:
            return
        self._adopted_until_s = None
        for job in self.jobs.values():
            for worker in job.workers:
                if worker.container_id and worker.container_id not in self._adopted:
                    self._completed(worker.container_id, -100, "not adopted", now_s)

    def _watch(self, job: Job, now_s: float) -> None:
        """Gangs that do not come together, silent workers, and stops that are not obeyed."""
        if job.state == jobs.STOPPING:
            if now_s >= job.stop_deadline_s:
                for worker in job.workers:
                    if worker.exit_code is None and worker.container_id:
                        self._shell(stop=am.AmStop(container_id=worker.container_id))
                job.stop_deadline_s = now_s + 5.0
            return
        launched = all(w.container_id for w in job.workers)
        silent = [w for w in job.workers if w.exit_code is None and now_s - w.heard_s > SILENCE_S]
        if launched and job.state == jobs.STARTING and silent:
            job.failures += 1
            self._stop(job, now_s + STOP_GRACE_S, f"worker failed: {silent[0].worker_id} did not register", now_s)
        elif job.state == jobs.RUNNING and silent and self.registered:
            job.failures += 1
            self._stop(job, now_s + STOP_GRACE_S, f"worker failed: {silent[0].worker_id} is silent", now_s)

    def _finish(self, now_s: float) -> None:
        """The end of the app: model published, Done said, the shell told."""
        if self.ending is None:
            if not self.scheduler.finished:
                return
            best = self.scheduler.best()
            self.succeeded = best is not None
            self.ending = "the best model is found" if best else "every job failed"
            self._mark()
        if any(j.active for j in self.jobs.values()):
            for job in self.jobs.values():
                self._stop(job, now_s + STOP_GRACE_S, self.ending, now_s)
            if any(j.active for j in self.jobs.values()):
                return
        best = self.scheduler.best() if self.succeeded else None
        if best is not None and not self.published:
            if self.model_path != "asked":
                self.model_path = "asked"
                target = self.spec.saved_model
                self._out.append(Publish(best, self.checkpoint_dir(self.jobs[best]), target))
            return
        self._done(best)

    def _done(self, best: str | None) -> None:
        if self._done_said:
            return
        self._done_said = True
        winner = self.jobs.get(best or "")
        self._send(progress=self._progress())
        self._send(
            done=pb.Done(
                succeeded=self.succeeded,
                message=self.ending or "",
                best_job_id=best or "",
                best_configuration=winner.configuration if winner else {},
                best_accuracy=winner.accuracy if winner else 0.0,
                work_done_gpu_s=self.work_done_gpu_s(),
                model_path=self.model_path if winner else "",
            )
        )
        self._shell(finish=am.AmFinish(succeeded=self.succeeded, message=self.ending or ""))
        self._out.append(End(self.succeeded))

    def register(self) -> pb.AgentMessage:
        """The first message of each stream."""
        return pb.AgentMessage(
            register=pb.Register(
                app_id=self.spec.app_id,
                attempt_id=self.attempt_id,
                app_scheduler=self.spec.app_scheduler,
                grant_ids=sorted(set(filter(None, self.held.values()))),
                demand=self.demand(),
            )
        )

    def _progress(self) -> pb.Progress:
        reports = []
        for job in self.jobs.values():
            scope = bids.scope_of([w.host for w in job.workers], self.topology) if job.active else Scope.MACHINE
            reports.append(
                pb.JobProgress(
                    job_id=job.job_id,
                    state=job.state,
                    configuration=job.configuration,
                    step=job.step,
                    loss=job.loss,
                    accuracy=job.accuracy,
                    iter_time_s=job.iter_time_s,
                    slowdown=self.profiler.slowdown(scope),
                    gpus=len(job.gpus),
                    rung=job.rung,
                    launches=job.launches,
                    worker_failures=job.failures,
                )
            )
        kept, _ = self._gangs(set())
        rho = bids.rho_of(self._app(self.contention), kept, self.contention.lease_s) if self.ending is None else 0.0
        return pb.Progress(demand=self.demand(), jobs=reports, rho=rho)


def _gpus(machines: Any) -> set[Gpu]:
    return {Gpu(m.host, i) for m in machines for i in m.gpu_ids}


def _by_host(gpus: list[Gpu]) -> list[tuple[str, int]]:
    hosts = sorted({g.host for g in gpus})
    return [(h, sum(g.host == h for g in gpus)) for h in hosts]


def _quote(text: str) -> str:
    return "'" + text.replace("'", "'\"'\"'") + "'"
