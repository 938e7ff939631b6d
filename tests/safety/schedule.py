"""The private schedules of a case, as the control plane keeps them: how many gangs each app has there, and when."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field

from pycontrol.model.auction import Bid, Offer, Plan, Snapshot
from pycontrol.policies.on_schedule import KEY, OnSchedule
from pycontrol.policies.policy_port import Policy
from pycontrol.policies.private import PrivateSchedule

Log = dict[str, list[tuple[float, int]]]
"""App -> (Unix seconds, gangs that it has from then on)."""


def note(log: Log, app_id: str, at_s: float, gangs: int) -> None:
    """Notes an app's gangs, if they are others than before."""
    known = log.setdefault(app_id, [])
    if not known or known[-1][1] != gangs:
        known.append((at_s, gangs))


@dataclass(frozen=True)
class _Noting:
    """A policy that notes the gangs of each app after each of its rounds."""

    policy: Policy
    log: Log

    @property
    def name(self) -> str:
        return self.policy.name

    @property
    def asks_agents(self) -> bool:
        return self.policy.asks_agents

    def offer(self, s: Snapshot) -> Offer | None:
        return self.policy.offer(s)

    def decide(self, s: Snapshot, bids: Mapping[str, Bid], rng: random.Random) -> Plan:
        plan = self.policy.decide(s, bids, rng)
        won = {award.app_id: len(award.gangs) for award in plan.awards}
        for v in s.apps:
            note(self.log, v.app_id, s.now_s, len(v.retained_gangs) + won.get(v.app_id, 0))
        return plan


@dataclass(frozen=True)
class Noted(OnSchedule):
    """A policy with a private schedule, which it plays twice: once for the log."""

    log: Log = field(default_factory=dict, compare=False)

    def decide(self, snapshot: Snapshot, bids: Mapping[str, Bid], rng: random.Random) -> Plan:
        """The plan of the product."""
        if snapshot.private:
            schedule = PrivateSchedule.load(snapshot.memory.get(KEY) or {}, snapshot.now_s)
            schedule.advance(snapshot, _Noting(self.policy, self.log))
            for app_id, app in schedule.apps.items():
                ended = app.ended_s is not None
                note(self.log, app_id, app.ended_s if ended else snapshot.now_s, 0 if ended else len(app.gangs))
        return super().decide(snapshot, bids, rng)
