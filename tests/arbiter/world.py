"""A small world around the real Arbiter: virtual time, a cluster that places containers, Agents that bid.

Everything is scripted by a seed. `check()` asserts what must hold after every event.
"""

from __future__ import annotations

import dataclasses
import heapq
import itertools
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pycontrol.arbiter.core import Arbiter
from pycontrol.arbiter.ledger.durable import Durable
from pycontrol.arbiter.ledger.facts import Fact, LeaseGranted, from_json, to_json
from pycontrol.arbiter.ledger.lease import REVOKING, gpus_in
from pycontrol.arbiter.supply.gpu_supply import Supply
from pycontrol.arbiter.views.settings import Settings
from pycontrol.model import events as ev
from pycontrol.model.cluster import Ask, Container, Node, YarnApp
from pycontrol.model.topology import Gpu
from pycontrol.policies import registry
from pycontrol.policies.by_vc import ByVirtualCluster
from pycontrol.policies.policy_port import Policy
from pycontrol.queries.pending_reasons import reason
from tests.arbiter.fake_agent import FakeAgent
from tests.cells.files import supply_of

TROUBLES = ("pause", "drain", "resource manager", "silence", "lost agent", "failure")
SETTINGS = Settings(lease_s=30, grant_timeout_s=20, recovery_s=2, round_retry_s=3)
NODES = (("n1", "a", 4), ("n2", "a", 4), ("n3", "b", 2), ("n4", "b", 2))


def node(host: str, rack: str, gpus: int, gpu_type: str = "gpu") -> Node:
    """The simulated NodeManager of a machine."""
    return Node(f"{host}:1", host, rack, gpus, attributes={} if gpu_type == "gpu" else {"gpu_type": gpu_type})


