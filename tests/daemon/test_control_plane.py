"""The whole control plane as a process, between a plugin and an Agent that speak the real protocols."""

import contextlib
import json
import queue
import re
import shutil
import socket
import threading
import time
from pathlib import Path
from typing import Any

import grpc
import pytest
import yaml

from pycontrol.arbiter.ledger.facts import LeaseGranted
from pycontrol.config import load_config
from pycontrol.daemon import control_plane
from pycontrol.rpc.tokens import Tokens
from pycontrol.runtime.journal import read_facts
from pycontrol.wire.v1 import agent_pb2 as pb
from pycontrol.wire.v1 import bridge_pb2
from pycontrol.wire.v1.agent_pb2_grpc import ArbiterStub
from tests.bridge.plugin import Plugin
from tests.daemon.conftest import free_ports
from tests.daemon.serving import LIMIT_S, serving
from tests.daemon.test_standby_store import web_hdfs

CELLS = """
cell_types:
  big: {child: gpu, count: 2, node_level: true}
physical_cells: [{type: big, hosts: [n1]}, {type: big, hosts: [n2]}]
virtual_clusters: {root.a: {big: %d}, root.b: {big: %d}}
"""
APP, ATTEMPT = "application_1_0001", "appattempt_1_0001_000001"


class PluginLink(Plugin):
    """The plugin of one life of the ResourceManager."""

    def __init__(self, file: Path, epoch: str) -> None:
        config = yaml.safe_load(file.read_text())
        port, token = config["bridge"]["port"], (file.parent / config["state_dir"] / "bridge.token").read_text().strip()
        super().__init__(port, token)
        self._epoch, self._id = epoch, 0

    def say(self, **body: Any) -> bridge_pb2.Response:
        self._id += 1
        return self.exchange(bridge_pb2.Request(plugin_epoch=self._epoch, id=self._id, **body))

    def hello(self) -> str:
        """What is wrong, if anything is."""
        node = bridge_pb2.Node(node_id="n1:8041", host="n1", rack="/a", gpus=2)
        app = bridge_pb2.Application(
            app_id=APP,
            user="ann",
            queue="root.default",
            name="a",
            tags=["isonomy"],
            attempt_id=ATTEMPT,
            submit_time_ms=1_000,
        )
        snapshot = bridge_pb2.Snapshot(ready=True, nodes=[node], applications=[app])
        return self.say(hello=bridge_pb2.Hello(snapshot=snapshot)).error

    def get(self, path: str, **parameters: str) -> dict[str, Any]:
        """A view. It may be slightly old, so an app that is not in it yet is asked for again."""
        query = bridge_pb2.Query(method="GET", path=path, parameters=parameters, user="ann")
        until_s = time.monotonic() + LIMIT_S
        reply = self.say(query=query).query_reply
        while reply.status == 404 and time.monotonic() < until_s:
            time.sleep(0.05)
            reply = self.say(query=query).query_reply
        assert reply.status == 200, reply
        answer: dict[str, Any] = json.loads(reply.body)
        return answer


