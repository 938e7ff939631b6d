"""A round's receipt: what was on offer, who took part, what was decided and what was carried out.

`dump` is its form in REST (docs/rest.md), `in_runs` of that its form in the journal; `load` reads both. Fields
that a receipt of an older version lacks get their defaults.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Any

from pycontrol.model.auction import Award, BidReceipt, Hold, gang_of
from pycontrol.model.reasons import Reason, read_reason
from pycontrol.model.topology import Gpu
from pycontrol.model.value import value

HOSTS_MAX = 1_000_000
_IN_RUNS = ("offered", "unused_gpus")
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
    why: str = ""


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
        data = _dump(self)
        note, outcome = data.pop("note"), data.pop("outcome")
        return {**data, **({} if outcome is None else _dump(outcome)), "note": note}

    @classmethod
    def load(cls, data: Mapping[str, Any]) -> Receipt:
        """The receipt in either form; raises AttributeError, KeyError, TypeError or ValueError for other data."""
        values = _load(Receipt, {"round_id": "", "at_s": 0.0, "policy": "", **data})
        return Receipt(**values, outcome=Outcome(**_load(Outcome, data)) if "awards" in data else None)


def _dump(x: Receipt | Outcome) -> dict[str, Any]:
    data: dict[str, Any] = {}
    for name, _ in _FIELDS[type(x)]:
        value = getattr(x, name)
        if name in _FORMS:
            value = _FORMS[name][0](value)
        elif isinstance(value, tuple):
            value = list(value)
        elif isinstance(value, Mapping):
            value = dict(value)
        if value or name not in _SPARSE:
            data[name] = value
    return data


def _load(kind: type[Any], data: Mapping[str, Any]) -> dict[str, Any]:
    known = ((name, form) for name, form in _FIELDS[kind] if name in data and name != "outcome")
    return {name: (_FORMS[name][1] if name in _FORMS else form)(data[name]) for name, form in known}


def in_runs(dumped: Mapping[str, Any]) -> dict[str, Any]:
    """A dumped receipt with `offered` and `unused_gpus` in runs: a large cluster's receipts consist of these."""
    return {k: runs_of(x) if k in _IN_RUNS else x for k, x in dumped.items()}


def runs_of(by_host: Mapping[str, int]) -> list[tuple[str, str, int, int]]:
    """Hosts that are numbered in sequence and have the same number: (prefix, first number, hosts, GPUs of each)."""
    runs: list[tuple[str, str, int, int]] = []
    for host, gpus in by_host.items():
        prefix = host.rstrip("0123456789")
        number = host[len(prefix) :]
        if runs and number and runs[-1][0] == prefix and runs[-1][3] == gpus and len(runs[-1][1]) == len(number):
            _, first, n, _ = runs[-1]
            if int(number) == int(first) + n:
                runs[-1] = prefix, first, n + 1, gpus
                continue
        runs.append((prefix, number, 1, gpus))
    return runs


def _by_host(data: Mapping[str, int] | Sequence[Sequence[Any]]) -> dict[str, int]:
    """The inverse of `runs_of`, whose tuples are lists in JSON; journals before version 7 have the GPUs by host."""
    if isinstance(data, Mapping):
        return dict(data)
    if sum(n for _, _, n, _ in data) > HOSTS_MAX:
        raise ValueError("a receipt has more hosts than any cluster")
    return {
        f"{prefix}{int(first) + k:0{len(first)}}" if first else prefix: gpus
        for prefix, first, n, gpus in data
        for k in range(n)
    }


def _load_award(x: Mapping[str, Any]) -> Award:
    return Award(x["app_id"], tuple(tuple((h, n) for h, n in gang) for gang in x["gangs"]), x.get("leftover", False))


def _each(dump: Callable[[Any], Any], load: Callable[[Any], Any]) -> _Form:
    return lambda values: [dump(x) for x in values], lambda data: tuple(load(x) for x in data)


def _by_app(dump: Callable[[Any], Any], load: Callable[[Any], Any]) -> _Form:
    return lambda values: {k: dump(x) for k, x in values.items()}, lambda data: {k: load(x) for k, x in data.items()}


_Form = tuple[Callable[[Any], Any], Callable[[Any], Any]]
"""How a field is dumped and loaded."""
_FORMS: Mapping[str, _Form] = {
    **dict.fromkeys(("bad_gpus", "owned", "lent", "renewed"), _each(str, Gpu.parse)),
    **dict.fromkeys(_IN_RUNS, (dict, _by_host)),
    "ending": _by_app(*_each(str, Gpu.parse)),
    "out": _by_app(str, read_reason),
    "round_id": (str, str),
    "at_s": (float, float),
    "policy": (str, str),
    "bids": _each(lambda x: {**{name: getattr(x, name) for name in _BID_FIELDS}, "won": dict(x.won)},
                  lambda x: BidReceipt(**{name: x[name] for name in _BID_FIELDS if name in x})),
    "awards": _each(lambda x: {"app_id": x.app_id, "gangs": list(x.gangs), "leftover": x.leftover}, _load_award),
    "granted": _each(lambda x: {"gpu": str(x.gpu), "app_id": x.app_id},
                     lambda x: Granted(Gpu.parse(x["gpu"]), x["app_id"])),
    "revoked": _each(lambda x: {"gpu": str(x.gpu), "app_id": x.app_id, "deadline_s": x.deadline_s}
                     | ({"why": x.why} if x.why else {}),
                     lambda x: Revoked(Gpu.parse(x["gpu"]), x["app_id"], x.get("deadline_s", 0.0), x.get("why", ""))),
    "holds": _each(lambda x: {"app_id": x.app_id, "gpus": dict(x.gang), "until_s": x.until_s},
                   lambda x: Hold(x["app_id"], gang_of(x["gpus"]), x["until_s"])),
}  # fmt: skip
_SPARSE = ("boosted", "min_lend_s", "unsaved_gpu_s", "holds")
"""Left out while they say nothing."""


def _fields(kind: Any) -> tuple[tuple[str, Callable[[Any], Any]], ...]:
    """Each field, and what its value is made by: the factory, else the type of its default."""
    made: Any = [(f.name, f.default_factory, f.default) for f in dataclasses.fields(kind)]
    return tuple((n, type(default) if factory is dataclasses.MISSING else factory) for n, factory, default in made)


_FIELDS = {kind: _fields(kind) for kind in (Receipt, Outcome)}
