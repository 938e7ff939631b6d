"""An Arbiter, a YARN and workers around one AgentCore, all in memory; the world checks all their rules."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from pycontrol.model.auction import gang_sizes
from pycontrol.model.topology import Gpu
from pycontrol.wire.v1 import agent_pb2 as pb
from pycontrol.wire.v1 import am_pb2 as am
from submarine_patch.agent.agent_core import AgentCore
from submarine_patch.agent.messages import (
    Command,
    End,
    Event,
    LinkLost,
    NotifyWebhook,
    Publish,
    Published,
)
from submarine_patch.agent.spec import AppSpec
from submarine_patch.lab.conformance import SPEC

SPACE = {"parameters": {"rate": {"type": "float", "min": 0.001, "max": 0.1, "log": True}}}
HOSTS = {"a1": ("a", 4), "a2": ("a", 4), "b1": ("b", 2), "b2": ("b", 2)}
ALL = [Gpu(h, i) for h, (_, n) in HOSTS.items() for i in range(n)]
A = [Gpu("a1", i) for i in range(4)]
A2 = [Gpu("a2", i) for i in range(4)]
B = [Gpu("b1", 0), Gpu("b1", 1)]
STOPPED = 75


def spec_of(**changes: Any) -> AppSpec:
    """The usual spec with changes."""
    return replace(SPEC, **changes)


def hyperband(**changes: Any) -> AppSpec:
    """A group of jobs: 9 for one iteration, the best 3 of them for 3, the best for 9."""
    return spec_of(**{"app_scheduler": "successive_halving", "search_space": SPACE, "jobs": 9, **changes})


def machines(gpus: Iterable[Gpu]) -> list[pb.MachineGpuIds]:
    """These GPUs as messages, one for each machine."""
    gpus = sorted(gpus)
    return [
        pb.MachineGpuIds(host=h, gpu_ids=[g.index for g in gpus if g.host == h]) for h in sorted({g.host for g in gpus})
    ]


class Container:
    """A container with a worker in it."""

    def __init__(self, container_id: str, plan: pb.WorkerPlan, launch: am.AmLaunch | None = None) -> None:
        self.container_id, self.plan, self.launch = container_id, plan, launch
        self.start: pb.Start | None = None
        self.stop: pb.Stop | None = None

    @property
    def gpus(self) -> set[Gpu]:
        """The container's GPUs."""
        return {Gpu(self.plan.host, i) for i in self.plan.gpu_ids}


