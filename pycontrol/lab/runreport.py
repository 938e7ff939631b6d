"""`isonomy report`: each app's fairness and counters, and the times of rounds, bids and allocation changes."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
from rich.console import Group

from pycontrol.arbiter.ledger.durable import AppRecord, Durable
from pycontrol.arbiter.ledger.facts import AllocationChanged, AppChanged, Fact, RoundHeld
from pycontrol.audit.accounting import quantile
from pycontrol.cli import screens
from pycontrol.cli.client import Misused, failing, output_option
from pycontrol.cli.records import audited, facts_of, records_of, records_options
from pycontrol.cli.tables import Data, emit, lines, table
from pycontrol.config import ConfigError, load_topology
from pycontrol.fairness.gang_rho import t_id
from pycontrol.model.receipt import Receipt
from pycontrol.words import count, span

HYPERBAND, JOB, FOREIGN = "hyperband", "job", "foreign"
UNSUCCESSFUL = {"FAILED", "KILLED"}


class Reader:
    """Folds a journal and collects what a report needs."""

    def __init__(self) -> None:
        self.state = Durable()
        self.outcome: dict[str, str] = {}
        """By app: the outcome that its Agent reported."""
        self.receipts: list[Receipt] = []
        self.round_s: list[float] = []
        self.change_s: list[float] = []
        self.skipped = 0
        """Number of facts about objects that the journal no longer has."""

    def read(self, facts: Iterable[tuple[int, float, Fact]]) -> None:
        """Read facts in order."""
        for _, time_s, fact in facts:
            try:
                self.state.apply(fact)
            except KeyError:
                self.skipped += 1
                continue
            if isinstance(fact, AppChanged) and fact.changes.get("done"):
                self.outcome[fact.app_id] = str(fact.changes.get("final_state", ""))
            elif isinstance(fact, RoundHeld):
                self.receipts.append(fact.receipt)
                self.round_s.append(max(0.0, time_s - fact.at_s))
            elif isinstance(fact, AllocationChanged):
                self.change_s.append(fact.seconds)


def build(
    facts: Iterable[tuple[int, float, Fact]], cluster_gpus: int, audit: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The report. `cluster_gpus` is R_C where there are no virtual clusters.

    `audit` is the result of the audit, None where none was made."""
    reader = Reader()
    reader.read(facts)
    receipts = reader.receipts
    held = [r for r in receipts if r.done.bids]
    owned_gpus = {r.vc: r.cluster_gpus for r in receipts if r.vc and r.cluster_gpus}
    agents_bids = [s for r in receipts for s in r.bid_s.values() if s > 0]  # the stand-in's take no time
    return {
        "apps": [_app(x, reader, owned_gpus.get(x.vc, cluster_gpus)) for x in reader.state.apps.values()],
        "rounds": len(receipts),
        "round_s": spread(reader.round_s),
        "bid_s": spread(agents_bids),
        "auction_solve_s": spread([r.done.solve_s for r in held]),
        "allocation_change_s": spread(reader.change_s),
        "seen": _seen(receipts, reader.state),
        "cluster_gpus": cluster_gpus,
        "audit": dict(audit) if audit is not None else None,
    }


def _app(x: AppRecord, reader: Reader, cluster_gpus: int) -> dict[str, Any]:
    t_sh_s = x.finished_s - x.submitted_s if x.finished_s is not None else None
    t_id_s = None
    # An app without an Agent reports no work: its attained service is used, as in its stand-in's bids.
    work_gpu_s = x.attained_gpu_s if x.kind == FOREIGN else x.work_done_gpu_s
    if x.n_avg is not None and work_gpu_s > 0 and x.demand_gpus > 0:
        t_id_s = t_id(work_gpu_s, cluster_gpus, x.demand_gpus, x.n_avg)
    return {
        "name": x.name,
        "id": x.app_id,
        "queue": x.queue,
        "kind": x.kind if x.kind in (JOB, FOREIGN) else HYPERBAND,
        "final_state": _final_state(x, reader.outcome.get(x.app_id, "")),
        "rho": t_sh_s / t_id_s if t_sh_s is not None and t_id_s else None,
        "T_sh_s": t_sh_s,
        "T_id_s": t_id_s,
        "n_avg": x.n_avg,
        "work_done_gpu_s": work_gpu_s,
        "leases": x.leases,
        "renewals": x.renewals,
        "revocations": x.revocations,
        "restarts": x.restarts,
        "best": x.best,
        "model_path": x.model_path,
    }


