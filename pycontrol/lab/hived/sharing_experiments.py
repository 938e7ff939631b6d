"""HiveD's sharing safety: Figure 6, Figure 7, the jobs with excess delay, and Philly's tenants (section 5.2)."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path

from pycontrol.lab.hived.cases import (
    CLUSTER_NODES,
    CONVENTIONS,
    DAY_S,
    LOWER_LOAD,
    PHILLY_FROM_DAY,
    SHORT_DAYS,
    CaseRuns,
    TraceSize,
    Wanted,
    made,
    on_nodes,
    philly,
    size,
    small,
)
from pycontrol.lab.hived.simulated import HOUR_S, LEASE_S, NODE_GPUS, POLICIES, Ran
from pycontrol.lab.hived.trace_case import TraceCase
from pycontrol.lab.kit import Claim, Figure, Findings, Series, Setup, Table, shown
from pycontrol.lab.runs import Interval, interval

NOTICED_S = LEASE_S + 60.0
"""Excess delays up to one lease and a minute do not count."""
FEW = 30
"""No claims are made about fewer jobs."""
FEWER_NODES = 200
SMALL_DAYS = 10.0
"""As long as the paper's cluster experiment."""
REORDERED = (
    "What is left with cells is no lack of room: opportunistic progress lets jobs end in another order than in the "
    "private cluster, so a later gang can find another job before it (the same request sequence is always satisfied:"
    " hived-safety)."
)


def _minutes(values: Sequence[float]) -> tuple[float, float]:
    """Mean and greatest, minutes."""
    return sum(values) / len(values) / 60 if values else 0.0, max(values, default=0.0) / 60


def _worst_window(run: CaseRuns, shared: Ran, tenant: str) -> float:
    """The greatest mean excess of a 12-hour window, minutes."""
    _, alone = run.windows(run.alone_s, tenant)
    _, here = run.windows(shared.delay_s, tenant)
    return max((h - a for h, a in zip(here, alone, strict=True)), default=0.0)


def _later_by_quota(runs: Sequence[CaseRuns], of: str, paper_min: int) -> tuple[Claim, Claim]:
    """What Figures 6 and 7 show of prod-a, the greatest mean of 12 hours over that of its private cluster; and the same
    of any tenant, since a part of the trace has few jobs of one."""
    text = f"{of}: sharing by quota delays prod-a beyond its private cluster."
    paper = f"by up to {paper_min} min"
    jobs = sum(len(run.excess_s(run.quota, "prod-a")) for run in runs)
    worst = max(runs[0].case.owned, key=lambda t: sum(_noticed(run.excess_s(run.quota, t))[0] for run in runs))
    return (
        Claim(text, paper, "-", None, _few("prod-a", jobs)) if jobs < FEW else _delayed(runs, text, paper, "prod-a"),
        _delayed(runs, f"{of}: sharing by quota delays jobs of some tenant (here {worst}) so.", "anomalies", worst),
    )


def _delayed(runs: Sequence[CaseRuns], text: str, paper: str, tenant: str) -> Claim:
    found = [run.excess_s(run.quota, tenant) for run in runs]
    window = [max(0.0, _worst_window(run, run.quota, tenant)) for run in runs]
    late, most = _noticed([x for excess_s in found for x in excess_s])
    late_of = [str(_noticed(excess_s)[0]) for excess_s in found]
    said = (
        f"{late} of {sum(map(len, found))} jobs{by_seed(late_of)} over a lease later, by up to {most:.0f} min; mean of"
        f" 12 h by up to {max(window):.0f} min"
    )
    return Claim(text, paper, said, late > 0, "" if late else _why_not(runs))


def _few(tenant: str, jobs: int) -> str:
    return f"{tenant} has {jobs} such jobs in the part that was run: too few to say."


def by_seed(values: Sequence[str]) -> str:
    """The values by seed in brackets if there are several."""
    return f" (by seed {', '.join(values)})" if len(values) > 1 else ""


def _delays(runs: Sequence[CaseRuns], title: str) -> Table:
    """A table of the delays over all seeds."""
    rows = []
    for tenant in runs[0].case.owned:
        ways = [[d for run in runs for d in _of(run, ran, tenant)] for ran in ("private", "quota", "hived")]
        excess_s = [[x for run in runs for x in run.excess_s(getattr(run, w), tenant)] for w in ("quota", "hived")]
        rows.append(
            (
                tenant,
                len(ways[0]),
                runs[0].case.gpus(tenant),
                *(_minutes(found)[0] for found in ways),
                *(part for found in excess_s for part in _noticed(found)),
            )
        )
    return Table(
        title,
        (
            "tenant",
            "jobs",
            "GPUs",
            "private min",
            "quota min",
            "HiveD min",
            "quota: later by > a lease",
            "by at most min",
            "HiveD: later by > a lease",
            "by at most min",
        ),
        tuple(rows),
    )


