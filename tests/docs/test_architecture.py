"""The table in docs/architecture.md, "the way of a lease", names code that exists and every fact about leases."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pycontrol.arbiter.ledger.facts import FACTS, OF_LEASE

ROOT = Path(__file__).parents[2]
ROWS = [
    [cell.strip() for cell in line.split("|")[1:-1]]
    for line in (ROOT / "docs/architecture.md").read_text().partition("## The way of a lease")[2].splitlines()
    if line.startswith("| ") and line.count("|") == 5 and "`" in line
]
CODE = "\n".join(
    p.read_text()
    for folder in ("pycontrol", "submarine_patch", "yarn-plugin")
    for p in (ROOT / folder).rglob("*")
    if p.suffix in (".py", ".java", ".proto") and "_pb2" not in p.name
)


def test_each_fact_about_leases_has_its_steps() -> None:
    named = {name for row in ROWS for name in re.findall(r"`(\w+)`", row[2])}
    assert named <= FACTS.keys()
    assert {kind.__name__ for kind in OF_LEASE} <= named


@pytest.mark.parametrize("row", ROWS, ids=[row[0] for row in ROWS])
def test_the_code_of_a_step_exists(row: list[str]) -> None:
    for name in re.findall(r"`([\w./]+)`", row[1] + row[3]):
        if name.endswith(".py"):
            folders = (ROOT, ROOT / "pycontrol/arbiter", ROOT / "submarine_patch", ROOT / "submarine_patch/worker")
            assert any((folder / name).exists() for folder in folders), name
        else:
            assert re.search(rf"\b{name.rpartition('.')[2]}\b", CODE), name
