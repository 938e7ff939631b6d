"""Plays a story on the real Arbiter in a `World`.

A story is text: lines that begin with `#`, then blocks of a few lines each of which is a command (`Player._on_...`
with its words and `key=value` pairs), `----`, and what came of it. That is written by the Arbiter: each fact as the
event feed tells it, what a receipt says beside its line, and what the Arbiter asks of YARN and Agents beyond grants.
Times are seconds since the story began.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from pycontrol.arbiter.ledger.facts import (
    AppChanged,
    Fact,
    LeaseExtended,
    LeaseGranted,
    LeaseRevoking,
    PolicyMemory,
    RoundHeld,
)
from pycontrol.model import events as ev
from pycontrol.model.receipt import Receipt
from pycontrol.model.topology import Gpu
from pycontrol.queries.pending_reasons import Reasons
from pycontrol.runtime.journal import NoJournal
from pycontrol.web.feed import Feed
from tests.arbiter.fake_agent import FakeAgent
from tests.arbiter.test_reports import Exact, Told
from tests.arbiter.world import node

START_S = 1000.0
RULE = "----"
BOX = "cell_types: {{box: {{child: gpu, count: 4, node_level: true}}}}\nphysical_cells: [{}]\nvirtual_clusters: {{{}}}"
RUNS = re.compile(r"(\S+:)(\d+)((?:, \1\d+)+)")


def shorter(text: str) -> str:
    """`n1:0, n1:1, n1:2` as `n1:0-2`."""

    def run(found: re.Match[str]) -> str:
        indices = [int(x) for x in re.findall(r":(\d+)", found[0])]
        is_run = indices == list(range(indices[0], indices[-1] + 1))
        return f"{found[1]}{indices[0]}-{indices[-1]}" if is_run else found[0]

    return RUNS.sub(run, text)


class Player(Told):
    """A world in which a story happens."""

    def __init__(self, *machines: str, policy: str = "isonomy", owners: str = "", **settings: str) -> None:
        """`machines`: HOST:GPUs. `owners`: `root.a=1,root.b=1`, the whole machines that queues own."""
        self.lines: list[str] = []
        self.told = 0
        self.feed = Feed(NoJournal(), first_seq=0)
        self.stubborn, self.idle, self.refusing = set[str](), set[str](), set[str]()
        hosts = [(host, "r", int(gpus)) for host, gpus in (m.split(":") for m in machines)]
        terms = {k: v == "true" if v in ("true", "false") else float(v) for k, v in settings.items()}
        file = None
        if owners:
            cells = ", ".join(f"{{type: box, hosts: [{host}]}}" for host, _, _ in hosts)
            owned = ", ".join(f"{q}: {{box: {n}}}" for q, n in (o.split("=") for o in owners.split(",")))
            file = BOX.format(cells, owned)
        super().__init__(policy, supply=file, machines=hosts, **{"lease_s": 60, "f": 0.0, **terms})

    # ---- what is told

    def tell(self, text: str) -> None:
        """Adds a line with the present time."""
        self.lines.append(f"{self.now - START_S:6.1f}  {text}".rstrip())

    def check(self) -> None:
        """Tells the new facts, before their effects happen."""
        super().check()
        new, self.told = self.journal[self.told :], len(self.journal)
        for fact in new:
            since = self.feed.since(None, 0, 1)["next"]
            self.feed.append([fact], self.now)
            for event in self.feed.since(since, 0, 100)["events"]:
                self.tell(shorter(event["text"]) + _until(fact))
            if isinstance(fact, RoundHeld):
                self.lines += [f"{'':10}{x}" for x in _details(fact.receipt)]
            elif self.feed.since(None, 0, 1)["next"] == since and not isinstance(fact, AppChanged | PolicyMemory):
                gpus = ", ".join(map(str, getattr(fact, "gpus", ())))
                self.tell(shorter(f"{type(fact).__name__} {getattr(fact, 'app_id', '')} {gpus}"))

    def carry_out(self, e: ev.Effect) -> None:
        """Tells what is asked of YARN and Agents, but for rounds, grants and starts, of which facts tell."""
        if isinstance(e, ev.Kill):
            self.tell(f"-> kill {e.container_id}: {e.reason}")
        elif isinstance(e, ev.SendFinish):
            self.tell(f"-> {e.app_id} is told to end: {e.reason}")
        elif isinstance(e, ev.SendUseReply) and not e.accepted:
            self.tell(f"-> the plan of {e.app_id} is refused: {e.reason}")
        super().carry_out(e)

    # ---- who misbehaves

    def do_SendRevoke(self, e: ev.SendRevoke) -> None:
        if e.app_id not in self.stubborn:
            super().do_SendRevoke(e)

    def check_agents(self) -> None:
        if not self.stubborn:
            super().check_agents()

    def use(self, agent: FakeAgent) -> None:
        if agent.app_id not in self.idle:
            super().use(agent)

    def tick_job(self, agent: FakeAgent, job: str, launch: int) -> None:
        super().tick_job(agent, job, launch)
        if job not in agent.work and agent.work:
            self.submit(ev.ProgressReported(agent.app_id, agent.demand(), ()))

    def place(self, e: ev.Place) -> None:
        if e.node_id.split(":")[0] not in self.refusing:
            super().place(e)
        else:
            self.submit(ev.DirectiveDone(e.directive_id, False, "", "too little memory", machine_at_fault=True))

    # ---- commands

    def _on_run(self, seconds: str) -> None:
        """Time passes."""
        self.run(self.now - START_S + float(seconds))

    def _on_app(
        self,
        name: str,
        gang: str,
        gangs: str = "1",
        work: str = "1000",
        queue: str = "root.q",
        priority: str = "0",
        rho_times: str = "1",
    ) -> None:
        """A Submarine app arrives. `work`: serial GPU-seconds of a gang; `rho_times`: by what its Agent exaggerates."""
        of = type("Agent", (Exact,), {"lie": float(rho_times)})
        wishes = {"slowdown": (1.0, 1.0, 1.0)}
        self.add_app(name, int(gang), int(gangs), float(work), queue, of, int(priority), **wishes)

    def _on_shell(self, name: str, gpus: str, count: str = "1", queue: str = "root.q", tags: str = "") -> None:
        """An app without an Agent arrives and asks for containers."""
        self.add_foreign(name, int(gpus), int(count), queue, tags=tags.split(",") if tags else ())

    def _on_ends(self, name: str) -> None:
        """The app ends, with all its containers."""
        self.end_app(name) if name not in self.agents else self.finish(self.agents[name])

    def _on_lost(self, what: str) -> None:
        """A machine, an Agent's stream or (`rm`) the ResourceManager is lost."""
        if what == "rm":
            self.submit(ev.ClusterLost())
        elif what in self.agents:
            self.submit(ev.AgentLost(what))
        else:
            self.lose_node(what)

    def _on_back(self, what: str, without: str = "") -> None:
        """It is back; `without`: containers that the ResourceManager no longer knows of (all of this app)."""
        if what == "rm":
            for c in [c for c in self.containers.values() if c.app_id == without]:
                del self.containers[c.container_id]
                for gpu in c.gpus:
                    del self.occupied[gpu]
            self.submit(self.snapshot())
        elif what in self.agents:
            self.agent_back(self.agents[what])
        else:
            self.node_back(what)

    def _on_bad(self, host: str, *indices: str) -> None:
        """These GPUs of a machine are bad, and no others."""
        self.mark(host, *map(int, indices))

    def _on_restart(self) -> None:
        """The control plane is killed and starts again from its journal."""
        self.crash()

    def _on_silent(self, name: str) -> None:
        """The app's Agent answers no more."""
        self.agents[name].silent = True

    def _on_stays(self, name: str) -> None:
        """The app ignores that it must give GPUs back."""
        self.stubborn.add(name)

    def _on_dawdles(self, name: str) -> None:
        """The app does not use what it is granted."""
        self.idle.add(name)

    def _on_refuses(self, host: str) -> None:
        """The machine refuses all containers."""
        self.refusing.add(host)

    def _on_plans(self, name: str, *gpus: str) -> None:
        """The app's Agent plans a worker on these GPUs."""
        plan = ev.WorkerPlan(gpus[0], "j9", tuple(map(Gpu.parse, gpus)), 99)
        self.submit(ev.UsePlanned(name, f"j9/{gpus[0]}", (plan,)))

    def _on_operator(self, verb: str, target: str = "", for_s: str = "0", **limits: str) -> None:
        """An operator's command."""
        values = {k: float(v) for k, v in limits.items()}
        self.submit(ev.OperatorCommand(verb.replace("_", " "), target.replace("_", " "), "ann", float(for_s), values))

    def _on_joins(self, machine: str) -> None:
        """A new machine registers."""
        host, gpus = machine.split(":")
        self.nodes[f"{host}:1"] = node(host, "r", int(gpus))
        self.submit(ev.NodeUp(self.nodes[f"{host}:1"]))

    def _on_why(self, name: str) -> None:
        """Asks why an app has no more GPUs."""
        a, now_s = self.arbiter, self.now
        code, sentence = Reasons(a, now_s).told(name)
        self.tell(f"{name}: {code}: {sentence}")

    def _on_has(self, name: str) -> None:
        """Asks what an app's containers run on, and how often its gangs were started."""
        gpus = ", ".join(sorted(str(g) for c in self.containers.values() if c.app_id == name for g in c.gpus))
        agent = self.agents.get(name)
        starts = f", started {sum(agent.launches.values())} times" if agent is not None else ""
        self.tell(
            shorter(f"{name} runs on {gpus or 'nothing'}{starts}") + (", done" if agent and agent.finished else "")
        )


