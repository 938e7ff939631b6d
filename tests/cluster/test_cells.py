"""Cells on a real YARN, as in `make demo-cells`: two levels below the node, a pinned cell, an exchange, a raised
priority, and a killed control plane."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster.rig import REPO

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(2700)]


def test_cells_on_a_real_yarn(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    words = [sys.executable, REPO / "dev-cluster/demo/cells_demo.py", "--dir", tmp_path / "dc", "--out", report]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-6000:]
    found = json.loads(report.read_text())
    assert found["audit"]["violations"] == []
    steps = found["cells"]["steps"]
    assert [s["what"] for s in steps if not 0 <= s["took_s"] <= s["limit_s"] + 30] == []
    for word in ("exchange", "all twelve", "pinned", "four GPUs", "reason names", "goes before", "Agents are back"):
        assert any(word in s["what"] for s in steps), word
    assert found["cells"]["guaranteed_gpus_claimed"] >= 10
