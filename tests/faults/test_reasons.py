"""What an app that waits is told, checked against what the round that begins at that moment does."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest

from pycontrol.arbiter.core import Arbiter
from pycontrol.arbiter.ledger.facts import RoundHeld
from pycontrol.arbiter.ledger.lease import gpus_in
from pycontrol.arbiter.round.eligibility import shape_of
from pycontrol.arbiter.round.parts import RoundParts
from pycontrol.arbiter.round.rounds import Rounds
from pycontrol.arbiter.supply.gpu_supply import RoundPart
from pycontrol.model.reasons import Pending
from pycontrol.model.receipt import Receipt
from pycontrol.model.topology import Gpu
from pycontrol.queries.pending_reasons import Reasons
from pycontrol.queries.standing import policy_of
from pycontrol.simulation.outlook import outlooks
from pycontrol.simulation.scene import scene_of
from tests.faults.clock import Violation
from tests.faults.oracles import Oracles
from tests.faults.schedule import Schedule, draw
from tests.faults.world import World

SEEDS = (27, 51, *range(1, 13))
"""The first two found a wait without cells, and one for the rest of a gang."""
HONEST = ("ann", "bob")
CROWDS, LOOK_S, SLACK_S = (1, 3, 6), 10.0, 2.0
SHUT = frozenset(
    {
        Pending.PAUSED,
        Pending.SHADOW,
        Pending.OFF,
        Pending.MODE_UNREADABLE,
        Pending.RECOVERY_IN_PROGRESS,
        Pending.AGENT_AWAY,
        Pending.INTERACTIVE_LIMIT,
        Pending.QUEUE_LIMIT,
        Pending.ACCOUNT_LIMIT,
        Pending.GANG_INCOMPLETE,
        Pending.EXCEEDS_CLUSTER_SIZE,
        Pending.NO_MACHINE_LARGE_ENOUGH,
        Pending.EXCEEDS_GPU_TYPE,
        Pending.IDLE,
        Pending.FINISHED,
    }
)
"""A round gives such apps nothing."""
OWN = frozenset({Pending.CELLS_IN_USE, Pending.CELLS_LENT, Pending.CELLS_BAD})
TOO_SMALL = frozenset({Pending.CELLS_TOO_SMALL, Pending.NO_SUCH_CELLS})
NO_ROOM = frozenset({Pending.NO_FREE_GPUS, Pending.OPPORTUNISTIC, Pending.NO_CELLS})
OF_AUCTIONS = frozenset(
    {
        Pending.HIDDEN_PAYMENT,
        Pending.BID_NOTHING,
        Pending.LOST_AUCTION,
        Pending.NOT_OFFERED,
        Pending.LATE_BID,
        Pending.BAD_BID,
    }
)
CONFIRMED = frozenset(
    {
        Pending.WAITING_FOR_ROUND,
        Pending.NO_FREE_GPUS,
        Pending.OUTRANKED,
        Pending.BID_NOTHING,
        Pending.WAITING_FOR_REVOCATION,
        *OWN - {Pending.CELLS_BAD},
        Pending.CELLS_TOO_SMALL,
    }
)
"""What these seeds must reach."""


class Told:
    """What each app of a part is told when its round begins, and what is free then."""

    def __init__(self, a: Arbiter, part: RoundPart, now_s: float) -> None:
        reasons = Reasons(a, now_s)
        self.a, self.free, self.demands = a, set(a.gpus.free), reasons.demands
        mine = [x for x, record in a.durable.live.items() if part.vc == record.vc and record.user in HONEST]
        self.said = {x: reasons.told(x) for x in mine}
        self.rank = {x: found.rank for x, found in reasons.standings.items() if x in self.said}
        self.promised = {x: set(gpus_in(a.durable.reservations.of(x))) for x in self.said}
        self.asks = policy_of(a, part.vc).asks_agents

    def check(self, r: Receipt) -> Counter[Pending]:
        """The reasons that the round confirmed; raises Violation."""
        seen = Counter[Pending]()
        granted = {app_id: {x.gpu for x in r.done.granted if x.app_id == app_id} for app_id in self.said}
        for app_id, (code, sentence) in self.said.items():
            agent = self.a.agents.get(app_id)
            if agent is not None and agent.demand != self.demands.of(app_id):
                continue  # it has asked for something else since
            mine, others = granted[app_id], any(x.app_id != app_id for x in r.done.awards)
            problem, at_once = "", bool(mine) and mine <= self.free
            if code in NO_ROOM and at_once:
                problem = "it got GPUs that were free"
            elif code in OWN and r.guaranteed and at_once:
                problem = "it got GPUs of its cells that were free"
            elif ((code in SHUT and not r.asked) or (code in TOO_SMALL and r.guaranteed)) and mine:
                problem = "it got GPUs"
            elif code in OF_AUCTIONS and not self.asks:
                problem = "its policy holds no auctions"
            elif code is Pending.OUTRANKED and (self.rank.get(app_id) == 1 or self._ahead(app_id, granted, r, at_once)):
                problem = "nobody who waits came before it"
            elif code is Pending.WAITING_FOR_REVOCATION and not self.promised[app_id]:
                problem = "no GPU is promised to it"
            elif code is Pending.WAITING_FOR_ROUND and r.guaranteed and not r.note:
                here = mine or others or app_id in r.out or r.done.holds or r.done.renewed or app_id in r.done.why
                problem = "" if here else "the round gave nobody anything"
            if problem:
                raise Violation("reason", f"{r.round_id}: {app_id} is told {code} ({sentence}), and {problem}", app_id)
            seen[code] += 1
        return seen

    def _ahead(self, app_id: str, granted: Mapping[str, set[Gpu]], r: Receipt, at_once: bool) -> list[str]:
        """Those before it who wanted the same and got nothing, though it got GPUs that were free."""
        like = self.demands.of(app_id)
        return [
            x
            for x, rank in self.rank.items()
            if at_once
            and like is not None
            and rank
            and not granted[x]
            and rank < (self.rank[app_id] or 0)
            and x not in r.out
            and (d := self.demands.of(x)) is not None
            and shape_of(d) == shape_of(like)
        ]


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
    assert not CONFIRMED - confirmed.keys()
    assert confirmed[Pending.WAITING_FOR_ROUND] > 10
    assert confirmed[Pending.NO_FREE_GPUS] > 10


def crowd(seed: int) -> Schedule:
    """Ten apps that declare their work rightly come within a lease; nothing breaks."""
    rng, apps = random.Random(f"crowd {seed}"), list[dict[str, Any]]()
    for k in range(1, 11):
        gang = rng.choice((1, 2, 2, 4))
        apps.append(
            {
                "id": k,
                "at": rng.uniform(0.0, 40.0),
                "queue": "root.a",
                "user": rng.choice(HONEST),
                "kind": "agent",
                "scheduler": "single",
                "gang": gang,
                "jobs": 1,
                "steps": rng.randint(15, 60),
                "step_s": 1.0,
                "iteration_s": float(gang),
            }
        )
    drawn = draw(seed)
    return drawn | {
        "faults": [],
        "standby": False,
        "cells": False,
        "exchange": False,
        "old_journal": False,
        "queue_max": {},
        "policy": "isonomy",
        "apps": sorted(apps, key=lambda a: a["at"]),
        "until": 60.0,
        "settings": drawn["settings"] | {"lease_s": 30.0, "open_leases": False},
    }


class Foreseen(World):
    """Forecasts when each waiting app starts, every LOOK_S."""

    def __init__(self, seed: int) -> None:
        super().__init__(crowd(seed))
        self.said: list[tuple[str, tuple[float | None, float | None, float | None]]] = []
        self.started_s: dict[str, float] = {}
        self.sim.every(1.0, self._starts)
        self.sim.every(LOOK_S, self._look)

    def _starts(self) -> None:
        d = self.plane.arbiter.durable
        for app_id in d.live.keys() - self.started_s.keys():
            if at_s := [x.started_s for x in d.leases.of(app_id) if x.container_id and x.started_s]:
                self.started_s[app_id] = min(at_s)

    def _look(self) -> None:
        scene = scene_of(self.plane.arbiter, self.plane.driver.clock.now_s())
        if waiting := [x for x, started in scene.started.items() if not started]:
            found = outlooks(scene, sought=waiting, starts=True)
            self.said += [(x, found[x].start_s) for x in waiting]


def test_most_starts_lie_in_the_range_that_waiting_apps_are_told() -> None:
    inside = []
    for seed in CROWDS:
        world = Foreseen(seed)
        world.run()
        for app_id, (low, _, high) in world.said:
            assert low is not None
            assert high is not None
            inside.append(low - SLACK_S <= world.started_s[app_id] <= high + SLACK_S)
    assert len(inside) > 30
    assert sum(inside) >= 0.8 * len(inside)
