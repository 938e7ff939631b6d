"""HiveD's cell exchange: idle cells (Figure 10), gain of balanced exchange (Tables 4 and 5, Figures 11 and 12)."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from scipy.stats import spearmanr

from pycontrol.cells.exchange import Board, ExchangeOffer, ExchangeRequest, Lot
from pycontrol.cells.exchange import balanced as balance
from pycontrol.lab.hived.cases import (
    CLUSTER_NODES,
    CONVENTIONS,
    LOWER_LOAD,
    NODES,
    CaseRuns,
    TraceSize,
    Wanted,
    apportioned,
    full,
    made,
    size,
)
from pycontrol.lab.hived.simulated import HOUR_S, NODE_GPUS, HourlySeries
from pycontrol.lab.hived.trace_case import TraceCase
from pycontrol.lab.kit import Claim, Figure, Findings, Series, Setup, Table

GAIN_DEFAULT = {
    "res-e": 25.8,
    "prod-a": 11.5,
    "res-d": 9.2,
    "prod-e": 8.8,
    "res-c": 7.0,
    "res-a": 6.9,
    "prod-b": 5.6,
    "prod-c": 3.6,
    "res-b": 1.2,
    "res-f": 0.9,
    "prod-d": 0.8,
}
"""Table 4: gain of guaranteed utilisation, percent."""
GAIN_BALANCED = {
    "res-d": 57.53,
    "prod-a": 38.0,
    "res-c": 26.04,
    "res-b": 24.06,
    "res-e": 17.1,
    "res-a": 14.87,
    "prod-b": 9.69,
    "prod-c": 9.61,
    "res-f": 9.23,
    "prod-d": 7.41,
    "prod-e": 4.79,
}
"""Table 5."""
LOT = Lot("node", "node", 1)
LONG_DAYS, AFTER_DAY = 8.0, 20
"""Cells are looked at from that day on: where a part of the trace is run, from its beginning."""


@dataclass
class Exchanged:
    """Results of the hourly exchange, in node-hours by tenant."""

    own: dict[str, int]
    used: dict[str, float]
    """Its own cells used by its regular jobs."""
    gave: dict[str, list[float]] = field(default_factory=dict)
    got: dict[str, list[float]] = field(default_factory=dict)
    hours: int = 0

    def utilisation(self, tenant: str) -> float:
        """Effective utilisation of its own cells."""
        return self.used[tenant] / (self.own[tenant] * self.hours)

    def increase(self, tenant: str) -> float:
        """Borrowed node-hours, counted up to those that it lent (section 5.4), over its own cells."""
        return min(sum(self.gave[tenant]), sum(self.got[tenant])) / (self.own[tenant] * self.hours)

    def gain(self, tenant: str) -> float:
        """The increase relative to the utilisation, in percent."""
        return 100 * self.increase(tenant) / self.utilisation(tenant) if self.used[tenant] else 0.0


def exchange(hours: HourlySeries, own: dict[str, int]) -> Exchanged:
    """Balanced exchange (Algorithm 2) by hour: idle nodes are lent to tenants with more jobs than nodes."""
    board = Board()
    found = Exchanged(own, dict.fromkeys(own, 0.0), {t: [] for t in own}, {t: [] for t in own}, len(hours.used))
    for used, held, lent in zip(hours.used, hours.held, hours.lent, strict=True):
        spare = {t: own[t] - held[t] for t in own}
        want = {t: min(-(-lent[t] // NODE_GPUS), sum(spare.values())) for t in own}
        gave, got = dict.fromkeys(own, 0.0), dict.fromkeys(own, 0.0)
        board.requests = {t: ExchangeRequest(t, t, LOT, HOUR_S) for t in own if want[t]}
        board.offers = {t: ExchangeOffer(t, t, LOT, HOUR_S) for t in own if spare[t]}
        while board.requests and board.offers:
            pairs = {r: [o for o in board.offers.values() if o.tenant != r] for r in board.requests}
            match = balance(board, {r: offers for r, offers in pairs.items() if offers})
            if match is None:
                break
            taker, owner = match[0].tenant, match[1].tenant
            board.surplus[owner] = board.surplus.get(owner, 0.0) + NODE_GPUS
            board.surplus[taker] = board.surplus.get(taker, 0.0) - NODE_GPUS
            gave[owner] += 1
            got[taker] += min(1.0, lent[taker] / NODE_GPUS - got[taker])
            want[taker] -= 1
            spare[owner] -= 1
            if not want[taker]:
                del board.requests[taker]
            if not spare[owner]:
                del board.offers[owner]
        for t in own:
            found.used[t] += used[t] / NODE_GPUS
            found.gave[t].append(gave[t])
            found.got[t].append(got[t])
    return found


def fluctuation(hours: HourlySeries, own: dict[str, int], tenant: str) -> float:
    """Relative fluctuation of a tenant's usage, equation (3)."""
    usage = np.array([u[tenant] + low[tenant] for u, low in zip(hours.used, hours.lent, strict=True)], float)
    return float(usage.std() / (own[tenant] * NODE_GPUS))


