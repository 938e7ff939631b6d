"""HiveD's sharing safety: Figure 6, Figure 7, the jobs with excess delay, and Philly's tenants (section 5.2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pycontrol.experiments.hived.cases import CLUSTER_NODES, CONVENTIONS, DAY_S, LOWER_LOAD, Runs, philly, runs, small
from pycontrol.experiments.hived.places import NODE_GPUS
from pycontrol.experiments.hived.replay import HOUR_S, REPLAYS, Replayed
from pycontrol.experiments.kit import Claim, Figure, Findings, Series, Setup, Table

NOTICED_S = 60.0
"""An excess delay counts from a minute on."""
FEWER_NODES = 200
SATURATED = (
    "In both, opportunistic jobs of any size fill what is idle, oldest first, so the sums hardly differ; the greatest "
    "hourly difference goes either way."
)
REORDERED = (
    "What is left with cells is no lack of room: opportunistic progress lets jobs end in another order than in the "
    "private cluster, so a later gang can find another job before it (the same request sequence is always satisfied:"
    " hived-safety)."
)
STARVED = (
    " Under Tiresias a large gang in the second queue stops nobody and smaller jobs pass it, alone too: when it gets"
    " its GPUs at once is chance, and the excess can be days."
)


def _minutes(values: Sequence[float]) -> tuple[float, float]:
    """Mean and greatest, minutes."""
    return sum(values) / len(values) / 60 if values else 0.0, max(values, default=0.0) / 60


def _worst_window(run: Runs, shared: Replayed, tenant: str) -> float:
    """The greatest mean excess of a 12-hour window, minutes."""
    _, alone = run.windows(run.alone_s, tenant)
    _, here = run.windows(shared.delay_s, tenant)
    return max((h - a for h, a in zip(here, alone, strict=True)), default=0.0)


def _delays(run: Runs, title: str) -> Table:
    rows = []
    for tenant in run.case.owned:
        mine = [n for t, n, *_ in run.case.spec if t == tenant]
        rows.append((
            tenant, len(mine), run.case.gpus(tenant),
            *(_minutes([d[n] for n in mine])[0] for d in (run.alone_s, run.quota.delay_s, run.hived.delay_s)),
            *(part for shared in (run.quota, run.hived) for part in _noticed(run.excess_s(shared, tenant))),
        ))  # fmt: skip
    return Table(
        title,
        ("tenant", "jobs", "GPUs", "private min", "quota min", "HiveD min", "quota: later by > 1 min", "by at most min",
         "HiveD: later by > 1 min", "by at most min"),
        tuple(rows),
    )  # fmt: skip


def _noticed(excess_s: Sequence[float]) -> tuple[int, float]:
    return sum(x > NOTICED_S for x in excess_s), max(0.0, max(excess_s, default=0.0)) / 60


def _lines(run: Runs, tenant: str, name: str, title: str) -> Figure:
    parts = (("private", run.alone_s), ("quota", run.quota.delay_s), ("HiveD", run.hived.delay_s))
    series = tuple(Series(label, *run.windows(delay_s, tenant)) for label, delay_s in parts)
    return Figure(name, title, "day", "queueing delay (minutes, mean of 12 h)", series)


def fig6(setup: Setup) -> Findings:
    """HiveD Figure 6: 96 GPUs, node-level cells, three schedulers, each private, by quota and by HiveD."""
    paper = {"yarn_cs": 1000, "gandiva": 700, "tiresias": 1300}
    claims, tables, figures = [], [], []
    for policy in REPLAYS:
        setup.note(policy)
        run = Runs(small(), policy)
        late, most = _noticed(run.excess_s(run.quota, "prod-a"))
        worst = _worst_window(run, run.quota, "prod-a")
        claims.append(Claim(
            f"{policy}: sharing by quota delays prod-a beyond its private cluster.", f"up to {paper[policy]} min",
            f"up to {worst:.0f} min in a 12 h window; {late} jobs, up to {most:.0f} min", worst > 1,
            _why_not(run) if worst <= 1 else "",
        ))  # fmt: skip
        claims.append(_none_later(run, f"{policy}: with HiveD no tenant waits longer than in its private cluster."))
        tables.append(_delays(run, f"{policy}: mean queueing delay"))
        figures.append(_lines(run, "prod-a", policy, f"prod-a, 96 GPUs, {policy}"))
    why = (
        f"all 62 days with 96/2232 of the jobs; {run.case.left_out} jobs left out",
        "tenants with less than a node own single GPUs of one node",
        "Gandiva: when a job ends the least used node is emptied onto others as far as its jobs fit",
        "Tiresias: two queues split at one GPU-hour of guaranteed service; by quota it knows no tenants (footnote 2)",
    )
    return Findings(tuple(claims), tuple(tables), tuple(figures), CONVENTIONS + why)


def _none_later(run: Runs, text: str) -> Claim:
    excess_s = run.excess_s(run.hived)
    late, most = _noticed(excess_s)
    window = max(0.0, *(_worst_window(run, run.hived, t) for t in run.case.owned))
    said = f"{late} of {len(excess_s)} jobs, by up to {most:.0f} min; worst 12 h mean of a tenant {window:.0f} min"
    why = REORDERED + (STARVED if run.policy == "tiresias" else "")
    return Claim(text, "none", said, late == 0, why if late else "")


def fig7(setup: Setup) -> Findings:
    """HiveD Figure 7: 279 and 200 nodes: queueing delay, utilisation and fragmentation."""
    claims, tables, figures, left = [], [], [], []
    for nodes, gain in ((CLUSTER_NODES, 14), (FEWER_NODES, 20)):
        setup.note(f"{nodes} nodes")
        run = runs(nodes, setup.quick)
        worst = _worst_window(run, run.quota, "prod-a")
        said = 200 if nodes == CLUSTER_NODES else 8000
        claims.append(Claim(
            f"{nodes} nodes: by quota prod-a waits longer than in its private cluster.", f"by up to {said} min",
            f"by up to {max(0.0, worst):.0f} min in a 12 h window", worst > 1, _why_not(run) if worst <= 1 else "",
        ))  # fmt: skip
        claims.append(_none_later(run, f"{nodes} nodes: with HiveD nobody waits longer."))
        by_quota, by_cells = run.quota.series, run.hived.series
        size = run.case.nodes
        more = max((b - a) / (size * NODE_GPUS) for a, b in zip(by_quota.all_gpus, by_cells.all_gpus, strict=False))
        claims.append(Claim(
            f"{nodes} nodes: HiveD uses more GPUs than the quota.", f"by up to {gain} points",
            f"by up to {100 * more:.1f} points; mean {_mean(by_cells.all_gpus, size * NODE_GPUS):.1%} against "
            f"{_mean(by_quota.all_gpus, size * NODE_GPUS):.1%}",
            _mean(by_cells.all_gpus, 1) > _mean(by_quota.all_gpus, 1),
            "" if _mean(by_cells.all_gpus, 1) > _mean(by_quota.all_gpus, 1) else SATURATED,
        ))  # fmt: skip
        broken = [_mean(s.broken_nodes, size) for s in (by_quota, by_cells)]
        claims.append(Claim(
            f"{nodes} nodes: HiveD fragments the cluster less.", "lower, and by quota up to 100 %",
            f"mean {broken[1]:.1%} against {broken[0]:.1%}; greatest {max(by_cells.broken_nodes) / size:.1%} against "
            f"{max(by_quota.broken_nodes) / size:.1%}", broken[1] < broken[0],
        ))  # fmt: skip
        tables.append(_delays(run, f"{run.case.name}: mean queueing delay"))
        figures += [_lines(run, t, f"{t}-{nodes}", f"{t}, {run.case.name}") for t in ("prod-a", "prod-e")]
        figures += _cluster(run, nodes)
        left.append(f"{nodes} nodes: {run.case.left_out} jobs left out")
    return Findings(tuple(claims), tuple(tables), tuple(figures), CONVENTIONS + _scale(setup) + tuple(left))


def _scale(setup: Setup) -> tuple[str, ...]:
    return ("a quarter of the nodes and jobs",) if setup.quick else ()


def _why_not(run: Runs) -> str:
    s, gpus = run.quota.series, run.case.nodes * NODE_GPUS
    full = sum(b >= run.case.nodes for b in s.broken_nodes) / len(s.broken_nodes)
    return (
        f"Best-fit packing on this trace leaves whole nodes: regular jobs use {_mean(s.regular_gpus, gpus):.0%} of the"
        f" GPUs and no node is left for an 8-GPU job in {full:.1%} of the hours; and a private cluster, which lends"
        " nothing, is far slower (see the table)."
    )


def _mean(values: Sequence[float], of: float) -> float:
    return sum(values) / len(values) / of


def _cluster(run: Runs, nodes: int) -> list[Figure]:
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
    run = runs(FEWER_NODES, setup.quick)
    rows, claims = [], []
    for tenant in run.case.owned:
        parts = []
        for shared in (run.quota, run.hived):
            excess_s = run.excess_s(shared, tenant, multi=True)
            late, most = _noticed(excess_s)
            parts.append((len(excess_s), late, 100 * late / max(1, len(excess_s)), most))
        rows.append((tenant, parts[0][0], *parts[0][1:], *parts[1][1:]))
        paper = {"res-f": "14 % (365 jobs)", "prod-a": "23 % (315 jobs)"}.get(tenant)
        if paper:
            claims.append(Claim(
                f"By quota, multi-GPU jobs of {tenant} wait longer than in its private cluster.", paper,
                f"{parts[0][2]:.1f} % ({parts[0][1]} of {parts[0][0]})", parts[0][1] > 0,
                _why_not(run) if not parts[0][1] else "",
            ))  # fmt: skip
    claims.append(_none_later(run, "With HiveD no job waits longer."))
    less = runs(FEWER_NODES, setup.quick, LOWER_LOAD)
    calm = len([x for x in less.excess_s(less.quota, multi=True) if x > NOTICED_S])
    note = f"At a load of {LOWER_LOAD:g} instead, {calm} multi-GPU jobs of all tenants wait longer by quota."
    columns = ("tenant", "multi-GPU jobs", "quota: later", "%", "at most min", "HiveD: later", "%", "at most min")
    table = Table(f"{run.case.name}: multi-GPU jobs that wait over a minute longer than alone", columns, tuple(rows))
    bars = tuple(
        Series(label, [r[0] for r in rows], [float(r[k]) for r in rows]) for label, k in (("quota", 3), ("HiveD", 6))
    )
    figure = Figure("share", "Multi-GPU jobs with excess delay", "tenant", "%", bars, "bar")
    return Findings(tuple(claims), (table,), (figure,), CONVENTIONS + _scale(setup), notes=(note,))


def philly_tenants(setup: Setup) -> Findings:
    """HiveD on Philly: the reconstructed jobs of 11 virtual clusters, private, by quota and by cells."""
    trace, quotas = setup.trace("philly/philly_jobs_reconstructed.csv.gz"), setup.trace("philly/philly_vc_nodes.csv")
    text = "On Philly's jobs no tenant waits longer with HiveD than in its private cluster."
    if trace is None or quotas is None:
        return Findings((Claim(text, "none", "-", None, "The public trace is not there; set ISONOMY_DATA."),))
    case, as_is, faster = philly(trace, quotas, PHILLY_LOAD, 20_000 if setup.quick else None)
    run = Runs(case)
    late, _ = _noticed(run.excess_s(run.quota))
    claims = (
        _none_later(run, text),
        Claim("By quota some wait longer.", "yes", f"{late} of {len(case.spec)} jobs by over a minute", late > 0,
              _why_not(run) if not late else ""),
    )  # fmt: skip
    said = (
        f"GPU time is {as_is:.1%} of {case.nodes} nodes as it is; arrivals come {faster:.2f} times as fast, a load of "
        f"{PHILLY_LOAD:.0%}",
        "quotas are the nodes by virtual cluster that SenseTime inferred, not Microsoft's",
        f"gangs of other sizes are rounded up to 1, 2, 4, 8 or whole nodes; {case.left_out} jobs left out",
    )
    return Findings(claims, (_delays(run, "Philly: mean queueing delay"),), _tenants(run), CONVENTIONS[1:] + said)


PHILLY_LOAD = 0.90


def _tenants(run: Runs) -> tuple[Figure, ...]:
    def means(delay_s: Mapping[int, float]) -> list[float]:
        return [_minutes([delay_s[n] for t, n, *_ in run.case.spec if t == tenant])[0] for tenant in run.case.owned]

    parts = (("private", run.alone_s), ("quota", run.quota.delay_s), ("HiveD", run.hived.delay_s))
    series = tuple(Series(label, list(run.case.owned), means(delay_s)) for label, delay_s in parts)
    return (Figure("delay", "Mean queueing delay by tenant", "tenant", "minutes", series, "bar"),)
