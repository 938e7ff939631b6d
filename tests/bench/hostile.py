"""One user does all that slows others at once, beside another who owns 2,000 apps: what everybody else notices.

The control plane's real parts run in this process, as in `isonomy serve`; the users' programs are other processes, the
hostile ones at nice 19. Their queries run on threads here, as those that the plugin forwards do.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import structlog

from pycontrol.bridge.endpoint import BridgeEndpoint
from pycontrol.cli.serve import share_the_interpreter
from pycontrol.daemon.assembly import Core, assemble
from pycontrol.model.cluster import YarnApp
from pycontrol.model.events import AppAdded, AttemptAdded, Tick
from pycontrol.rpc.service import NoHdfsToken
from pycontrol.rpc.tokens import Tokens
from pycontrol.runtime.driver import Driver
from pycontrol.runtime.journal import SqliteJournal
from pycontrol.simulation import forecaster
from pycontrol.web.router import Router
from pycontrol.wire.v1 import agent_pb2 as pb
from pycontrol.wire.v1 import bridge_pb2 as bridge
from pycontrol.wire.v1.agent_pb2_grpc import ArbiterStub
from tests.bench.views import busy

ALICE, MALLORY, AGAIN = "application_2_0001", "application_2_0002", "application_2_0003"
"""Apps: of a user who is measured; of the hostile one, whose second one registers again and again."""
STREAMS = 300
QUERIES = 8
"""Queries of one user that the plugin lets through at once (QuerySlots)."""
VIEWS = ("status", "queue", "apps", "leases")
READERS = ("alice", "bob", "carol")
VIEW_EVERY_S = 0.2
REST_MS = 1.0
"""A query's way from its user through the ResourceManager, at least."""
SLOW_HDFS_S = 1.0
SECONDS = 30.0
ALLOWED_MS = 20.0


class Since:
    """A clock that continues from a time."""

    def __init__(self, now_s: float) -> None:
        self._offset_s = now_s - time.monotonic()

    def now_s(self) -> float:
        """The time."""
        return self._offset_s + time.monotonic()

    def step_s(self) -> float:
        """Never set."""
        return 0.0


def run(quick: bool = False) -> dict[str, Any]:
    """p50, p99 and worst of round trips and views, calm and beside the hostile user, in milliseconds.

    `machine`: how late a process that does nothing else is woken, without which the others cannot be judged.
    """
    seconds = SECONDS / 4 if quick else SECONDS
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    with tempfile.TemporaryDirectory() as folder, control_plane(Path(folder)) as (core, tokens):
        share_the_interpreter()
        for name in VIEWS:  # the first picture copies all
            asked(core.endpoint, "bob", name)
        calm = measured(core, tokens, seconds)
        with hostile(core, tokens):
            beside = measured(core, tokens, seconds)
    found: dict[str, Any] = {"machine": {"calm": calm.pop("late"), "beside": beside.pop("late")}}
    for what in calm:
        allowed_ms = max(2.0 * calm[what]["p99_ms"], ALLOWED_MS)
        found[what] = {
            "calm": calm[what],
            "beside": beside[what],
            "allowed_p99_ms": allowed_ms,
            "kept": beside[what]["p99_ms"] <= allowed_ms,
        }
    return found


@contextlib.contextmanager
def control_plane(folder: Path) -> Iterator[tuple[Core, Tokens]]:
    """10,000 GPUs, all in use by 2,000 apps of one user, and three more apps."""
    arbiter, now_s = busy(1250, 2000, 5, users=1)
    now_s += 2 * arbiter.settings.grant_timeout_s  # the end of 10,000 grants' time to be used is not of interest
    arbiter.handle(Tick(), now_s)
    arbiter.take_facts()
    clock, tokens = Since(now_s), Tokens(os.urandom(32))
    journal = SqliteJournal(folder / "journal.sqlite")

    def hdfs(app_id: str, user: str) -> tuple[str, float]:
        if user == "mallory":
            time.sleep(SLOW_HDFS_S)
            raise NoHdfsToken("refused")
        return "token", clock.now_s() + 1000.0

    core = assemble(
        arbiter,
        arbiter.durable,
        journal,
        tokens,
        lambda arbiter, feed, agents, yarn: Driver(arbiter, feed, agents, yarn, clock),
        lambda driver, feed: Router(
            driver,
            issue=lambda app_id, user: tokens.issue(app_id, user, 3600.0, clock.now_s()),
            arbiter_address="",
            feed=feed,
        ),
        lambda event: core.driver.submit(event),
        listen=("127.0.0.1", 0),
        hdfs_tokens=hdfs,
    )
    core.driver.start()
    core.agents.start()
    for app_id in (ALICE, MALLORY, AGAIN):
        user = "alice" if app_id == ALICE else "mallory"
        core.driver.submit(AppAdded(YarnApp(app_id, user, "root.q", app_id, attempt_id=f"{app_id}_1")))
        core.driver.submit(AttemptAdded(f"{app_id}_1", app_id))
    core.driver.settle()
    try:
        yield core, tokens
    finally:
        core.agents.stop()
        core.driver.stop()
        journal.close()


