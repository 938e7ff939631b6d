"""The world: control plane, YARN, machines, applications, and their faults."""

from __future__ import annotations

import itertools
import math
import random
import signal
from collections.abc import Callable
from typing import Any

import structlog

from pycontrol.arbiter.supply.cell_supply import CellSupply
from pycontrol.arbiter.views.settings import Settings
from pycontrol.cells.layout import Layout
from pycontrol.policies import registry
from pycontrol.policies.by_vc import ByVirtualCluster
from pycontrol.policies.policy_port import Policy
from pycontrol.rpc.tokens import Tokens
from submarine_patch.agent import gangs
from tests.agent.world import SPACE, spec_of
from tests.cells.files import layout_of
from tests.faults.adversary import LiarMaster
from tests.faults.apps import AgentMaster, ForeignMaster, Master
from tests.faults.clock import Net, Sim, Violation
from tests.faults.disk import Hdfs, MemoryDisk, SqliteDisk
from tests.faults.inject import Injector
from tests.faults.nodes import NodeManager
from tests.faults.oracles import Oracles
from tests.faults.plane import KEY, TOKEN_TTL_S, Plane, restore_process
from tests.faults.records import App
from tests.faults.relay import Relay
from tests.faults.schedule import NODES, Schedule
from tests.faults.workers import Worker
from tests.faults.yarn import ResourceManager

QUIET_S = 600.0
"""Time after the last fault by which all apps must have ended."""
REST_S = 70.0
GONE_S = 60.0
"""Machines are lost after 12 s here in place of 600 s; so are containers of which YARN says nothing."""
CPU_S = 10.0
"""CPU seconds that a virtual second may take; wall time says nothing."""
CELLS = """
cell_types:
  pair: {child: gpu, count: 2}
  big: {child: pair, count: 2, node_level: true}
  small: {child: gpu, count: 2, node_level: true}
physical_cells:
  - {type: big, hosts: [n1]}
  - {type: big, hosts: [n2]}
  - {type: small, hosts: [n3]}
  - {type: small, hosts: [n4]}
virtual_clusters:
"""
OWNERS = ("  root.a: {big: 1, small: 1, policy: %s}\n", "  root.b: {pair: 1, small: 1, policy: %s}\n")


