"""One Arbiter, a clock that the test moves, and a list of effects; decisions are taken immediately.

Unlike `World` it simulates neither the cluster nor the Agents: the test sends each of their events, in any order.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from pycontrol.arbiter.core import Arbiter
from pycontrol.arbiter.ledger.durable import Durable
from pycontrol.arbiter.ledger.facts import Fact
from pycontrol.arbiter.ledger.lease import gpus_in
from pycontrol.arbiter.supply.gpu_supply import Supply
from pycontrol.arbiter.views.settings import Settings
from pycontrol.model import events as ev
from pycontrol.model.auction import Bid, BidRow, Demand
from pycontrol.model.cluster import Ask, Container, Node, Queue, YarnApp
from pycontrol.model.topology import Gpu, Scope
from pycontrol.policies import registry, salvage
from pycontrol.policies.policy_port import Policy
from tests.cells.files import supply_of

SETTINGS = Settings(lease_s=600, grant_timeout_s=60, recovery_s=0, round_retry_s=5)
T = TypeVar("T")

CELLS = """
cell_types:
  pair: {child: gpu, count: 2}
  big: {child: pair, count: 2, node_level: true}
physical_cells:
  - {type: big, hosts: [n1]}
  - {type: big, hosts: [n2]}
virtual_clusters:
  root.a: {big: 1}
  root.b: {pair: 1}
