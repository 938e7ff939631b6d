"""A world of two machines and two apps around the real Arbiter, in which a search chooses what happens next.

Nothing happens by itself: what is under way (a directive, an answer, a message, a starting container) waits until the
search chooses it. `moves()` names what may happen now, `do(name)` lets it happen.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import re
from collections.abc import Iterable

from pycontrol.arbiter.core import Arbiter
from pycontrol.arbiter.ledger.durable import Durable
from pycontrol.arbiter.ledger.facts import Fact, from_json, to_json
from pycontrol.arbiter.state import DRAINED
from pycontrol.arbiter.supply.cell_supply import CellSupply
from pycontrol.arbiter.supply.gpu_supply import Supply
from pycontrol.model import events as ev
from pycontrol.model.auction import Bid, BidRow, Demand
from pycontrol.model.cluster import Ask, Container, Node, YarnApp
from pycontrol.model.topology import Gpu, Scope
from pycontrol.policies import registry, salvage
from pycontrol.policies.by_vc import ByVirtualCluster
from pycontrol.policies.policy_port import Policy
from tests.cells.files import layout_of
from tests.explore import oracles
from tests.explore.kinds import (
    AGENT,
    BEGIN_S,
    BUDGET,
    GANG,
    KINDS,
    LEND_S,
    LENT,
    MORE,
    PLAIN,
    PLAIN_WANTS,
    SETTINGS,
    WORK_GPU_S,
)

_policy = functools.cache(registry.make)
_cells = functools.cache(layout_of)


class World:
    """The cluster, the apps and the Arbiter; all of it can be pickled (`search.Copies`)."""

    def __init__(self, kind: str) -> None:
        self.kind, self.now = kind, BEGIN_S
        self.shadow = Durable()
        """The fold of all facts, as read from a journal."""
        self.epoch = 0
        self.left = dict(BUDGET) | (MORE if KINDS[kind][2] else {})
        self.nodes = {f"{h}:1": Node(f"{h}:1", h, "rack", n) for h, n in (("two", 2), ("one", 1))}
        self.apps: dict[str, YarnApp] = {}
        self.asks: dict[tuple[str, int, int, int], Ask] = {}
        self.containers: dict[str, Container] = {}
        self.running: set[str] = set()
        self.rm_up, self.rm_life = True, 1
        self.directives: list[ev.Place | ev.Kill] = []
        self.solves: list[ev.Solve] = []
        self.ids = itertools.count(1001)
        """Numbers from 1001 on are ids (`digest`)."""
        self.connected = self.registered = False
        """Whether the Agent has sent its Register, and whether it has the answer: only then it plans and gives back."""
        self.inbox: list[ev.AgentEffect] = []
        self.said: list[ev.Event] = []
        self.asking: list[Ask] = []
        self.plain_wants = PLAIN_WANTS
        self.held: set[Gpu] = set()
        self.plans: dict[str, tuple[ev.WorkerPlan, ...]] = {}
        self.stopping: list[str] = []
        self.events: list[ev.Event] = []
        """The events of the newest move."""
        self._start(Durable())

    # ---- the control plane

    def _start(self, durable: Durable) -> None:
        name, cells, _ = KINDS[self.kind]
        policy: Policy = _policy(name)
        supply: Supply | None = None
        if cells:
            policy = ByVirtualCluster(policy, {})
            supply = CellSupply(_cells(cells))
        self.policy, self.epoch = policy, self.epoch + 1
        self.arbiter = Arbiter(SETTINGS, policy, durable, epoch=self.epoch, supply=supply)
        self.directives, self.solves, self.inbox, self.said = [], [], [], []
        self.connected = self.registered = False
        if self.rm_up:
            self.send(self.snapshot())

    def snapshot(self) -> ev.ClusterSnapshot:
        """The cluster as it is."""
        nodes, apps = tuple(self.nodes.values()), tuple(self.apps.values())
        asks, containers = tuple(self.asks.values()), tuple(self.containers.values())
        return ev.ClusterSnapshot(True, nodes, apps, asks, containers, (), f"life{self.rm_life}")

    def send(self, event: ev.Event) -> None:
        """Lets the Arbiter handle an event; its facts are journaled, its effects are under way."""
        self.events.append(event)
        before = oracles.Before(self)
        effects = self.arbiter.handle(event, self.now)
        facts: list[Fact] = [from_json(type(f).__name__, to_json(f)) for f in self.arbiter.take_facts()]
        for fact in facts:
            oracles.fact(self, fact)
            self.shadow.apply(fact)
        oracles.handled(self, event, before, facts, effects)
        for e in effects:
            if isinstance(e, ev.Solve):
                self.solves = [e]
            elif isinstance(e, ev.Place | ev.Kill):
                self.directives.append(e)
            elif isinstance(e, ev.AgentEffect) and e.app_id == AGENT and self.connected:
                self.inbox.append(e)

    # ---- what may happen

    def moves(self) -> list[str]:
        """What may happen now; the first ones are due, and happen by themselves if nothing disturbs them."""
        return [*self.due(), *self._disturbances()]

    def due(self) -> list[str]:
        """What happens sooner or later, in the order in which a quiet world lets it happen."""
        up, alive = self.rm_up, AGENT in self.apps
        wake_s = self.arbiter.next_wake_s(self.now)
        found = {
            "rm back": not up,
            "node back": up and "two:1" not in self.nodes,
            "resume": self.arbiter.holdings.paused and self.left["resume"] > 0,
            "agent registers": alive and not self.connected,
            "decide": bool(self.solves),
            "agent hears": bool(self.inbox),
            "agent speaks": bool(self.said),
            "agent asks": up and bool(self.asking),
            "carry out": up and bool(self.directives),
            "container runs": up and any(c not in self.running for c in self.containers),
            "container stops": up and bool(self.stopping),
            "wake": wake_s is not None,
        }
        return [name for name, may in found.items() if may]

    def _disturbances(self) -> list[str]:
        up, there = self.rm_up, self.apps.keys()
        bad = any(n.bad_gpus for n in self.nodes.values())
        found = {
            "agent arrives": up and AGENT not in there,
            "plain arrives": up and PLAIN not in there,
            "agent ends": up and AGENT in there,
            "plain ends": up and PLAIN in there,
            "a container fails": up and bool(self.running),
            "refuse": up and bool(self.directives) and isinstance(self.directives[0], ev.Place),
            "bad": up and not bad and "two:1" in self.nodes,
            "mend": up and bad,
            "crash": True,
            "rm lost": up,
            "rm back bare": not up and bool(self.containers),
            "pause": not self.arbiter.holdings.paused and self.left["resume"] > 0,
            "agent lost": self.connected,
            "agent lapses": bool(self.said) and isinstance(self.said[0], ev.RhoReported | ev.BidReceived),
            "sleep": bool(self.shadow.leases),
        }
        if KINDS[self.kind][2]:
            found |= self._more()
        return [name for name, may in found.items() if may and self.left.get(name, 1) > 0]

    def _more(self) -> dict[str, bool]:
        up, plain = self.rm_up, PLAIN in self.apps
        return {
            "node lost": up and "two:1" in self.nodes,
            "drain": not self.drained,
            "undrain": self.drained,
            "plain wants less": up and any(a.app_id == PLAIN for a in self.asks.values()),
            "plain's master fails": up and plain,
            "agent's master fails": up and AGENT in self.apps,
            "plain moves": up and plain,
            "boost": plain,
            "clock steps": bool(self.shadow.leases),
        }

    def do(self, name: str) -> None:
        """Lets it happen."""
        self.events = []
        if name in self.left:
            self.left[name] -= 1
        getattr(self, "do_" + re.sub(r"\W", "_", name))()

    # ---- time, the operator, the control plane's end

    def do_wake(self) -> None:
        wake_s = self.arbiter.next_wake_s(self.now)
        assert wake_s is not None
        self.now = max(self.now, wake_s)
        self.send(ev.Tick())

    def do_sleep(self) -> None:
        self.now += SETTINGS.lease_s + 1
        self.send(ev.Tick())

    def do_pause(self) -> None:
        self.send(ev.OperatorCommand("pause"))

    def do_resume(self) -> None:
        self.send(ev.OperatorCommand("resume"))

    def do_crash(self) -> None:
        self._start(Durable.load(json.loads(json.dumps(self.shadow.dump()))))

    def do_decide(self) -> None:
        e = self.solves.pop()
        outcome = salvage.decide(self.policy, e.snapshot, e.bids, e.seed)
        oracles.decided(self, outcome)
        self.send(ev.Decided(e.snapshot.round_id, outcome.plan, outcome.problem, outcome.left_out))

    # ---- YARN

    def _arrives(self, name: str, kind: str, tags: frozenset[str]) -> None:
        app = YarnApp(name, f"{name}-user", f"root.{name}", name, kind, self.now, tags, f"{name}_1")
        self.apps[name] = app
        self.send(ev.AppAdded(app))

    def do_agent_arrives(self) -> None:
        self._arrives(AGENT, "SUBMARINE", frozenset({"isonomy"}))

    def do_plain_arrives(self) -> None:
        self._arrives(PLAIN, "YARN", frozenset())
        self._ask(Ask(f"{PLAIN}_1", PLAIN, 0, 1, PLAIN_WANTS))

    def _ask(self, ask: Ask) -> None:
        self.asks[ask.key] = ask
        if not ask.count:
            del self.asks[ask.key]
        if self.rm_up:
            self.send(ev.AskChanged(ask))

    def _ends(self, name: str) -> None:
        del self.apps[name]
        self.asks = {k: a for k, a in self.asks.items() if a.app_id != name}
        for c in [c for c in self.containers.values() if c.app_id == name]:
            self._gone(c.container_id)
        self.send(ev.AppRemoved(name, "FINISHED"))

    def do_plain_ends(self) -> None:
        self._ends(PLAIN)

    def do_agent_ends(self) -> None:
        if self.connected:
            self.send(ev.AgentDone(AGENT, True))
        self.connected, self.registered, self.held, self.plans = False, False, set(), {}
        self.inbox, self.said, self.asking = [], [], []
        self._ends(AGENT)
        self.stopping = []

    def do_carry_out(self) -> None:
        e = self.directives.pop(0)
        if isinstance(e, ev.Kill):
            self.send(ev.DirectiveDone(e.directive_id, True))
            if e.container_id in self.containers:
                self._gone(e.container_id)
            return
        ask, taken = self.asks.get(e.ask.key), oracles.used(self).keys() & set(e.gpus)
        if ask is None or taken or e.node_id not in self.nodes:  # as the plugin does: Directives.java
            self.send(ev.DirectiveDone(e.directive_id, False, "", "its GPUs are in use" if taken else "no such ask"))
            return
        c = Container(f"c{next(self.ids)}", ask.app_id, e.node_id, e.gpus, e.lease_id, ask.allocation_request_id)
        self.containers[c.container_id] = c
        self._ask(dataclasses.replace(ask, count=ask.count - 1))
        self.send(ev.ContainerUp(c))
        self.send(ev.DirectiveDone(e.directive_id, True, c.container_id))

    def do_refuse(self) -> None:
        self.send(ev.DirectiveDone(self.directives.pop(0).directive_id, False, "", "no room"))

    def do_container_runs(self) -> None:
        c = next(c for c in self.containers if c not in self.running)
        self.running.add(c)
        self.send(ev.ContainerUp(self.containers[c], True))

    def do_container_stops(self) -> None:
        self._gone(self.stopping[0])

    def do_a_container_fails(self) -> None:
        self._gone(min(self.running))

    def _gone(self, container_id: str, told: bool = True) -> None:
        """A container ends; its app learns of it, and the Arbiter if it is `told`."""
        c = self.containers.pop(container_id)
        self.running.discard(container_id)
        self.stopping = [x for x in self.stopping if x != container_id]
        if told:
            self.send(ev.ContainerGone(container_id))
        if c.app_id == PLAIN and PLAIN in self.apps and self.wanting().get(PLAIN):
            ask = Ask(self.apps[PLAIN].attempt_id, PLAIN, 0, 1, 1)
            before = self.asks.get(ask.key)
            self._ask(dataclasses.replace(ask, count=1 + (before.count if before is not None else 0)))
        elif c.app_id == AGENT and AGENT in self.apps:
            self._worker_ended(c)

    def do_bad(self) -> None:
        self._mark("two:1", frozenset({0}))

    def do_mend(self) -> None:
        self._mark("two:1", frozenset())

    def _mark(self, node_id: str, bad: frozenset[int]) -> None:
        self.nodes[node_id] = dataclasses.replace(self.nodes[node_id], bad_gpus=bad)
        self.send(ev.NodeUp(self.nodes[node_id]))

    # ---- what operators, machines and masters do besides

    def do_node_lost(self) -> None:
        for c in [c for c in self.containers.values() if c.node_id == "two:1"]:
            self._gone(c.container_id)
        del self.nodes["two:1"]
        self.send(ev.NodeDown("two:1", "LOST"))

    def do_node_back(self) -> None:
        self.nodes["two:1"] = Node("two:1", "two", "rack", 2)
        self.send(ev.NodeUp(self.nodes["two:1"]))

    @property
    def drained(self) -> bool:
        """Whether the machine `two` is being drained."""
        return f"{DRAINED}two" in self.arbiter.durable.switches

    def do_drain(self) -> None:
        self.send(ev.OperatorCommand("drain", "two"))

    def do_undrain(self) -> None:
        self.send(ev.OperatorCommand("undrain", "two"))

    def do_plain_wants_less(self) -> None:
        self.plain_wants = sum(c.app_id == PLAIN for c in self.containers.values())
        for ask in [a for a in self.asks.values() if a.app_id == PLAIN]:
            self._ask(dataclasses.replace(ask, count=0))

    def do_plain_s_master_fails(self) -> None:
        self.plain_wants = 0
        for c in [c for c in self.containers.values() if c.app_id == PLAIN]:
            self._gone(c.container_id)
        self._fails(PLAIN)
        self.plain_wants = PLAIN_WANTS
        self._ask(Ask(self.apps[PLAIN].attempt_id, PLAIN, 0, 1, PLAIN_WANTS))

    def do_agent_s_master_fails(self) -> None:
        """Its containers are kept; the next one asks for those that are missing."""
        if self.connected:
            self.do_agent_lost()
        self.asking = []
        self._fails(AGENT)
        there = {c.allocation_request_id for c in self.containers.values() if c.app_id == AGENT}
        self._ask_for(w for plan in self.plans.values() for w in plan if w.allocation_request_id not in there)

    def _fails(self, name: str) -> None:
        app = self.apps[name]
        self.asks = {k: a for k, a in self.asks.items() if a.app_id != name}
        self.send(ev.AttemptRemoved(app.attempt_id, name))
        self.apps[name] = dataclasses.replace(app, attempt_id=f"{name}_2")
        self.send(ev.AttemptAdded(f"{name}_2", name))

    def do_plain_moves(self) -> None:
        app = self.apps[PLAIN] = dataclasses.replace(self.apps[PLAIN], queue=f"root.{AGENT}")
        self.send(ev.AppUpdated(app))

    def do_boost(self) -> None:
        self.send(ev.OperatorCommand("boost", f"app {PLAIN}", for_s=2 * SETTINGS.lease_s))

    def do_clock_steps(self) -> None:
        self.now += 2 * SETTINGS.lease_s
        self.send(ev.ClockStepped())

    # ---- YARN's end, and the connection

    def do_rm_lost(self) -> None:
        self.rm_up, self.directives = False, []
        self.rm_life += 1
        self.send(ev.ClusterLost())

    def do_rm_back(self) -> None:
        self.rm_up = True
        self.send(self.snapshot())

    def do_rm_back_bare(self) -> None:
        for c in list(self.containers):
            self._gone(c, told=False)
        self.do_rm_back()

    # ---- the Agent: gangs of two GPUs, a worker on each machine

    def demand(self) -> Demand:
        """What it tells: one gang."""
        return Demand(GANG, 1, GANG, WORK_GPU_S, WORK_GPU_S, 0.0)

    def do_agent_registers(self) -> None:
        self.connected = True
        self.send(ev.AgentUp(AGENT, self.apps[AGENT].attempt_id, "hyperband", self.demand()))

    def do_agent_lost(self) -> None:
        self.connected, self.registered, self.inbox, self.said = False, False, [], []
        self.send(ev.AgentLost(AGENT))

    def do_agent_lapses(self) -> None:
        self.said.pop(0)

    def do_agent_speaks(self) -> None:
        self.send(self.said.pop(0))

    def do_agent_asks(self) -> None:
        self._ask(self.asking.pop(0))

    def do_agent_hears(self) -> None:
        e = self.inbox.pop(0)
        match e:
            case ev.SendAskRho():
                self.said.append(ev.RhoReported(AGENT, e.round_id, 2.0, self.demand()))
            case ev.SendOffer():
                bid = Bid(AGENT, 5.0, (BidRow(1.0, (), 1, GANG, Scope.CLUSTER),))
                self.said.append(ev.BidReceived(AGENT, e.round_id, bid))
            case ev.SendRegistered():
                self.registered = True
                self._lose(self.held - {g for x in e.grants for g in x.gpus})
                self.held = {g for x in e.grants for g in x.gpus}
                self.said += [ev.UsePlanned(AGENT, use_id, plan) for use_id, plan in self.plans.items()]
                self._plan()
            case ev.SendGrant() if not e.renewal:
                self.held |= set(e.grant.gpus)
                self._plan()
            case ev.SendRevoke():
                self._lose(set(e.gpus))
            case ev.SendUseReply() if not e.accepted and e.use_id in self.plans:
                gone = {g for w in self.plans[e.use_id] for g in w.gpus}
                self.said.append(ev.GpusReleased(AGENT, frozenset(gone & self.held)))
                self._lose(gone)

    def _plan(self) -> None:
        """Plans a gang on GPUs that it holds and has no use for; releases too few."""
        if not self.registered:
            return
        free = sorted(self.held - {g for plan in self.plans.values() for w in plan for g in w.gpus})
        if len(free) < GANG:
            if free:
                self.held -= set(free)
                self.said.append(ev.GpusReleased(AGENT, frozenset(free)))
            return
        use_id, plan = f"u{next(self.ids)}", []
        for _, group in itertools.groupby(free[:GANG], key=lambda g: g.host):
            plan.append(ev.WorkerPlan(f"w{next(self.ids)}", "job", tuple(group), next(self.ids)))
        self.plans[use_id] = tuple(plan)
        self.said.append(ev.UsePlanned(AGENT, use_id, tuple(plan)))
        self._ask_for(plan)

    def _ask_for(self, plan: Iterable[ev.WorkerPlan]) -> None:
        attempt_id = self.apps[AGENT].attempt_id
        self.asking += [Ask(attempt_id, AGENT, w.allocation_request_id, len(w.gpus), 1) for w in plan]

    def _lose(self, gpus: set[Gpu]) -> None:
        """Stops what uses these GPUs; a gang stops whole, and what it still holds is planned again."""
        self.held -= gpus
        for use_id, plan in list(self.plans.items()):
            if gpus & {g for w in plan for g in w.gpus}:
                self._stop(use_id)

    def _stop(self, use_id: str) -> None:
        requests = {w.allocation_request_id for w in self.plans[use_id]}
        self.asking = [a for a in self.asking if a.allocation_request_id not in requests]
        for ask in [a for a in self.asks.values() if a.allocation_request_id in requests and a.app_id == AGENT]:
            self._ask(dataclasses.replace(ask, count=0))
        mine = [c for c, x in self.containers.items() if x.app_id == AGENT and x.allocation_request_id in requests]
        self.stopping += [c for c in mine if c not in self.stopping]
        if not mine:
            del self.plans[use_id]
            self._plan()

    def _worker_ended(self, c: Container) -> None:
        for use_id, plan in list(self.plans.items()):
            if c.allocation_request_id in {w.allocation_request_id for w in plan}:
                self._stop(use_id)

    def loans(self) -> list[tuple[Gpu, float, list[str]]]:
        """(GPU, until when its borrower may keep it, who wanted GPUs later and so waits for that) of each loan."""
        if KINDS[self.kind][1] != LENT:
            return []
        since_s = self.arbiter.agents.unmet_since_s
        asked = {app_id: since_s.get(app_id, app.submitted_s) for app_id, app in self.apps.items()}
        kept = ((x, x.granted_s + LEND_S) for x in self.shadow.leases.each() if not x.guaranteed)
        return [
            (x.gpus[0], until_s, [app for app, at_s in asked.items() if app != x.app_id and x.granted_s < at_s])
            for x, until_s in kept
            if self.now < until_s
        ]

    def wanting(self) -> dict[str, int]:
        """App -> GPUs that it would use besides those for which it has containers."""
        found = {AGENT: GANG, PLAIN: self.plain_wants}
        for c in self.containers.values():
            found[c.app_id] = found.get(c.app_id, 0) - len(c.gpus)
        return {app: n for app, n in found.items() if app in self.apps and n > 0}


def play(kind: str, moves: str) -> World:
    """The world after these moves, separated by semicolons: what a failure prints, a test takes over."""
    world = World(kind)
    for name in filter(None, (x.strip() for x in moves.split(";"))):
        assert name in world.moves(), f"{name!r} cannot happen there: {world.moves()}"
        world.do(name)
        oracles.state(world)
    return world
