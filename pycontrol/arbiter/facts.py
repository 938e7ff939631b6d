"""What must survive a crash, fact by fact, as the journal keeps it.

YARN is the truth about what runs; these facts hold only what YARN cannot rebuild: lease ends, who is
next on a GPU, fairness clocks, operator switches, and each round's receipt.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from pycontrol.model.reasons import EndReason, end_reason
from pycontrol.model.receipt import Receipt
from pycontrol.model.topology import Gpu
from pycontrol.model.value import value


@value
class AppArrived:
    app_id: str
    name: str
    queue: str
    user: str
    kind: str
    submitted_s: float
    at_s: float
    vc: str = ""


@value
class AppChanged:
    """The record's fields that an app's reports change; `launched`: the counts of launches that changed."""

    app_id: str
    changes: Mapping[str, Any]


@value
class AppEnded:
    app_id: str
    final_state: str
    at_s: float


@value
class LeaseGranted:
    """`after_current`: the GPU's present lease ends first."""

    gpu: Gpu
    app_id: str
    grant_id: str
    at_s: float
    """When it becomes available."""
    end_s: float
    gang: str = ""
    after_current: bool = False
    guaranteed: bool = True
    """From the cells of its virtual cluster; else borrowed, until a tenant's guarantee needs the GPU."""


@value
class LeaseStarted:
    """Its container was launched."""

    gpu: Gpu
    container_id: str
    job_id: str
    at_s: float
    end_s: float
    slowdown: float = 1.0
    """S of the place that its gang was given (Themis, section 4.3.1), as the prior has it."""


@value
class LeaseExtended:
    """A renewal, or (counted=False) a grace after recovery."""

    gpu: Gpu
    end_s: float
    counted: bool = True


@value
class LeaseRevoking:
    gpu: Gpu
    end_s: float
    reason: str
    cause: EndReason = EndReason.UNKNOWN


@value
class LeaseBorrowed:
    """The cells of its virtual cluster do not cover it any more: it continues, as borrowed."""

    gpu: Gpu
    grant_id: str = ""
    """Of which of the GPU's leases (the present, the next) that is said; empty: of both."""


@value
class LeaseOwned:
    """Cells of its virtual cluster came free and are bound to where it runs: what was borrowed is its own."""

    gpu: Gpu
    grant_id: str


@value
class AppMoved:
    """It is in another queue, or its queue is another virtual cluster than it was, or none any more."""

    app_id: str
    vc: str
    at_s: float
    queue: str = ""
    """Empty: the same."""


@value
class LeaseIdle:
    """Its container ended while the lease continues."""

    gpu: Gpu
    at_s: float


@value
class LeaseEnded:
    """The GPU is free, or goes to whoever is next on it."""

    gpu: Gpu
    at_s: float
    reason: str
    cause: EndReason = EndReason.UNKNOWN


@value
class NextDropped:
    """Who was next on the GPU no longer is."""

    gpu: Gpu
    reason: str


@value
class Switched:
    """An operator's switch: paused, or drained:HOST."""

    switch: str
    on: bool
    user: str
    at_s: float


@value
class RoundHeld:
    """A round's receipt."""

    round_id: str
    at_s: float
    receipt: Receipt


@value
class AllocationChanged:
    """From a grant (the GPU being free) until the job's next training step, in seconds."""

    app_id: str
    job_id: str
    at_s: float
    seconds: float


@value
class PolicyMemory:
    """What the policy wants to know in its next round."""

    values: Mapping[str, Any]
    vc: str = ""


@value
class ExchangeChanged:
    """The bulletin board, the deals and the books of cell exchange, as they are now (`Exchange.dump`)."""

    values: Mapping[str, Any]


@value
class AppsForgotten:
    """Apps that ended long ago: their records are dropped."""

    app_ids: tuple[str, ...]


@value
class Restored:
    """What another control plane knew before this one, which knew nothing: apps, clocks, switches, memory."""

    data: Mapping[str, Any]


@value
class ClockBehind:
    """From here on the cluster's clock is ahead of the journal's times by so much; 0.0: it is not."""

    by_s: float


Fact = (
    AppArrived | AppChanged | AppEnded | LeaseGranted | LeaseStarted | LeaseExtended | LeaseRevoking | LeaseIdle
    | LeaseEnded | NextDropped | Switched | RoundHeld | AllocationChanged | PolicyMemory
    | LeaseBorrowed | LeaseOwned | AppMoved | ExchangeChanged | Restored | AppsForgotten | ClockBehind
)  # fmt: skip
OfGpu = (
    LeaseStarted | LeaseGranted | LeaseEnded | LeaseRevoking | LeaseIdle | LeaseExtended | LeaseBorrowed | LeaseOwned
    | NextDropped
)  # fmt: skip
OF_GPU = (
    LeaseStarted, LeaseGranted, LeaseEnded, LeaseRevoking, LeaseIdle, LeaseExtended, LeaseBorrowed, LeaseOwned,
    NextDropped,
)  # fmt: skip
"""Those about the lease of one GPU."""
FACTS: dict[str, type[Any]] = {
    t.__name__: t
    for t in (
        AppArrived, AppChanged, AppEnded, LeaseGranted, LeaseStarted, LeaseExtended, LeaseRevoking, LeaseIdle,
        LeaseEnded, NextDropped, Switched, RoundHeld, AllocationChanged, PolicyMemory,
        LeaseBorrowed, LeaseOwned, AppMoved, ExchangeChanged, Restored, AppsForgotten,
        ClockBehind,
    )
}  # fmt: skip


_CAUSED = (LeaseRevoking.__name__, LeaseEnded.__name__)
_FIELDS = {kind: tuple(f.name for f in dataclasses.fields(kind)) for kind in FACTS.values()}


def to_json(fact: Fact) -> dict[str, Any]:
    """A fact's JSON-able form, without its name."""
    data = {name: getattr(fact, name) for name in _FIELDS[type(fact)]}
    if isinstance(fact, RoundHeld):
        data["receipt"] = fact.receipt.dump()
    return data


def _cause_of_version_1(reason: str) -> EndReason:
    """Journals of 0.1.0 have no causes; the audit needs one of them, the loss of a machine: "node HOST ..."."""
    return EndReason.NODE_LOST if reason.startswith("node ") else EndReason.UNKNOWN


def from_json(kind: str, data: Mapping[str, Any]) -> Fact:
    """The inverse of to_json; raises KeyError for an unknown kind."""
    values = dict(data)
    if "gpu" in values:
        values["gpu"] = Gpu(*values["gpu"])
    if "app_ids" in values:
        values["app_ids"] = tuple(values["app_ids"])
    if kind in _CAUSED:
        values["cause"] = end_reason(values["cause"]) if "cause" in values else _cause_of_version_1(values["reason"])
    if "receipt" in values:
        values["receipt"] = Receipt.load(values["receipt"])
    fact: Fact = FACTS[kind](**values)
    return fact
