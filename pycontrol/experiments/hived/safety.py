"""HiveD's sharing safety as a measured property: Figure 2's example, random traces, and the whole trace open loop."""

from __future__ import annotations

import random
from collections.abc import Iterable

from pycontrol.cells.config import CellsFile, layout
from pycontrol.cells.core import Cells
from pycontrol.cells.values import OPPORTUNISTIC, Outcome, Request
from pycontrol.experiments.hived.cases import CONVENTIONS, LEVELS, WIDTHS, Runs, runs
from pycontrol.experiments.hived.places import NODE_GPUS, Celled, Counted, Job, Places
from pycontrol.experiments.hived.sharing import FEWER_NODES, NOTICED_S, REORDERED
from pycontrol.experiments.kit import Claim, Figure, Findings, Series, Setup, Table


def fig2(setup: Setup) -> Findings:
    """HiveD Figure 2: two tenants on two 4-GPU nodes; by quota one fragments the other's node."""
    by_quota, by_cells = _figure_2_by_quota(), _figure_2_by_cells()
    claims = (
        Claim("By quota, b1 (4 GPUs) finds no node although B uses nothing.", "waits", by_quota["b1"],
              by_quota["b1"] == "waits"),
        Claim("With cells, b1 gets B's node.", "runs", by_cells["b1"], by_cells["b1"] != "waits"),
        Claim("With cells, a5 (2 GPUs) waits or runs on B's node only until B needs it, as A's own node has no free"
              " switch.", "as in A's private cluster", by_cells["a5"], by_cells["a5"].startswith("opportunistic")),
    )  # fmt: skip
    rows = tuple((job, by_quota[job], by_cells[job]) for job in ("a5", "b1"))
    table = Table("After a1 to a4 started and a2 and a4 ended", ("job", "quota", "HiveD"), rows)
    how = ("a5 wants both GPUs on one PCIe switch, as in the paper",)
    return Findings(claims, (table,), (), how)


def _figure_2_by_quota() -> dict[str, str]:
    """Best fit by switch, a quota of 4 GPUs each: what becomes of a5 and b1."""
    free = {(node, switch): 2 for node in (1, 2) for switch in (1, 2)}

    def take(gpus: int) -> tuple[int, int] | None:
        fitting = [s for s in free if free[s] >= gpus]
        if not fitting:
            return None
        best = min(fitting, key=lambda s: (sum(free[t] for t in free if t[0] == s[0]), free[s], s))
        free[best] -= gpus
        return best

    spots = [take(1) for _ in range(4)]
    for spot in (spots[1], spots[3]):
        assert spot is not None
        free[spot] += 1
    a5 = take(2)
    whole = any(sum(free[node, s] for s in (1, 2)) == 4 for node in (1, 2))
    return {"a5": f"runs on node {a5[0]}" if a5 else "waits", "b1": "runs" if whole else "waits"}


