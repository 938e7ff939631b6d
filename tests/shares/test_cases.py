"""`isonomy replay` of the cases in tests/cases/shares: the paper's vectors, random problems, Gavel's own results."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from pycontrol.lab.solve.replay_command import replay_command
from pycontrol.lab.solve.shares import SharesCase, solve_shares

HERE = Path(__file__).parent.parent / "cases" / "shares"
CASES = [case for file in sorted(HERE.glob("*.json")) for case in json.loads(file.read_text())]
VALUES = ("objective", "objective_max_rho", "lexicographic_normalised_throughputs")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_case(case: dict[str, Any]) -> None:
    want, result = case["expected"], solve_shares(SharesCase.model_validate(case))
    x, w, m = np.array(result["X"]), np.array(case["W"], float), np.array(case["m"], float)
    pi = np.array(case.get("weights") or [1] * len(w), float)
    own = (w * x).sum(axis=1)
    assert (x >= 0).all()
    if not case["scheme"].startswith("gavel_"):  # gavel_isolated and gavel_proportional are not allocations
        assert (x.sum(axis=0) <= m * (1 + 1e-9)).all()
    if "total" in want:
        assert own.sum() == pytest.approx(want["total"], rel=1e-6)
    if "common_per_weight" in want:
        assert own / pi == pytest.approx(np.full(len(own), want["common_per_weight"]), rel=1e-6)
    for (low, high), e in zip(want.get("E_range_over_optima", []), own, strict=False):
        assert low - 1e-5 <= e <= high + 1e-5
    if case["scheme"] == "oef_cooperative":
        assert (own / pi >= (w @ (x / pi[:, None]).T).max(axis=1) - 1e-6).all()
    if "X" in want and "total" not in want:
        assert x == pytest.approx(np.array(want["X"]), abs=1e-6)
    if "allocation" in want:
        assert x == pytest.approx(np.array(want["allocation"]), abs=1e-6)
    if "u1_row" in want:
        assert x[0] == pytest.approx(want["u1_row"], abs=1e-4)
    for name in VALUES:
        if name in want:
            assert result[name] == pytest.approx(want[name], rel=1e-5)
    if "optimal_makespan" in want:
        assert result["makespan"] == pytest.approx(want["optimal_makespan"], rel=1e-6)
    for got, trade in zip(result.get("trades", []), want.get("trades", []), strict=False):
        assert (got["buyer"], got["seller"]) == (trade["buyer"], trade["seller"])
        assert math.isclose(got["price"], trade["price"])


GOOD = {"kind": "shares", "scheme": "oef_cooperative", "W": [[1, 2], [1, 3]], "m": [1, 1]}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"scheme": "drf"}, "scheme 'drf' is not one of"),
        ({"W": []}, "W"),
        ({"W": [[1, 2], [1]]}, "W: must be numbers, in rows of one length"),
        ({"W": [[1, -2], [1, 3]]}, "W[0][1]: is negative"),
        ({"W": [[1, float("nan")], [1, 3]]}, "W.0.1"),
        ({"m": [1]}, "m: 1 types, but W has 2"),
        ({"m": [1, -1]}, "m[1]: is negative"),
        ({"weights": [1, 0]}, "weights[1]: must be positive"),
        ({"weights": [1]}, "weights: 1 users, but W has 2"),
        ({"scheme": "gavel_min_total_duration_perf"}, "steps_remaining: must be 2 numbers"),
    ],
)
def test_errors_are_named(change: dict[str, Any], says: str, tmp_path: Path) -> None:
    file = tmp_path / "case.json"
    file.write_text(json.dumps(GOOD | change))
    done = CliRunner().invoke(replay_command, [str(file), "--json"])
    assert done.exit_code == 2
    assert says in done.stderr
    assert len(done.stderr.splitlines()) == 1