class World:
    """`held`: GPUs leased to the app. Only `settle` makes anything happen by itself."""

    def __init__(self, spec: AppSpec = SPEC, virtual: bool = False, types: Mapping[str, str] | None = None) -> None:
        """`types`: GPU type by host, where it is not "gpu"."""
        self.spec, self.virtual, self.types = spec, virtual, types or {}
        self.now_s, self.attempt = 1000.0, 1
        self.core = AgentCore(spec)
        self.held: set[Gpu] = set()
        self.plans: dict[int, pb.WorkerPlan] = {}
        self.asks: dict[int, am.AmAsk] = {}
        self.containers: dict[str, Container] = {}
        self.sent: list[pb.AgentMessage] = []
        self.to_shell: list[am.AmCommand] = []
        self.done: pb.Done | None = None
        self.notified: list[dict[str, Any]] = []
        self.ended: End | None = None
        self.publish_problem = ""
        self.refuse_plans = 0
        self.replies: list[pb.UseReply] = []
        self.killed: list[str] = []
        self.later: Event | None = None
        self.publishes: Publish | None = None
        self.steps: dict[str, int] = {}
        """By job: the step of its newest checkpoint."""
        self._ids = 0

    @property
    def sizes(self) -> tuple[int, ...]:
        """GPUs that a gang may have."""
        return gang_sizes(self.spec.gang_gpus, max(self.spec.gang_gpus, self.spec.job_gpus_max))

    # ---- the AgentCore

    def tell(self, event: Event) -> list[Command]:
        """Sends an event and carries out its commands."""
        if self.ended is not None:
            return []
        commands = self.core.handle(event, self.now_s)
        for command in commands:
            self.take_command(command)
        self.check()
        if self.publishes is not None and not self.publishes.from_dir:
            self.publish()
        return commands

    def arbiter(self, **kind: Any) -> list[Command]:
        """Sends a message of the Arbiter."""
        return self.tell(pb.ArbiterMessage(**kind))

    def pass_time(self, seconds: float = 1.0) -> None:
        """Lets time pass."""
        self.now_s += seconds
        self.tell(None)

    def take_command(self, command: Command) -> None:
        assert self.ended is None, "nothing follows the end"
        if isinstance(command, pb.AgentMessage):
            self.sent.append(command)
            self._arbiter_takes(command)
        elif isinstance(command, am.AmCommand):
            self.to_shell.append(command)
            self._shell_takes(command)
        elif isinstance(command, Publish):
            self.publishes = command
            self.later = Published("hdfs:///model/ckpt", self.publish_problem)
            if not command.from_dir:  # the results alone take no time
                self.later = Published("hdfs:///model/results-application_1_0001")
        elif isinstance(command, NotifyWebhook):
            self.notified.append(dict(command.event))
        elif isinstance(command, End):
            self.ended = command

    def _arbiter_takes(self, m: pb.AgentMessage) -> None:
        kind = m.WhichOneof("kind")
        if kind == "use":
            self.replies.append(self._judge(m.use))
        elif kind == "released":
            gone = {Gpu(x.host, i) for x in m.released.gpus for i in x.gpu_ids}
            assert gone <= self.held, "released what it does not hold"
            assert not any(c.gpus & gone for c in self.containers.values()), "released while in use"
            self.held -= gone
        elif kind == "to_worker":
            for c in self.containers.values():
                if c.plan.worker_id == m.to_worker.worker_id:
                    if m.to_worker.HasField("start"):
                        c.start = c.start or m.to_worker.start
                    elif m.to_worker.HasField("next"):
                        (c.plan,) = (p for p in self.plans.values() if p.worker_id == m.to_worker.next.worker_id)
                        c.start = None
                    else:
                        c.stop = m.to_worker.stop
        elif kind == "done":
            self.done = m.done

    def _judge(self, use: pb.Use) -> pb.UseReply:
        planned = {Gpu(w.host, i) for w in use.workers for i in w.gpu_ids}
        assert sum(len(w.gpu_ids) for w in use.workers) == len(planned), "a GPU is planned twice"
        if any(w.worker_id == p.worker_id for w in use.workers for p in self.plans.values()):
            return pb.UseReply(use_id=use.use_id, accepted=True)
        assert len(planned) in self.sizes, "a gang is whole"
        if self.refuse_plans:
            self.refuse_plans -= 1
            return pb.UseReply(use_id=use.use_id, reason="GPU is still used")
        assert planned <= self.held, "planned outside its leases"
        for w in use.workers:
            assert not w.container_id or self.containers[w.container_id].gpus == planned
        self.plans.update((w.allocation_request_id, w) for w in use.workers)
        return pb.UseReply(use_id=use.use_id, accepted=True)

    def _shell_takes(self, m: am.AmCommand) -> None:
        kind = m.WhichOneof("kind")
        if kind == "ask":
            assert m.ask.allocation_request_id in self.plans, "asked before the plan was accepted"
            assert m.ask.allocation_request_id not in self.asks
            self.asks[m.ask.allocation_request_id] = m.ask
        elif kind == "withdraw":
            self.asks.pop(m.withdraw.allocation_request_id, None)
        elif kind == "launch":
            c = self.containers[m.launch.container_id]
            assert m.launch.env["ISONOMY_WORKER_ID"] == c.plan.worker_id
            c.launch = m.launch
        elif kind in ("stop", "release"):
            container_id = m.stop.container_id or m.release.container_id
            if container_id in self.containers:
                self.killed.append(container_id)

    # ---- what the world does

    def register(self) -> None:
        """Opens the Agent's stream."""
        grants = [pb.Grant(grant_id="g", gpus=machines(self.held), end_s=self.now_s + 600)] if self.held else []
        hosts = [
            pb.Host(host=h, rack=r, gpus=n, virtual_gpus=self.virtual, gpu_type=self.types.get(h, ""))
            for h, (r, n) in HOSTS.items()
        ]
        self.arbiter(registered=pb.Registered(contention=self.contention(), hosts=hosts, grants=grants))

    def contention(self) -> pb.Contention:
        """The contention message: 12 GPUs and two apps."""
        return pb.Contention(cluster_gpus=12, n_avg=2.0, now_s=self.now_s, submitted_s=900.0, lease_s=600.0)

    def grant(self, *gpus: Gpu, available_s: float = 0.0, grant_id: str = "") -> None:
        """Grants a lease on each GPU; by default of a new grant."""
        self.held |= set(gpus)
        self._ids += 1
        grant = pb.Grant(
            grant_id=grant_id or f"g{self._ids}", gpus=machines(gpus), end_s=self.now_s + 600, available_s=available_s
        )
        self.arbiter(grant=grant)

    def revoke(self, *gpus: Gpu, in_s: float = 30.0, ahead_s: float = 0.0) -> None:
        """Revokes the leases; the Arbiter's clock may be ahead of the Agent's."""
        self.held -= set(gpus)
        self.asks = {k: a for k, a in self.asks.items() if not self._gpus(k) & set(gpus)}
        due_s = self.now_s + in_s + ahead_s
        self.arbiter(revoke=pb.Revoke(gpus=machines(gpus), deadline_s=due_s, left_s=in_s, reason="lost a round"))

    def _gpus(self, request_id: int) -> set[Gpu]:
        plan = self.plans[request_id]
        return {Gpu(plan.host, i) for i in plan.gpu_ids}

    def answer_plans(self) -> None:
        """Answers each Use with a UseReply."""
        replies, self.replies = self.replies, []
        for reply in replies:
            self.arbiter(use_reply=reply)

    def allocate(self) -> None:
        """Allocates a container for each ask whose GPUs are free."""
        for request_id in list(self.asks):
            gpus = self._gpus(request_id)
            if gpus <= self.held and not any(c.gpus & gpus for c in self.containers.values()):
                del self.asks[request_id]
                self._ids += 1
                c = Container(f"c{self._ids}", self.plans[request_id])
                self.containers[c.container_id] = c
                self.tell(am.AmEvent(allocated=self.described(c)))

    def described(self, c: Container) -> am.AmContainer:
        """The container as the AM shell reports it."""
        return am.AmContainer(
            container_id=c.container_id,
            host=c.plan.host,
            gpu_ids=c.plan.gpu_ids,
            allocation_request_id=c.plan.allocation_request_id,
        )

    def ready(self) -> None:
        """Lets launched workers register."""
        for c in list(self.containers.values()):
            if c.launch and not c.start and not c.stop:
                self.worker(c, ready=pb.WorkerReady(host=c.plan.host, port=2000 + len(c.container_id)))

    def worker(self, c: Container, **kind: Any) -> None:
        """Sends a worker's message."""
        self.arbiter(from_worker=pb.WorkerMessage(worker_id=c.plan.worker_id, **kind))

    def rise(self) -> None:
        """Starts everything that is planned."""
        self.answer_plans()
        self.allocate()
        self.ready()

    def train(self, c: Container, steps: int, accuracy: float = 0.5, iter_s: float = 0.5) -> None:
        """Lets a worker train some steps, with one message each."""
        assert c.start is not None
        for _ in range(steps):
            step = self.steps.get(c.plan.job_id, 0) + 1
            self.steps[c.plan.job_id] = step
            self.worker(
                c, progress=pb.WorkerProgress(step=step, loss=1 - accuracy, accuracy=accuracy, iter_time_s=iter_s)
            )

    def end(self, c: Container, code: int, status: int | None = None, say: bool = True) -> None:
        """Ends a worker and its container."""
        if say:
            self.worker(c, exit=pb.WorkerExit(code=code, message="why", step=self.steps.get(c.plan.job_id, 0)))
        del self.containers[c.container_id]
        self.plans.pop(c.plan.allocation_request_id, None)
        gone = am.AmCompleted(container_id=c.container_id, exit_status=code if status is None else status)
        self.tell(am.AmEvent(completed=gone))

    def obey_stops(self) -> None:
        """Stops the workers that were told to stop."""
        for c in list(self.containers.values()):
            if c.stop or c.container_id in self.killed:
                self.end(c, STOPPED)

    def finish_gang(self, job_id: str, accuracy: float = 0.5, waits: bool = False) -> None:
        """Trains a job's gang to its target step and ends it; with `waits` its process waits for another launch."""
        gang = self.gang(job_id)
        assert gang[0].start is not None
        self.steps[job_id] = gang[0].start.until_step - 1
        self.train(gang[0], 1, accuracy)
        if waits:
            step = self.steps[job_id]
            self.worker(gang[0], exit=pb.WorkerExit(code=0, step=step, waits=True))
            return
        for c in gang:
            self.end(c, 0)

    def gang(self, job_id: str) -> list[Container]:
        """The containers of a job, the chief's first."""
        return sorted((c for c in self.containers.values() if c.plan.job_id == job_id), key=lambda c: c.plan.worker_id)

    def running(self) -> list[str]:
        """The jobs that are training."""
        return sorted({c.plan.job_id for c in self.containers.values() if c.start and not c.stop})

    def publish(self) -> None:
        """Reports that the model has been copied."""
        event, self.later = self.later, None
        if event is not None:
            self.tell(event)

    def lose_link(self) -> None:
        """Breaks the stream."""
        self.tell(LinkLost())

    def restart(self) -> None:
        """Kills the AM's JVM and the Agent; the next attempt gets the state as JSON."""
        self.attempt += 1
        saved = json.loads(json.dumps(self.core.dump()))
        self.core = AgentCore(self.spec, self.attempt, saved)
        self.core.restarted(self.now_s)
        self.asks.clear()

    def messages(self, kind: str) -> list[Any]:
        """The messages of one kind that were sent to the Arbiter."""
        return [getattr(m, kind) for m in self.sent if m.WhichOneof("kind") == kind]

    # ---- the rules

    def check(self) -> None:
        """Checks the invariants of the AgentCore."""
        used = [g for j in self.core.jobs.values() for g in j.gpus]
        assert len(used) == len(set(used)), "a GPU in two launches"
        for job in self.core.jobs.values():
            assert not job.workers or len(job.gpus) in self.sizes, "a gang is not whole"
            assert len(set(job.hosts)) == len(job.hosts), "two workers of a gang on one machine"
        launched = [g for c in self.containers.values() for g in c.gpus]
        assert len(launched) == len(set(launched)), "a GPU in two containers"


def started(world: World, *gpus: Gpu) -> World:
    """A registered app with these GPUs leased and its containers running."""
    world.register()
    world.grant(*gpus)
    world.rise()
    return world