def balanced(case: TraceCase) -> TraceCase:
    """The case with its nodes divided in proportion to each tenant's requested GPU time."""
    time: dict[str, float] = dict.fromkeys(case.owned, 0.0)
    for tenant, _, gpus, _, run_s in case.spec:
        time[tenant] += gpus * run_s
    nodes = sum(cells["node"] for cells in case.owned.values())
    own = apportioned(time, nodes)
    most = {t: own[t] * NODE_GPUS for t in own}
    spec = tuple(row for row in case.spec if row[2] <= most[row[0]])
    kept = tuple((t, i, g, at, run) for i, (t, _, g, at, run) in enumerate(spec))
    left = case.left_out + len(case.spec) - len(spec)
    owned = {t: {"node": n} for t, n in own.items()}
    return replace(case, name=f"{case.name}, balanced", owned=owned, spec=kept, left_out=left)


def _size(setup: Setup) -> TraceSize:
    """The size: one seed, and more days than other experiments, as cells must be idle for 100 hours."""
    here = size(setup)
    return here if setup.quick else TraceSize(here.part, LONG_DAYS, 1)


def balanced_case(part: int, seed: int, days: float) -> TraceCase:
    """The trace with nodes divided by demand."""
    return balanced(full(CLUSTER_NODES, part, seed, LOWER_LOAD, days))


def _balanced(setup: Setup) -> tuple[TraceCase, HourlySeries]:
    here = _size(setup)
    (run,) = made(setup, [Wanted(functools.partial(balanced_case, here.part, 0, here.days), ("hived",))])
    return run.case, run.hived.series


def _default(setup: Setup, *ways: str) -> CaseRuns:
    here = _size(setup)
    case = functools.partial(full, CLUSTER_NODES, here.part, 0, LOWER_LOAD, here.days)
    (run,) = made(setup, [Wanted(case, ("hived", *ways))])
    return run


def _grain(setup: Setup) -> str:
    part = _size(setup).part
    if part == 1:
        return ""
    return f"On 1/{part} of the nodes most tenants own one, which is the least that is exchanged."


def _own(case: TraceCase) -> dict[str, int]:
    return {t: cells["node"] for t, cells in case.owned.items()}


CONVENTIONS_HERE = (
    *CONVENTIONS[1:],
    "the load is 0.70 of 2,232 GPUs: utilisation of own cells is then as in Table 4",
    "exchange in slots of an hour: an owner's nodes without a regular job against the GPUs of opportunistic jobs",
)


