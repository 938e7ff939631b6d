"""A round under way, its receipt, and what policies remember between rounds."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pycontrol.arbiter.boosts import boost_of
from pycontrol.arbiter.ledger.facts import PolicyMemory
from pycontrol.arbiter.ledger.lease import Lease, gpus_in
from pycontrol.arbiter.round.eligibility import Openings
from pycontrol.arbiter.round.parts import RoundParts
from pycontrol.arbiter.state import State
from pycontrol.arbiter.supply.exchange import deals_of
from pycontrol.arbiter.supply.port import RoundPart
from pycontrol.model.auction import AppView, Bid, Snapshot
from pycontrol.model.reasons import Pending, Reason
from pycontrol.model.receipt import Outcome, Receipt
from pycontrol.model.topology import Gpu
from pycontrol.policies.port import Policy


class RoundPhase(enum.StrEnum):
    """What a round waits for: rho, bids or the plan."""

    RHO = "rho"
    BIDS = "bids"
    PLAN = "plan"


@dataclass
class Round:
    """A round under way."""

    round_id: str
    at_s: float
    ending: dict[str, list[list[Lease]]]
    """App -> its gangs on offer."""
    part: RoundPart
    parts: RoundParts
    """All parts of the same moment."""
    policy: Policy
    openings: Openings
    phase: RoundPhase = RoundPhase.RHO
    deadline_s: float = 0.0
    """The end of the present wait."""
    rho: dict[str, float | None] = field(default_factory=dict)
    waiting: set[str] = field(default_factory=set)
    """Apps with Agents that it waits for."""
    out: dict[str, Reason] = field(default_factory=dict)
    """App -> why it takes no part."""
    snapshot: Snapshot | None = None
    views: dict[str, AppView] = field(default_factory=dict)
    bids: dict[str, Bid] = field(default_factory=dict)
    offered_at_s: float = 0.0
    bid_s: dict[str, float] = field(default_factory=dict)
    participants: tuple[str, ...] = ()
    corrected: dict[str, str] = field(default_factory=dict)
    """App -> which of its Agent's figures were replaced by what was seen."""
    seed: int = 0
    since_s: dict[str, float] = field(default_factory=dict)
    """App -> since when it wants more than it holds; noted at the start, as a grant may satisfy it."""

    @property
    def offered(self) -> Mapping[str, int]:
        """GPUs on offer by host or machine."""
        return self.part.free

    @property
    def memory_key(self) -> str:
        """The key of the policy's memory; a virtual cluster's own and borrowed GPUs have separate ones."""
        return self.part.vc if self.part.guaranteed else f"{self.part.vc} (borrowed)"

    def note_corrected(self, app_id: str, what: str) -> None:
        """Notes which of an Agent's figures were replaced; empty: none."""
        if what:
            self.corrected[app_id] = "; ".join(filter(None, (self.corrected.get(app_id), what)))

    def leave_out(self) -> None:
        """Removes apps in `out` from the snapshot, so that they get neither leftovers nor GPUs of the last pass."""
        if self.out and self.snapshot is not None:
            self.snapshot = replace(
                self.snapshot, apps=tuple(v for v in self.snapshot.apps if v.app_id not in self.out)
            )

    def late(self, code: Pending, what: str) -> None:
        """Ends the wait: the apps that did not answer are out, with this reason."""
        for app_id in self.waiting:
            self.out[app_id] = Reason(code, what)
        self.waiting.clear()

    def ending_gpus(self, app_id: str) -> tuple[Gpu, ...]:
        """The app's GPUs on offer."""
        gangs = self.ending.get(app_id)
        return tuple(sorted(gpu for gang in gangs for gpu in gpus_in(gang))) if gangs else ()


def receipt(s: State, r: Round, outcome: Outcome | None, note: str) -> Receipt:
    """The receipt of a round; `outcome` is None if the round was given up."""
    return Receipt(
        round_id=r.round_id,
        at_s=r.at_s,
        policy=r.policy.name,
        asked=r.policy.asks_agents,
        vc=r.part.vc,
        guaranteed=r.part.guaranteed,
        deals=tuple(deals_of(s.durable.exchange, r.part.vc)),
        cluster_gpus=s.gpus_of(r.part.vc),
        offered=r.part.by_host(r.offered),
        bad_gpus=tuple(s.bad_gpus),
        ending={app_id: r.ending_gpus(app_id) for app_id in r.ending},
        rho=dict(r.rho),
        participants=tuple(r.participants),
        out=dict(r.out),
        bid_s=dict(r.bid_s),
        restart_s={app_id: b.restart_s for app_id, b in r.bids.items() if not b.rows},
        asked_s=_asked_s(r, outcome),
        corrected=dict(r.corrected),
        boosted={a: by.user for a in r.views if (by := boost_of(s, a)) is not None} if s.durable.boosts else {},
        f=s.f_of(r.part.vc),
        min_lend_s=s.supply.terms(r.part.vc).min_lend_s,
        note=note,
        outcome=outcome,
    )


def _asked_s(r: Round, outcome: Outcome | None) -> dict[str, float]:
    """App -> since when it wanted GPUs, for apps that were granted some."""
    granted = {g.app_id for g in outcome.granted} if outcome is not None else ()
    return {app_id: r.since_s[app_id] for app_id in granted if app_id in r.since_s}


REMEMBERED_BY = "remembered_by"


def remember(s: State, key: str, policy: str, memory: Mapping[str, Any]) -> None:
    """Records a policy's memory with the policy's name, so that no other policy reads it."""
    if dict(memory) != remembered(s, key, policy):
        s.record(PolicyMemory({**memory, REMEMBERED_BY: policy}, key))


def remembered(s: State, key: str, policy: str) -> dict[str, Any]:
    """The memory of the policy of this name; empty if another policy wrote it. Old journals do not name the policy."""
    memory = dict(s.durable.memory.get(key, {}))
    return memory if memory.pop(REMEMBERED_BY, policy) == policy else {}
