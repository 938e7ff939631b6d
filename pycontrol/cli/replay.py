"""`isonomy replay`: solves cases from a file with the production code; a what-if tool."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn

import click

from pycontrol.auction.tables import auction_tables
from pycontrol.fairness.estimate import Halving, SingleJob, n_avg

MALFORMED = 2


def _rho(case: Mapping[str, Any]) -> dict[str, Any]:
    models = {"successive_halving": _halving, "single_job": _single}
    if case["model"] not in models:
        raise ValueError(f"model: {case['model']!r} is not one of {', '.join(models)}")
    return models[case["model"]](case)


def _halving(case: Mapping[str, Any]) -> dict[str, Any]:
    phase = case["current_phase"]
    app = Halving(
        tuple(phase["serial_iter_times"]),
        phase["iterations_left"],
        tuple((jobs, n) for jobs, n in case["future_phases"]),
        case["job_demand_max"],
        case["S"],
        case["elapsed"],
    )
    t_id = case["B"] / min(case["R_C"], case["app_demand_max"]) * case["N_avg"]
    by_gpus = {}
    for g in case["points"]:
        t_sh, fluid = app.t_sh(g), app.fluid_t_sh(g)
        by_gpus[str(g)] = {
            "phases": app.phases_s(g), "T_sh": t_sh, "rho": t_sh / t_id, "fluid_T_sh": fluid, "fluid_rho": fluid / t_id
        }  # fmt: skip
    return {"T_id": t_id, "by_gpus": by_gpus}


def _single(case: Mapping[str, Any]) -> dict[str, Any]:
    job = SingleJob(
        case["serial_iter_time"], case["iter_total"], case["iter_left"], case["job_demand_max"],
        case["T_start"], case["T_current"],
    )  # fmt: skip
    counts = [(p["start"], p["end"], p["count"]) for p in case["apps_in_system"]]
    mean = n_avg(counts, job.start_s, job.now_s)
    t_cluster = job.t_cluster(case["R_C"])
    t_id = t_cluster * mean
    points = {}
    for g, s in case["points"]:
        t_sh = job.t_sh(g, s)
        points[f"{g}|S={s}"] = {"T_sh": t_sh, "rho": t_sh / t_id}
    return {"N_avg": mean, "T_cluster": t_cluster, "T_id": t_id, "by_gpus_and_slowdown": points}


def _auction(case: Mapping[str, Any]) -> dict[str, Any]:
    tables = [{tuple(map(int, k.split(","))): float(v) for k, v in t.items()} for t in case["rho_tables"]]
    found = auction_tables(tables, case["machines"])
    return {
        "G_pf_objective": found.objective,
        "rho_at_G_pf": list(found.rho),
        "c": list(found.c),
        "allocation": [list(r) for r in found.rows],
        "proved_optimal": found.proved_optimal,
    }


KINDS: dict[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {"rho": _rho, "auction": _auction}


@click.command("replay")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--id", "case_id", metavar="ID", help="Only this case.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line, without spaces.")
@click.option("--forced", is_flag=True, help="For cells: go on from the expected placements.")
def replay_command(file: Path, case_id: str | None, as_json: bool, forced: bool) -> None:
    """Solve the cases in FILE (kinds: rho, auction) and print one JSON object for each."""
    try:
        data = json.loads(file.read_text())
    except (OSError, ValueError) as e:
        _malformed(f"{file}: {e}")
    for number, case in enumerate(data if isinstance(data, list) else [data]):
        where = f"{file}: case {case.get('id', number) if isinstance(case, dict) else number}"
        if not isinstance(case, dict) or "kind" not in case:
            _malformed(f"{where}: kind: is missing")
        if case_id is not None and case.get("id") != case_id:
            continue
        if case["kind"] not in KINDS:
            _malformed(f"{where}: kind: {case['kind']!r} is not supported, only {', '.join(KINDS)}")
        try:
            result = KINDS[case["kind"]](case)
        except KeyError as e:
            _malformed(f"{where}: {e.args[0]}: is missing")
        except (TypeError, ValueError, ZeroDivisionError, StopIteration) as e:
            _malformed(f"{where}: {e}")
        answer = {"kind": case["kind"], "id": case.get("id"), "result": result}
        click.echo(json.dumps(answer, separators=(",", ":")) if as_json else json.dumps(answer, indent=2))


def _malformed(line: str) -> NoReturn:
    click.echo(f"error: {line}", err=True)
    sys.exit(MALFORMED)