def tables(setup: Setup) -> Findings:
    """HiveD Tables 4 and 5: guaranteed utilisation gained by balanced exchange, default and balanced assignment."""
    claims, shown, bars = [], [], []
    gains: dict[str, dict[str, float]] = {}
    first = _default(setup)
    for label, (case, hours), paper in (
        ("default", (first.case, first.hived.series), GAIN_DEFAULT),
        ("balanced", _balanced(setup), GAIN_BALANCED),
    ):
        own = _own(case)
        found = exchange(hours, own)
        gains[label] = {t: found.gain(t) for t in own}
        rows = tuple(
            (
                t,
                own[t],
                100 * found.utilisation(t),
                100 * found.increase(t),
                paper[t],
                found.gain(t),
                fluctuation(hours, own, t),
            )
            for t in paper
        )
        columns = ("tenant", "nodes", "utilisation %", "increase, points", "paper: gain %", "ours: gain %", "RF")
        shown.append(Table(f"{label} assignment", columns, rows))
        bars += [
            Series(f"paper, {label}", list(paper), list(paper.values())),
            Series(f"ours, {label}", list(paper), [found.gain(t) for t in paper]),
        ]
        over = sum(g > 10 for g in gains[label].values())
        said = sum(g > 10 for g in paper.values())
        good = over > len(paper) / 2 if label == "balanced" else over < len(paper) / 2
        what = "more than half of" if label == "balanced" else "fewer than half of"
        claims.append(
            Claim(
                f"{label} assignment: {what} the tenants gain over 10 %.",
                f"{said} of 11",
                f"{over} of 11, up to {max(gains[label].values()):.1f} %",
                good,
                "" if good else _grain(setup),
            )
        )
        if label == "balanced":
            rho = float(spearmanr([r[5] for r in rows], [r[6] for r in rows]).statistic)
            claims.append(
                Claim(
                    "Tenants whose usage fluctuates more gain more.",
                    "res-d: 57.5 % at RF 1.58, the highest",
                    f"rank correlation of gain and RF {rho:.2f}",
                    rho > 0.5,
                )
            )
    more = sum(gains["balanced"][t] > gains["default"][t] for t in NODES)
    claims.append(
        Claim(
            "A balanced assignment gains more.",
            "all 11 tenants",
            f"{more} of 11 tenants",
            more >= 9,
            "" if more >= 9 else _grain(setup),
        )
    )
    figure = Figure("gain", "Gain of guaranteed utilisation by exchange", "tenant", "%", tuple(bars), "bar")
    return Findings(tuple(claims), tuple(shown), (figure,), CONVENTIONS_HERE, 1, size=str(_size(setup)))


def fig10(setup: Setup) -> Findings:
    """HiveD Figure 10: 8-GPU cells that stay without regular jobs for 10 and for 100 hours."""
    run = _default(setup, "quota")
    own, hours = _own(run.case), run.hived.series
    after = AFTER_DAY if len(hours.held) > 24 * AFTER_DAY else 0
    lines, means = [], {}
    for span in (10, 100):
        nodes = idle_nodes(run.quota.series.busy, span)
        cells = _idle_cells(hours, own, span)
        for label, values in ((f"quota, {span} h", nodes), (f"HiveD, {span} h", cells)):
            lines.append(Series(label, [k / 24 for k in range(len(values))], values))
            late = values[after * 24 :]
            means[label] = (sum(late) / len(late), min(late), max(late))
    said = {label: f"{mean:.0f} % ({low:.0f}-{high:.0f} %)" for label, (mean, low, high) in means.items()}
    long, brief = len(hours.held) > 100, f"A run of {len(hours.held) / 24:.0f} days has few such stretches."
    claims = (
        Claim(
            "After day 20, cells that their owner does not use for at least 10 h.",
            "22-60 %",
            said["HiveD, 10 h"],
            15 <= means["HiveD, 10 h"][0] <= 65,
        ),
        Claim(
            "After day 20, cells unused for over 100 h.",
            "over 30 %",
            said["HiveD, 100 h"],
            means["HiveD, 100 h"][0] >= 30 if long else None,
            brief if means["HiveD, 100 h"][0] < 30 else "",
        ),
        Claim(
            "By quota, far fewer whole nodes stay free.",
            "far fewer",
            f"10 h: {said['quota, 10 h']}; 100 h: {said['quota, 100 h']}",
            all(means[f"quota, {s} h"][0] < means[f"HiveD, {s} h"][0] for s in (10, 100)[: 1 + long]),
        ),
    )
    how = ("a tenant's unused cells are taken as a stack, so that as few as possible change hands",)
    figure = Figure("idle", "8-GPU cells without regular jobs", "day", "%", tuple(lines))
    return Findings(claims, (), (figure,), CONVENTIONS_HERE[:-1] + how, 1, size=str(_size(setup)))