def _of(run: CaseRuns, way: str, tenant: str) -> list[float]:
    ran: Ran = getattr(run, way)
    return [ran.delay_s[n] for t, n, *_ in run.case.spec if t == tenant]


def _noticed(excess_s: Sequence[float]) -> tuple[int, float]:
    return sum(x > NOTICED_S for x in excess_s), max(0.0, max(excess_s, default=0.0)) / 60


def _lines(run: CaseRuns, tenant: str, name: str, title: str) -> Figure:
    parts = (("private", run.alone_s), ("quota", run.quota.delay_s), ("HiveD", run.hived.delay_s))
    series = tuple(Series(label, *run.windows(delay_s, tenant)) for label, delay_s in parts)
    return Figure(name, title, "day", "queueing delay (minutes, mean of 12 h)", series)


THREE = ("private", "quota", "hived")


def fig6(setup: Setup) -> Findings:
    """HiveD Figure 6: 96 GPUs, node-level cells, three schedulers, each private, by quota and by HiveD."""
    paper = {"yarn_cs": 1000, "gandiva": 700, "tiresias": 1300}
    claims: list[Claim] = []
    tables, figures = [], []
    here = size(setup)
    days = SMALL_DAYS if setup.full else here.days
    cases = [functools.partial(small, seed, days) for seed in range(here.seeds)]
    found = made(setup, [Wanted(case, THREE, policy) for policy in POLICIES for case in cases])
    for k, policy in enumerate(POLICIES):
        runs = found[k * len(cases) : (k + 1) * len(cases)]
        claims.extend(_later_by_quota(runs, policy, paper[policy]))
        claims.append(_none_later(runs, f"{policy}: with HiveD no tenant waits longer than in its private cluster."))
        tables.append(_delays(runs, f"{policy}: mean queueing delay"))
        figures.append(_lines(runs[0], "prod-a", policy, f"prod-a, 96 GPUs, {policy}"))
    why = (
        "96/2232 of the jobs; the paper's experiment is of 10 days",
        f"{sum(run.case.left_out for run in found[: len(cases)])} jobs left out",
        "tenants with less than a node own single GPUs of one node",
        "Gandiva as shipped: by preference of place, gangs move only between scopes; by quota nobody exceeds its own",
        "Tiresias: two queues split at one GPU-hour of service, borrowed GPUs count; by quota it knows no tenants"
        " (footnote 2)",
    )
    ran = str(TraceSize(1, days, len(cases)))
    return Findings(tuple(claims), tuple(tables), tuple(figures), CONVENTIONS + why, len(cases), size=ran)


def _none_later(runs: Sequence[CaseRuns], text: str) -> Claim:
    excess_s = [x for run in runs for x in run.excess_s(run.hived)]
    late, most = _noticed(excess_s)
    late_of = [str(_noticed(run.excess_s(run.hived))[0]) for run in runs]
    window = max(max(0.0, *(_worst_window(run, run.hived, t) for t in run.case.owned)) for run in runs)
    said = (
        f"{late} of {len(excess_s)} jobs{by_seed(late_of)} over a lease later, by up to {most:.0f} min; worst mean of"
        f" 12 h {window:.0f} min"
    )
    return Claim(text, "none", said, late == 0, REORDERED if late else "")


def fig7(setup: Setup) -> Findings:
    """HiveD Figure 7: 279 and 200 nodes: queueing delay, utilisation and fragmentation."""
    claims: list[Claim] = []
    tables, figures, left = [], [], []
    here = size(setup)
    for nodes, gain in ((CLUSTER_NODES, 14), (FEWER_NODES, 20)):
        runs = made(setup, on_nodes(nodes, here, THREE))
        claims.extend(_later_by_quota(runs, f"{nodes} nodes", 200 if nodes == CLUSTER_NODES else 8000))
        claims.append(
            _none_later(runs, f"{nodes} nodes: with HiveD no tenant waits longer than in its private cluster.")
        )
        claims += _used_and_broken(runs, f"{nodes} nodes", gain)
        tables.append(_delays(runs, f"{runs[0].case.name}: mean queueing delay"))
        figures += [_lines(runs[0], t, f"{t}-{nodes}", f"{t}, {runs[0].case.name}") for t in ("prod-a", "prod-e")]
        figures += _cluster(runs[0], nodes)
        left.append(f"{nodes} nodes: {sum(r.case.left_out for r in runs)} jobs left out")
    return Findings(tuple(claims), tuple(tables), tuple(figures), (*CONVENTIONS, *left), here.seeds, size=str(here))


