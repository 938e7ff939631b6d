"""NodeManagers: containers, their processes, the gate before GPUs; what they know survives their own crash.

They keep an ended container until its AM has acknowledged the end, and tell each new RM of it (YARN-1372).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.faults.clock import Life, Sim, Violation

HEARTBEAT_S = 1.0
GATE_S = 30.0
KILL_S = (0.05, 1.5)
"""From a NodeManager's SIGTERM to the end of the process."""
EXIT_GATE, EXIT_KILLED, EXIT_LOST = -1, 137, -100


@dataclass
class Run:
    """A container on a NodeManager."""

    container_id: str
    app_id: str
    gpus: tuple[int, ...]
    lease_id: str
    request_id: int
    state: str = "gate"
    """gate, running, ended."""
    exit_code: int = 0
    process: Any = None
    killing: bool = False
    since_s: float = 0.0
    told_started: bool = False
    told_ended: bool = False


@dataclass
class NodeManager:
    """One machine. `world` starts processes and has the RM that is active."""

    world: Any
    host: str
    rack: str
    gpus: int
    runs: dict[str, Run] = field(default_factory=dict)
    life: Life = field(default_factory=Life)
    attributes: dict[str, str] = field(default_factory=dict)
    rm_epoch: str = ""
    """The RM's life with which it is registered."""
    partition: str = ""
    refuses: bool = False
    """Whether other processes use up its memory, so that no container fits."""

    @property
    def node_id(self) -> str:
        """YARN's NodeId."""
        return f"{self.host}:1"

    @property
    def sim(self) -> Sim:
        """The scheduler."""
        sim: Sim = self.world.sim
        return sim

    def start(self) -> None:
        """The daemon, with recovery: it finds its containers again."""
        self.life = Life()
        self.rm_epoch = ""
        self.sim.every(HEARTBEAT_S, self.heartbeat, self.life)

    def crash(self, machine: bool) -> None:
        """The daemon is killed; with the machine all processes are, too."""
        self.life.dead = True
        self.sim.tell(self.host, "machine down" if machine else "NodeManager down")
        if machine:
            for run in list(self.runs.values()):
                self._over(run, EXIT_LOST)
            self.runs.clear()

    @property
    def up(self) -> bool:
        """Whether the daemon runs."""
        return not self.life.dead

    # ---- what the AM asks for

    def launch(self, run: Run, rm_epoch: str, start: Callable[[Run], Any]) -> str:
        """Starts a container; the reason if it cannot, else "". The GPU gate waits for processes of earlier ones."""
        if rm_epoch != self.rm_epoch:
            return "the container was not allocated by the present ResourceManager"
        if run.container_id in self.runs:
            return "is started already"
        self.runs[run.container_id] = run
        run.since_s = self.sim.now
        self._gate(run, start)
        return ""

    def _gate(self, run: Run, start: Callable[[Run], Any]) -> None:
        if run.state != "gate":
            return
        busy = [r for r in self.runs.values() if r.state == "running" and set(r.gpus) & set(run.gpus)]
        if run.killing:
            self._over(run, EXIT_KILLED)
        elif not busy:
            run.state = "running"
            run.process = start(run)
            self.world.oracles.process_began(self, run)
        elif self.sim.now - run.since_s > GATE_S:
            names = ", ".join(r.container_id for r in busy)
            self.world.oracles.gate_gave_up(self, run, names)
            self._over(run, EXIT_GATE)
        else:
            self.sim.at(0.5, lambda: self._gate(run, start))

    def stop(self, container_id: str) -> None:
        """SIGTERM, then SIGKILL."""
        run = self.runs.get(container_id)
        if run is None or run.killing or run.state == "ended":
            return
        run.killing = True
        self.sim.at(self.sim.rng.uniform(*KILL_S), lambda: self._over(run, EXIT_KILLED))

    def exited(self, run: Run, code: int) -> None:
        """Handles the process's own end."""
        self._over(run, code)

    def _over(self, run: Run, code: int) -> None:
        if run.state == "ended":
            return
        run.state, run.exit_code = "ended", code
        if run.process is not None:
            run.process.end()
        self.world.oracles.process_ended(self, run)

    # ---- the RM

    def heartbeat(self) -> None:
        """Registers with a new RM, else reports started and ended containers; receives orders."""
        rm, net = self.world.rm, self.world.net
        if rm is None or not net.open(self.host, rm.name) or not net.open(rm.name, self.host):
            return
        if self.rm_epoch != rm.epoch or not rm.knows(self.node_id):
            self.rm_epoch = rm.epoch
            for run in self.runs.values():
                run.told_started = run.state == "running"
            rm.register(self)
            return
        started = [r for r in self.runs.values() if r.state == "running" and not r.told_started]
        ended = [r for r in self.runs.values() if r.state == "ended" and not r.told_ended]
        orders = rm.node_heartbeat(self, started, ended)
        for run in started:
            run.told_started = True
        for run in ended:
            run.told_ended = True
        for container_id in rm.to_forget(self):
            del self.runs[container_id]
        for container_id in orders:
            self.stop(container_id)

    def check(self) -> None:
        """Checks that no GPU is in two processes."""
        seen: dict[int, str] = {}
        for run in self.runs.values():
            if run.state == "running":
                for gpu in run.gpus:
                    if gpu in seen:
                        raise Violation(
                            "two owners",
                            f"{self.host}:{gpu} is in {seen[gpu]} and {run.container_id}",
                            f"{self.host}:{gpu}",
                        )
                    seen[gpu] = run.container_id
