"""The facts in the journal: what must survive a crash.

YARN knows what runs. Facts hold what YARN cannot tell: lease ends, reservations, fairness clocks, operator switches
and each round's receipt.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, get_args

from pycontrol.model.reasons import EndReason, end_reason
from pycontrol.model.receipt import Receipt
from pycontrol.model.topology import Gpu
from pycontrol.model.value import value

Gpus = tuple[Gpu, ...]


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
    """Changed fields of an app's record; `launched`: only the launch counts that changed."""

    app_id: str
    changes: Mapping[str, Any]


@value
class AppEnded:
    app_id: str
    final_state: str
    at_s: float


@value
class LeaseGranted:
    """The lease of a gang's GPUs."""

    gpus: Gpus
    app_id: str
    grant_id: str
    at_s: float
    """When the last of the GPUs becomes available."""
    end_s: float
    gang: str = ""
    """The name of the gang; empty: that of the grant."""
    after: Gpus = ()
    """Those of the GPUs that are reserved: each of their leases begins when the GPU's present one ends."""
    guaranteed: bool = True
    """Whether it is within the cells of its virtual cluster; else borrowed, until the owner needs the GPUs."""


@value
class LeaseMended(LeaseGranted):
    """GPUs that join the grant and gang of leases that lost as many: the rest keep their places, and their end."""


@value
class LeaseStarted:
    """A container was launched on these GPUs."""

    gpus: Gpus
    container_id: str
    job_id: str
    at_s: float
    end_s: float
    slowdown: float = 1.0
    """S of its gang's locality, by the prior (Themis, section 4.3.1)."""
    speed: float = 1.0
    """The GPUs of the reference type for which each of its GPUs counts in budgets."""
    gpu_type: str = ""
    """As in the topology file; empty in journals before version 5."""


@value
class LeaseExtended:
    """A renewal, or (`counted` False) another change of the lease's end, such as the extension after recovery."""

    gpus: Gpus
    end_s: float
    counted: bool = True


@value
class LeaseRevoking:
    gpus: Gpus
    end_s: float
    reason: str
    cause: EndReason = EndReason.UNKNOWN


@value
class LeaseBorrowed:
    """The lease or reservation is no longer within its virtual cluster's cells: it continues, as borrowed."""

    gpus: Gpus
    grant_id: str = ""
    """The grant of the lease or the reservation that changes; empty: both change."""


@value
class LeaseOwned:
    """Cells of its virtual cluster became free and are bound where it runs: it was borrowed and is guaranteed now."""

    gpus: Gpus
    grant_id: str


@value
class AppMoved:
    """The app moved to another queue, or its queue to another virtual cluster or to none."""

    app_id: str
    vc: str
    at_s: float
    queue: str = ""
    """Empty: unchanged."""


@value
class LeaseIdle:
    """The container on these GPUs ended while the lease continues."""

    gpus: Gpus
    at_s: float


@value
class LeaseEnded:
    """The GPUs are free, or their reservation becomes the lease."""

    gpus: Gpus
    at_s: float
    reason: str
    cause: EndReason = EndReason.UNKNOWN


@value
class NextDropped:
    """The reservation of these GPUs is cancelled."""

    gpus: Gpus
    reason: str


@value
class Switched:
    """An operator's act: a switch, `paused` or `drained:HOST`, or `killed:APP` or `cells`, which leave nothing on."""

    switch: str
    on: bool
    user: str
    at_s: float


APP, USER = "app ", "user "
"""How targets of boosts begin."""


@value
class LimitsSet:
    """An administrator set the limits of an account, which from now on replace those of isonomy.yaml."""

    account: str
    """As in `Accounts.names`."""
    limits: Mapping[str, float] | None
    """Fields of `Limits`; None: those of isonomy.yaml are in force again."""
    user: str
    at_s: float


@value
class BudgetSpent:
    """An account has used so much of a budget: at least 0.8 or 1 of it, or 0: a new period began after that."""

    account: str
    period: str
    share: float
    at_s: float


@value
class PlainUse:
    """From now on a user's containers without a lease in a queue run on so many GPUs of a type: those of queues that
    CapacityScheduler serves (`kind` "plain"), and all while the mode is shadow ("watched")."""

    user: str
    queue: str
    kind: str
    gpu_type: str
    count: int
    """GPUs."""
    at_s: float


@value
class Watched:
    """During this time the ResourceManager told of every container."""

    since_s: float
    at_s: float


@value
class Boosted:
    """An administrator puts an app (`app ID`) or all apps of a user (`user NAME`) first, until a time or an earlier
    fact about the same target: one until `at_s` is over."""

    target: str
    until_s: float
    user: str
    """Who did it; empty where its time has come."""
    at_s: float


@value
class RoundHeld:
    """A round's receipt."""

    round_id: str
    at_s: float
    receipt: Receipt


