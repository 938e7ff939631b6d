"""The Agent's state; `agent_core`, `gangs`, `app_leases` and `report` are functions over it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pycontrol.fairness.elastic import Elastic
from pycontrol.fairness.slowdown import Profiler
from pycontrol.model.topology import Gpu, Scope, Topology
from pycontrol.wire.v1 import agent_pb2 as pb
from pycontrol.wire.v1 import am_pb2 as am
from submarine_patch.agent import jobs, schedulers
from submarine_patch.agent.jobs import Job, Worker
from submarine_patch.agent.messages import Command, NotifyWebhook
from submarine_patch.agent.scaling import Scaling
from submarine_patch.agent.schedulers.port import Profile
from submarine_patch.agent.spec import AppSpec
from submarine_patch.agent.speeds import Speeds

RESTART_PRIOR_S = 10.0
"""Assumed time from a grant to the first step, until it is measured."""
ADOPT_S = 10.0
"""After a restart, containers that YARN has not reported by then count as lost."""
TOKEN_WARNING_S = 86400.0
REQUESTS_PER_ATTEMPT = 1_000_000


@dataclass(frozen=True, slots=True)
class HeldGpu:
    """A GPU that the app may use."""

    grant_id: str
    available_s: float = 0.0
    """When its previous holder is gone at the latest, Unix seconds."""


class SavedState:
    """All state of the Agent.

    Invariants: a worker uses only GPUs that the app holds or is losing; a gang is launched whole and ends whole; a
    held GPU is used by one job, reserved for a stopping job, or released.
    """

    def __init__(self, spec: AppSpec, attempt: int = 1, saved: Mapping[str, Any] | None = None) -> None:
        self.spec = spec
        self.attempt = attempt
        self.attempt_id = f"{spec.app_id.replace('application', 'appattempt')}_{attempt:06d}"
        self.profiler = Profiler(spec.iteration_s, spec.slowdown, spec.guess_s)
        self.speeds = Speeds(spec)
        self.scaling = Scaling(spec.gang_gpus)
        self.scheduler = schedulers.create(spec, saved["scheduler"] if saved else None)
        self.jobs: dict[str, Job] = {}
        self.held: dict[Gpu, HeldGpu] = {}
        self.freed: list[pb.Released] = []
        """What was given back, and the Arbiter is not told yet."""
        self.next_request = attempt * REQUESTS_PER_ATTEMPT + 1
        self.topology = Topology()
        self.virtual: set[str] = set()
        self.contention = pb.Contention(cluster_gpus=1, n_avg=1.0, lease_s=600.0)
        self.registered = False
        """Whether Registered has arrived on the present stream."""
        self.on_offer: frozenset[str] = frozenset()
        """Jobs whose gangs the Arbiter knew when the present round began."""
        self.ending: str | None = None
        """Why the app ends; None while it runs."""
        self.succeeded = self.killed = False
        self.publishing = self.published = self.done_sent = False
        self.model_path = ""
        self.start_told = False
        """Whether the webhook was notified that the app has started."""
        self.token_ends_s = 0.0
        """When the app's HDFS token finally expires, Unix seconds; 0: there is none."""
        self.token_warns_s = 0.0
        self.token_told = False
        """Whether jobs' notes say that the token expires."""
        self.board_port = 0
        """Where TensorBoard listens beside the Agent; 0: nowhere (yet)."""
        self.board_problem = ""
        self.reuse = spec.reusable
        """Whether the processes of jobs may be used again."""
        self.waiting: dict[str, Worker] = {}
        """By container: the ended workers with a process that waits for another launch on its GPUs."""
        self.leaving: dict[str, tuple[Worker, float]] = {}
        """By container: those that were told to end, and when their containers are stopped."""
        self.restart_s = RESTART_PRIOR_S
        self.adopted: set[str] = set()
        self.adopt_until_s: float | None = None
        self.changed = False
        """Whether the state must be saved."""
        self.report_due = True
        self.report_from_s = 0.0
        self.reported_fraction = 0.0
        self.out: list[Command] = []
        self._commands = 0
        if saved is not None:
            self._restore(saved)

    # ---- saved state

    def dump(self) -> dict[str, Any]:
        """The state that a later attempt needs, as JSON values."""
        return {
            "scheduler": self.scheduler.dump(),
            "profiler": self.profiler.dump(),
            "speeds": self.speeds.dump(),
            "scaling": self.scaling.dump(),
            "jobs": [j.dump() for j in self.jobs.values()],
            "restart_s": self.restart_s,
            "ending": self.ending,
            "succeeded": self.succeeded,
            "killed": self.killed,
            "start_told": self.start_told,
            "reuse": self.reuse,
        }

    def _restore(self, saved: Mapping[str, Any]) -> None:
        self.profiler.restore(saved["profiler"])
        self.speeds.restore(saved.get("speeds", {"times": {}}))
        self.scaling.restore(saved.get("scaling", ()))
        self.jobs = {j["job_id"]: Job.load(j) for j in saved["jobs"]}
        self.restart_s = saved["restart_s"]
        self.ending, self.succeeded = saved["ending"], saved["succeeded"]
        self.killed = bool(saved.get("killed"))
        self.start_told = bool(saved.get("start_told"))
        self.reuse = bool(saved.get("reuse"))
        for job in self.jobs.values():
            self.held.update((g, HeldGpu("")) for g in job.gpus)
            job.use_accepted, job.use_again_s = False, 0.0
            for worker in job.workers:
                worker.asked = bool(worker.container_id)

    def has_token(self, issued_s: float, ends_s: float) -> None:
        """Note the app's HDFS token; warn a day, or a quarter of its life if that is less, before it expires."""
        self.token_ends_s, self.token_warns_s = ends_s, ends_s - min(TOKEN_WARNING_S, (ends_s - issued_s) / 4.0)
        self.report_due = self.report_due or self.token_told
        self.token_told = False

    def restarted(self, now_s: float) -> None:
        """Start the ADOPT_S wait for the containers of an earlier attempt."""
        self.adopt_until_s = now_s + ADOPT_S
        self.heard_all(now_s)

    # ---- out

    def send(self, **kind: Any) -> None:
        """Send a message to the Arbiter."""
        self.out.append(pb.AgentMessage(**kind))

    def shell(self, **kind: Any) -> None:
        """Send a command to the AM shell, with a unique id."""
        self._commands += 1
        self.out.append(am.AmCommand(id=f"{self.attempt_id}/{self._commands}", **kind))

    def stop_worker(self, worker_id: str, deadline_s: float, reason: str, now_s: float) -> None:
        """Ask a worker to end by the deadline."""
        stop = pb.Stop(deadline_s=deadline_s, left_s=max(0.0, deadline_s - now_s), reason=reason)
        self.send(to_worker=pb.WorkerCommand(worker_id=worker_id, stop=stop))

    def notify(self, event: str, at_s: float, **more: Any) -> None:
        """Post an event to the app's webhook, if it has one."""
        if self.spec.notify:
            known = {"app_id": self.spec.app_id, "name": self.spec.name, "user": self.spec.hdfs_user}
            self.out.append(NotifyWebhook({"event": event, **known, "at_s": at_s, **more}))

    def mark(self) -> None:
        """Note a change that must be saved and reported."""
        self.changed = self.report_due = True

    def give_back(self, gpus: Iterable[Gpu], reason: str) -> None:
        """Release held GPUs before their leases end; `AgentCore` tells the Arbiter."""
        mine = [g for g in gpus if g in self.held]
        for gpu in mine:
            del self.held[gpu]
        if mine:
            self.freed.append(pb.Released(gpus=by_machine(mine), reason=reason))
            self.mark()

    # ---- looking up

    def job(self, job_id: str) -> Job:
        """The app scheduler's job, created at the first call."""
        if job_id not in self.jobs:
            self.jobs[job_id] = Job(job_id, self.scheduler.configuration(job_id))
        return self.jobs[job_id]

    def workers(self) -> Iterator[tuple[Job, Worker]]:
        """All workers with their jobs."""
        return ((job, worker) for job in self.jobs.values() for worker in job.workers)

    def worker_in(self, container_id: str) -> tuple[Job, Worker] | None:
        """The job and worker in a container; None if unknown."""
        return next(((j, w) for j, w in self.workers() if w.container_id == container_id), None)

    def scope_of(self, job: Job) -> Scope:
        """The scope that the GPUs of its present launch span."""
        return self.topology.scope_of(job.hosts)

    def type_of(self, host: str) -> str:
        """The type of a machine's GPUs; empty if unknown."""
        machine = self.topology.machines.get(host)
        return machine.gpu_type if machine else ""

    def types_of(self, job: Job) -> set[str]:
        """The GPU types of its present launch."""
        return {self.type_of(host) for host in job.hosts}

    def profile(self) -> Profile:
        """The jobs' speed and progress, for app schedulers."""
        return Profile(self.profiler, {j.job_id: j.step for j in self.jobs.values()})

    def elastic(self) -> Elastic | None:
        """How its elastic jobs scale; None if they are not elastic."""
        if not self.spec.elastic:
            return None
        near, rack, far = (self.profiler.slowdown(scope) for scope in Scope)
        efficiency = self.scaling.efficiency()
        return Elastic(self.spec.gang_gpus, self.spec.job_gpus_max, (near, rack, far), self.restart_s, efficiency)

    def heard_all(self, now_s: float) -> None:
        """Restart all workers' timeouts after a time in which the Agent could not hear them."""
        for job, worker in self.workers():
            worker.last_heard_s = now_s
            worker.stepped_s = now_s if worker.stepped_s else 0.0
            if job.state == jobs.STARTING:
                job.since_s = max(job.since_s, now_s)


def gpus_in(machines: Iterable[pb.MachineGpuIds]) -> set[Gpu]:
    """The GPUs that a message names."""
    return {Gpu(m.host, i) for m in machines for i in m.gpu_ids}


def by_machine(gpus: Iterable[Gpu]) -> list[pb.MachineGpuIds]:
    """GPUs in the form that messages use, by machine."""
    gpus = sorted(gpus)
    hosts = sorted({g.host for g in gpus})
    return [pb.MachineGpuIds(host=h, gpu_ids=[g.index for g in gpus if g.host == h]) for h in hosts]