def _used_and_broken(runs: Sequence[CaseRuns], of: str, gain: int) -> tuple[Claim, Claim]:
    """Claims on GPUs in use and on nodes without room for a regular 8-GPU job: HiveD and quota, paired by seed."""
    nodes = runs[0].case.nodes
    gpus = nodes * NODE_GPUS
    hours = [
        (b - a) / gpus for r in runs for a, b in zip(r.quota.series.all_gpus, r.hived.series.all_gpus, strict=False)
    ]
    used, more = _against(runs, "all_gpus", gpus)
    broken, fewer = _against(runs, "broken_nodes", nodes)
    return (
        Claim(
            f"{of}: HiveD uses more GPUs than the quota.",
            f"by up to {gain} points",
            f"by up to {100 * max(hours, default=0.0):.1f} points in an hour; mean {used}",
            more.mean > 0,
            "" if more.mean > 0 else SATURATED,
            sure(more),
        ),
        Claim(
            f"{of}: HiveD fragments the cluster less.",
            "lower, and by quota up to 100 %",
            f"mean {broken}",
            fewer.mean < 0,
            "" if fewer.mean < 0 else SPILLED,
            sure(fewer),
        ),
    )


def _against(runs: Sequence[CaseRuns], name: str, of: float) -> tuple[str, Interval]:
    """A series' means with HiveD and by quota as text, and their difference in points with its interval."""
    hived, quota = ([_mean(getattr(getattr(r, way).series, name), of) for r in runs] for way in ("hived", "quota"))
    points = interval([100 * (a - b) for a, b in zip(hived, quota, strict=True)])
    mean = [sum(found) / len(found) for found in (hived, quota)]
    return f"{mean[0]:.1%} against {mean[1]:.1%}, {shown(points)} points", points


def sure(found: Interval) -> bool:
    """Whether the interval excludes 0; with one seed it cannot be tested."""
    return found.n < 2 or found.low > 0 or found.high < 0


SPILLED = "Regular jobs of many tenants are spread over the tenants' own cells, each with a part of a node left."
SATURATED = (
    "In both, opportunistic jobs of any size fill what is idle, so the sums hardly differ; the greatest hourly "
    "difference goes either way."
)


def _all(runs: Sequence[CaseRuns], way: str, name: str) -> float:
    """The mean of a series over all hours and seeds."""
    values = [v for run in runs for v in getattr(getattr(run, way).series, name)]
    return _mean(values, 1.0)


def _why_not(runs: Sequence[CaseRuns]) -> str:
    nodes = runs[0].case.nodes
    broken = [b for run in runs for b in run.quota.series.broken_nodes]
    full = sum(b >= nodes for b in broken) / len(broken)
    return (
        f"Best-fit packing on this trace leaves whole nodes: regular jobs use "
        f"{_all(runs, 'quota', 'regular_gpus') / nodes / NODE_GPUS:.0%} of the GPUs and no node is left for an "
        f"8-GPU job in {full:.1%} of the hours; and a private cluster lends nothing and is far slower."
    )


def _mean(values: Sequence[float], of: float) -> float:
    return sum(values) / max(1, len(values)) / of


def _cluster(run: CaseRuns, nodes: int) -> list[Figure]:
    figures = []
    for name, title, of in (
        ("regular_gpus", "GPUs with regular jobs", run.case.nodes * NODE_GPUS),
        ("broken_nodes", "nodes not available for an 8-GPU regular job", run.case.nodes),
    ):
        lines = []
        for label, shared in (("quota", run.quota), ("HiveD", run.hived)):
            values: list[int] = getattr(shared.series, name)
            lines.append(Series(label, _days(values), [100 * v / of for v in values]))
        figures.append(Figure(f"{name.replace('_', '-')}-{nodes}", f"{title}, {nodes} nodes", "day", "%", tuple(lines)))
    return figures


def _days(values: Sequence[object]) -> list[float]:
    return [k * HOUR_S / DAY_S for k in range(len(values))]