"""


class Mini:
    """`nodes`: host and GPUs; all in rack r. `effects` (with their time) and `facts`: all so far."""

    def __init__(
        self,
        policy: str | Policy = "isonomy",
        settings: Settings = SETTINGS,
        nodes: Iterable[tuple[str, int]] = (("n1", 4),),
        queues: Iterable[Queue] = (),
        durable: Durable | None = None,
        supply: Supply | str | None = None,
        **more: Any,
    ) -> None:
        """`supply`: or a cells file; `more`: for the Arbiter."""
        self.policy = registry.make(policy) if isinstance(policy, str) else policy
        self.nodes = tuple(Node(f"{h}:1", h, "r", n) for h, n in nodes)
        self.queues = tuple(queues)
        supply = supply_of(supply) if isinstance(supply, str) else supply
        self.a = Arbiter(dataclasses.replace(settings, validate=True), self.policy, durable, supply=supply, **more)
        self.now = 1000.0
        self.effects: list[tuple[float, ev.Effect]] = []
        self.facts: list[Fact] = []
        self.problems: list[str] = []
        """The errors that the policy raised."""
        self.rho = dict[str, float]()
        """The rho that Agents answer, else 2.0; their bid is always one new gang."""
        self.placed_before = 0
        self._ids = 0
        if durable is None:
            self.send(self.snapshot())
            self.run(0.1)

    def snapshot(self, apps: Iterable[YarnApp] = (), containers: Iterable[Container] = ()) -> ev.ClusterSnapshot:
        """The present cluster with these applications and containers, without asks."""
        return ev.ClusterSnapshot(True, self.nodes, tuple(apps), (), tuple(containers), self.queues)

    def send(self, event: ev.Event) -> None:
        """Sends an event, then immediately the solver's results and the Agents' answers."""
        effects = self.a.handle(event, self.now)
        self.facts += self.a.take_facts()
        for e in effects:
            self.effects.append((self.now, e))
            if isinstance(e, ev.Solve):
                self.send(self.decide(e))
            elif isinstance(e, ev.SendAskRho):
                demand = self.a.agents[e.app_id].demand
                self.send(ev.RhoReported(e.app_id, e.round_id, self.rho.get(e.app_id, 2.0), demand))
            elif isinstance(e, ev.SendOffer):
                gang = self.a.agents[e.app_id].demand.gang_gpus
                row = BidRow(1.0, (), 1, gang, Scope.CLUSTER)
                self.send(ev.BidReceived(e.app_id, e.round_id, Bid(e.app_id, 5.0, (row,))))

    def decide(self, e: ev.Solve) -> ev.Decided:
        """Solves as the driver does."""
        outcome = salvage.decide(self.policy, e.snapshot, e.bids, e.seed)
        self.problems += [*outcome.left_out.values(), *filter(None, [outcome.problem])]
        return ev.Decided(e.snapshot.round_id, outcome.plan, outcome.problem, outcome.left_out)

    def run(self, seconds: float, step: float = 0.5) -> None:
        """Lets time pass."""
        end = self.now + seconds
        while self.now < end:
            self.now = min(end, self.now + step)
            self.send(ev.Tick())

    def of(self, kind: type[T], since_s: float = 0.0) -> list[T]:
        """The effects of a kind."""
        return [e for t, e in self.effects if isinstance(e, kind) and t >= since_s]

    def app(
        self,
        name: str,
        gang: int = 1,
        gangs: int = 1,
        queue: str = "root.q",
        work: float = 1e6,
        user: str = "u",
        **wishes: Any,
    ) -> YarnApp:
        """Adds a Submarine application and registers its Agent; `wishes`: fields of its Demand."""
        app = YarnApp(name, user, queue, name, "SUBMARINE", self.now, frozenset({"isonomy"}), f"{name}_1")
        self.send(ev.AppAdded(app))
        self.send(ev.AttemptAdded(app.attempt_id, name))
        demand = dataclasses.replace(Demand(gang, gangs, gang, work, work, 0.0), **wishes)
        self.send(ev.AgentUp(name, app.attempt_id, "hyperband", demand))
        return app

    def foreign(
        self,
        name: str,
        gpus: int,
        count: int = 1,
        user: str = "u",
        submitted_s: float = 0.0,
        tags: Sequence[str] = (),
        queue: str = "root.q",
        **more: Any,
    ) -> YarnApp:
        """Adds an unmanaged application and its ask; `more`: fields of it."""
        app = YarnApp(name, user, queue, name, "YARN", submitted_s or self.now, frozenset(tags), f"{name}_1")
        self.send(ev.AppAdded(app))
        self.send(ev.AskChanged(Ask(app.attempt_id, name, 0, gpus, count, **more)))
        return app

    def held(self, name: str) -> set[Gpu]:
        """The GPUs leased to an app."""
        return set(gpus_in(self.a.durable.leases.of(name)))

    def use(self, name: str, job: str = "j") -> list[ev.WorkerPlan]:
        """Lets an Agent plan one gang on all GPUs of its app and ask for the containers."""
        hosts: dict[str, list[Gpu]] = {}
        for gpu in sorted(self.held(name)):
            hosts.setdefault(gpu.host, []).append(gpu)
        plans = []
        for gpus in hosts.values():
            self._ids += 1
            plans.append(ev.WorkerPlan(f"w{self._ids}", job, tuple(gpus), self._ids))
        self.send(ev.UsePlanned(name, f"u{self._ids}", tuple(plans)))
        for p in plans:
            self.send(ev.AskChanged(Ask(f"{name}_1", name, p.allocation_request_id, len(p.gpus), 1)))
        return plans

    def places(self) -> list[ev.Place]:
        """The placements requested since the last call."""
        found = self.of(ev.Place)
        self.placed_before, since = len(found), self.placed_before
        return found[since:]

    def up(self, place: ev.Place, container_id: str = "", running: bool = True) -> Container:
        """Lets a placement succeed."""
        self._ids += 1
        c = Container(
            container_id or f"c{self._ids}",
            place.ask.app_id,
            place.node_id,
            place.gpus,
            place.lease_id,
            place.ask.allocation_request_id,
        )
        self.send(ev.ContainerUp(c))
        self.send(ev.DirectiveDone(place.directive_id, True, c.container_id))
        if running:
            self.send(ev.ContainerUp(c, True))
        return c

    def start(self, name: str) -> list[Container]:
        """Lets an Agent use all GPUs of its app, and the containers start."""
        self.use(name)
        return [self.up(p) for p in self.places()]

    def start_app(self, name: str, *args: Any, after_s: float = 2.0, **more: Any) -> list[Container]:
        """Adds an app as `app` does, and starts it on what it was granted in this time."""
        self.app(name, *args, **more)
        self.run(after_s)
        return self.start(name)
