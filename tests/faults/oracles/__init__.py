"""The oracles, each in a file of its own. After each event: safety. While time passes: bounds. At last: liveness."""

from __future__ import annotations

from typing import Any

from pycontrol.arbiter.ledger.durable import Durable
from pycontrol.arbiter.ledger.facts import Fact, LeaseExtended, RoundHeld, from_json, to_json
from pycontrol.model import events as ev
from pycontrol.model.topology import Gpu
from tests.faults.clock import Violation
from tests.faults.marks import Marks
from tests.faults.nodes import NodeManager, Run
from tests.faults.oracles.agents import Agents
from tests.faults.oracles.clocks import Clocks
from tests.faults.oracles.conservation import Conservation
from tests.faults.oracles.frozen import Frozen
from tests.faults.oracles.guarantees import Guarantees
from tests.faults.oracles.idle import Idle
from tests.faults.oracles.journal import Journal
from tests.faults.oracles.leases import Leases
from tests.faults.oracles.machines import Machines
from tests.faults.oracles.oracle import Oracle, Waiting
from tests.faults.oracles.owners import Owners
from tests.faults.oracles.pace import Pace
from tests.faults.oracles.planes import Planes
from tests.faults.oracles.queues import Queues
from tests.faults.oracles.receipts import Receipts
from tests.faults.oracles.rest import Rest
from tests.faults.oracles.rounds import OpenEnded, RoundsEnd
from tests.faults.oracles.served import Served
from tests.faults.oracles.strays import Strays
from tests.faults.oracles.undone import Undone
from tests.faults.oracles.yarn_view import YarnView

OTHERS: tuple[type[Oracle], ...] = (
    Journal,
    Planes,
    Conservation,
    Guarantees,
    Frozen,
    Strays,
    Leases,
    Queues,
    RoundsEnd,
    OpenEnded,
    Undone,
    YarnView,
    Idle,
    Served,
    Receipts,
    Rest,
)


class Oracles:
    """All of a world: passes on what happens, and tells it in the story."""

    def __init__(self, world: Any) -> None:
        self.world, self.sim = world, world.sim
        self.shadows: dict[str, Durable] = {}
        self.marks = Marks(world)
        self.clocks, self.owners, self.machines = Clocks(self), Owners(self), Machines(self)
        self.agents, self.pace = Agents(self), Pace(self)
        self._all: list[Oracle] = [self.owners, self.clocks, self.agents, *(of(self) for of in OTHERS)]

    @property
    def shadow(self) -> Durable:
        """The fold of what the active control plane journaled."""
        return self.shadow_of(self.world.plane)

    def shadow_of(self, plane: Any) -> Durable:
        """The fold of what a control plane journaled."""
        return self.shadows.setdefault(plane.name, Durable())

    @property
    def calm_s(self) -> float:
        """Seconds since the control plane, the RM or their connection was disturbed; 0 while it is blocked."""
        name = self.world.plane.name
        if not (self.world.net.open("rm", name) and self.world.net.open(name, "rm")):
            return 0.0
        return float(self.sim.now - self.world.calm_since)

    # ---- what a control plane does

    def recovered(self, plane: Any, durable: Durable) -> None:
        """A life begins."""
        for oracle in self._all:
            oracle.recovered(plane, durable)

    def journaled(self, plane: Any, facts: list[Fact]) -> None:
        """Facts are now durable."""
        for fact in facts:
            self.marks.fact(fact)
            copy = from_json(type(fact).__name__, to_json(fact))
            for oracle in self._all:
                oracle.before(plane, copy)
            self.shadow_of(plane).apply(copy)
            for oracle in self._all:
                oracle.after(plane, fact, facts)
            self._tell_fact(fact)

    def effect(self, plane: Any, e: Any) -> None:
        """An effect is about to be carried out."""
        self.marks.effect(e)
        for oracle in self._all:
            oracle.effect(plane, e)
        if not isinstance(e, ev.SendAskRho | ev.SendOffer | ev.SendHosts | ev.Solve):
            self.sim.tell(getattr(e, "app_id", "yarn"), str(e)[:260])

    def _tell_fact(self, fact: Fact) -> None:
        if isinstance(fact, LeaseExtended):
            return
        if isinstance(fact, RoundHeld):
            r = fact.receipt.dump()
            told = [f"{x} {r.get(x)}" for x in ("offered", "granted", "revoked", "renewed", "out", "note")]
            self.sim.tell("round", f"{fact.round_id} {' '.join(told)}"[:500])
            return
        gpus, app_id = getattr(fact, "gpus", ()), getattr(fact, "app_id", None)
        if not gpus and app_id is None:
            self.sim.tell("fact", str(fact)[:200])
            return
        more = {k: v for k, v in to_json(fact).items() if k not in ("gpus",)}
        for who in map(str, gpus or [app_id]):
            self.sim.tell(who, f"{type(fact).__name__} {more}"[:300])

    # ---- what YARN, machines and apps do

    def placed(self, rm: Any, container: Any) -> None:
        """A container is allocated."""
        self.owners.placed(rm, container)
        self.sim.tell(container.app_id, f"{container.container_id} on {container.node_id} {container.gpus}")

    def process_began(self, nm: NodeManager, run: Run) -> None:
        """Checks the GPUs of a process that begins."""
        nm.check()
        self.sim.tell(run.app_id, f"{run.container_id} runs on {nm.host} {run.gpus}")

    def process_ended(self, nm: NodeManager, run: Run) -> None:
        """Notes the end of a process."""
        self.sim.tell(run.app_id, f"{run.container_id} on {nm.host} {run.gpus} ends with {run.exit_code}")

    def gate_gave_up(self, nm: NodeManager, run: Run, before: str) -> None:
        """The gate waited in vain for an earlier container."""
        self.sim.tell(run.app_id, f"{run.container_id} waited in vain for {before} on {nm.host} {run.gpus}")

    def resumed(self, worker: Any, step: int) -> None:
        """A worker begins from a checkpoint."""
        self.sim.tell(worker.app_id, f"{worker.worker_id} trains from step {step}")

    def registered(self, app_id: str, granted: set[Gpu], believed: set[Gpu]) -> None:
        """An Agent was told all its grants."""
        self.agents.registered(app_id, granted, believed)

    def app_finished(self, master: Any, succeeded: bool, message: str) -> None:
        """An Agent's last word: kind `app fails`."""
        if not succeeded and not self.world.may_fail(master.app):
            raise Violation("app fails", f"{master.app.app_id}: {message}", master.app.app_id)

    # ---- while time passes

    def look(self) -> None:
        """Checks the bounds once a second."""
        for nm in self.world.nms.values():
            nm.check()
        self.pace.spin()
        self.marks.look()
        plane = self.world.plane
        if not plane.up or self.world.rm is None:
            return
        for oracle in self._all:
            if type(oracle).look is not Oracle.look:
                oracle.look(plane)
                oracle.looked()
        self.world.relay.look(self.sim.now)

    def quiet(self, waiting: Waiting) -> None:
        """After all faults: whoever waits must be served."""
        plane = self.world.plane
        if not plane.up or self.world.rm is None:
            return
        for oracle in self._all:
            if type(oracle).quiet is not Oracle.quiet:
                oracle.quiet(plane, waiting)
                oracle.looked()

    def at_rest(self) -> None:
        """All apps have ended."""
        for oracle in self._all:
            oracle.rest(self.world.plane)