# ---- what is measured


def measured(core: Core, tokens: Tokens, seconds: float) -> dict[str, dict[str, float]]:
    """Alice's round trips through the Arbiter and for HDFS tokens, from a process of her own, and her views."""
    peer = process("alice", core, tokens.issue(ALICE, "alice", 3600.0, 0.0), seconds, nice=0)
    views_ms: list[float] = []
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        for name in VIEWS:
            for user in READERS:
                views_ms.append(asked(core.endpoint, user, name))
                time.sleep(VIEW_EVERY_S)
    said, _ = peer.communicate(timeout=120)
    if peer.returncode:
        raise RuntimeError("the measured user's process failed")
    return {**{what: spread(times) for what, times in json.loads(said).items()}, "views": spread(views_ms)}


def asked(endpoint: BridgeEndpoint, user: str, path: str, **params: str) -> float:
    """Milliseconds until a query is answered."""
    begin_s = time.perf_counter()
    query = bridge.Query(method="GET", path=path, parameters=params, user=user)
    endpoint.handle(bridge.Request(query=query))
    return 1e3 * (time.perf_counter() - begin_s)


def spread(values_ms: list[float]) -> dict[str, float]:
    """p50, p99 and worst."""
    ordered = sorted(values_ms)
    at = {"p50_ms": 0.5, "p99_ms": 0.99, "worst_ms": 1.0}
    return {name: round(ordered[min(len(ordered) - 1, int(q * len(ordered)))], 2) for name, q in at.items()} | {
        "n": float(len(ordered))
    }