def _final_state(x: AppRecord, outcome: str) -> str:
    """The Agent's outcome, or YARN's final state if YARN says that the app failed or there is no outcome."""
    return x.final_state if x.final_state in UNSUCCESSFUL or not outcome else outcome


def _seen(receipts: Sequence[Receipt], state: Durable) -> dict[str, int]:
    """Counts of notable events in a run."""
    foreign = {x.app_id for x in state.apps.values() if x.kind == FOREIGN}
    bids = [b for r in receipts for b in r.done.bids]
    return {
        "rounds_with_two_bidders": sum(len(r.done.bids) >= 2 for r in receipts),
        "payments": sum(b.paid_gangs > 0 for b in bids),
        "bids_with_c_below_1": sum(bool(b.won) and b.c < 1 for b in bids),
        "leftover_awards": sum(x.leftover for r in receipts for x in r.done.awards),
        "standin_awards": sum(x.app_id in foreign for r in receipts for x in r.done.awards),
        "renewed_gpus": sum(len(r.done.renewed) for r in receipts),
        "revoked_gpus": sum(len(r.done.revoked) for r in receipts),
        "restarts": sum(x.restarts for x in state.apps.values()),
    }


def spread(values: Sequence[float]) -> dict[str, Any]:
    """{median, p95, n}; None without values."""
    return {"median": quantile(values, 0.5), "p95": quantile(values, 0.95), "n": len(values)}


@click.command("report")
@records_options
@click.option("--gpus", type=click.IntRange(1), metavar="N", help="GPUs of the cluster (R_C) [default: by topology].")
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE", help="Write the JSON here.")
@output_option
def report_command(
    cluster_dir: Path,
    journals: tuple[Path, ...],
    config: Path | None,
    evidence: tuple[str, ...],
    rm_log: tuple[str, ...],
    gang_deadline: float,
    gpus: int | None,
    out: Path | None,
    output: str,
) -> None:
    """What a run came to: rho, T_sh and T_id of each app, leases, best models, times, and the audit.

    \b
    isonomy report --out build/demo/report.json
    isonomy report --journal state/journal.sqlite --gpus 64 -o json
    """
    records = records_of(cluster_dir, journals, evidence, rm_log, config)
    if len(records.journals) != 1:
        raise click.UsageError("a report covers one journal: give one --journal FILE")
    file = records.topology
    if gpus is None and file is None:
        raise click.UsageError("give --gpus N: rho needs the GPUs of the cluster")
    with failing(ConfigError, instead=Misused):
        cluster_gpus = gpus if gpus is not None or file is None else load_topology(file).gpus
    assert cluster_gpus is not None
    found = audited(records, gang_deadline, time.time())
    data = build(facts_of(records.journals[0]), cluster_gpus, found)
    if out is not None:
        _write(out, data)
    emit(data, output, _draw)


def _write(out: Path, data: dict[str, Any]) -> None:
    part = out.with_name(f".{out.name}.part")
    with failing(OSError, what=f"--out {out}: cannot be written"):
        out.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")
        os.replace(part, out)


def _draw(d: Data) -> Group:
    """What a run came to."""
    rows = [
        (
            a["name"],
            a["kind"],
            a["queue"],
            a["final_state"],
            a["rho"],
            span(a["T_sh_s"]),
            span(a["T_id_s"]),
            a["leases"],
            a["renewals"],
            a["revocations"],
            a["restarts"],
            screens.result(a["best"]) if a["best"] else "-",
        )
        for a in d["apps"]
    ]
    names = (
        "APP",
        "KIND",
        "QUEUE",
        "STATE",
        ">RHO",
        ">T_SH",
        ">T_ID",
        ">LEASES",
        ">RENEWALS",
        ">REVOCATIONS",
        ">RESTARTS",
        "BEST",
    )
    times = [
        (name, span(d[name]["median"]), span(d[name]["p95"]), d[name]["n"])
        for name in ("round_s", "bid_s", "auction_solve_s", "allocation_change_s")
    ]
    seen = ", ".join(f"{k.replace('_', ' ')} {v}" for k, v in d["seen"].items())
    audited = screens.audit(d["audit"]) if d["audit"] is not None else "not audited"
    return lines(
        table(names, rows),
        "",
        f"{count(d['rounds'], 'round')}: {seen}",
        "",
        table(("TIME", ">MEDIAN", ">P95", ">N"), times),
        "",
        audited,
    )
