"""The ten incidents of docs/operations.md: each is caused; the page's commands, in their order, show why and end it.

A command that the page does not name is not run, and one that it names and this file does not know is an error: so a
change of the page or of the cure alone fails. What a shell would ask of systemd, YARN or the clock is done here: the
unit is a real `isonomy serve`, the cluster is simulated.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner

from pycontrol.arbiter.ledger.facts import Switched
from pycontrol.audit.accounting import with_older
from pycontrol.cli import main
from pycontrol.config import Config, load_config, parse
from pycontrol.daemon.control_plane import ControlPlane
from pycontrol.daemon.takeover import Takeover
from pycontrol.hadoopconf.preflight import Machine, findings
from pycontrol.model import events as ev
from pycontrol.runtime.clock import SLOW
from pycontrol.runtime.driver import Overloaded
from pycontrol.runtime.journal import SqliteJournal, read_facts
from pycontrol.web.router import Router
from submarine_patch.agent.gangs import SILENCE_S
from tests.arbiter.test_exchange import A, B
from tests.cells.files import layout_of
from tests.cli.conftest import ADMIN, Rm, rm
from tests.cli.test_exchange import CELLS, Floor
from tests.daemon.conftest import config
from tests.daemon.serving import COMMAND
from tests.daemon.test_takeover import Driver, Journal, Store
from tests.docs.test_operations import SYMPTOMS
from tests.hadoopconf.test_preflight import World as Host
from tests.web.scene import EARLY, LATE

__all__ = ["config", "rm"]
STATE = "/var/lib/isonomy"


class Shift:
    """Who is awake at 3 a.m., with the page and a shell."""

    def __init__(self, symptom: str, **names: object) -> None:
        """`symptom`: how a row of the page begins; `names`: what its placeholders stand for."""
        (row,) = (r.strip("| ").split(" | ") for r in SYMPTOMS.splitlines() if r.startswith(f"| {symptom}"))
        self.look, self.do = (re.findall(r"`([^`]+)`", cell) for cell in row[1:])
        self.prose = row[2]
        self.names = {name: str(value) for name, value in names.items()}
        self.env: dict[str, str | None] = {"HADOOP_USER_NAME": ADMIN, "HADOOP_CONF_DIR": None}
        self.hands: dict[str, Callable[..., str]] = {}
        """What this machine does for a command that begins so, with the words after that."""

    def run(self, commands: list[str]) -> str:
        """What the commands say, one after the other."""
        return "".join(self._run(command) for command in commands if " " in command)

    def _run(self, command: str) -> str:
        for name, value in self.names.items():
            command = re.sub(rf"\b{name}\b" if name.isalnum() else re.escape(name), lambda _, v=value: v, command)
        words = shlex.split(command)
        for start, hand in self.hands.items():
            if command.startswith(start):
                return hand(*words[len(start.split()) :])
        if words[0] == "isonomy":
            result = CliRunner().invoke(main, words[1:], env=self.env)
            assert "Traceback" not in result.output, result.output
            return result.output
        assert words[0] in ("df", "cp", "mv"), f"the page's {command} is not known here"
        return subprocess.run(["sh", "-c", command], check=True, capture_output=True, text=True).stdout


class Unit:
    """The unit `isonomy` of a systemd that gives up after a failure, until it is reset."""

    def __init__(self, config: Path) -> None:
        self.command, self.process, self.said, self.failed = [*COMMAND, str(config)], None, "", False

    def __call__(self, verb: str, unit: str) -> str:
        assert unit == "isonomy"
        match verb:
            case "stop" | "restart" if self.alive:
                self.process.terminate()
                self.said += self.process.communicate(timeout=30)[1]
            case "reset-failed":
                self.failed = False
        if verb in ("start", "restart") and not self.failed:
            self.process = subprocess.Popen(self.command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            assert self.process.stdout is not None
            if not self.process.stdout.readline().startswith("ready: "):
                self.said, self.failed = self.process.communicate(timeout=30)[1], True
        return "active" if self.alive else "failed"

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def end(self) -> None:
        if self.alive:
            self.process.kill()
            self.process.communicate(timeout=30)


@pytest.fixture
def unit(config: Path) -> Iterator[Unit]:
    made = Unit(config)
    yield made
    made.end()


def scene_shift(rm: Rm, symptom: str, **names: object) -> Shift:
    shift = Shift(symptom, **names)
    shift.env["ISONOMY_RM"] = rm.address
    return shift


def test_a_dead_control_plane(rm: Rm, unit: Unit, config: Path) -> None:
    state = load_config(config).state_dir
    state.mkdir(mode=0o700)
    journal = SqliteJournal(state / "journal.sqlite")
    journal.append([Switched("drained:n1", True, "ann", 5.0)], time.time())
    journal.close()
    assert unit("start", "isonomy") == "active"
    unit.end()
    rm.down = True
    shift = scene_shift(rm, '"no answer from the control plane"')
    shift.hands["systemctl"] = unit
    assert "no answer from the control plane" in shift.run(["isonomy status"])
    assert shift.run(shift.look) == "failed"
    unit.failed = True  # after ten failures in five minutes
    assert shift.run(shift.do).endswith("active")
    unit.end()
    assert "drained:n1" in shift.run([f"isonomy journal show {state}/journal.sqlite --kind Switched"])


@contextmanager
def small_disk(folder: Path) -> Iterator[None]:
    """A file system of 1 MB on the folder; skips where this user may mount none."""
    folder.mkdir(mode=0o700)
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m,mode=0700", "tmpfs", str(folder)], capture_output=True, text=True
    )
    if done.returncode != 0:
        pytest.skip(f"no file system can be mounted here: {done.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk(unit: Unit, config: Path) -> None:
    state = load_config(config).state_dir
    with small_disk(state), ExitStack() as stack:
        stack.callback(unit.end)
        fill(state)
        shift = Shift('`serve`: "the disk is full"', **{STATE: state})
        shift.hands["systemctl"] = unit
        assert unit("start", "isonomy") == "failed"
        assert "the disk is full" in unit.said
        assert "100%" in shift.run(shift.look)
        assert "make room" in shift.prose
        (state / "core").unlink()
        assert shift.run(shift.do).endswith("active")


def fill(state: Path) -> None:
    with (state / "core").open("wb", buffering=0) as file:
        try:
            while True:
                file.write(b"x" * 4096)
        except OSError:
            pass


def test_a_failover_while_hdfs_does_not_answer() -> None:
    store, driver = Store(), Driver()
    takeover = Takeover(store, Journal(), is_empty=True, cells=str)
    shift = Shift("failover, and HDFS")
    shift.hands["hdfs dfsadmin -safemode"] = lambda get: "Safe mode is ON" if store.away else "Safe mode is OFF"
    store.away = True
    with pytest.raises(Overloaded):
        takeover.before_snapshot(driver)
    assert shift.run(shift.look) == "Safe mode is ON"
    assert "repair HDFS. Until it answers leases are held, and nothing is killed" in shift.prose
    assert driver.submitted == []
    store.away = False
    takeover.before_snapshot(driver)
    assert store.kept is not None


def test_a_lost_node(rm: Rm) -> None:
    world, shift = rm.scene.world, scene_shift(rm, "a node is down")
    host = next(iter(world.agents[EARLY].held)).host
    world.lose_node(host)
    shift.hands["yarn node -list"] = lambda *_: "".join(f"{n}\n" for n in world.nodes)
    said = shift.run(shift.look)
    assert re.search(rf"{host} .*down", said)
    assert f"{host}:1\n" not in said
    assert "start its NodeManager" in shift.prose
    world.node_back(host)
    rm.scene.router.pictures.expire()
    assert f"{host}:1\n" in (again := shift.run(shift.look))
    assert not re.search(rf"{host} .*down", again)
    world.run(200)
    assert world.agents[EARLY].running, "its gangs resume"


def test_an_app_that_makes_no_progress(rm: Rm) -> None:
    """The cure is the Agent's own; tests/agent shows it."""
    shift = scene_shift(rm, "an app holds GPUs and makes no progress", APP=EARLY)
    said = shift.run(shift.look)
    assert "rho" in said
    assert "last line of" in said
    assert f"restarts a worker that is silent for {'a minute' if SILENCE_S == 60 else f'{SILENCE_S} s'}" in shift.prose