def _until(fact: Fact) -> str:
    """When the lease that a fact is about ends, and whether it is borrowed."""
    if not isinstance(fact, LeaseGranted | LeaseExtended | LeaseRevoking):
        return ""
    borrowed = " (borrowed)" if isinstance(fact, LeaseGranted) and not fact.guaranteed else ""
    return f" until {fact.end_s - START_S:.1f}{borrowed}"


def _details(r: Receipt) -> Iterator[str]:
    """What a receipt says beside the feed's line."""
    for app_id, why in r.out.items():
        yield f"{app_id} takes no part: {why}"
    for app_id, text in r.corrected.items():
        yield f"{app_id} is corrected: {re.sub(r'(?<=[.]..)[0-9]+', '', text)}"
    for app_id, who in r.boosted.items():
        yield f"{app_id} is boosted by {who}"
    for app_id in r.done.refused:
        yield f"{app_id} has no place for a gang"
    for hold in r.done.holds:
        yield f"held for {hold.app_id}: {', '.join(f'{n} of {h}' for h, n in hold.gang)}"
    for app_id, why_it in r.done.why.items():
        yield f"{app_id}: {why_it}"


def play(text: str) -> str:
    """The story as it goes now: its comments and commands, with what came of them."""
    head, *blocks = re.split(r"\n\n+", text.strip())
    player: Player | None = None
    told = [head]
    for block in blocks:
        commands = block.split(f"\n{RULE}")[0].rstrip()
        for line in commands.splitlines():
            verb, *rest = line.split()
            words = [w for w in rest if "=" not in w.split("/")[0]]
            named = dict(w.split("=", 1) for w in rest if w not in words)
            if verb == "cluster":
                player = Player(*words, **named)
                continue
            assert player is not None, "the first command is `cluster`"
            getattr(player, f"_on_{verb}")(*words, **named)
        assert player is not None
        told.append("\n".join([commands, RULE, *player.lines]))
        player.lines.clear()
    return "\n\n".join(told) + "\n"