def excess(setup: Setup) -> Findings:
    """HiveD section 5.2.2: multi-GPU jobs with excess delay on 200 nodes, by quota and with HiveD."""
    here = size(setup)
    runs = made(setup, on_nodes(FEWER_NODES, here, THREE))
    rows, claims = [], []
    for tenant in runs[0].case.owned:
        parts = []
        for way in ("quota", "hived"):
            excess_s = [x for run in runs for x in run.excess_s(getattr(run, way), tenant, multi=True)]
            late, most = _noticed(excess_s)
            parts.append((len(excess_s), late, 100 * late / max(1, len(excess_s)), most))
        rows.append((tenant, parts[0][0], *parts[0][1:], *parts[1][1:]))
        paper = {"res-f": "14 % (365 jobs)", "prod-a": "23 % (315 jobs)"}.get(tenant)
        if paper:
            asked, late = parts[0][:2]
            why = _few(tenant, asked) if asked < FEW else "" if late else _why_not(runs)
            claims.append(
                Claim(
                    f"By quota, multi-GPU jobs of {tenant} wait longer than in its private cluster.",
                    paper,
                    f"{parts[0][2]:.1f} % ({late} of {asked})",
                    late > 0 if asked >= FEW else None,
                    why,
                )
            )
    claims.append(_none_later(runs, "With HiveD no job waits longer than in its tenant's private cluster."))
    less = made(setup, on_nodes(FEWER_NODES, here, ("private", "quota"), LOWER_LOAD))
    calm = sum(_noticed(run.excess_s(run.quota, multi=True))[0] for run in less)
    note = f"At a load of {LOWER_LOAD:g} instead, {calm} multi-GPU jobs of all tenants wait longer by quota."
    columns = ("tenant", "multi-GPU jobs", "quota: later", "%", "at most min", "HiveD: later", "%", "at most min")
    table = Table(f"{runs[0].case.name}: multi-GPU jobs that wait longer than alone", columns, tuple(rows))
    bars = tuple(
        Series(label, [r[0] for r in rows], [float(r[k]) for r in rows]) for label, k in (("quota", 3), ("HiveD", 6))
    )
    figure = Figure("share", "Multi-GPU jobs with excess delay", "tenant", "%", bars, "bar")
    return Findings(tuple(claims), (table,), (figure,), CONVENTIONS, here.seeds, size=str(here), notes=(note,))


PHILLY_LOAD = 0.90
BUSY = 0.5
"""Least share of GPUs in use; a less used cluster shows no interference between tenants."""
PHILLY_DAYS = 0.5
"""Of 33; `--full` takes `SHORT_DAYS`."""
PHILLY = "philly/philly_jobs_reconstructed.csv.gz"
PHILLY_NODES = "philly/philly_vc_nodes.csv"


def philly_case(trace: Path, quotas: Path, days: float) -> TraceCase:
    """Philly's jobs at the load of `PHILLY_LOAD`."""
    return philly(trace, quotas, PHILLY_LOAD, days)[0]


def philly_days(setup: Setup) -> float:
    """How many days of Philly's trace to run."""
    return SHORT_DAYS if setup.full else 0.05 if setup.quick else PHILLY_DAYS


def philly_tenants(setup: Setup) -> Findings:
    """HiveD on Philly: the reconstructed jobs of 11 virtual clusters, private, by quota and by cells."""
    trace, quotas = setup.trace(PHILLY), setup.trace(PHILLY_NODES)
    text = "On Philly's jobs no tenant waits longer with HiveD than in its private cluster."
    if trace is None or quotas is None:
        return Findings((Claim(text, "none", "-", None, "The public trace is not there; set ISONOMY_DATA."),))
    days = philly_days(setup)
    case, as_is, faster = philly(trace, quotas, PHILLY_LOAD, days)
    (run,) = made(setup, [Wanted(functools.partial(philly_case, trace, quotas, days), THREE)])
    late, _ = _noticed(run.excess_s(run.quota))
    used = _all([run], "quota", "all_gpus") / (run.case.nodes * NODE_GPUS)
    empty = not late and used < BUSY
    why = f"The part that was run uses {used:.0%} of the GPUs: nobody is in another's way." if empty else ""
    claims = (
        _none_later([run], text),
        Claim(
            "By quota some wait longer.",
            "yes",
            f"{late} of {len(case.spec)} jobs by over a lease",
            None if empty else late > 0,
            why or ("" if late else _why_not([run])),
        ),
    )
    said = (
        f"GPU time is {as_is:.1%} of {case.nodes} nodes as it is; arrivals come {faster:.2f} times as fast, a load of "
        f"{PHILLY_LOAD:.0%} over the whole trace",
        "quotas are the nodes by virtual cluster that SenseTime inferred, not Microsoft's",
        f"gangs of other sizes are rounded up to 1, 2, 4, 8 or whole nodes; {case.left_out} jobs left out",
    )
    ran = f"{days:g} of 33 days, from day {PHILLY_FROM_DAY:g} on: {len(case.spec):,} of 109,493 jobs"
    table = _delays([run], "Philly: mean queueing delay")
    return Findings(claims, (table,), _tenants(run), CONVENTIONS[1:] + said, size=ran)


def _tenants(run: CaseRuns) -> tuple[Figure, ...]:
    def means(delay_s: Mapping[int, float]) -> list[float]:
        return [_minutes([delay_s[n] for t, n, *_ in run.case.spec if t == tenant])[0] for tenant in run.case.owned]

    parts = (("private", run.alone_s), ("quota", run.quota.delay_s), ("HiveD", run.hived.delay_s))
    series = tuple(Series(label, list(run.case.owned), means(delay_s)) for label, delay_s in parts)
    return (Figure("delay", "Mean queueing delay by tenant", "tenant", "minutes", series, "bar"),)
