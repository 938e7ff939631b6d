"""A round's receipt: what was on offer, who took part, what was decided and what was carried out.

`dump` and `load` convert it to and from its form in the journal and in REST (docs/receipt.md names the fields). Fields
that a receipt of an older version lacks get their defaults.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import field
from typing import Any

from pycontrol.model.auction import Award, BidReceipt, Hold, gang_of
from pycontrol.model.reasons import Reason, read_reason
from pycontrol.model.topology import Gpu
from pycontrol.model.value import value

_BID_FIELDS = tuple(f.name for f in dataclasses.fields(BidReceipt))


@value
class Granted:
    """A GPU that an app was granted."""

    gpu: Gpu
    app_id: str


@value
class Revoked:
    """A GPU that an app must give back by a deadline."""

    gpu: Gpu
    app_id: str
    deadline_s: float


@value
class Outcome:
    """What the policy decided, and what was carried out. Gangs and GPUs are counted by host."""

    bids: tuple[BidReceipt, ...] = ()
    awards: tuple[Award, ...] = ()
    owned: tuple[Gpu, ...] = ()
    """GPUs that changed from borrowed to guaranteed."""
    lent: tuple[Gpu, ...] = ()
    """GPUs that changed from guaranteed to borrowed (lazy preemption)."""
    refused: tuple[str, ...] = ()
    """Apps that were awarded a gang for which there was no place."""
    leftover_gpus: Mapping[str, int] = field(default_factory=dict)
    unused_gpus: Mapping[str, int] = field(default_factory=dict)
    objective_log: float = 0.0
    proved_optimal: bool = True
    gap: float = 0.0
    solve_s: float = 0.0
    seed: int = 0
    why: Mapping[str, str] = field(default_factory=dict)
    """App -> one sentence on why it got GPUs (`Plan.why`)."""
    renewed: tuple[Gpu, ...] = ()
    granted: tuple[Granted, ...] = ()
    revoked: tuple[Revoked, ...] = ()
    unsaved_gpu_s: Mapping[str, float] = field(default_factory=dict)
    """App that GPUs were revoked from -> GPU-seconds that its gangs had trained since their newest checkpoints."""
    holds: tuple[Hold, ...] = ()
    """Free GPUs held for an app's gang until a time; they may be lent until then."""

    @property
    def moved(self) -> bool:
        """Whether any lease was granted, renewed or revoked, or changed between guaranteed and borrowed."""
        return bool(self.granted or self.renewed or self.revoked or self.owned or self.lent)


NOTHING = Outcome()


@value
class Receipt:
    """The receipt of one round; `outcome` is None if the round was given up."""

    round_id: str
    at_s: float
    policy: str
    asked: bool = True
    """Whether Agents were asked for rho and bids."""
    vc: str = ""
    guaranteed: bool = True
    deals: tuple[Mapping[str, Any], ...] = ()
    """The virtual cluster's exchange deals in force."""
    cluster_gpus: int = 0
    """R_C."""
    offered: Mapping[str, int] = field(default_factory=dict)
    """GPUs by host."""
    bad_gpus: tuple[Gpu, ...] = ()
    ending: Mapping[str, tuple[Gpu, ...]] = field(default_factory=dict)
    """App -> its GPUs on offer."""
    rho: Mapping[str, float | None] = field(default_factory=dict)
    participants: tuple[str, ...] = ()
    out: Mapping[str, Reason] = field(default_factory=dict)
    """App -> why it took no part."""
    bid_s: Mapping[str, float] = field(default_factory=dict)
    restart_s: Mapping[str, float] = field(default_factory=dict)
    """App that bid for nothing -> its estimated cost of a start, seconds."""
    asked_s: Mapping[str, float] = field(default_factory=dict)
    """App that was granted GPUs -> since when it had wanted more than it held, not counting time before leases were
    last suspended."""
    corrected: Mapping[str, str] = field(default_factory=dict)
    """App -> which of its Agent's figures were replaced by what the control plane saw."""
    boosted: Mapping[str, str] = field(default_factory=dict)
    """App that came first because it was boosted -> who boosted it."""
    f: float = 0.0
    min_lend_s: float = 0.0
    """How long borrowers keep GPUs of the virtual cluster's cells before they are called back."""
    note: str = ""
    outcome: Outcome | None = None

    @property
    def done(self) -> Outcome:
        """The outcome; an empty one if the round was given up."""
        return NOTHING if self.outcome is None else self.outcome

    def dump(self) -> dict[str, Any]:
        """The receipt as JSON values."""
        data: dict[str, Any] = {
            "round_id": self.round_id,
            "at_s": self.at_s,
            "policy": self.policy,
            "asked": self.asked,
            "vc": self.vc,
            "guaranteed": self.guaranteed,
            "deals": list(self.deals),
            "cluster_gpus": self.cluster_gpus,
            "offered": dict(self.offered),
            "bad_gpus": _names(self.bad_gpus),
            "ending": {app_id: _names(gpus) for app_id, gpus in self.ending.items()},
            "rho": dict(self.rho),
            "participants": list(self.participants),
            "out": {app_id: str(why) for app_id, why in self.out.items()},
            "bid_s": dict(self.bid_s),
            "restart_s": dict(self.restart_s),
            "asked_s": dict(self.asked_s),
            "corrected": dict(self.corrected),
            **({"boosted": dict(self.boosted)} if self.boosted else {}),
            "f": self.f,
            **({"min_lend_s": self.min_lend_s} if self.min_lend_s else {}),
        }
        if self.outcome is not None:
            data.update(_dump_outcome(self.outcome))
        data["note"] = self.note
        return data

    @classmethod
    def load(cls, data: Mapping[str, Any]) -> Receipt:
        """The inverse of dump(); raises AttributeError, KeyError, TypeError or ValueError for other data."""
        return Receipt(
            round_id=str(data.get("round_id", "")),
            at_s=float(data.get("at_s", 0.0)),
            policy=str(data.get("policy", "")),
            asked=bool(data.get("asked", True)),
            vc=str(data.get("vc", "")),
            guaranteed=bool(data.get("guaranteed", True)),
            deals=tuple(data.get("deals", ())),
            cluster_gpus=int(data.get("cluster_gpus", 0)),
            offered=dict(data.get("offered", {})),
            bad_gpus=_gpus(data.get("bad_gpus", ())),
            ending={app_id: _gpus(names) for app_id, names in data.get("ending", {}).items()},
            rho=dict(data.get("rho", {})),
            participants=tuple(data.get("participants", ())),
            out={app_id: read_reason(text) for app_id, text in data.get("out", {}).items()},
            bid_s=dict(data.get("bid_s", {})),
            restart_s=dict(data.get("restart_s", {})),
            asked_s=dict(data.get("asked_s", {})),
            corrected=dict(data.get("corrected", {})),
            boosted=dict(data.get("boosted", {})),
            f=float(data.get("f", 0.0)),
            min_lend_s=float(data.get("min_lend_s", 0.0)),
            note=str(data.get("note", "")),
            outcome=_load_outcome(data) if "awards" in data else None,
        )


