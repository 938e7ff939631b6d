"""`isonomy solve` against the expected results in tests/cases, and its errors for malformed files."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from pycontrol.lab.solve.replay_command import replay_command

CASES = Path(__file__).parents[1] / "cases"


def cases(kind: str) -> list[Any]:
    loaded: list[Any] = json.loads((CASES / kind / "cases.json").read_text())
    return [pytest.param(kind, case, id=case["id"]) for case in loaded]


def replay(*args: str) -> tuple[int, str, str]:
    done = CliRunner().invoke(replay_command, args)
    return done.exit_code, done.stdout, done.stderr


def close(got: Any, want: Any) -> bool:
    if isinstance(want, dict):
        return isinstance(got, dict) and all(k in got and close(got[k], v) for k, v in want.items())
    if isinstance(want, list):
        return len(got) == len(want) and all(close(a, b) for a, b in zip(got, want, strict=True))
    return math.isclose(got, want, rel_tol=1e-6, abs_tol=1e-7)


@pytest.mark.parametrize(("kind", "case"), cases("rho") + cases("auction"))
def test_case(kind: str, case: dict[str, Any]) -> None:
    code, out, err = replay(str(CASES / kind / "cases.json"), "--id", case["id"], "--json")
    assert (code, err) == (0, "")
    answer = json.loads(out)
    assert (answer["kind"], answer["id"]) == (kind, case["id"])
    result, want = answer["result"], case["expected"]
    keys = {"N_avg", "T_cluster", "T_id", "by_gpus", "by_gpus_and_slowdown", "G_pf_objective", "rho_at_G_pf", "c"}
    for key in keys & set(want):
        assert close(result[key], want[key]), key
    if kind == "auction":
        assert result["proved_optimal"] is True
        used = [sum(column) for column in zip(*result["allocation"], strict=True)]
        assert all(n <= m for n, m in zip(used, case["machines"], strict=True))
        for table, row, rho in zip(case["rho_tables"], result["allocation"], want["rho_at_G_pf"], strict=True):
            assert close(table[",".join(map(str, row))], rho)


GOOD_SINGLE = {
    "kind": "rho",
    "model": "single_job",
    "R_C": 4,
    "job_demand_max": 2,
    "serial_iter_time": 1.0,
    "iter_total": 10,
    "iter_left": 5,
    "T_start": 0,
    "T_current": 10,
    "apps_in_system": [{"start": 0, "end": 10, "count": 2}],
    "points": [[1, 1.0]],
}


CURVE = {
    "kind": "rho",
    "model": "performance_curve",
    "R_C": 16,
    "N_avg": 2,
    "B": 8000,
    "app_demand_max": 8,
    "job_demand_max": 4,
    "elapsed": 100,
    "iter_total": 1000,
    "target": 0.4,
    "points": [1, 2, 8],
    "jobs": [
        {"serial_iter_time": 2.0, "seen": [[n, 0.2 + 2 * n**-0.5] for n in range(1, 61)]},
        {"serial_iter_time": 1.0, "S": 1.1, "seen": [[1, 2.0], [2, 1.9]]},
    ],
}


def test_performance_curves_are_forecast_each_at_its_slowest(tmp_path: Path) -> None:
    file = tmp_path / "case.json"
    file.write_text(json.dumps(CURVE))
    code, out, err = replay(str(file), "--json")
    assert (code, err) == (0, "")
    result = json.loads(out)["result"]
    assert result["T_id"] == 2000
    assert result["iters_remaining"] == [pytest.approx(100 - 60, rel=0.02), 998], "the second job: all the way"
    assert result["by_gpus"]["2"]["T_sh"] == pytest.approx(100 + 998 * 1.1)
    assert result["by_gpus"]["8"]["rho"] == pytest.approx((100 + 998 * 1.1 / 4) / 2000)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "no JSON"),
        ("[1]", "a case must be an object"),
        ('{"id": "x"}', "kind: is missing"),
        ('{"kind": "other"}', "kind other is not supported"),
        ('{"kind": "rho"}', "model: is missing"),
        ('{"kind": "rho", "model": "other"}', "model: 'other'"),
        (
            json.dumps(CURVE | {"jobs": [{"serial_iter_time": 1.0, "seen": [[2, 1], [1, 2]]}]}),
            "jobs.0.seen: steps must",
        ),
        (json.dumps(GOOD_SINGLE | {"R_C": 0}), "R_C"),
        (json.dumps(GOOD_SINGLE | {"points": [[1, 0.5]]}), "points"),
        (json.dumps(GOOD_SINGLE | {"T_current": -1}), "T_current"),
        (json.dumps(GOOD_SINGLE | {"apps_in_system": [{"start": 0, "end": 5, "count": 1}]}), "apps_in_system"),
        (json.dumps({k: v for k, v in GOOD_SINGLE.items() if k != "iter_left"}), "iter_left"),
        ('{"kind": "auction", "machines": [2], "rho_tables": [{"1": 0.5}]}', "rho_tables.0: has no all-zero row"),
        ('{"kind": "auction", "machines": [2], "rho_tables": [{"0": 1, "1,1": 2}]}', "rho_tables.0: '1,1'"),
        ('{"kind": "auction", "machines": [2], "rho_tables": [{"0": NaN}]}', "rho_tables.0.0"),
        ('{"kind": "auction", "machines": [2], "rho_tables": [{"0": -1}]}', "rho_tables.0.0"),
        pytest.param("[" * 100_000, "is no JSON: maximum recursion depth exceeded", id="deep"),
    ],
)
def test_a_malformed_file_exits_2_with_one_line_that_names_the_field(tmp_path: Path, text: str, says: str) -> None:
    file = tmp_path / "case.json"
    file.write_text(text)
    code, out, err = replay(str(file), "--json")
    assert code == 2
    assert not out
    assert says in err
    assert str(file) in err
    assert len(err.splitlines()) == 1


def test_an_unknown_id_or_file_exits_2(tmp_path: Path) -> None:
    assert replay(str(CASES / "rho" / "cases.json"), "--id", "nope")[0] == 2
    code, _, err = replay(str(tmp_path / "absent.json"))
    assert code == 2
    assert "cannot be read" in err
