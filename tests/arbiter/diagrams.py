"""The state diagrams of docs/architecture.md."""

from __future__ import annotations

import re
from pathlib import Path

ARCHITECTURE = Path(__file__).parents[2] / "docs" / "architecture.md"


def transitions_drawn(module: str) -> set[tuple[str, str, str]]:
    """(state, change, next state) of each arrow of the diagram that follows the mention of that module; `[*]`: none."""
    text = ARCHITECTURE.read_text(encoding="utf-8")
    diagram = text[text.index(f"(`{module}`):") :].partition("```mermaid")[2].partition("```")[0]
    arrows = re.findall(r"^ +(\S+) --> (\S+): (.+)$", diagram, re.M)
    return {(old, change, new) for old, new, changes in arrows for change in changes.split(", ")}
