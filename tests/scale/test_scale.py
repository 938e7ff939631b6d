"""The smallest size of `make scale`: a real ResourceManager with 250 simulated NodeManagers, and a control plane.

And what `make month` calls growth.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.scale.month import GROWTH, problems

ROOT = Path(__file__).parents[2]
NODES, APPS = 250, 200


@pytest.mark.cluster
def test_every_ask_of_two_thousand_gpus_is_served_and_every_view_answers(tmp_path: Path) -> None:
    """The exit status checks that; the test also checks the fields of the run's JSON."""
    sizes = ["--nodes", str(NODES), "--apps", str(APPS), "--idle", "5"]
    command = [sys.executable, "-m", "tests.scale", *sizes, "--folder", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    result = json.loads(done.stdout)
    for scheduler in ("isonomy", "capacity"):
        assert result[scheduler]["allocated"] == result[scheduler]["wanted"] >= NODES * 8
    assert result["log"]["error"] == 0


@pytest.mark.parametrize("name", GROWTH)
def test_what_still_grows_in_the_second_half_of_the_month_is_named(name: str) -> None:
    month = [{"apps_seen": 1000 * k, **dict.fromkeys(GROWTH, min(k, 4) * 100.0)} for k in range(1, 11)]
    assert problems(month) == []
    month[-1][name] *= 1.2
    assert [p.split(" grew")[0] for p in problems(month)] == [name]
