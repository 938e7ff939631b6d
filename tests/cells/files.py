"""Cells files as tests write them: YAML text, or what it means."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pycontrol.arbiter.supply.cell_supply import CellSupply
from pycontrol.cells.cells_file import CellsFile, layout
from pycontrol.cells.layout import Layout
from pycontrol.config import parse


def layout_of(file: str | Mapping[str, Any]) -> Layout:
    """The layout that the file describes."""
    found = parse(file, CellsFile, "cells.yaml") if isinstance(file, str) else CellsFile.model_validate(file)
    return layout(found, name="cells.yaml")


def supply_of(file: str | Mapping[str, Any]) -> CellSupply:
    """A new supply with these cells."""
    return CellSupply(layout_of(file))
