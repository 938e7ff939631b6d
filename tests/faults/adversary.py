"""Adversaries: Agents with a valid token, users who attack others' apps, AMs with any asks, callers of every query."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from pycontrol.arbiter.ledger.lease import gpus_in
from pycontrol.wire.v1 import agent_pb2 as pb
from tests.faults.apps import Master
from tests.faults.clock import Life, Stream, Violation
from tests.faults.records import MALLORY, App, RmContainer

Fault = dict[str, Any]
HUGE = (0, 1, 2, 3, 7, 12, 13, 1 << 10, 1 << 20)
NUMBERS = (0.0, 1e-300, 1e-12, 1e-3, 0.5, 1.0, 3.0, 1e6, 1e12, 1e300, float("inf"), float("nan"), -1.0)
VIEWS = ("status", "queue", "apps", "leases", "audit", "rounds", "metrics", "cells", "exchange", "events", "nonsense")


def messages(rng: random.Random, world: Any, app_id: str) -> pb.AgentMessage:
    """Random messages of an Agent."""
    kind = rng.choice(("rho", "bid", "use", "released", "released", "progress", "done", "to_worker", "register"))
    plane = world.plane
    if kind == "rho":
        current = plane.arbiter.rounds.current if plane.up else None
        round_id = current.round_id if current and rng.random() < 0.8 else "r1.1"
        return pb.AgentMessage(rho=pb.Rho(round_id=round_id, rho=rng.choice(NUMBERS), demand=demand(rng)))
    if kind == "bid":
        return pb.AgentMessage(bid=_bid(rng, world))
    if kind == "use":
        workers = [_plan(rng, world, app_id) for _ in range(rng.randint(0, 3))]
        return pb.AgentMessage(use=pb.Use(use_id=f"u{rng.randint(0, 3)}", workers=workers))
    if kind == "released":
        return pb.AgentMessage(released=pb.Released(gpus=_gpus(rng, world, app_id), reason="bored"))
    if kind == "progress":
        jobs = [
            pb.JobProgress(
                job_id=f"j{k}",
                state=rng.choice(("running", "pending", "?")),
                step=rng.choice(HUGE),
                loss=rng.choice(NUMBERS),
                accuracy=rng.choice(NUMBERS),
                iter_time_s=abs(rng.choice(NUMBERS[:9])),
                gpus=rng.choice(HUGE),
                launches=rng.randint(0, 9),
                configuration={"a": "b"},
            )
            for k in range(rng.randint(0, 4))
        ]
        return pb.AgentMessage(progress=pb.Progress(demand=demand(rng), jobs=jobs, rho=rng.choice(NUMBERS)))
    if kind == "done":
        return pb.AgentMessage(done=pb.Done(succeeded=True, message="so there", best_accuracy=rng.choice(NUMBERS)))
    if kind == "to_worker":
        stop = pb.Stop(deadline_s=rng.choice(NUMBERS), reason="no")
        return pb.AgentMessage(to_worker=pb.WorkerCommand(worker_id=rng.choice(("", "j0/1/0", "x")), stop=stop))
    return pb.AgentMessage(register=pb.Register(app_id=app_id, demand=demand(rng)))


def demand(rng: random.Random) -> pb.Demand:
    """A random demand, mostly a valid one."""
    sane = rng.random() < 0.8
    numbers = NUMBERS[:10] if sane else NUMBERS
    types = rng.sample(["gpu", "V100", "x", ""], rng.randint(0, 3))
    return pb.Demand(
        gang_gpus=rng.choice(HUGE[1:] if sane else HUGE),
        gangs=rng.choice(HUGE),
        job_demand_max=rng.choice(HUGE),
        work_left_gpu_s=rng.choice(numbers),
        work_total_gpu_s=rng.choice(numbers),
        work_done_gpu_s=rng.choice(numbers),
        paced=rng.random() < 0.5,
        slowdown=rng.choice(((), (1.0, 1.1, 1.3), (1.0, 1e300, 2.0))),
        loss_rate=rng.choice(numbers),
        speedups={t: rng.choice(numbers[1:]) for t in types},
        gpu_type=rng.choice(("", "", "gpu", "V100")),
    )


def _bid(rng: random.Random, world: Any) -> pb.Bid:
    plane = world.plane
    current = plane.arbiter.rounds.current if plane.up else None
    rows = [
        pb.BidRow(
            rho=rng.choice(NUMBERS), new_gangs=rng.choice(HUGE), gang_gpus=rng.choice(HUGE[:7]), scope=rng.randint(0, 4)
        )  # type: ignore[arg-type]
        for _ in range(rng.randint(0, 4))
    ]
    return pb.Bid(round_id=current.round_id if current else "", rho_nothing=rng.choice(NUMBERS), rows=rows)


def _gpus(rng: random.Random, world: Any, app_id: str) -> list[pb.MachineGpuIds]:
    """Random GPUs, mostly of its own app."""
    plane = world.plane
    mine = gpus_in(plane.arbiter.durable.leases.of(app_id)) if plane.up else []
    if mine and rng.random() < 0.7:
        some = sorted(rng.sample(mine, rng.randint(1, len(mine))))
        hosts = dict.fromkeys(g.host for g in some)
        return [pb.MachineGpuIds(host=h, gpu_ids=[g.index for g in some if g.host == h]) for h in hosts]
    return [pb.MachineGpuIds(host=rng.choice(("n1", "n2", "n3", "n9")), gpu_ids=[rng.choice((0, 1, 2, 3, 1023))])]


def _plan(rng: random.Random, world: Any, app_id: str) -> pb.WorkerPlan:
    (place, *_) = _gpus(rng, world, app_id)
    return pb.WorkerPlan(
        worker_id=f"w{rng.randint(0, 9)}",
        job_id="j",
        host=place.host,
        gpu_ids=place.gpu_ids,
        allocation_request_id=rng.randint(0, 5),
    )


class _Sleeper:
    """A process that ignores all but SIGKILL."""

    def end(self) -> None:
        """Kills the process."""


class LiarMaster(Master):
    """An AM that asks for GPUs at random, keeps what it gets, and whose Agent lies."""

    def __init__(self, world: Any, app: App, rng: random.Random) -> None:
        super().__init__(world, app)
        self.rng = rng
        self.stream: Stream | None = None

    def start(self) -> None:
        super().start()
        self.sim.every(1.0, self._talk, self.life)
        self.sim.every(4.0, self._ask, self.life)

    def ended(self) -> None:
        if self.stream is not None:
            self.stream.cut()

    def _talk(self) -> None:
        plane = self.world.plane
        if self.stream is None or self.stream.closed[0]:
            stream = Stream(self.world.net, self.name, plane.name)
            if not plane.connect(stream, "agent", self.world.token(self.app.app_id, self.app.user)):
                return
            self.stream = stream
            register = pb.Register(
                app_id=self.app.app_id, attempt_id=self.attempt_id, app_scheduler="hyperband", demand=demand(self.rng)
            )
            stream.send(0, pb.AgentMessage(register=register))
        for _ in range(self.rng.randint(0, 3)):
            message = messages(self.rng, self.world, self.app.app_id)
            kind = message.WhichOneof("kind")
            if kind != "done" or self.rng.random() < 0.05:
                self.sim.tell(self.app.app_id, f"lies: {' '.join(str(message).split())[:200]}")
                self.stream.send(0, message)

    def _ask(self) -> None:
        for request_id in range(6):
            self.ask((1, request_id), self.rng.choice((1, 2, 4, 9)), 64, self.rng.choice((0, 1, 1, 1, 3)))

    def allocated(self, container: RmContainer) -> None:
        self.held[container.container_id] = container
        if self.rng.random() < 0.8:
            self.start_on_node(container, lambda run: _Sleeper(), lambda why: None)


class Liar:
    """An app whose AM and Agent lie until it is killed."""

    def __init__(self, world: Any, f: Fault) -> None:
        self.world = world
        number = 900 + f["seed"] % 100
        rng = random.Random(f["seed"])
        app_id = world.app_id(number)
        world.specs.setdefault(app_id, {"kind": "liar"})
        self.app: App | None = None
        if world.rm is None or app_id in world.store:
            return
        self.app = App(
            app_id,
            "mallory",
            rng.choice(("root.a", "root.b", "root.small")),
            "liar",
            "SUBMARINE",
            ("isonomy",),
            world.sim.now,
            True,
        )
        world.harmed.add(app_id)
        world.rm.submit(self.app)

    def stop(self) -> None:
        """`yarn application -kill`."""
        if self.app is not None and not self.app.final:
            if self.world.rm is None:
                self.world.sim.at(1.0, self.stop)
            else:
                self.world.rm.finish(self.app, "KILLED")


def mallory(world: Any, f: Fault) -> None:
    """A user asks for tokens of others' apps, also of those to come, and acts in their name."""
    rng = random.Random(f["seed"])
    target = world.app_id(f["app"])
    token = world.plane.query("GET", "token", {"app": target}, "mallory").get("token")
    if not token:
        return
    stream = Stream(world.net, "mallory", world.plane.name)

    def act() -> None:
        app = world.store.get(target)
        if app is None or app.final or stream.closed[0]:
            return
        for message in (
            pb.AgentMessage(released=pb.Released(gpus=_gpus(rng, world, target), reason="mallory")),
            pb.AgentMessage(done=pb.Done(succeeded=False, message=MALLORY)),
        ):
            stream.send(0, message)
        world.sim.at(2.0, judge)

    def judge() -> None:
        plane = world.plane
        record = plane.arbiter.durable.apps.get(target) if plane.up else None
        if record is not None and record.message == MALLORY:
            raise Violation("another's app", f"mallory ended {target} of {record.user}", target)

    def begin() -> None:
        if world.plane.connect(stream, "agent", token):
            register = pb.Register(app_id=target, app_scheduler="single", demand=pb.Demand(gang_gpus=1, gangs=1))
            stream.send(0, pb.AgentMessage(register=register))

    def poses_as_worker() -> None:
        master = world.masters.get(target)
        ids = sorted(w.worker_id for w in world.workers.values() if w.app_id == target)
        other = Stream(world.net, "mallory", world.plane.name)
        if master is not None and ids and world.plane.connect(other, "worker", token):
            message = pb.WorkerMessage(worker_id=rng.choice(ids), exit=pb.WorkerExit(code=1, message=MALLORY))
            other.send(0, message)

    begin()
    for late_s in (3.0, 10.0, 25.0):
        world.sim.at(late_s, act)
        world.sim.at(late_s + 1.0, poses_as_worker)


