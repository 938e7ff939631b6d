"""What an app that waits is told, checked against what the round that begins at that moment does."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from pycontrol.arbiter.core import Arbiter
from pycontrol.arbiter.ledger.facts import RoundHeld
from pycontrol.arbiter.round.parts import RoundParts
from pycontrol.arbiter.round.rounds import Rounds
from pycontrol.arbiter.supply.port import RoundPart
from pycontrol.model.reasons import Pending
from pycontrol.model.receipt import Receipt
from pycontrol.queries.demands import Demands
from pycontrol.queries.reasons import Reasons
from pycontrol.queries.waiting import Waiting
from tests.faults.clock import Violation
from tests.faults.oracles import Oracles
from tests.faults.schedule import draw
from tests.faults.world import World

SEEDS = (27, 51, *range(1, 13))
"""The first two found a wait without cells, and one for the rest of a gang."""
HONEST = ("ann", "bob")
SHUT = frozenset({
    Pending.PAUSED, Pending.SHADOW, Pending.OFF, Pending.MODE_UNREADABLE, Pending.RECOVERY_IN_PROGRESS,
    Pending.AGENT_AWAY, Pending.INTERACTIVE_LIMIT, Pending.QUEUE_LIMIT, Pending.ACCOUNT_LIMIT,
    Pending.GANG_INCOMPLETE,
    Pending.EXCEEDS_CLUSTER_SIZE, Pending.NO_MACHINE_LARGE_ENOUGH, Pending.EXCEEDS_GPU_TYPE,
    Pending.IDLE, Pending.FINISHED,
})  # fmt: skip
"""A round gives such apps nothing."""


class Told:
    """What each app of a part is told when its round begins, and what is free then."""

    def __init__(self, a: Arbiter, part: RoundPart, now_s: float) -> None:
        reasons, waiting, demands = Reasons(a, now_s), Waiting(a, now_s), Demands(a, now_s)
        self.a, self.free, self.demands = a, set(a.gpus.free), demands
        mine = [x for x, record in a.durable.live.items() if part.vc == record.vc and record.user in HONEST]
        self.said = {x: waiting.told(x, demands.of(x), reasons.of(x, demands.of(x))) for x in mine}

    def check(self, r: Receipt) -> Counter[Pending]:
        """The reasons that the round confirmed; raises Violation."""
        seen = Counter[Pending]()
        granted = {app_id: {x.gpu for x in r.done.granted if x.app_id == app_id} for app_id in self.said}
        for app_id, (code, sentence) in self.said.items():
            agent = self.a.agents.get(app_id)
            if agent is not None and agent.demand != self.demands.of(app_id):
                continue  # it has asked for something else since
            mine, others = granted[app_id], any(x.app_id != app_id for x in r.done.awards)
            problem = ""
            if code is Pending.NO_FREE_GPUS and mine and mine <= self.free:
                problem = "it got GPUs that were free"
            elif code in SHUT and not r.asked and mine:
                problem = "it got GPUs"
            elif code is Pending.WAITING_FOR_ROUND and r.guaranteed and not r.note:
                here = mine or others or app_id in r.out or r.done.holds or r.done.renewed or app_id in r.done.why
                problem = "" if here else "the round gave nobody anything"
            if problem:
                raise Violation("reason", f"{r.round_id}: {app_id} is told {code} ({sentence}), and {problem}", app_id)
            seen[code] += 1
        return seen


class Watched(Oracles):
    """Also checks reasons."""

    def __init__(self, world: Any) -> None:
        super().__init__(world)
        self.told: dict[str, Told] = {}
        self.confirmed = Counter[Pending]()

    def journaled(self, plane: Any, facts: list[Any]) -> None:
        super().journaled(plane, facts)
        for fact in facts:
            if isinstance(fact, RoundHeld) and fact.round_id in self.told:
                self.confirmed += self.told.pop(fact.round_id).check(fact.receipt)


def play(seed: int, monkeypatch: pytest.MonkeyPatch) -> Counter[Pending]:
    world = World(draw(seed))
    world.oracles = watched = Watched(world)
    hold = Rounds._hold

    def told_first(self: Rounds, parts: RoundParts, part: RoundPart, now_s: float) -> None:
        told = Told(next(p.arbiter for p in world.planes if p.arbiter.rounds is self), part, now_s)
        hold(self, parts, part, now_s)
        if self.current is not None:
            watched.told[self.current.round_id] = told

    monkeypatch.setattr(Rounds, "_hold", told_first)
    world.run()
    monkeypatch.undo()
    return watched.confirmed


def test_a_round_does_what_waiting_apps_were_told(monkeypatch: pytest.MonkeyPatch) -> None:
    confirmed = sum((play(seed, monkeypatch) for seed in SEEDS), Counter[Pending]())
    assert confirmed[Pending.WAITING_FOR_ROUND] > 10
    assert confirmed[Pending.NO_FREE_GPUS] > 10