class Agent:
    """An Agent that wants one gang of two GPUs."""

    demand = pb.Demand(gang_gpus=2, gangs=1, job_demand_max=2, work_left_gpu_s=1e5, work_total_gpu_s=1e5)

    def __init__(self, access: dict[str, Any]) -> None:
        self._channel = grpc.insecure_channel(access["arbiter"])
        self._out: queue.Queue[pb.AgentMessage | None] = queue.Queue()
        self._in: queue.Queue[pb.ArbiterMessage] = queue.Queue()
        self._refused: queue.Queue[str] = queue.Queue()
        self._call = ArbiterStub(self._channel).Session(
            iter(self._out.get, None), metadata=[("isonomy-token", access["token"])]
        )
        threading.Thread(target=self._read, daemon=True).start()
        register = pb.Register(app_id=APP, attempt_id=ATTEMPT, app_scheduler="hyperband", demand=self.demand)
        self._out.put(pb.AgentMessage(register=register))

    def _read(self) -> None:
        try:
            for message in self._call:
                self._in.put(message)
        except grpc.RpcError as e:
            self._refused.put(e.details() if isinstance(e, grpc.Call) else str(e))

    def refusal(self) -> str:
        """Why the control plane ended the stream."""
        return self._refused.get(timeout=LIMIT_S)

    def until(self, kind: str) -> Any:
        """Answers messages until one of this kind arrives."""
        while True:
            message = self._in.get(timeout=LIMIT_S)
            match message.WhichOneof("kind"):
                case found if found == kind:
                    return getattr(message, kind)
                case "ask_rho":
                    rho = pb.Rho(round_id=message.ask_rho.round_id, rho=9.0, demand=self.demand)
                    self._out.put(pb.AgentMessage(rho=rho))
                case "offer":
                    row = pb.BidRow(rho=2.0, new_gangs=1, gang_gpus=2, scope=pb.MACHINE)
                    bid = pb.Bid(round_id=message.offer.round_id, rho_nothing=9.0, rows=[row])
                    self._out.put(pb.AgentMessage(bid=bid))

    def messages(self) -> list[pb.ArbiterMessage]:
        """All that arrived and was not answered."""
        return [self._in.get_nowait() for _ in range(self._in.qsize())]

    def use(self, request_id: int) -> None:
        worker = pb.WorkerPlan(
            worker_id="j1/1/0", job_id="j1", host="n1", gpu_ids=[0, 1], allocation_request_id=request_id
        )
        self._out.put(pb.AgentMessage(use=pb.Use(use_id="u1", workers=[worker])))

    def close(self) -> None:
        self._out.put(None)
        self._call.cancel()
        self._channel.close()


