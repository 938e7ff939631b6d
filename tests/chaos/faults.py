"""Faults on real processes: each kind begins and returns the function that ends it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

from tests.chaos.plan import Fault
from tests.chaos.proxy import Proxy
from tests.chaos.rig import FAKETIME, ChaosRig

End = Callable[[], object]
Beginning = tuple[str, End]
"""A description for people, and the function that ends it."""
ROLES = {"rm": "resourcemanager", "namenode": "namenode", "datanode": "datanode"}
OF_APPS = ("am", "agent", "worker")
"""YARN or the Agent restarts them."""
DELAY_S = (0.05, 1.5)


def nothing() -> None:
    """Ends nothing."""


@dataclass(frozen=True)
class Begun:
    """A fault that hit a target."""

    at_s: float
    """Unix seconds."""
    name: str
    for_s: float
    text: str


class Faults:
    """Begins a plan's faults on a rig."""

    def __init__(self, rig: ChaosRig, say: Callable[[str], None]) -> None:
        self.rig, self.say = rig, say
        self.problems: list[str] = []
        self.begun: list[Begun] = []
        self.tried = 0

    def begin(self, f: Fault) -> End:
        """Begins a fault."""
        kind = {
            "kill": self._kill,
            "freeze": self._freeze,
            "link": self._link,
            "busy": self._busy,
            "disk": self._disk,
            "second": self._second,
            "clock": self._clock,
        }[f.kind]
        self.tried += 1
        at_s, beginning = time.time(), kind(f)
        if beginning is None:
            self.say(f"fault {self.tried}: {f}: nobody there")
            return nothing
        text, end = beginning
        self.say(f"fault {self.tried}: {text}")
        self.begun.append(Begun(at_s, f.name, f.for_s, text))
        return end

    # ---- processes

    def _nodemanager(self, f: Fault) -> str:
        roles = sorted(r for r in self.rig.cluster["roles"] if r.startswith("nodemanager"))
        return str(roles[int(f.pick * len(roles))])

    def _plane(self) -> list[int]:
        control = self.rig.control
        return [control.pid] if control is not None and control.poll() is None else []

    def _pids(self, f: Fault) -> list[int]:
        """The processes that it hits."""
        if f.what == "plane":
            return self._plane()
        if f.what in OF_APPS:
            found = self.rig.of_program(f.what)
            return found[int(f.pick * len(found))] if found else []
        return self.rig.of_role(self._nodemanager(f) if f.what == "nm" else ROLES[f.what])

    def _kill(self, f: Fault) -> Beginning | None:
        pids = self._pids(f)
        if not pids:
            return None
        text = f"kill -9 {f.what} {pids}"
        if f.what in OF_APPS:
            _signal(pids, signal.SIGKILL)
            return text, nothing
        text += f", back after {f.for_s:.0f} s"
        if f.what == "plane":
            self.rig.held_down = True
            _signal(pids, signal.SIGKILL)
            return text, lambda: setattr(self.rig, "held_down", False)
        role = self._nodemanager(f) if f.what == "nm" else ROLES[f.what]
        _signal(pids, signal.SIGKILL)
        return text, lambda: self.rig.errand(lambda: self.rig.revive(role))

    def _freeze(self, f: Fault) -> Beginning | None:
        pids = self._pids(f)
        if not pids:
            return None
        _signal(pids, signal.SIGSTOP)
        return f"SIGSTOP {f.what} {pids} for {f.for_s:.0f} s", lambda: _signal(pids, signal.SIGCONT)

    # ---- links, CPU, disk, clock, another one

    def _link(self, f: Fault) -> Beginning:
        links = self.rig.links[f.what]
        link = links[int(f.pick * len(links))]
        delay_s = DELAY_S[0] + f.pick * (DELAY_S[1] - DELAY_S[0])
        how = f"{delay_s:.1f} s late" if f.way == "delay" else f.way
        text = f"link {f.what}: {how} for {f.for_s:.0f} s, {link.connections} connections"
        ways: dict[str, Callable[[Proxy], object]] = {
            "delay": lambda p: p.delay(delay_s),
            "stall": Proxy.stall,
            "cut": Proxy.cut,
            "lossy": Proxy.lossy,
        }
        link.each(ways[f.way])
        return text, lambda: link.each(Proxy.open)

    def _busy(self, f: Fault) -> Beginning:
        """A busy loop for each core, at our priority."""
        loops: list[subprocess.Popen[bytes]] = [
            subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"]) for _ in range(os.cpu_count() or 1)
        ]

        def over() -> None:
            for loop in loops:
                loop.kill()
                loop.wait()

        return f"all cores busy for {f.for_s:.0f} s", over

    def _disk(self, f: Fault) -> Beginning:
        self.rig.fill_disk(True)
        return f"the journal's disk is full for {f.for_s:.0f} s", lambda: self.rig.fill_disk(False)

    def _second(self, f: Fault) -> Beginning | None:
        if not self._plane():
            return None
        self.rig.errand(lambda: self.problems.extend(filter(None, [self.rig.second_plane()])))
        return "a second control plane is started", nothing

    def _clock(self, f: Fault) -> Beginning | None:
        """Kills the control plane and restarts it with a wrong clock."""
        pids = self._plane()
        if not pids or not any(file.exists() for file in FAKETIME):
            return None
        self.rig.skew_s = float(f.way)
        _signal(pids, signal.SIGKILL)

        def right() -> None:
            self.rig.skew_s = None
            _signal(self._plane(), signal.SIGKILL)

        return f"the control plane's clock is {f.way} s off for {f.for_s:.0f} s", right


def _signal(pids: list[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
