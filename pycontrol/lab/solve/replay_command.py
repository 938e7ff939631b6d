"""`isonomy replay`: solves cases from a file with the production code; a what-if tool."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, NoReturn

import click

from pycontrol.config import ConfigError
from pycontrol.fairness.contention import ContentionClock
from pycontrol.fairness.gang_rho import t_id
from pycontrol.lab.solve.bid_tables import auction_tables
from pycontrol.lab.solve.cells_replay import replay_cells
from pycontrol.lab.solve.paper_rho import Forecast, Halving, ObservedJob, SingleJob
from pycontrol.lab.solve.replay_cases import (
    AuctionCase,
    CaseError,
    CellsCase,
    CurveCase,
    HalvingCase,
    SingleCase,
    parse_case,
    parse_key,
)
from pycontrol.lab.solve.shares import SharesCase, solve_shares

MALFORMED = 2


def _halving(case: HalvingCase) -> dict[str, Any]:
    app = Halving(
        tuple(case.current_phase.serial_iter_times),
        case.current_phase.iterations_left,
        tuple((int(jobs), iterations) for jobs, iterations in case.future_phases),
        case.job_demand_max,
        case.S,
        case.elapsed,
    )
    t_id_s = t_id(case.B, case.R_C, case.app_demand_max, case.N_avg)
    by_gpus = {}
    for gpus in case.points:
        whole, fluid = app.on(gpus), app.fluid_on(gpus)
        by_gpus[str(gpus)] = {
            "phases": list(whole.phases_s),
            "T_sh": whole.t_sh_s,
            "rho": whole.t_sh_s / t_id_s,
            "proved_optimal": whole.proved,
            "fluid_T_sh": fluid.t_sh_s,
            "fluid_rho": fluid.t_sh_s / t_id_s,
        }
    return {"T_id": t_id_s, "by_gpus": by_gpus}


def _single(case: SingleCase) -> dict[str, Any]:
    job = SingleJob(
        case.serial_iter_time, case.iter_total, case.iter_left, case.job_demand_max, case.T_start, case.T_current
    )
    clock = ContentionClock(at_s=case.T_start)
    for span in case.apps_in_system:
        if span.start < case.T_current:
            clock = clock.turned(span.start, span.count - clock.count)
    n_avg = clock.n_avg(case.T_start, 0.0, case.T_current)
    t_cluster = job.t_cluster(case.R_C)
    t_id_s = t_cluster * n_avg
    points = {}
    for gpus, slowdown in case.points:
        t_sh = job.t_sh(int(gpus), slowdown)
        points[f"{int(gpus)}|S={slowdown}"] = {"T_sh": t_sh, "rho": t_sh / t_id_s}
    return {"N_avg": n_avg, "T_cluster": t_cluster, "T_id": t_id_s, "by_gpus_and_slowdown": points}


def _curve(case: CurveCase) -> dict[str, Any]:
    jobs = tuple(ObservedJob(j.serial_iter_time, tuple((n, loss) for n, loss in j.seen), j.S) for j in case.jobs)
    app = Forecast(jobs, case.iter_total, case.target, case.job_demand_max, case.elapsed)
    t_id_s = t_id(case.B, case.R_C, case.app_demand_max, case.N_avg)
    shared = {gpus: app.on(gpus) for gpus in case.points}
    return {
        "T_id": t_id_s,
        "iters_remaining": [job.iters_remaining for job in app.get_jobs_remaining([])],
        "by_gpus": {
            str(gpus): {"T_sh": t.t_sh_s, "rho": t.t_sh_s / t_id_s, "proved_optimal": t.proved}
            for gpus, t in shared.items()
        },
    }


def _auction(case: AuctionCase) -> dict[str, Any]:
    tables = [{parse_key(key): rho for key, rho in table.items()} for table in case.rho_tables]
    found = auction_tables(tables, case.machines)
    return {
        "G_pf_objective": found.objective,
        "rho_at_G_pf": list(found.rho),
        "c": list(found.c),
        "allocation": [list(row) for row in found.rows],
        "proved_optimal": found.proved_optimal,
    }


def solve(case: object) -> dict[str, Any]:
    """The result of a checked case."""
    match case:
        case HalvingCase():
            return _halving(case)
        case SingleCase():
            return _single(case)
        case CurveCase():
            return _curve(case)
        case AuctionCase():
            return _auction(case)
        case SharesCase():
            return solve_shares(case)
    raise TypeError(f"no solver for {type(case).__name__}")


@click.command("solve")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--id", "case_id", metavar="ID", help="Only this case.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
@click.option("--forced", is_flag=True, help="For cells: continue from the expected placements.")
def replay_command(file: Path, case_id: str | None, as_json: bool, forced: bool) -> None:
    """Solve the cases in FILE (rho, auction, shares, cells) and print one JSON object for each, or for each step."""
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except OSError as e:
        _malformed(f"{file}: cannot be read: {e.strerror}")
    except (ValueError, RecursionError) as e:
        _malformed(f"{file}: is no JSON: {e}")
    cases = data if isinstance(data, list) else [data]
    if case_id is not None:
        cases = [case for case in cases if isinstance(case, dict) and case.get("id") == case_id]
        if not cases:
            _malformed(f"{file}: no case has the id {case_id}")
    parsed = []
    for number, case in enumerate(cases):  # all are checked before the first is solved
        try:
            parsed.append(parse_case(case))
        except CaseError as e:
            name = case.get("id", number) if isinstance(case, dict) else number
            _malformed(f"{file}: case {name}: {e}")
    for kind, name, checked in parsed:
        if isinstance(checked, CellsCase):
            _replay_cells(file, checked, forced, as_json)
            continue
        answer = {"kind": kind, "id": name, "result": solve(checked)}
        click.echo(json.dumps(answer) if as_json else json.dumps(answer, indent=2))


def _replay_cells(file: Path, case: CellsCase, forced: bool, as_json: bool) -> None:
    try:
        for answer in replay_cells(case.model_dump(), forced):
            click.echo(json.dumps(answer) if as_json else json.dumps(answer, indent=2))
    except (ConfigError, ValueError, KeyError, AttributeError, IndexError, TypeError, ArithmeticError) as e:
        _malformed(f"{file}: case {case.id}: {e or type(e).__name__}")
    except AssertionError as e:
        _malformed(f"{file}: case {case.id}: a step cannot be carried out{f': {e}' if str(e) else ''}")


def _malformed(line: str) -> NoReturn:
    click.echo(f"error: {' '.join(line.split())}", err=True)
    sys.exit(MALFORMED)


if __name__ == "__main__":
    replay_command()