@pytest.mark.timeout(120)
def test_housekeeping_goes_on_after_an_error(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing that serves depends on it: the process does not end, and stops as it should."""
    monkeypatch.setattr(control_plane, "HOUSEKEEPING_S", 0.01)
    plane = control_plane.ControlPlane(load_config(config), "isonomy")
    again, errors = threading.Event(), [RuntimeError("odd"), TimeoutError("busy")]

    def sample(arbiter: object, now_s: float) -> None:
        if errors:
            raise errors.pop()
        again.set()

    plane.start()
    monkeypatch.setattr(plane.feed.trends, "sample", sample)
    ended: list[int] = []
    running = threading.Thread(target=lambda: ended.append(plane.run()), daemon=True)
    running.start()
    try:
        assert again.wait(60.0)
    finally:
        plane.stop()
        running.join(60.0)
    assert ended == [0]


@pytest.mark.timeout(120)
def test_the_watchdog_hears_of_it_while_its_arbiter_answers(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As systemd listens; the unit ends a control plane that is silent for a minute or more."""
    unit = (Path(__file__).parents[2] / "packaging" / "isonomy.service").read_text()
    silence = re.search(r"^WatchdogSec=(\d+)$", unit, re.MULTILINE)
    assert silence is not None
    assert int(silence[1]) >= 10 * control_plane.HOUSEKEEPING_S
    monkeypatch.setattr(control_plane, "HOUSEKEEPING_S", 0.01)
    plane = control_plane.ControlPlane(load_config(config), "isonomy")
    plane.start()
    tried, driver = threading.Semaphore(0), plane.driver
    call = driver.call

    def busy(fn: Any, timeout_s: float = 5.0) -> Any:
        tried.release()
        raise TimeoutError

    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.settimeout(60.0)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        running = threading.Thread(target=plane.run, daemon=True)
        running.start()
        try:
            assert systemd.recv(100) == b"WATCHDOG=1"
            monkeypatch.setattr(driver, "call", busy)
            tried.acquire()
            systemd.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                while systemd.recv(100):
                    pass
            for _ in range(3):
                assert tried.acquire(timeout=60.0)
            with pytest.raises(BlockingIOError):
                systemd.recv(100)
            monkeypatch.setattr(driver, "call", call)
            systemd.settimeout(60.0)
            assert systemd.recv(100) == b"WATCHDOG=1"
        finally:
            plane.stop()
            running.join(60.0)


def test_a_worker_is_placed_after_hello_and_survives_a_crash(config: Path) -> None:
    with serving(config):
        plugin = PluginLink(config, "e1")
        assert plugin.say(poll=bridge_pb2.Poll()).hello_required
        assert not plugin.hello()
        agent = Agent(plugin.get("token", app=APP))
        registered = agent.until("registered")
        assert [(h.host, h.gpus) for h in registered.hosts] == [("n1", 2)]
        grant = agent.until("grant")
        assert [(g.host, list(g.gpu_ids)) for g in grant.gpus] == [("n1", [0, 1])]
        agent.use(7)
        assert agent.until("use_reply").accepted
        ask = bridge_pb2.Ask(
            attempt_id=ATTEMPT, app_id=APP, allocation_request_id=7, gpus=2, count=1, memory_mb=512, vcores=1
        )
        event = bridge_pb2.Event(seq=1, ask=ask)
        assert plugin.say(events=bridge_pb2.Events(events=[event])).ack.last_seq == 1
        polled = plugin.say(poll=bridge_pb2.Poll(wait_ms=5000)).directives.directives
        place = polled[0].place
        assert (place.node_id, list(place.gpu_ids), place.memory_mb) == ("n1:8041", [0, 1], 512)
        assert place.lease_id == grant.grant_id
        agent.close()
        plugin.close()
    with serving(config):
        plugin = PluginLink(config, "e1")
        assert plugin.say(poll=bridge_pb2.Poll()).hello_required
        assert not plugin.hello()
        agent = Agent(plugin.get("token", app=APP))
        held = agent.until("registered").grants
        assert [g.grant_id for g in held] == [grant.grant_id]
        agent.close()
        plugin.close()


@pytest.mark.timeout(120)
def test_a_state_that_contradicts_itself_stops_it_once_and_is_then_held(config: Path) -> None:
    """Here GPUs that are granted stay in the index of free ones."""
    broken = "from pycontrol.arbiter.views.gpu_index import FreeGpus; FreeGpus.take = lambda self, gpu: None"
    state = config.parent / "state"
    with serving(config, broken) as first:
        plugin = PluginLink(config, "e1")
        assert not plugin.hello()
        access = plugin.get("token", app=APP)
        agent = Agent(access)
        assert first.wait(LIMIT_S) == 1
        assert "the state contradicts itself" in first.communicate()[1]
        assert not [m for m in agent.messages() if m.WhichOneof("kind") == "grant"], "no effect without its check"
    (story,) = state.glob("violation-*.txt")
    assert "n1:0: it is not free, but the index disagrees" in story.read_text()
    assert "LeaseGranted" in story.read_text()
    kept = list(read_facts(story.with_suffix(".sqlite")))
    assert kept
    assert not [f for _, _, f in kept if isinstance(f, LeaseGranted)], "nor a fact"
    with serving(config, broken) as second:
        plugin = PluginLink(config, "e1")
        assert not plugin.hello()
        Agent(access)
        until_s = time.monotonic() + LIMIT_S
        while (status := plugin.get("status"))["state"] != "held":
            assert time.monotonic() < until_s, status
            time.sleep(0.05)
        assert "it is not free" in status["held"]
        told = plugin.say(query=bridge_pb2.Query(method="POST", path="pause", user="root", admin=True)).query_reply
        assert (told.status, "leases are held" in told.body.decode()) == (503, True)
        assert not plugin.say(poll=bridge_pb2.Poll()).directives.directives
        assert second.poll() is None, "it goes on serving views"
        plugin.close()


@pytest.mark.timeout(120)
def test_of_a_pair_one_serves_and_a_journal_from_before_the_failover_is_set_aside(config: Path) -> None:
    address, ports, state = yaml.safe_load(config.read_text())["agents"]["advertise"], free_ports(2), config.parent
    there = f"127.0.0.1:{ports[1]}"
    with web_hdfs() as (webhdfs, files):
        values = yaml.safe_load(config.read_text()) | {"standby": {"webhdfs": webhdfs, "every_s": 0.2}}
        config.write_text(yaml.safe_dump(values))
        own = {"state_dir": "other", "bridge": {"port": ports[0]}, "agents": {"host": "127.0.0.1", "port": ports[1]}}
        (state / "second.yaml").write_text(yaml.safe_dump(values | own))
        access = {"token": Tokens.of_file(state / "state" / "tokens.key").issue(APP, "ann", 600, time.time())}
        (state / "other").mkdir()
        shutil.copy2(state / "state" / "tokens.key", state / "other")
        with serving(config) as first, serving(state / "second.yaml"):
            plugin = PluginLink(config, "e1")
            assert not plugin.hello()
            assert "stands by" in Agent(access | {"arbiter": there}).refusal()
            agent = Agent(access | {"arbiter": address})
            grant = agent.until("grant")
            arrived_s = plugin.get("explain", app=APP)["app"]["arrived_s"]
            while not any(APP.encode() in data for data in files.values()):
                time.sleep(0.05)
            plugin.close()
            assert "stands by" in agent.refusal(), "its plugin is silent"

            plugin = PluginLink(state / "second.yaml", "e2")
            assert not plugin.hello()
            assert plugin.get("explain", app=APP)["app"]["arrived_s"] == arrived_s
            granted = Agent(access | {"arbiter": there}).until("grant")
            assert granted.grant_id != grant.grant_id, "no id is given by both"
            plugin.close()

            with contextlib.suppress(ConnectionError):  # it may end before its answer is out
                assert PluginLink(config, "e3").hello(), "no snapshot is taken on the old journal"
            assert first.wait(LIMIT_S) == 1
        assert len(list((state / "state").glob("journal-*.sqlite"))) == 1
        with serving(config):
            plugin = PluginLink(config, "e4")
            assert not plugin.hello()
            assert plugin.get("explain", app=APP)["app"]["arrived_s"] == arrived_s
            plugin.close()


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("there", "owns", "says"),
    [
        (CELLS % (0, 2), 0, "the cells are as the file says"),
        (CELLS % (2, 0), 2, "other cells were in force"),
        ("cell_typs: {}", 2, "did you mean cell_types"),
    ],
)
def test_a_takeover_serves_the_cells_file_as_it_is_then(
    there: str, owns: int, says: str, config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The other one has run since before the file changed: copied to its machine, not copied, or copied in part."""
    files = [config, config.parent / "second" / config.name]
    files[1].parent.mkdir()
    with web_hdfs() as (webhdfs, _), contextlib.ExitStack() as running:
        for file in files:
            bridge, agents = free_ports(2)
            own = {"bridge": {"port": bridge}, "agents": {"host": "127.0.0.1", "port": agents}, "state_dir": "state"}
            file.write_text(yaml.safe_dump(own | {"cells": "cells.yaml", "standby": {"webhdfs": webhdfs}}))
            file.with_name("cells.yaml").write_text(CELLS % (2, 0))
            plane = control_plane.ControlPlane(load_config(file), "isonomy")
            plane.start()
            running.callback(lambda plane=plane: (plane.stop(), plane.run()))
        first = PluginLink(files[0], "e1")
        assert not first.hello()
        for file, text in zip(files, (CELLS % (0, 2), there), strict=True):
            file.with_name("cells.yaml").write_text(text)
        post = bridge_pb2.Query(method="POST", path="cells-apply", user="root", admin=True)
        assert first.say(query=post).query_reply.status == 200
        first.close()
        assert says not in capsys.readouterr().out
        second = PluginLink(files[1], "e2")
        assert not second.hello()
        assert second.get("cells")["tenants"][0]["gpus"] == 2 * owns
        said = capsys.readouterr().out
        assert says in said
        assert ("other cells were in force" in said) == (owns == 2)
        assert [x["user"] for x in second.get("status")["acts"]] == ["the takeover"] * (owns == 0) + ["root"]
        second.close()