def _dump_outcome(x: Outcome) -> dict[str, Any]:
    holds = [{"app_id": h.app_id, "gpus": dict(h.gang), "until_s": h.until_s} for h in x.holds]
    return {
        "bids": [{**{name: getattr(b, name) for name in _BID_FIELDS}, "won": dict(b.won)} for b in x.bids],
        "awards": [{"app_id": a.app_id, "gangs": list(a.gangs), "leftover": a.leftover} for a in x.awards],
        "owned": _names(x.owned),
        "lent": _names(x.lent),
        "refused": list(x.refused),
        "leftover_gpus": dict(x.leftover_gpus),
        "unused_gpus": dict(x.unused_gpus),
        "objective_log": x.objective_log,
        "proved_optimal": x.proved_optimal,
        "gap": x.gap,
        "solve_s": x.solve_s,
        "seed": x.seed,
        "why": dict(x.why),
        "renewed": _names(x.renewed),
        "granted": [{"gpu": str(g.gpu), "app_id": g.app_id} for g in x.granted],
        "revoked": [{"gpu": str(r.gpu), "app_id": r.app_id, "deadline_s": r.deadline_s} for r in x.revoked],
        **({"unsaved_gpu_s": dict(x.unsaved_gpu_s)} if x.unsaved_gpu_s else {}),
        **({"holds": holds} if holds else {}),
    }


def _load_outcome(data: Mapping[str, Any]) -> Outcome:
    return Outcome(
        bids=tuple(_bid(b) for b in data.get("bids", ())),
        awards=tuple(
            Award(a["app_id"], tuple(tuple((h, n) for h, n in gang) for gang in a["gangs"]), a.get("leftover", False))
            for a in data["awards"]
        ),
        owned=_gpus(data.get("owned", ())),
        lent=_gpus(data.get("lent", ())),
        refused=tuple(data.get("refused", ())),
        leftover_gpus=dict(data.get("leftover_gpus", {})),
        unused_gpus=dict(data.get("unused_gpus", {})),
        objective_log=float(data.get("objective_log", 0.0)),
        proved_optimal=bool(data.get("proved_optimal", True)),
        gap=float(data.get("gap", 0.0)),
        solve_s=float(data.get("solve_s", 0.0)),
        seed=int(data.get("seed", 0)),
        why=dict(data.get("why", {})),
        renewed=_gpus(data.get("renewed", ())),
        granted=tuple(Granted(Gpu.parse(x["gpu"]), x["app_id"]) for x in data.get("granted", ())),
        revoked=tuple(
            Revoked(Gpu.parse(x["gpu"]), x["app_id"], x.get("deadline_s", 0.0)) for x in data.get("revoked", ())
        ),
        unsaved_gpu_s=dict(data.get("unsaved_gpu_s", {})),
        holds=tuple(Hold(x["app_id"], gang_of(x["gpus"]), x["until_s"]) for x in data.get("holds", ())),
    )


def _bid(data: Mapping[str, Any]) -> BidReceipt:
    return BidReceipt(**{name: data[name] for name in _BID_FIELDS if name in data})


def _names(gpus: tuple[Gpu, ...]) -> list[str]:
    return [str(gpu) for gpu in gpus]


def _gpus(names: Any) -> tuple[Gpu, ...]:
    return tuple(Gpu.parse(name) for name in names)
