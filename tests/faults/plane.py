"""The control plane as one simulated process: all its real parts, without their threads and sockets.

Real: Arbiter, Driver's steps, journal, BridgeEndpoint, AgentServer's service with its sessions and tokens, Router.
Simulated: threads (each part runs when something arrives for it), sockets, the passing of time.
"""

from __future__ import annotations

import contextlib
import json
import random
import time
import uuid
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from typing import Any, TypeVar

import grpc
import structlog

import pycontrol.rpc.admission as admission_module
import pycontrol.rpc.intake as intake_module
import pycontrol.runtime.driver as driver_module
from pycontrol.arbiter.core import Arbiter
from pycontrol.daemon.assembly import assemble
from pycontrol.daemon.standby_store import StandbyStoreError
from pycontrol.daemon.takeover import Superseded, Takeover
from pycontrol.model.events import ClusterSnapshot
from pycontrol.rpc.tokens import Tokens
from pycontrol.runtime.driver import Driver, SteadyClock
from pycontrol.runtime.inbox import Lane
from pycontrol.web.router import Router
from pycontrol.wire.v1 import bridge_pb2 as pb
from tests.faults.clock import Killed, Life, MachineTime, Sim, Stream, Violation, VirtualLoop
from tests.faults.disk import DiskFull, KeptFiles

T = TypeVar("T")
KEY = b"k" * 32
_UUID4 = uuid.uuid4
TOKEN_TTL_S = 7 * 86400.0
PLUGIN_LOOK_S = 1.5
RESEND_LOOK_S = 0.5
KEEP_EVERY_S = 4.0


class _Later:
    """Replaces the solver's thread."""

    def __init__(self, plane: Plane) -> None:
        self._plane = plane

    def submit(self, fn: Callable[..., object], *args: Any) -> None:
        plane = self._plane
        delay_s = plane.sim.rng.uniform(0.01, 0.3)
        plane.sim.at(delay_s, lambda: plane.act(lambda: fn(*args)), plane.life)

    def shutdown(self, **_: Any) -> None:
        """Does nothing: no thread runs."""


class ArbiterFailed(BaseException):
    """The error that ends the Arbiter's thread, and with it `isonomy serve`."""


class SimDriver(Driver):
    """The real driver, stepped from outside."""

    @property
    def busy(self) -> bool:
        """Whether any event waits."""
        return any(map(self.inbox.waiting, Lane))

    def _turn(self) -> None:
        """As on its own thread: who waits for it does not hear of its failure."""
        try:
            super()._turn()
        except Exception as e:
            raise e if isinstance(e, Violation) else ArbiterFailed(e) from e

    def drain(self) -> None:
        """Handles all waiting events."""
        while self.busy:
            self._turn()

    def tick(self) -> None:
        """Handles the passing of time."""
        self.drain()
        self._turn()

    def _call(self, fn: Callable[[Arbiter, float], T], timeout_s: float, lane: Lane) -> T:
        future: Future[T] = Future()

        def work() -> None:
            try:
                future.set_result(fn(self._arbiter, self.clock.now_s()))
            except Exception as e:
                future.set_exception(e)

        self.inbox.put(work, lane)
        while not future.done():
            self._turn()
        return future.result()


class _Aborted(Exception):
    """The error with which grpc ends a call."""


class Call:
    """One gRPC call on the server's side, as grpcio would pass it to the service."""

    def __init__(self, plane: Plane, stream: Stream, token: str, kind: str) -> None:
        self.plane, self.stream, self.token, self.kind = plane, stream, token, kind
        self.waiting: list[Any] = []
        self.over = False
        self._wake: Any = None
        self.task: Any = None
        self.why = ""

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        return (("isonomy-token", self.token),)

    def peer(self) -> str:
        return self.stream.ends[0]

    async def abort(self, code: grpc.StatusCode, why: str) -> None:
        self.why = f"{code.name} {why}"
        raise _Aborted(why)

    async def write(self, message: Any) -> None:
        self.stream.send(1, type(message).FromString(message.SerializeToString()))

    async def requests(self) -> AsyncIterator[Any]:
        while True:
            while self.waiting:
                message = self.waiting.pop(0)
                if owner := getattr(self.stream, "app_id", ""):
                    self.plane.world.relay.arrived(self.plane, self.kind, owner, message)
                yield message
            if self.over:
                return
            self._wake = self.plane.loop.create_future()
            await self._wake

    def arrived(self, message: Any) -> None:
        """Handles a message of the peer."""
        self.waiting.append(message)
        self._go_on()

    def ended(self, why: str) -> None:
        """Handles the end of the peer's connection."""
        self.over = True
        if why and self.task is not None:
            self.task.cancel()
        self._go_on()

    def _go_on(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)
        self.plane.act(lambda: None)


