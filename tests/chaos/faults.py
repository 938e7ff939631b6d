"""Faults on real processes: each kind begins, and gives what ends it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from tests.chaos.plan import Fault
from tests.chaos.rig import FAKETIME, ChaosRig

End = Callable[[], object]
ROLES = {"rm": "resourcemanager", "namenode": "namenode", "datanode": "datanode"}
AM_DEATHS = 2
"""An app may have four attempts; a frozen one may cost one, too."""
DELAY_S = (0.05, 1.5)


def nothing() -> None:
    """There is nothing to end."""


class Faults:
    """Begins a plan's faults on a rig."""

    def __init__(self, rig: ChaosRig, say: Callable[[str], None]) -> None:
        self.rig, self.say = rig, say
        self.problems: list[str] = []
        self.done: dict[str, int] = {}
        """Faults that began, by kind."""
        self._deaths: dict[str, int] = {}
        """Of AMs, by app."""

    def begin(self, f: Fault) -> End:
        """The fault begins."""
        kind = {"kill": self._kill, "freeze": self._freeze, "link": self._link, "busy": self._busy,
                "disk": self._disk, "second": self._second, "clock": self._clock}[f.kind]  # fmt: skip
        end = kind(f)
        name = " ".join(filter(None, (f.kind, f.what, f.way if f.kind == "link" else "")))
        if end is None:
            self.say(f"{f}: nobody there")
            return nothing
        self.done[name] = self.done.get(name, 0) + 1
        return end

    # ---- processes

    def _nodemanager(self, f: Fault) -> str:
        roles = sorted(r for r in self.rig.cluster["roles"] if r.startswith("nodemanager"))
        return str(roles[int(f.pick * len(roles))])

    def _pids(self, f: Fault) -> list[int]:
        """Whom it hits."""
        if f.what == "plane":
            control = self.rig.control
            return [control.pid] if control is not None and control.poll() is None else []
        if f.what in ("am", "agent", "worker"):
            found = self.rig.of_program(f.what)
            return found[int(f.pick * len(found))] if found else []
        return self.rig.of_role(self._nodemanager(f) if f.what == "nm" else ROLES[f.what])

    def _kill(self, f: Fault) -> End | None:
        pids = self._pids(f)
        if not pids or (f.what in ("am", "agent") and not self._may_die(pids[0])):
            return None
        self.say(f"kill -9 {f.what} {pids}, {f.for_s:.0f} s")
        if f.what == "plane":
            self.rig.held_down = True
            _signal(pids, signal.SIGKILL)
            return lambda: setattr(self.rig, "held_down", False)
        if f.what in ("am", "agent", "worker"):
            _signal(pids, signal.SIGKILL)
            return nothing
        role = self._nodemanager(f) if f.what == "nm" else ROLES[f.what]
        self.rig.dev("kill", role)
        return lambda: self.revive(role)

    def revive(self, role: str) -> None:
        """Starts a daemon that is down."""
        if not self.rig.of_role(role):
            with contextlib.suppress(subprocess.SubprocessError):
                self.rig.dev("start", role)

    def _may_die(self, pid: int) -> bool:
        """Whether the app of this process has attempts to spare."""
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                words = file.read().split(b"CONTAINER_ID=container_")[1].split(b"\0")[0].split(b"_")
        except (OSError, IndexError):
            return False
        app = (words[2] if words[0].startswith(b"e") else words[1]).decode()
        self._deaths[app] = self._deaths.get(app, 0) + 1
        return self._deaths[app] <= AM_DEATHS

    def _freeze(self, f: Fault) -> End | None:
        pids = self._pids(f)
        if not pids:
            return None
        self.say(f"SIGSTOP {f.what} {pids} for {f.for_s:.0f} s")
        _signal(pids, signal.SIGSTOP)
        return lambda: _signal(pids, signal.SIGCONT)

    # ---- links, CPU, disk, clock, another one

    def _link(self, f: Fault) -> End:
        link = self.rig.links[f.what]
        self.say(f"link {f.what}: {f.way} for {f.for_s:.0f} s, {link.connections} connections")
        if f.way == "delay":
            link.delay(DELAY_S[0] + f.pick * (DELAY_S[1] - DELAY_S[0]))
        else:
            {"stall": link.stall, "cut": link.cut, "lossy": link.lossy}[f.way]()
        return link.open

    def _busy(self, f: Fault) -> End:
        """A busy loop for each core, at our priority."""
        self.say(f"all cores busy for {f.for_s:.0f} s")
        loops: list[subprocess.Popen[bytes]] = [
            subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"]) for _ in range(os.cpu_count() or 1)
        ]

        def over() -> None:
            for loop in loops:
                loop.kill()
                loop.wait()

        return over

    def _disk(self, f: Fault) -> End:
        self.say(f"the journal's disk is full for {f.for_s:.0f} s")
        self.rig.fill_disk(True)
        return lambda: self.rig.fill_disk(False)

    def _second(self, f: Fault) -> End:
        self.say("a second control plane is started")
        self.problems += filter(None, [self.rig.second_plane()])
        return nothing

    def _clock(self, f: Fault) -> End | None:
        """The control plane dies and comes back with a clock that is wrong."""
        pids = self._pids(Fault(0, "kill", "plane", "", 0, 0))
        if not pids or not any(file.exists() for file in FAKETIME):
            return None
        self.say(f"the control plane's clock is {f.way} s off for {f.for_s:.0f} s")
        self.rig.skew_s = float(f.way)
        _signal(pids, signal.SIGKILL)

        def right() -> None:
            self.rig.skew_s = None
            _signal(self._pids(Fault(0, "kill", "plane", "", 0, 0)), signal.SIGKILL)

        return right


def _signal(pids: list[int], number: int) -> Any:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