def flood(world: Any, f: Fault, over: Callable[[], bool]) -> None:
    """An AM repeatedly changes so many asks at the same time that the plugin's queue overflows."""
    end_s = world.sim.now + 40.0
    app_id = world.app_id(f["app"])

    def again() -> None:
        app, rm = world.store.get(app_id), world.rm
        if over() or world.sim.now > end_s or rm is None or app is None or app.final or not app.running:
            return
        for k in range(rm.plugin.queue.capacity + 1 if rm.plugin.queue.capacity < 1000 else 0):
            for count in (1, 0):
                rm.plugin.asks.ask(app.attempt_id, (7, 5000 + k), 1, 1, count, 0)
        world.sim.at(1.5, again, Life())

    again()


def rest(world: Any, f: Fault) -> None:
    """All users query everything, in any phase."""
    rng = random.Random(f["seed"])
    for _ in range(12):
        view = rng.choice(VIEWS)
        params = {"app": world.app_id(f["app"])} if view == "explain" else {}
        world.sim.at(
            rng.uniform(0, f["for_s"]),
            lambda view=view, params=params: world.plane.query(
                "GET", view, params, rng.choice(("ann", "", "root")), rng.random() < 0.5
            ),
        )
    for path in ("explain", "logs", "token"):
        world.sim.at(
            rng.uniform(0, f["for_s"]),
            lambda path=path: world.plane.query("GET", path, {"app": world.app_id(f["app"])}, "ann"),
        )