def test_an_agent_that_hangs_and_holds_gpus(rm: Rm) -> None:
    world = rm.scene.world
    agent, app = world.agents[EARLY], world.apps[EARLY]
    shift = scene_shift(rm, "an Agent is connected and does nothing", APP=EARLY, ATTEMPT=app.attempt_id)
    agent.silent = True
    last_s = max(x.end_s for x in world.arbiter.durable.leases.of(EARLY))
    world.run(last_s - 1000.0 + 20)
    assert EARLY in world.arbiter.agents
    rm.scene.submit(ev.Tick())
    assert re.search("LateRho|LateBid", shift.run(["isonomy queue"]))
    assert "last line of" in shift.run(shift.look)
    assert "Its leases end as agreed whatever it does" in shift.prose
    assert not world.arbiter.durable.leases.of(EARLY)

    def fail(attempt: str) -> str:
        rm.scene.submit(ev.AttemptRemoved(EARLY, attempt))
        rm.scene.submit(ev.AgentLost(EARLY))
        rm.scene.submit(ev.AttemptAdded(EARLY, f"{EARLY}_2"))
        agent.silent = False
        world.agent_back(agent)
        return ""

    shift.hands["yarn applicationattempt -fail"] = fail
    shift.run(shift.do)
    world.run(last_s - 1000.0 + 120)
    assert agent.running