def _figure_2_by_cells() -> dict[str, str]:
    file = CellsFile.model_validate({
        "levels": {"switch": 2, "node": 2},
        "hosts": ["1", "2"],
        "virtual_clusters": {"a": {"node": 1}, "b": {"node": 1}},
    })  # fmt: skip
    cells = Cells(layout(file))
    at = {n: cells.request(Request(n, "a", 0, ((1, 1),))).workers[0] for n in ("a1", "a2", "a3", "a4")}
    for switch in (0, 1):
        cells.release(next(n for n, (_, gpus) in at.items() if gpus[0] // 2 == switch))
    a5 = cells.request(Request("a5", "a", 0, ((1, 2),), within="switch"))
    how = "runs"
    if a5.outcome is Outcome.WAIT:
        a5, how = cells.request(Request("a5", "a", OPPORTUNISTIC, ((1, 2),), within="switch")), "opportunistic"
    b1 = Request("b1", "b", 0, ((1, 4),))
    decision = cells.request(b1)
    for victim in decision.victims:
        cells.release(victim)
    gone = decision.victims
    decision = cells.request(b1)
    end = "gives way to b1" if gone else "goes on"
    said = f"runs on node {decision.workers[0][0]}" if decision.outcome is Outcome.PLACED else "waits"
    where = f"on node {a5.workers[0][0]}, {end}" if a5.workers else "waits"
    return {"a5": f"{how} {where}", "b1": said}


# ---- identical request sequences


class Open:
    """The tenants' requests on a shared cluster, the same as in their private ones; counts what only those satisfy.

    After each one idle GPUs are filled with opportunistic jobs, so that whatever is guaranteed has to take them back.
    """

    def __init__(self, places: Places, tenants: Iterable[str], seed: int) -> None:
        self.places, self.tenants, self.rng = places, list(tenants), random.Random(seed)
        self.granted = self.refused = self.taken_back = 0
        self.number = 1 << 30

    def start(self, job: Job) -> None:
        """A request that the tenant's private cluster satisfies."""
        stopped = self.places.guarantee(job)
        job.running = stopped is not None
        self.granted += job.running
        self.refused += not job.running
        self.taken_back += len(stopped or ())
        self.fill()

    def end(self, job: Job) -> None:
        """It ends there, and here if it ran."""
        if job.running:
            self.places.free(job)
            job.running = False
            self.fill()

    def fill(self) -> None:
        """Opportunistic jobs on all idle GPUs."""
        while idle := self.places.idle():
            gpus = self.rng.choice([w for w in WIDTHS if w <= idle])
            self.number += 1
            if not self.places.lend(Job(self.number, self.rng.choice(self.tenants), gpus, 0.0, 1.0)) and gpus == 1:
                return


LIKES = ((1, 2), (1, 2, 4), (1, 2, 4, 8), (1, 4, 8), (8,), (8, 16))
"""GPUs of the gangs that a tenant may ask for."""


def random_trace(seed: int, steps: int) -> tuple[int, int, int, int]:
    """(requests that a private cluster satisfies, of these refused with cells, refused by quota, taken back).

    Two to four tenants on four to eight nodes own nodes (three traces of four) or cells of any level; each step one
    asks for a gang of a size that it likes, or one ends. What the private cluster refuses is not asked for.
    """
    rng = random.Random(seed)
    nodes, tenants = rng.randint(4, 8), [f"t{k}" for k in range(rng.randint(2, 4))]
    owned: dict[str, dict[str, int]] = {t: {} for t in tenants}
    small = rng.random() < 0.25
    for _ in range(nodes):
        level = rng.randrange(4) if small else len(LEVELS) - 1
        for _ in range(NODE_GPUS // WIDTHS[level]):
            mine = owned[rng.choice(tenants)]
            mine[LEVELS[level]] = mine.get(LEVELS[level], 0) + 1
    owned = {t: cells for t, cells in owned.items() if cells}
    likes = {t: rng.choice(LIKES) for t in owned}
    gpus = {t: sum(WIDTHS[LEVELS.index(k)] * n for k, n in cells.items()) for t, cells in owned.items()}
    alone = {t: Celled(-(-gpus[t] // NODE_GPUS), {t: owned[t]}) for t in owned}
    shared = {
        "cells": Open(Celled(nodes, owned), owned, seed), "quota": Open(Counted(nodes, dict(gpus)), owned, seed)
    }  # fmt: skip
    running: list[tuple[Job, dict[str, Job]]] = []
    for number in range(steps):
        if running and rng.random() < 0.3:
            job, copies = running.pop(rng.randrange(len(running)))
            alone[job.tenant].free(job)
            for name, copy in copies.items():
                shared[name].end(copy)
            continue
        tenant = rng.choice(list(owned))
        size = rng.choice(likes[tenant])
        job = Job(number, tenant, size, 0.0, 1.0)
        job.running = alone[tenant].guarantee(job) is not None
        if job.running and alone[tenant].by_luck(job):
            alone[tenant].free(job)
            job.running = False
        if job.running:
            copies = {name: Job(number, tenant, size, 0.0, 1.0) for name in shared}
            for name, copy in copies.items():
                shared[name].start(copy)
            running.append((job, copies))
    by_cells, by_quota = shared["cells"], shared["quota"]
    return by_cells.granted + by_cells.refused, by_cells.refused, by_quota.refused, by_cells.taken_back


def open_loop(run: Runs, places: Places, most: int) -> Open:
    """The starts and ends of all private clusters, in time order, on a shared cluster; the first `most`."""
    log = sorted((entry for replayed in run.private.values() for entry in replayed.starts), key=lambda e: e[0])
    jobs = {job.number: job for job in run.case.jobs()}
    shared = Open(places, run.case.owned, 0)
    for _, number, starts in log[:most]:
        (shared.start if starts else shared.end)(jobs[number])
    return shared


def safety(setup: Setup) -> Findings:
    """HiveD sharing safety: the same requests as in the private clusters, on random traces and on the whole one."""
    traces, steps = (150, 80) if setup.quick else (2000, 200)
    setup.note(f"{traces} random traces")
    found = [random_trace(seed, steps) for seed in range(traces)]
    asked, cells, by_quota, taken = (sum(column) for column in zip(*found, strict=True))
    setup.note("the trace in open loop")
    run = runs(FEWER_NODES, setup.quick)
    most = 20_000 if setup.quick else 1 << 30
    here = open_loop(run, Celled(run.case.nodes, run.case.owned), most)
    excess_s = run.excess_s(run.hived)
    late = [x for x in excess_s if x > NOTICED_S]
    claims = (
        Claim("Random traces: what the private cluster satisfies, cells satisfy at once.", "always",
              f"{cells} of {asked} refused ({traces} traces, {taken} opportunistic jobs taken back)", cells == 0),
        Claim("Random traces: a quota does not.", "anomalies", f"{by_quota} of {asked} refused", by_quota > 0),
        Claim(f"The trace on {run.case.nodes} nodes, open loop: cells satisfy all.", "always",
              f"{here.refused} of {here.granted + here.refused} refused, {here.taken_back} jobs taken back",
              here.refused == 0),
        Claim("Closed loop, where opportunistic progress counts: nobody waits longer than alone.", "none",
              f"{len(late)} of {len(excess_s)} jobs by over a minute, {sum(late) / 3600:.0f} h in all, against "
              f"{-sum(x for x in excess_s if x < 0) / 3600:.0f} h saved", not late, REORDERED if late else ""),
    )  # fmt: skip
    rows = (
        ("random traces", asked, cells, by_quota),
        ("trace, open loop", here.granted + here.refused, here.refused, None),
    )
    columns = ("sequence", "satisfied by the private cluster", "refused with cells", "refused by quota")
    bars = tuple(
        Series(label, [r[0] for r in rows], [100 * float(r[k] or 0) / max(1, r[1]) for r in rows])
        for label, k in (("cells", 2), ("quota", 3))
    )
    figure = Figure("refused", "Requests refused although the private cluster satisfies them", "", "%", bars, "bar")
    how = (
        "requests that the private cluster refuses are not made; nor those that it satisfies only because cells that "
        "nobody promised to be together are on one host",
        "in open loop opportunistic jobs fill every idle GPU all the time",
        "the same scheduler alone and in the VC",
    )
    table = Table("Identical request sequences", columns, rows)
    return Findings(claims, (table,), (figure,), CONVENTIONS + how)