class World:
    """One run of a schedule."""

    def __init__(self, schedule: Schedule) -> None:
        structlog.configure(logger_factory=structlog.ReturnLoggerFactory(), processors=[_drop])
        self.schedule = schedule
        self.sim = Sim(schedule["seed"])
        self.net = Net(self.sim)
        self.hdfs = Hdfs()
        self.store: dict[str, App] = {}
        self.masters: dict[str, Master] = {}
        self.workers: dict[str, Worker] = {}
        self.attempt_of: dict[str, str] = {}
        self.skew: dict[str, float] = {}
        self.queue_max: dict[str, float] = schedule["queue_max"]
        self.blacklist: set[tuple[str, str]] = set()
        """(app, host) pairs: the AM blacklists the machine."""
        self.user_max: dict[str, int] = {}
        """The number of containers that a user may have, if there is a limit."""
        self.rm_crashes_nm: Callable[[NodeManager], None] | None = None
        """The fault of the next NodeManager that is told to kill a container."""
        self.kills_refused = 0
        """How many of the next kills the ResourceManager refuses."""
        self.topology = None
        self.calm_since = self.sim.now
        self.deposed_until_s = 0.0
        """How long a superseded ResourceManager continues."""
        self.deposed: list[ResourceManager] = []
        """Those that have been superseded."""
        self.owners = list(OWNERS)
        self.vc_policies: dict[str, Policy] = {}
        self.policy_name = schedule["policy"]
        self.harmed: set[str] = set()
        """Apps that may fail, since they were killed."""
        self._ids, self._ports = itertools.count(2), itertools.count(1)  # the first container is a master's
        self._tokens = Tokens(KEY)
        self.specs = {self.app_id(a["id"]): a for a in schedule["apps"]}
        self.oracles, self.relay = Oracles(self), Relay(self)
        self.plane = Plane(self)
        """The one whose ResourceManager is active."""
        self.planes = [self.plane]
        self.nms = {h: NodeManager(self, h, r, g) for h, r, g in NODES}
        self.rm: ResourceManager | None = None
        self._rms = 0
        self.injector = Injector(self)

    # ---- what the parts need

    def make_disk(self, name: str) -> Any:
        """Where the journal of that control plane lies."""
        if name == "plane" and self.schedule["sqlite"]:
            return SqliteDisk(self.sim.rng.uniform, self.schedule.get("old_journal", False))
        return MemoryDisk("journal" if name == "plane" else name)

    def other_plane(self) -> Plane:
        """The control plane beside the other ResourceManager; it runs from the first switch on."""
        if len(self.planes) == 1:
            self.planes.append(Plane(self, "twin"))
        (other,) = [p for p in self.planes if p is not self.plane]
        return other

    def arbiter_settings(self) -> Settings:
        """isonomy.yaml."""
        return Settings(**{"validate": True, **self.schedule["settings"]})

    def make_supply(self) -> CellSupply | None:
        """The cells file, read at each start."""
        if not self.schedule["cells"]:
            return None
        found, self.vc_policies = self.read_cells()
        return CellSupply(found)

    def read_cells(self) -> tuple[Layout, dict[str, Policy]]:
        """The cells file as it is now."""
        text = CELLS + "".join(o % p for o, p in zip(self.owners, self.schedule["vc_policies"], strict=False))
        found = layout_of(text)
        return found, {vc.name: registry.make(vc.terms.policy) for vc in found.vcs}

    def make_policy(self, supply: CellSupply | None) -> Policy:
        """The policy, or one for each virtual cluster."""
        default = registry.make(self.policy_name)
        if supply is None:
            return default
        return ByVirtualCluster(default, self.vc_policies)

    def uuid(self) -> Any:
        """In place of uuid4."""
        return _Uuid(f"{next(self._ids):032x}")

    def rng_port(self) -> int:
        """A port."""
        return next(self._ports)

    def container_id(self, attempt_id: str) -> str:
        """YARN's name of a new container."""
        _, cluster, app, attempt = attempt_id.split("_")
        found = f"container_{cluster}_{app}_{int(attempt):02d}_{next(self._ids):06d}"
        self.attempt_of[found] = attempt_id
        return found

    def app_id(self, number: int) -> str:
        """YARN's name of an app."""
        return f"application_1_{number:04d}"

    def token(self, app_id: str, user: str) -> str:
        """As the runtime fetched it when the app was submitted."""
        return self._tokens.issue(app_id, user or self.store[app_id].user, TOKEN_TTL_S, self.sim.start_s)

    def step_s(self, app_id: str) -> float:
        """Seconds of a training step."""
        return float(self.specs[app_id].get("step_s", 1.0))

    def checkpoint_s(self, app_id: str) -> float:
        """Seconds that a stop takes where that is told of the app; 0 where it is not."""
        return float(self.specs[app_id].get("checkpoint_s", 0.0))

    def connected(self, host: str) -> bool:
        """Whether RM and NodeManager hear each other, and nothing is slow."""
        return self.net.open("rm", host) and self.net.open(host, "rm")

    def may_fail(self, app: App) -> bool:
        """Whether the app may fail, since a fault or a kill hit it."""
        return app.app_id in self.harmed

    def disturb(self) -> None:
        """Notes a disturbance of the control plane, the RM or their connection."""
        self.calm_since = self.sim.now

    # ---- YARN

    def start_rm(self) -> None:
        """A ResourceManager begins to serve."""
        for old in [x for x in self.deposed if x.plane is self.plane and not x.life.dead]:
            old.stop()  # a machine has one ResourceManager
        self._rms += 1
        self.rm = ResourceManager(self, self._rms, self.schedule["queue_capacity"])
        self.rm.start()
        self.disturb()

    def start_am(self, app: App) -> None:
        """The AM of the app's newest attempt comes up a little later."""
        number = app.attempt

        def begin() -> None:
            if not app.final and app.attempt == number and app.running:
                master = self.masters[app.app_id] = self._master(app)
                master.start()

        self.sim.at(self.sim.rng.uniform(0.3, 1.5), begin)

    def _master(self, app: App) -> Master:
        a = self.specs[app.app_id]
        if a["kind"] == "liar":
            return LiarMaster(self, app, random.Random(app.app_id))
        if a["kind"] == "foreign":
            return ForeignMaster(self, app, a["gpus"], a["count"], a["seconds"])
        single = a["scheduler"] == "single"
        jobs = 0 if single or a["scheduler"] == "hyperband" else a["jobs"]
        spec = spec_of(
            app_id=app.app_id,
            app_scheduler=a["scheduler"],
            search_space=None if single else SPACE,
            gang_gpus=a["gang"],
            max_iterations=a["steps"],
            jobs=jobs,
            eta=3,
            max_retries=60,
            iteration_s=a["iteration_s"],
            memory_mb=64,
        )
        return AgentMaster(self, app, spec)

    def submit(self, a: dict[str, Any]) -> None:
        """A client submits an app, as soon as there is an RM."""
        if self.rm is None:
            self.sim.at(1.0, lambda: self.submit(a))
            return
        kind, tags = ("YARN", ()) if a["kind"] == "foreign" else ("SUBMARINE", ("isonomy",))
        app_id = self.app_id(a["id"])
        app = App(app_id, a["user"], a["queue"], f"app{a['id']}", kind, tags, self.sim.now, a["kind"] != "foreign")
        self.sim.tell(app_id, f"submitted: {a}")
        self.rm.submit(app)

    def app_over(self, app: App) -> None:
        """An application ended: its AM, too."""
        master = self.masters.get(app.app_id)
        if master is not None:
            master.die("its application ended")

    # ---- running

    def run(self) -> None:
        """Plays the schedule; raises Violation."""
        s = self.schedule
        before, gangs.GONE_S = gangs.GONE_S, GONE_S
        self.plane.start()
        self.start_rm()
        for nm in self.nms.values():
            nm.start()
        for a in s["apps"]:
            self.sim.at(a["at"], lambda a=a: self.submit(a))
        for fault in s["faults"]:
            self.sim.at(fault["at"], lambda f=fault: self.injector.inject(f))
        self.sim.every(1.0, self.oracles.look)
        if self.schedule["exchange"]:
            self.sim.every(15.0, self.injector.trade)
        try:
            self._until(self.sim.start_s + s["until"])
            self.injector.heal()
            if s.get("old_journal"):
                self.injector.undrain("n2")  # which its operator had drained
            self.sim.tell("world", "all faults are over")
            self._quiet()
        finally:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
            gangs.GONE_S = before
            for plane in self.planes:
                plane.close()
                plane.disk.clean()
            restore_process()

    def _until(self, end_s: float, over: Callable[[], bool] = lambda: False) -> bool:
        """Until a time, or until `over`, which is asked about once a virtual second."""
        asked_s = -math.inf
        signal.setitimer(signal.ITIMER_VIRTUAL, CPU_S)
        while self.sim.next_s <= end_s:
            if self.sim.now - asked_s >= 1.0:
                if over():
                    return True
                asked_s = self.sim.now
                signal.setitimer(signal.ITIMER_VIRTUAL, CPU_S)
            self.sim.step()
        return over()

    def _quiet(self) -> None:
        """Everybody who fits ends; then nothing is left."""
        begun = self.sim.now
        self.sim.every(5.0, self._look_at_waiting)
        if not self._until(begun + QUIET_S, self._all_over):
            left = [f"{a.app_id} ({self._why(a.app_id)})" for a in self.store.values() if not a.final and self.fits(a)]
            raise Violation(
                "liveness", f"after {QUIET_S:.0f} quiet seconds there are still {'; '.join(left)}", left[0].split()[0]
            )
        for app in list(self.store.values()):
            if not app.final and self.rm is not None:
                self.rm.finish(app, "KILLED")
        rest = self.sim.now + REST_S
        self._until(rest)
        self.oracles.at_rest()

    def _look_at_waiting(self) -> None:
        self.oracles.quiet(self._waiting())

    def _why(self, app_id: str) -> str:
        a = self.plane.arbiter
        return (
            f"holds {a.holdings.holding(app_id)}, agent {app_id in a.agents}, live {app_id in a.durable.live}, "
            f"unmet {app_id in a.agents.unmet}, attempt {self.store[app_id].attempt}"
        )

    def fits(self, app: App) -> bool:
        """Whether the cluster could ever serve it."""
        a = self.specs[app.app_id]
        if a["kind"] == "liar":
            return True
        limit = int(self.queue_max.get(app.queue, 1.0) * sum(n[2] for n in NODES) + 1e-9)
        need = a["gpus"] if a["kind"] == "foreign" else a["gang"]
        here = [n for host, _, n in NODES if (app.app_id, host) not in self.blacklist]
        return bool(need <= min(limit, max(here, default=0) if a["kind"] == "foreign" else sum(here)))

    def _all_over(self) -> bool:
        submitted = all(self.app_id(a["id"]) in self.store for a in self.schedule["apps"])
        return submitted and all(a.final or not self.fits(a) for a in self.store.values())

    def _waiting(self) -> list[tuple[str, int, bool]]:
        """Apps that wait and hold nothing, as the AMs see it."""
        found = []
        for app_id, master in self.masters.items():
            app = self.store[app_id]
            if app.final or master.life.dead or app.queue in self.queue_max or not self.fits(app):
                continue
            if isinstance(master, ForeignMaster):
                asked = master.asks.get(master.key)
                if asked and asked[2]:
                    found.append((app_id, master.gpus, True))
            elif isinstance(master, AgentMaster):
                brain = master.brain
                active = sum(j.active for j in brain.jobs.values())
                if brain.ending is None and len(brain.scheduler.runnable()) > active and not brain.held:
                    found.append((app_id, brain.spec.gang_gpus, False))
        return found


class _Uuid:
    def __init__(self, text: str) -> None:
        self.hex = text

    def __str__(self) -> str:
        return self.hex


def _drop(logger: Any, name: str, event: dict[str, Any]) -> str:
    raise structlog.DropEvent


def _too_long(signum: int, frame: Any) -> None:
    raise Violation("cost", f"one second takes more than {CPU_S:.0f} s of CPU")


signal.signal(signal.SIGVTALRM, _too_long)
