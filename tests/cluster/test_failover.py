"""A pair of ResourceManagers, each with a control plane: failover on real processes."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

from tests.cluster.rig import Rig
from tests.cluster.test_policies import SPACE, group

pytestmark = pytest.mark.policies
RMS = ("resourcemanager", "resourcemanager-2")
LOOK_S = 0.5


class Pair(Rig):
    """Both control planes run under a supervisor, which restarts them."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.planes: dict[str, subprocess.Popen[bytes]] = {}
        self._stopping = threading.Event()
        self._supervisor = threading.Thread(target=self._supervise)
        super().__init__(folder, "themis", "--standby", *options)
        (folder / "space.yaml").write_text(SPACE)

    def serve(self, policy: str = "themis") -> None:
        """Both, with one key of tokens."""
        self._start(RMS[0])
        shutil.copy2(self.folder / "isonomy" / "tokens.key", self.folder / "isonomy-2")
        self._start(RMS[1])
        self._supervisor.start()
        self.wait(lambda: any(map(self.in_charge, RMS)), 60, "a plugin says hello")

    def _start(self, rm: str) -> None:
        self.planes[rm] = self.control_plane(self.cluster["isonomy_yamls"][RMS.index(rm)])

    def _supervise(self) -> None:
        while not self._stopping.wait(LOOK_S):
            for rm, plane in self.planes.items():
                if plane.poll() is not None:
                    self._start(rm)

    def stop(self) -> None:
        """Ends both."""
        self._stopping.set()
        if self._supervisor.ident is not None:
            self._supervisor.join()
        for plane in self.planes.values():
            plane.terminate()
            plane.wait(20)

    def says(self, rm: str, path: str) -> dict[str, Any]:
        """A resource of this particular ResourceManager; {} while it is not available."""
        try:
            url = f"{self.cluster['roles'][rm]['web']}/ws/v1/cluster/{path}"
            return dict(requests.get(url, timeout=2, allow_redirects=False, auth=self.login).json())
        except (requests.RequestException, ValueError):
            return {}

    def state(self, rm: str) -> str:
        """ACTIVE or STANDBY; empty where it does not answer."""
        return str(self.says(rm, "info").get("clusterInfo", {}).get("haState", ""))

    def in_charge(self, rm: str) -> bool:
        """Whether this ResourceManager is active, with its control plane."""
        return self.state(rm) == "ACTIVE" and bool(self.says(rm, "isonomy/status").get("ready"))

    def pair(self) -> tuple[str, str]:
        """The active ResourceManager and the other one."""
        active = next(rm for rm in RMS if self.state(rm) == "ACTIVE")
        return active, next(rm for rm in RMS if rm != active)

    def taken_over(self, limit_s: float) -> str:
        """Kills the active one and its control plane; returns which one it was, once the other one is in charge."""
        active, other = self.pair()
        self.planes[active].kill()
        self.dev("kill", active)
        self.wait(lambda: self.in_charge(other), limit_s, "the other one and its control plane take over")
        return active

    def goes_on(self, name: str, steps: int) -> None:
        """Waits until a job has trained further in its present container; its AM may be a new one."""
        known = self.wait(lambda: self.jobs(name), 60, f"{name}'s Agent is there")
        self.training(name, max(j["step"] for j in known) + steps)
        assert [j["restarts"] for j in self.jobs(name)] == [0], "the running container continued"


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    made = Pair(tmp_path_factory.mktemp("failover"))
    yield made
    made.down()


def test_training_continues_when_the_active_one_dies_and_when_the_other_one_hangs(pair: Pair) -> None:
    pair.submit("search", 60, *group("hyperband", pair.folder / "space.yaml"))
    pair.submit("plain", 120)
    pair.training("search", 5)
    pair.training("plain", 3)
    arrived_s = pair.get("explain", app="plain")["app"]["arrived_s"]

    dead = pair.taken_over(60)
    pair.submit("late", 10)
    pair.dev("start", dead)
    pair.goes_on("plain", 3)

    active, other = pair.pair()
    pid = int((pair.folder / "run" / f"{active}.pid").read_text().split()[0])
    os.kill(pid, signal.SIGSTOP)
    try:
        pair.wait(lambda: pair.state(other) == "ACTIVE", 60, "the other one takes over again")
    finally:
        os.kill(pid, signal.SIGCONT)
    pair.wait(lambda: pair.in_charge(other), 60, "its control plane continues from what was kept, not from its journal")
    pair.wait(lambda: pair.state(active) == "STANDBY", 60, "the one that hung stands by")
    pair.goes_on("plain", 3)

    assert pair.get("explain", app="plain")["app"]["arrived_s"] == arrived_s, "its clock continues"
    pair.succeeds("plain")
    pair.succeeds("search")
    pair.succeeds("late")
    pair.audit()
