"""The closed list of reasons."""

from __future__ import annotations

import re
from pathlib import Path

from pycontrol.arbiter.reasons import REASONS

OPERATIONS = Path(__file__).parents[2] / "docs" / "operations.md"


def test_the_operators_list_has_every_reason_and_no_other() -> None:
    text = OPERATIONS.read_text().partition("## Why an app waits")[2].partition("\n## ")[0]
    rows = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    named = [code for row in rows for code in re.findall(r"`(\w+)`", row)]
    assert sorted(named) == sorted(REASONS)