@value
class AllocationChanged:
    """Measured: seconds from a grant of free GPUs until the job's next training step."""

    app_id: str
    job_id: str
    at_s: float
    seconds: float


@value
class PolicyMemory:
    """What a policy asks to be remembered until its next round."""

    values: Mapping[str, Any]
    vc: str = ""


@value
class ExchangeChanged:
    """The whole state of the cell exchange (`Exchange.dump`)."""

    values: Mapping[str, Any]


@value
class AppsForgotten:
    """The records of apps that ended long ago are dropped."""

    app_ids: tuple[str, ...]


@value
class Restored:
    """State imported from another control plane into an empty one (`Durable.kept`)."""

    data: Mapping[str, Any]
    at_s: float = 0.0
    """Until then the gangs count as running that ran when the state was stored; 0 in older journals."""


@value
class ClockBehind:
    """From now on the cluster's clock is `by_s` seconds ahead of the journal's times; 0.0: it is not ahead."""

    by_s: float


_OfUse = LeaseStarted | LeaseGranted | LeaseMended | LeaseEnded | LeaseRevoking | LeaseIdle
OfLease = _OfUse | LeaseExtended | LeaseBorrowed | LeaseOwned | NextDropped
OF_LEASE = get_args(OfLease)
"""The facts about leases and reservations: each names the GPUs that it is about."""
_OfApps = AppArrived | AppChanged | AppEnded | AppMoved | AppsForgotten
_OfRounds = Switched | Boosted | RoundHeld | AllocationChanged | PolicyMemory | ExchangeChanged
Fact = OfLease | _OfApps | _OfRounds | Restored | ClockBehind | LimitsSet | BudgetSpent | PlainUse | Watched
FACTS: dict[str, type[Any]] = {kind.__name__: kind for kind in get_args(Fact)}


_CAUSED = (LeaseRevoking.__name__, LeaseEnded.__name__)
_FIELDS = {kind: tuple((f.name, f.default) for f in dataclasses.fields(kind)) for kind in FACTS.values()}


def to_json(fact: Fact) -> dict[str, Any]:
    """A fact as JSON values, without the name of its type and without fields that have their default.

    The cause is always written: a fact without one is of a journal of 0.1.0.
    """
    data: dict[str, Any] = {}
    for name, default in _FIELDS[type(fact)]:
        field = getattr(fact, name)
        if field is not default and (field != default or name == "cause"):
            data[name] = field
    if isinstance(fact, OF_LEASE):
        for name in ("gpus", "after"):
            if name in data:
                data[name] = dump_gpus(data[name])
    elif isinstance(fact, RoundHeld):
        data["receipt"] = fact.receipt.dump()
    elif isinstance(fact, PolicyMemory):
        data["values"] = plain(fact.values)
    return data


def plain(memory: Mapping[str, Any]) -> dict[str, Any]:
    """A policy's memory as dicts: a policy may keep a part in a form of its own, which is read only when written."""
    return {name: plain(of) if isinstance(of, Mapping) else of for name, of in memory.items()}


def _cause_of_version_1(reason: str) -> EndReason:
    """The cause in a journal of 0.1.0, which has only texts; the audit needs lost machines ("node HOST ...")."""
    return EndReason.NODE_LOST if reason.startswith("node ") else EndReason.UNKNOWN


def from_json(kind: str, data: Mapping[str, Any]) -> Fact:
    """The inverse of to_json; `kind` is the name of the fact's type. Raises KeyError if it is unknown."""
    values = dict(data)
    if "gpu" in values:  # before version 3 of the journal, facts were about one GPU
        values["gpus"] = (Gpu(*values.pop("gpu")),)
        if values.pop("after_current", False):
            values["after"] = values["gpus"]
    else:
        for name in ("gpus", "after"):
            if name in values:
                values[name] = load_gpus(values[name])
    if "app_ids" in values:
        values["app_ids"] = tuple(values["app_ids"])
    if kind in _CAUSED:
        values["cause"] = end_reason(values["cause"]) if "cause" in values else _cause_of_version_1(values["reason"])
    if "receipt" in values:
        values["receipt"] = Receipt.load(values["receipt"])
    fact: Fact = FACTS[kind](**values)
    return fact


def dump_gpus(gpus: Iterable[Gpu]) -> list[list[str | int]]:
    """GPUs as JSON values: [host, index, ...] for GPUs of one host that follow each other."""
    runs: list[list[str | int]] = []
    for host, index in gpus:
        if runs and runs[-1][0] == host:
            runs[-1].append(index)
        else:
            runs.append([host, index])
    return runs


def load_gpus(runs: Iterable[Sequence[Any]]) -> Gpus:
    """The inverse of dump_gpus()."""
    return tuple(Gpu(host, index) for host, *indices in runs for index in indices)