def process(what: str, core: Core, token: str, seconds: float, nice: int) -> subprocess.Popen[str]:
    """A user's program."""
    command = ["nice", "-n", str(nice), sys.executable, "-m", "tests.bench.hostile"]
    command += [what, str(core.agents.port), token, str(seconds)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


# ---- the hostile user


@contextlib.contextmanager
def hostile(core: Core, tokens: Tokens) -> Iterator[None]:
    """Floods, registers in a loop, asks for refused tokens and for all queries; and no forecast ends with its app."""
    stop = threading.Event()
    programs = {"flood": MALLORY, "agent": MALLORY, "register": AGAIN, "tokens": AGAIN}
    peers = [
        process(what, core, tokens.issue(app_id, "mallory", 3600.0, 0.0), 3600.0, nice=19)
        for what, app_id in programs.items()
    ]

    def query() -> None:
        while not stop.is_set():
            for path, params in (
                ("rounds", {"n": "1000"}),
                ("rounds", {"n": "200"}),
                ("queue", {}),
                ("explain", {"app": MALLORY}),
                ("events", {"limit": "1000"}),
            ):
                asked(core.endpoint, "mallory", path, **params)
                time.sleep(REST_MS / 1e3)

    threads = [threading.Thread(target=query, daemon=True) for _ in range(QUERIES)]
    before_s, forecaster.REFRESH_S = forecaster.REFRESH_S, 0.1
    forecasts = forecaster.Forecaster(core.router.pictures.newest, {})
    forecasts.start()
    for thread in threads:
        thread.start()
    try:
        for peer in peers:
            assert peer.stdout is not None
            peer.stdout.readline()  # it has begun
        yield
    finally:
        stop.set()
        forecasts.stop()
        forecaster.REFRESH_S = before_s
        for peer in peers:
            peer.kill()
            peer.communicate()
        for thread in threads:
            thread.join()


# ---- the users' programs, each in its own process


class Agent:
    """A registered Agent."""

    def __init__(self, stub: ArbiterStub, token: str, app_id: str, gangs: int = 1) -> None:
        self._out, self._in = queue.Queue[pb.AgentMessage](), queue.Queue[pb.ArbiterMessage]()
        demand = pb.Demand(gangs=gangs, gang_gpus=1, work_left_gpu_s=65536.0, work_total_gpu_s=65536.0)
        register = pb.Register(app_id=app_id, attempt_id=f"{app_id}_1", app_scheduler="single", demand=demand)
        self._out.put(pb.AgentMessage(register=register))
        self._call = stub.Session(iter(self._out.get, None), metadata=[("isonomy-token", token)])
        threading.Thread(target=self._read, daemon=True).start()
        self.until("registered")

    def _read(self) -> None:
        with contextlib.suppress(grpc.RpcError):
            for message in self._call:
                self._in.put(message)

    def until(self, kind: str) -> None:
        """Wait for a message of this kind."""
        while self._in.get(timeout=60.0).WhichOneof("kind") != kind:
            pass

    def use(self, number: int) -> None:
        """A plan for a GPU that it does not have, and the Arbiter's answer."""
        worker = pb.WorkerPlan(worker_id="w", job_id="j", host="n1", gpu_ids=[0])
        self._out.put(pb.AgentMessage(use=pb.Use(use_id=f"u{number}", workers=[worker])))
        self.until("use_reply")

    def end(self) -> None:
        """Break the stream."""
        self._call.cancel()


def alice(stub: ArbiterStub, token: str, end_s: float) -> None:
    """Prints milliseconds of round trips."""
    agent, found = Agent(stub, token, ALICE), {"round_trips": [], "hdfs_tokens": [], "late": []}

    def timed(what: str, call: Callable[[], Any]) -> None:
        begin_s = time.perf_counter()
        call()
        found[what].append(1e3 * (time.perf_counter() - begin_s))

    numbers = itertools.count()
    while time.monotonic() < end_s:
        for _ in range(5):
            timed("round_trips", lambda: agent.use(next(numbers)))
            timed("late", lambda: time.sleep(0.01))
        timed("hdfs_tokens", lambda: stub.HdfsToken(pb.HdfsTokenRequest(), metadata=[("isonomy-token", token)]))
    found["late"] = [ms - 10.0 for ms in found["late"]]
    print(json.dumps(found))


def flood(stub: ArbiterStub, token: str, end_s: float) -> None:
    """As many messages of as many workers as go through; each has a stream of its own."""

    def messages(k: int) -> Iterator[pb.WorkerMessage]:
        step = 0
        while time.monotonic() < end_s:
            step += 1
            if step == 1 and k == STREAMS - 1:
                print("flooding", flush=True)
            yield pb.WorkerMessage(worker_id=f"w{k}", progress=pb.WorkerProgress(step=step, loss=1.0))

    def worker(k: int) -> None:
        with contextlib.suppress(grpc.RpcError):
            list(stub.Worker(messages(k), metadata=[("isonomy-token", token)]))

    _in_threads(worker, STREAMS)


def agent(stub: ArbiterStub, token: str, end_s: float) -> None:
    """An app with 65,536 gangs of a second each, whose Agent sends plans without end."""
    mine, number = Agent(stub, token, MALLORY, gangs=65_536), 0
    print("registered", flush=True)
    while time.monotonic() < end_s:
        number += 1
        mine.use(number)


def register(stub: ArbiterStub, token: str, end_s: float) -> None:
    """An Agent that registers again and again."""
    while time.monotonic() < end_s:
        Agent(stub, token, AGAIN).end()
        print("registered", flush=True)


def tokens(stub: ArbiterStub, token: str, end_s: float) -> None:
    """Requests of HDFS tokens that HDFS refuses slowly."""

    def ask(k: int) -> None:
        print("asking", flush=True)
        while time.monotonic() < end_s:
            with contextlib.suppress(grpc.RpcError):
                stub.HdfsToken(pb.HdfsTokenRequest(), metadata=[("isonomy-token", token)])

    _in_threads(ask, 32)


def _in_threads(each: Callable[[int], None], n: int) -> None:
    threads = [threading.Thread(target=each, args=(k,), daemon=True) for k in range(n)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def main() -> None:
    """A user's program: its name, the port, its token, and for how many seconds."""
    name, port, token, seconds = sys.argv[1:]
    programs = {p.__name__: p for p in (alice, flood, agent, register, tokens)}
    channel = grpc.insecure_channel(f"127.0.0.1:{port}")
    programs[name](ArbiterStub(channel), token, time.monotonic() + float(seconds))


if __name__ == "__main__":
    main()