def test_clocks_that_differ(tmp_path: Path, unit: Unit, config: Path) -> None:
    host, shift = Host(tmp_path / "host"), Shift("clocks differ", **{STATE: load_config(config).state_dir})
    host.gpu_node()
    off_s = [60.0]

    def step() -> str:
        off_s[:] = [0.0]
        return ""

    def preflight() -> str:
        found = findings(Machine(host.root, str(host.bin)), host.sites, None, host.hadoop, time.time() - off_s[0])
        return "".join(map(str, found))

    shift.hands = {
        "chronyc tracking": lambda: "",
        "chronyc makestep": step,
        "isonomy status": lambda: "the rounds are paused",
        "isonomy budget": lambda: "",
        "isonomy preflight": preflight,
        "systemctl": unit,
    }
    assert "clock: is +60 s from the ResourceManager's" in shift.run(shift.look)
    state = load_config(config).state_dir
    state.mkdir(mode=0o700)
    journal = SqliteJournal(state / "journal.sqlite")
    journal.append([Switched("paused", True, "ann", 5.0)], time.time() + 7200)
    journal.close()
    unit("start", "isonomy")
    assert "leases pass at half pace" in shift.prose
    assert SLOW == 0.5
    said = shift.run(shift.do)
    assert "paused" in said
    assert said.endswith("active")
    moved, new = with_older(state / "journal.sqlite")
    assert [[f.switch for _, _, f in read_facts(path)] for path in (moved, new)] == [["paused"], []], "usage reads both"
    assert "time runs slowly until it has caught up" in unit.said
    unit.said = ""
    unit("stop", "isonomy")
    assert "time runs slowly" not in unit.said
    assert preflight() == ""


def test_a_wrong_cells_file(rm: Rm, tmp_path: Path) -> None:
    rm.scene = floor = Floor()
    file = tmp_path / "cells.yaml"
    file.write_text(CELLS)
    config = parse(f"state_dir: {tmp_path}\ncells: {file}\npolicy: tiresias\n", Config, "isonomy.yaml")
    plane = ControlPlane(config, "tiresias")
    plane.read_cells("")[3]()
    floor.router = Router(floor, issue=str.join, arbiter_address="", read_cells=plane.read_cells)
    right = floor.world.owned()
    file.write_text(CELLS.replace("root.a: {big: 1, small: 1", "root.a: {small: 1"))
    shift = scene_shift(rm, "apps lost their guarantee", CELLS=file)
    told = shift.run([f"isonomy cells apply {file}"])
    assert floor.world.owned() != right
    (kept,) = tmp_path.glob("cells-*.yaml")
    assert f"the way back: cp {kept} {file} && isonomy cells apply {file}" in " ".join(told.split())
    assert "root applied the cells file" in shift.run(shift.look)
    shift.names[f"{STATE}/cells-TIME.yaml"] = str(kept)
    shift.run(shift.do)
    assert floor.world.owned() == right == {A: 6, B: 4}
    layout_of(file.read_text())


def test_a_user_who_takes_all(rm: Rm, tmp_path: Path) -> None:
    world = rm.scene.world
    journal = SqliteJournal(tmp_path / "journal.sqlite")
    for _, time_s, fact in rm.scene.kept.facts:
        journal.append([fact], time_s)
    journal.close()
    shift = scene_shift(rm, "one user takes all", NAME="u", FILE=tmp_path / "journal.sqlite", APP=EARLY)
    assert re.search(r"\bu\b", shift.run(shift.look))
    shift.do[:] = [x.replace("--gpus 8", "--gpus 4") for x in shift.do]
    shift.hands["yarn rmadmin -refreshQueues"] = lambda: ""
    held = lambda: sum(world.arbiter.holdings.holding(x) for x in (EARLY, LATE))  # noqa: E731
    world.run(70)
    assert held() > 4
    shift.run([x for x in shift.do if not x.startswith("isonomy kill")])
    world.run(170)
    assert held() <= 4
    shift.run([x for x in shift.do if x.startswith("isonomy kill")])
    assert ("finish", EARLY) in world.history


def test_a_broken_gpu(rm: Rm) -> None:
    world = rm.scene.world
    gpu = next(iter(world.agents[EARLY].held))
    world.mark(gpu.host, gpu.index)  # as its machine's isonomy-bad-gpus says
    shift = scene_shift(rm, "a GPU is broken")
    assert "1 bad" in shift.run(shift.look[:1])
    assert "it is excluded by itself" in shift.prose
    world.run(200)
    assert gpu not in world.arbiter.durable.leases
    assert gpu not in world.arbiter.gpus.free