class World:
    """Virtual time around one Arbiter; `crash()` replaces it by one recovered from the journal."""

    def __init__(
        self,
        policy: Policy | str,
        seed: int = 0,
        settings: Settings = SETTINGS,
        supply: Supply | str | Mapping[str, Any] | None = None,
        machines: Sequence[tuple[Any, ...]] = NODES,
        **changes: Any,
    ) -> None:
        """`policy`: or its name; `supply`: or its cells file; `changes`: of `settings`."""
        self.machines = machines
        """(host, rack, GPUs), or with the GPUs' type."""
        self.supply = supply_of(supply) if isinstance(supply, str | Mapping) else supply
        self.rng = random.Random(seed)
        chosen = registry.make(policy) if isinstance(policy, str) else policy
        is_by_vc = supply is None or isinstance(chosen, ByVirtualCluster)
        self.policy: Policy = chosen if is_by_vc else ByVirtualCluster(chosen)
        self.settings = dataclasses.replace(settings, **{"validate": True, **changes})
        self.now = 1000.0
        self.heap: list[tuple[float, int, Callable[[], object]]] = []
        self.order = itertools.count()
        self.journal: list[Fact] = []
        self.epoch = 1
        self.arbiter = Arbiter(self.settings, self.policy, epoch=1, supply=self.supply)
        self.nodes = {f"{m[0]}:1": node(*m) for m in self.machines}
        self.apps: dict[str, YarnApp] = {}
        self.asks: dict[tuple[str, int, int, int], Ask] = {}
        self.containers: dict[str, Container] = {}
        self.agents: dict[str, FakeAgent] = {}
        self.ids = itertools.count(1)
        self.occupied: dict[Gpu, str] = {}
        self.history: list[tuple[str, str]] = []
        self.depth = 0
        """How many events' follow-ups are pending."""
        self.submit(self.snapshot())

    def snapshot(self) -> ev.ClusterSnapshot:
        return ev.ClusterSnapshot(
            True,
            tuple(self.nodes.values()),
            tuple(self.apps.values()),
            tuple(self.asks.values()),
            tuple(self.containers.values()),
        )

    # ---- time

    def at(self, delay_s: float, fn: Callable[[], object]) -> None:
        heapq.heappush(self.heap, (self.now + delay_s, next(self.order), fn))

    def run(self, until_s: float) -> None:
        """Runs to `until_s` seconds from the start."""
        end = 1000.0 + until_s
        steps = 0
        while self.now < end:
            steps += 1
            assert steps < 200_000, "time does not move"
            wake = self.arbiter.next_wake_s(self.now)
            due = self.heap[0][0] if self.heap else end
            nxt = min(due, max(wake, self.now + 0.02) if wake is not None else end, end)
            self.now = max(self.now, nxt)
            if self.heap and self.heap[0][0] <= self.now:
                heapq.heappop(self.heap)[2]()
            else:
                self.submit(ev.Tick())

    def wait(self, seconds: float) -> None:
        """Lets this much time pass."""
        self.run(self.now - 1000.0 + seconds)

    # ---- the Arbiter's edge

    def submit(self, event: ev.Event) -> None:
        effects = self.arbiter.handle(event, self.now)
        facts = self.arbiter.take_facts()
        self.journal += [from_json(type(f).__name__, to_json(f)) for f in facts]
        granted = [gpu for f in facts if isinstance(f, LeaseGranted) for gpu in f.gpus]
        assert not any(map(self.arbiter.cluster.bad, granted))
        assert len(granted) == len(set(granted)), "a GPU is granted twice"
        self.check()
        self.depth += 1
        for effect in effects:
            self.carry_out(effect)
        self.depth -= 1
        if not self.depth:
            self.check_agents()

    def check_agents(self) -> None:
        """Asserts that an up-to-date Agent relies only on GPUs that its app has now or next."""
        a = self.arbiter
        for app_id, agent in self.agents.items():
            if not agent.finished and app_id in a.agents and a.agents[app_id].connected:
                mine = {gpu for x in a.durable.leases.of(app_id) if x.state != REVOKING for gpu in x.gpus}
                lost = agent.held - mine - set(gpus_in(a.durable.reservations.of(app_id)))
                assert not lost, f"{app_id} was not told that it has {sorted(map(str, lost))} no more"

    def crash(self) -> None:
        """Kills the control plane (as by kill -9) and restarts it from journal and snapshot."""
        before = self.arbiter.durable.dump()
        durable = Durable()
        for fact in self.journal:
            durable.apply(fact)
        assert durable.dump() == before
        assert Durable.load(before).dump() == before
        self.epoch += 1
        self.arbiter = Arbiter(self.settings, self.policy, durable, epoch=self.epoch, supply=self.supply)
        self.heap = [h for h in self.heap if not getattr(h[2], "from_arbiter", False)]
        self.submit(self.snapshot())
        for agent in self.agents.values():
            if not agent.finished:
                self.submit(ev.AgentUp(agent.app_id, "", "hyperband", agent.demand()))

    def check(self) -> None:
        """Asserts: no GPU in two containers or leased beyond the node; gangs whole; containers inside their leases."""
        a = self.arbiter
        for app_id in self.agents:
            assert all(x.app_id == app_id for gang in a.holdings.gangs_of(app_id) for x in gang)

    # ---- effects

    def carry_out(self, e: ev.Effect) -> None:
        name = type(e).__name__
        handler = getattr(self, f"do_{name}")
        handler(e)

    def agent(self, app_id: str) -> FakeAgent | None:
        agent = self.agents.get(app_id)
        return None if agent is None or agent.silent or agent.finished else agent

    def do_Solve(self, e: ev.Solve) -> None:
        plan = self.arbiter.rounds.policy.decide(e.snapshot, e.bids, random.Random(e.seed))
        self.at(0.01, lambda: self.submit(ev.Decided(e.snapshot.round_id, plan)))

    def do_SendRegistered(self, e: ev.SendRegistered) -> None:
        agent = self.agents[e.app_id]
        agent.held = {g for grant in e.grants for g in grant.gpus}
        for job in [j for j, gpus in agent.running.items() if not set(gpus) <= agent.held]:
            self.stop_job(agent, job)
        for job, plan in agent.plans.items():
            if job in agent.running and set(agent.running[job]) <= agent.held:
                self.at(0.02, lambda plan=plan: self.submit(plan))  # which a lost control plane may not have had

    def do_SendHosts(self, e: ev.SendHosts) -> None:
        self.agents[e.app_id].topologies += 1

    def do_SendAskRho(self, e: ev.SendAskRho) -> None:
        agent = self.agent(e.app_id)
        if agent:
            kept = len(agent.held - set(e.ending)) // agent.gang_gpus
            rho = agent.rho(kept, e.contention)
            self.at(0.01, lambda: self.submit(ev.RhoReported(e.app_id, e.round_id, rho, agent.demand())))

    def do_SendOffer(self, e: ev.SendOffer) -> None:
        agent = self.agent(e.app_id)
        if agent:
            bid = agent.bid(e)
            self.at(0.01, lambda: self.submit(ev.BidReceived(e.app_id, e.round_id, bid)))

    def do_SendGrant(self, e: ev.SendGrant) -> None:
        self.history.append(("renewal" if e.renewal else "leftover" if e.leftover else "grant", e.app_id))
        agent = self.agents.get(e.app_id)
        if agent is None or agent.finished:
            return
        if e.renewal:
            assert set(e.grant.gpus) <= agent.held
            return
        agent.held |= set(e.grant.gpus)
        self.at(0.05, lambda: self.use(agent))

    def use(self, agent: FakeAgent) -> None:
        """Starts idle jobs on free held GPUs, whole gangs only; gives the rest back."""
        if agent.finished:
            return
        free = sorted(agent.held - {g for gpus in agent.running.values() for g in gpus})
        idle = [j for j in agent.work if j not in agent.running]
        while len(free) >= agent.gang_gpus and idle:
            job, gpus = idle.pop(0), tuple(free[: agent.gang_gpus])
            free = free[agent.gang_gpus :]
            agent.running[job] = gpus
            agent.launches[job] = agent.launches.get(job, 0) + 1
            self.launch(agent, job, gpus)
        if free:
            agent.held -= set(free)
            self.submit(ev.GpusReleased(agent.app_id, frozenset(free)))

    def launch(self, agent: FakeAgent, job: str, gpus: tuple[Gpu, ...]) -> None:
        plans = []
        for rank, host in enumerate(sorted({g.host for g in gpus})):
            here = tuple(g for g in gpus if g.host == host)
            worker_id = f"{job}/{agent.launches[job]}/{rank}"
            plans.append(ev.WorkerPlan(worker_id, job, here, next(agent.requests)))
        use_id = f"{job}/{agent.launches[job]}"
        agent.current[job] = {p.allocation_request_id for p in plans}
        agent.plans[job] = ev.UsePlanned(agent.app_id, use_id, tuple(plans))
        self.submit(agent.plans[job])
        app = self.apps[agent.app_id]
        for plan in plans:
            ask = Ask(app.attempt_id, app.app_id, plan.allocation_request_id, len(plan.gpus), 1)
            self.asks[ask.key] = ask
            self.at(0.1, lambda ask=ask: self.submit(ev.AskChanged(ask)))

    def do_SendUseReply(self, e: ev.SendUseReply) -> None:
        self.history.append(("use accepted" if e.accepted else f"use refused: {e.reason}", e.app_id))
        agent = self.agents.get(e.app_id)
        if agent and not e.accepted:
            agent.running.pop(e.use_id.split("/")[0], None)

    def do_SendRevoke(self, e: ev.SendRevoke) -> None:
        self.history.append(("revoke", e.app_id))
        agent = self.agents.get(e.app_id)
        if agent is None:
            return
        for job, gpus in list(agent.running.items()):
            if set(gpus) & set(e.gpus):
                self.stop_job(agent, job)
        agent.held -= set(e.gpus)
        self.at(0.05, lambda: self.use(agent))

    def stop_job(self, agent: FakeAgent, job: str) -> None:
        gpus = agent.running.pop(job, ())
        agent.since.pop(job, None)
        launched = agent.current.get(job, ())
        for key in [k for k, a in self.asks.items() if a.app_id == agent.app_id and k[1] in launched]:
            if not any(c.allocation_request_id == key[1] for c in self.containers.values()):
                ask = self.asks.pop(key)
                self.submit(ev.AskChanged(Ask(ask.attempt_id, ask.app_id, ask.allocation_request_id, ask.gpus, 0)))
        for c in [c for c in self.containers.values() if set(c.gpus) & set(gpus) and c.app_id == agent.app_id]:
            self.at(self.rng.uniform(0.1, 2.0), lambda c=c: self.container_ends(c.container_id))

    def do_SendFinish(self, e: ev.SendFinish) -> None:
        self.history.append(("finish", e.app_id))

    def do_Preempt(self, e: ev.Preempt) -> None:
        self.history.append(("preempt", e.container_id))

    def do_Kill(self, e: ev.Kill) -> None:
        self.history.append(("kill", e.container_id))
        self.at(0.1, lambda: self.container_ends(e.container_id))

    def do_Place(self, e: ev.Place) -> None:
        self.at(0.2, lambda: self.place(e))

    def place(self, e: ev.Place) -> None:
        ask = self.asks.get(e.ask.key)
        if ask is None or e.node_id not in self.nodes:
            self.submit(ev.DirectiveDone(e.directive_id, False, "", "ask gone"))
            return
        for gpu in e.gpus:
            assert gpu not in self.occupied, f"{gpu} is in {self.occupied[gpu]} already"
        container_id = f"c{next(self.ids)}"
        for gpu in e.gpus:
            self.occupied[gpu] = container_id
        container = Container(container_id, e.ask.app_id, e.node_id, e.gpus, e.lease_id, e.ask.allocation_request_id)
        self.containers[container_id] = container
        left = Ask(ask.attempt_id, ask.app_id, ask.allocation_request_id, ask.gpus, ask.count - 1)
        if left.count:
            self.asks[ask.key] = left
        else:
            del self.asks[ask.key]
        self.submit(ev.AskChanged(left))
        self.submit(ev.DirectiveDone(e.directive_id, True, container_id))
        self.submit(ev.ContainerUp(container, False))
        self.at(0.3, lambda: self.container_runs(container))

    def container_runs(self, container: Container) -> None:
        if container.container_id not in self.containers:
            return
        self.submit(ev.ContainerUp(container, True))
        agent = self.agents.get(container.app_id)
        if agent is None:
            return
        job = next((j for j, gpus in agent.running.items() if set(container.gpus) <= set(gpus)), None)
        if job is None or container.allocation_request_id not in agent.current[job]:
            self.at(0.1, lambda: self.container_ends(container.container_id))  # it came too late: no Agent waits for it
        elif job not in agent.since:
            agent.since[job] = self.now
            self.tick_job(agent, job, agent.launches[job])

    def tick_job(self, agent: FakeAgent, job: str, launch: int) -> None:
        """Trains a job for one second."""
        if agent.launches.get(job) != launch or job not in agent.running or agent.finished:
            return
        live = {g for c in self.containers.values() if c.app_id == agent.app_id for g in c.gpus}
        if set(agent.running[job]) <= live:
            agent.work[job] -= len(agent.running[job])
        if agent.work[job] > 0:
            self.at(1.0, lambda: self.tick_job(agent, job, launch))
            return
        gpus = agent.running[job]
        self.stop_job(agent, job)
        del agent.work[job]
        if agent.work:
            self.at(3.0, lambda: self.use(agent))
        else:
            self.at(3.0, lambda: self.finish(agent))
        del gpus

    def finish(self, agent: FakeAgent) -> None:
        agent.finished = True
        self.submit(ev.AgentDone(agent.app_id, True, "", "j0", {}, 0.9, agent.total))
        self.end_app(agent.app_id)

    def end_app(self, app_id: str) -> None:
        self.apps.pop(app_id, None)
        self.submit(ev.AppRemoved(app_id, "FINISHED"))
        for c in [c for c in self.containers.values() if c.app_id == app_id]:
            self.container_ends(c.container_id)

    def container_ends(self, container_id: str) -> None:
        container = self.containers.pop(container_id, None)
        if container is None:
            return
        for gpu in container.gpus:
            if self.occupied.get(gpu) == container_id:
                del self.occupied[gpu]
        self.submit(ev.ContainerGone(container_id))

    # ---- what tests do

    def add_app(
        self,
        name: str,
        gang_gpus: int,
        jobs: int,
        work: float,
        queue: str = "root.q",
        of: type[FakeAgent] = FakeAgent,
        priority: int = 0,
        **wishes: Any,
    ) -> FakeAgent:
        """Adds a Submarine app with an Agent; `wishes`: fields of its Demand."""
        app = YarnApp(name, "u", queue, name, "SUBMARINE", self.now, frozenset({"isonomy"}), f"{name}_1", priority)
        self.apps[name] = app
        agent = of(name, gang_gpus, {f"j{i}": work for i in range(jobs)}, self.now, work * jobs, wishes=wishes)
        self.agents[name] = agent
        self.submit(ev.AppAdded(app))
        self.submit(ev.AttemptAdded(app.attempt_id, name))
        self.submit(ev.AgentUp(name, app.attempt_id, "hyperband", agent.demand()))
        return agent

    def add_foreign(
        self,
        name: str,
        gpus: int,
        count: int,
        queue: str = "root.q",
        more: Sequence[tuple[int, int]] = (),
        tags: Sequence[str] = (),
        priority: int = 0,
        user: str = "u",
    ) -> None:
        """Adds an unmanaged app; `more`: (GPUs, count) of further asks."""
        app = YarnApp(name, user, queue, name, "YARN", self.now, frozenset(tags), f"{name}_1", priority)
        self.apps[name] = app
        self.submit(ev.AppAdded(app))
        for size, n in ((gpus, count), *more):
            self.ask_more(name, size, n)

    def ask_more(self, name: str, gpus: int, count: int, only_on: tuple[str, ...] = ()) -> None:
        """Asks for more containers of an app without an Agent."""
        app = self.apps[name]
        ask = Ask(app.attempt_id, name, 0, gpus, count, only_on=only_on)
        before = self.asks.get(ask.key)
        if before is not None:
            ask = dataclasses.replace(ask, count=count + before.count)
        self.asks[ask.key] = ask
        self.submit(ev.AskChanged(ask))

    def lose_node(self, host: str) -> None:
        """Loses a NodeManager with its containers."""
        node_id = f"{host}:1"
        if node_id not in self.nodes:
            return
        del self.nodes[node_id]
        self.submit(ev.NodeDown(node_id, "lost"))
        for c in [c for c in self.containers.values() if c.node_id == node_id]:
            self.container_ends(c.container_id)

    def node_back(self, host: str) -> None:
        """Lets the NodeManager register again."""
        back = next(node(*m) for m in self.machines if m[0] == host)
        self.nodes[back.node_id] = back
        self.submit(ev.NodeUp(back))

    def mark(self, host: str, *bad: int) -> None:
        """Sets the node's attribute to exactly these bad GPUs."""
        node = dataclasses.replace(self.nodes[f"{host}:1"], bad_gpus=frozenset(bad))
        self.nodes[node.node_id] = node
        self.submit(ev.NodeUp(node))

    def marks(self, bad: Sequence[tuple[float, str, int]], heal_s: float = 60.0) -> None:
        """Schedules GPUs 0 to n - 1 of a host to go bad and to be repaired later."""
        for at_s, host, n in bad:
            self.at(at_s, lambda host=host, n=n: f"{host}:1" in self.nodes and self.mark(host, *range(n)))
            self.at(at_s + heal_s, lambda host=host: f"{host}:1" in self.nodes and self.mark(host))

    def trouble(self, kind: str) -> None:
        """Starts a fault or an operator's action now, and ends it after a while."""
        agents = [a for a in self.agents.values() if not a.finished]
        agent = self.rng.choice(agents) if agents else None
        if kind in ("pause", "drain"):
            undo = {"pause": "resume", "drain": "undrain"}[kind]
            self.submit(ev.OperatorCommand(kind, "n2", "root"))
            self.at(25.0, lambda: self.submit(ev.OperatorCommand(undo, "n2", "root")))
        elif kind == "resource manager":
            self.submit(ev.ClusterLost())
            self.at(4.0, lambda: self.submit(self.snapshot()))
        elif agent is None:
            return
        elif kind == "silence":
            agent.silent = True
            self.at(40.0, lambda: setattr(agent, "silent", False))
        elif kind == "lost agent":
            self.submit(ev.AgentLost(agent.app_id))
            self.at(12.0, lambda: agent.finished or self.agent_back(agent))
        elif kind == "failure" and (job := next(iter(agent.running), None)) is not None:
            self.stop_job(agent, job)
            self.at(2.5, lambda: self.use(agent))

    def troubles(self, troubles: Sequence[tuple[float, str]]) -> None:
        """Schedules troubles of these kinds at their times."""
        for at_s, kind in troubles:
            self.at(at_s, lambda kind=kind: self.trouble(kind))

    def agent_back(self, agent: FakeAgent) -> None:
        """Lets an app's Agent register again."""
        self.submit(ev.AgentUp(agent.app_id, "", "hyperband", agent.demand()))
        self.use(agent)

    # ---- what tests look at

    def of(self, app_id: str) -> list[Container]:
        """The app's containers."""
        return [c for c in self.containers.values() if c.app_id == app_id]

    def places(self, app_id: str) -> dict[str, list[int]]:
        """The GPUs of the app's containers, by host."""
        found: dict[str, list[int]] = {}
        for gpu in (gpu for c in self.of(app_id) for gpu in c.gpus):
            found.setdefault(gpu.host, []).append(gpu.index)
        return found

    def why(self, app_id: str) -> str:
        """The code of the reason why the app waits."""
        return reason(self.arbiter, app_id, self.now).code