def idle_nodes(busy: Sequence[bytes], span: int) -> list[float]:
    """Percentage of nodes in a period of at least `span` hours without a regular job, by hour."""
    idle = np.frombuffer(b"".join(busy), np.uint8).reshape(len(busy), -1) == 0
    return [100 * float(v) for v in _stretches(idle, span).mean(axis=1)]


def _idle_cells(hours: HourlySeries, own: dict[str, int], span: int) -> list[float]:
    """Percentage of idle cells, by hour: the k-th unused cell is idle while its owner has at least k of them."""
    total = np.zeros(len(hours.held))
    for tenant, nodes in own.items():
        free = nodes - np.array([h[tenant] for h in hours.held])
        total += _stretches(free[:, None] >= np.arange(1, nodes + 1), span).sum(axis=1)
    return [100 * float(v) / sum(own.values()) for v in total]


def _stretches(idle: np.ndarray, span: int) -> np.ndarray:
    """Mark the hours (rows) in a run of at least `span` idle ones."""
    padded = np.vstack([np.zeros((1, idle.shape[1]), int), np.cumsum(idle, axis=0)])
    whole = padded[span:] - padded[:-span] == span
    marked = np.zeros((idle.shape[0] + 1, idle.shape[1]), int)
    marked[: whole.shape[0]] += whole
    marked[span : span + whole.shape[0]] -= whole
    return np.cumsum(marked, axis=0)[:-1] > 0


def figs(setup: Setup) -> Findings:
    """HiveD Figures 11 and 12: what tenants contribute and benefit, and how their usage fluctuates."""
    first_run = _default(setup)
    case, hours = first_run.case, first_run.hived.series
    found = exchange(hours, _own(case))
    share = {t: (sum(found.gave[t]), sum(found.got[t])) for t in found.own}
    even = {t: min(pair) / max(1e-9, *pair) for t, pair in share.items()}
    both, usage = _balanced(setup)
    own = _own(both)
    rf = {t: fluctuation(usage, own, t) for t in own}
    gains = exchange(usage, own)
    order = sorted(own, key=lambda t: -gains.gain(t))
    first, last = order[0], order[-4:]
    claims = (
        Claim(
            "Default assignment: res-e gives and takes most evenly, others are one-sided.",
            "res-e",
            f"{max(even, key=lambda t: even[t])}; res-e {even['res-e']:.2f} of 1",
            even["res-e"] == max(even.values()),
        ),
        Claim(
            "Balanced assignment: who gains most fluctuates more than the last four.",
            "res-d 1.58 against 0.38-0.41",
            f"{first} {rf[first]:.2f} against {min(rf[t] for t in last):.2f}-{max(rf[t] for t in last):.2f}",
            rf[first] > max(rf[t] for t in last),
        ),
    )
    columns = ("tenant", "gave node-hours", "got node-hours", "lesser over greater")
    table = Table("Default assignment", columns, tuple((t, *share[t], even[t]) for t in share))
    picked = ("res-e", max(share, key=lambda t: share[t][0]), max(share, key=lambda t: share[t][1]))
    fig11 = Figure(
        "contributed",
        "Contributed less benefited, node-hours so far",
        "day",
        "node-hours",
        tuple(Series(t, *_sums(found, t)) for t in dict.fromkeys(picked)),
    )
    days = [k / 24 for k in range(len(usage.used))]
    busy = list(zip(usage.used, usage.lent, strict=True))
    fig12 = Figure(
        "usage",
        "GPU usage over the tenant's GPUs, balanced assignment",
        "day",
        "times",
        tuple(
            Series(t, days, [(regular[t] + low[t]) / (own[t] * NODE_GPUS) for regular, low in busy])
            for t in (first, *last)
        ),
    )
    return Findings(claims, (table,), (fig11, fig12), CONVENTIONS_HERE, 1, size=str(_size(setup)))


def _sums(found: Exchanged, tenant: str) -> tuple[list[float], list[float]]:
    net = np.cumsum(np.array(found.gave[tenant]) - np.array(found.got[tenant]))
    return [k / 24 for k in range(len(net))], [float(v) for v in net]