def read_clocks_of(machine: Any) -> None:
    """Sets what the code of a control plane reads as the module `time`."""
    for module in (driver_module, admission_module, intake_module):
        module.time = machine


def restore_process() -> None:
    """Gives this process back its clocks, ids and log, which a world's planes replaced."""
    read_clocks_of(time)
    uuid.uuid4 = _UUID4
    structlog.reset_defaults()


class Plane:
    """Lives of one control plane on one machine. `world` configures it and checks after each of its steps."""

    def __init__(self, world: Any, name: str = "plane") -> None:
        self.world, self.name = world, name
        self.sim: Sim = world.sim
        self.machine = MachineTime(self.sim)
        self.disk = world.make_disk(name)
        self.journal_cut = bool(world.schedule.get("old_journal"))
        """Whether the journal differs from what this control plane wrote."""
        self.life = Life()
        self.life.dead = True
        self.lives = 0
        self.crash_in: tuple[str, int] | None = None
        """Where, and after how many such moments, the process is to be killed."""
        self.polls: list[tuple[pb.Request, Callable[[pb.Response], None], float]] = []
        self.calls: list[Call] = []
        self.broken: list[Callable[[], object]] = []
        """The peers' callbacks for when their connections to this life break."""
        self._acting = False
        self._wake_s = float("inf")
        self._loop_s = float("inf")
        self.up_s = 0.0

    @property
    def up(self) -> bool:
        """Whether the process runs."""
        return not self.life.dead

    @property
    def directives(self) -> Any:
        """Those that wait for the plugin."""
        return self.endpoint.waiting

    # ---- its lives

    def start(self) -> None:
        """`isonomy serve`."""
        if self.up:
            return
        sim, world = self.sim, self.world
        self._set_clocks()
        uuid.uuid4 = world.uuid
        if random.Random(f"keeper {world.schedule['seed']} {self.lives}").random() < 0.5:
            self.disk.keep(self.machine.time)  # its journal's keeper had just run
        try:
            self.journal = self.disk.open()
        except DiskFull:
            sim.at(3.0, self.start)
            return
        self.life, self.lives, self.up_s = Life(), self.lives + 1, sim.now
        self.polls, self.calls, self.broken = [], [], []
        clock = SteadyClock(self.machine.time, self.machine.monotonic, self.journal.until_s)
        tokens = Tokens(KEY)
        durable = self.journal.recover()
        world.oracles.recovered(self, durable)
        self._was_empty = durable.is_empty
        supply = world.make_supply()
        self.policy = world.make_policy(supply)
        arbiter = self.arbiter = Arbiter(
            world.arbiter_settings(),
            self.policy,
            durable,
            world.topology,
            self.journal.epoch,
            supply,
            self.journal.id,
        )
        self.loop = VirtualLoop(sim)
        core = assemble(
            arbiter,
            durable,
            self.journal,
            tokens,
            lambda a, feed, *_: SimDriver(a, _Watched(self, feed), _Edge(self), _Edge(self), clock),
            lambda driver, feed: Router(
                driver,
                issue=lambda app_id, user: tokens.issue(app_id, user, TOKEN_TTL_S, clock.now_s()),
                arbiter_address="plane:1",
                token_ttl_s=TOKEN_TTL_S,
                feed=feed,
                read_cells=(lambda named: (*world.read_cells(), "", list)) if supply is not None else None,
                secure=lambda: self.takeover.secure(self.driver) if self.takeover else "",
            ),
            self._from_cluster,
            listen=("plane", 0),
            serving=lambda: not world.schedule.get("standby") or self.endpoint.connected,
            monotonic_s=lambda: sim.now,
        )
        self.agents, self.endpoint, self.driver, self.router = core.agents, core.endpoint, core.driver, core.router
        self.metrics = core.feed.metrics
        self.agents._loop.close()
        self.agents._loop = self.loop
        self.driver._solver = _Later(self)  # type: ignore[assignment]
        self.takeover: Takeover | None = None
        if world.schedule.get("standby"):
            self.takeover = Takeover(KeptFiles(world.hdfs), self.journal, durable.is_empty, str)
            sim.every(KEEP_EVERY_S, self._keep, self.life)
            sim.every(PLUGIN_LOOK_S, self._stand_by, self.life)
        sim.every(PLUGIN_LOOK_S, lambda: self.act(self.endpoint.check_lost), self.life)
        sim.every(RESEND_LOOK_S, self._look_at_polls, self.life)
        sim.tell(self.name, f"starts, life {self.lives}, journal epoch {self.journal.epoch}")
        self.act(lambda: None)

    def _from_cluster(self, event: Any) -> None:
        """As ControlPlane has it."""
        if isinstance(event, ClusterSnapshot) and self.takeover is not None:
            unkept = self.world.hdfs.unkept
            try:
                self.takeover.before_snapshot(self.driver)
            except Superseded:
                self.sim.at(0.0, self._set_aside, self.life)
                raise
            if unkept or self.world.hdfs.usurped:  # it continues from an older state than was served, or from its own
                self.world.oracles.clocks.forget()
            self.world.hdfs.usurped = self is not self.world.plane
            if self._was_empty:
                self._was_empty = False
                self.world.oracles.clocks.took_over(self)
        self.driver.submit(event)

    def _set_aside(self) -> None:
        """Ends it and sets its journal aside."""
        self.die("another control plane has served since")
        self.lose_journal()

    def lose_journal(self) -> None:
        """Makes the next life begin with an empty journal."""
        self.disk.lose()
        self.journal_cut = True

    def _stand_by(self) -> None:
        if not self.endpoint.connected:
            self.act(self.agents.stand_by)

    def _keep(self) -> None:
        if self.arbiter.cluster.ready and self.takeover is not None:
            with contextlib.suppress(StandbyStoreError):
                self.takeover.keep(self.arbiter.durable.kept(), self.driver.clock.now_s())
                self.world.hdfs.unkept = self.world.hdfs.unkept and self is not self.world.plane

    def _set_clocks(self) -> None:
        """Code of this process reads this machine's clocks."""
        read_clocks_of(self.machine)

    def die(self, why: str) -> None:
        """Ends the life as kill -9 does: connections break, planned calls are dropped, the disk stays."""
        if not self.up:
            return
        self.sim.tell(self.name, f"dies: {why}")
        for call in self.calls:
            call.stream.cut("the control plane died")
        self.close()
        for broken in self.broken[-20:]:
            broken()
        self.crash_in = None
        self.sim.at(self.sim.rng.uniform(0.5, 4.0), self.start)

    def close(self) -> None:
        """Closes this life; its coroutines end without an effect."""
        if not self.up:
            return
        self.life.dead = True
        self.driver.submit = lambda event: None  # type: ignore[method-assign]
        calls, self.calls, self.polls = self.calls, [], []
        for call in calls:
            if call.task is not None:
                call.task.cancel()
        with contextlib.suppress(Exception):
            self.loop.run_ready()
            self.loop.close()

    # ---- running

    def act(self, fn: Callable[[], object]) -> None:
        """Runs a function in the process, and everything that follows from it at this moment."""
        if not self.up:
            return
        if self._acting:
            fn()
            return
        self._acting = True
        self._set_clocks()
        try:
            fn()
            self._settle()
        except Killed as e:
            self._acting = False
            self.die(str(e))
            return
        except ArbiterFailed as e:
            self._acting = False
            why = e.args[0]
            if isinstance(why, DiskFull):
                self.die(str(why))
                return
            if self.world.schedule.get("traceback"):
                raise
            raise Violation("plane ends", f"the control plane ended by itself: {type(why).__name__}: {why}") from e
        finally:
            self._acting = False
        self._plan_wake()

    def _settle(self) -> None:
        for _ in range(500):
            self.loop.run_ready()
            if not self.driver.busy:
                break
            self.driver.drain()
        else:
            raise Violation("time", "the control plane continues for ever at one moment")
        self._answer_polls()

    def _plan_wake(self) -> None:
        now = self.sim.now
        wake_s = self.arbiter.next_wake_s(self.driver.clock.now_s())
        if wake_s is not None:
            due = now + max(driver_module.SHORTEST_NAP_S, wake_s - self.driver.clock.now_s())
            if self._wake_s <= now or due < self._wake_s - 1e-9 or self._wake_life is not self.life:
                self._wake_s, self._wake_life = due, self.life
                self.sim.at(due - now, lambda: self._tick(due), self.life)
        timer_s = self.loop.next_s
        if timer_s < float("inf") and (self._loop_s <= now or timer_s < self._loop_s):
            self._loop_s = timer_s
            self.sim.at(timer_s - now, lambda: self.act(lambda: None), self.life)

    _wake_life: Life | None = None

    def _tick(self, due: float) -> None:
        if due != self._wake_s:
            return
        self._wake_s = float("inf")
        self.act(self.driver.tick)

    # ---- the plugin

    def request(self, data: bytes, answer: Callable[[bytes], object]) -> None:
        """Handles a request; a poll is answered only when there is a directive or its time is over."""
        if not self.up:
            return
        request = pb.Request.FromString(data)
        reply = self._answering(answer)
        if request.WhichOneof("body") != "poll":
            self.act(lambda: reply(self.endpoint.handle(request)))
            return
        end_s = self.sim.now + request.poll.wait_ms / 1000
        self.polls.append((request, reply, end_s))
        self.act(lambda: None)

    def _answering(self, answer: Callable[[bytes], object]) -> Callable[[pb.Response], None]:
        life = self.life

        def reply(response: pb.Response) -> None:
            if not life.dead:
                answer(response.SerializeToString())

        return reply

    def _look_at_polls(self) -> None:
        if self.polls and (self.directives or self.sim.now >= self.polls[-1][2]):
            self.act(lambda: None)

    def _answer_polls(self) -> None:
        """Answers polls: the newest one gets the due directives; earlier ones get nothing."""
        if not self.polls:
            return
        (request, _, end_s), e = self.polls[-1], self.endpoint
        idle = len(self.polls) == 1 and not request.poll.received and not self.directives
        if idle and self.sim.now < end_s and request.plugin_epoch == e._epoch:
            return
        held, self.polls = self.polls, []
        for k, (request, reply, end_s) in enumerate(held):
            now = pb.Request()
            now.CopyFrom(request)
            now.poll.wait_ms = 0
            response = self.endpoint.handle(now)
            nothing = not response.hello_required and not response.directives.directives
            if nothing and self.sim.now < end_s and k == len(held) - 1:
                request.poll.ClearField("received")
                self.polls.append((request, reply, end_s))
            else:
                reply(response)

    def query(self, method: str, path: str, params: dict[str, str], user: str, admin: bool = False) -> dict[str, Any]:
        """A call of the REST resource; {"status": ...} and the answer's keys. Empty if the process is gone."""
        found: dict[str, Any] = {}
        query = pb.Query(method=method, path=path, parameters=params, user=user, admin=admin)

        def ask() -> None:
            reply = self.endpoint.handle(pb.Request(query=query)).query_reply
            text = reply.body.decode()
            body = json.loads(text) if reply.content_type == "application/json" else {"text": text}
            found.update(body, status=reply.status)

        self.act(ask)
        if found.get("status") == 500:
            raise Violation("query fails", f"{method} {path} {params}: {found.get('error')}")
        return found

    # ---- Agents and workers

    def connect(self, stream: Stream, kind: str, token: str) -> bool:
        """A gRPC call begins; side 1 of the stream is ours."""
        if not self.up:
            return False
        call = Call(self, stream, token, kind)
        service: Any = self.agents.service
        method = service.Session if kind == "agent" else service.Worker
        stream.on_message[1], stream.on_end[1] = call.arrived, call.ended
        self.calls.append(call)

        def begin() -> None:
            call.task = self.loop.create_task(method(call.requests(), call))
            call.task.add_done_callback(lambda task: self._call_over(call, task))

        self.act(begin)
        return True

    def _call_over(self, call: Call, task: Any) -> None:
        if call in self.calls:
            self.calls.remove(call)
        if not task.cancelled() and task.exception() is not None and not isinstance(task.exception(), _Aborted):
            raise Violation("service fails", f"{type(task.exception()).__name__}: {task.exception()}")
        call.stream.end(1, call.why or "OK")

    def moment(self, where: str) -> None:
        """A point at which the process may be killed."""
        if self.crash_in is not None and self.crash_in[0] == where:
            left = self.crash_in[1] - 1
            self.crash_in = (where, left)
            if left <= 0:
                self.crash_in = None
                raise Killed(f"killed {where}")


class _Watched:
    """The journal's port: moments to die at, and the checks of what is written."""

    def __init__(self, plane: Plane, journal: Any) -> None:
        self._plane, self._journal = plane, journal

    def append(self, facts: Any, now_s: float) -> None:
        rows = list(facts)
        if rows:
            self._plane.moment("before the journal")
        self._journal.append(rows, now_s)
        self._plane.world.oracles.journaled(self._plane, rows)
        if rows:
            self._plane.moment("after the journal")


class _Edge:
    """The ports to Agents and YARN: moments to die at, and the check that the journal came first."""

    def __init__(self, plane: Plane) -> None:
        self._plane = plane

    def send(self, effect: Any) -> None:
        self._plane.moment("between effects")
        self._plane.world.oracles.effect(self._plane, effect)
        self._plane.agents.send(effect)

    def carry_out(self, directive: Any) -> None:
        self._plane.moment("between effects")
        self._plane.world.oracles.effect(self._plane, directive)
        self._plane.endpoint.carry_out(directive)
