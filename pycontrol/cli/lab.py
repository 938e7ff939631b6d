"""What the laboratory (`pycontrol.lab`) adds to commands; only this and the lists of commands
and policies name it."""

from __future__ import annotations

import importlib
import importlib.util
from types import ModuleType

from pycontrol.cli.client import Failure
from pycontrol.simulation.workloads import CATALOGUE, Catalogue

LAB = "pycontrol.lab"


def part(name: str) -> ModuleType:
    """A module of the laboratory; Failure says what to install where it or a library of it is missing."""
    try:
        return importlib.import_module(f"{LAB}.{name}")
    except ModuleNotFoundError as e:
        raise Failure(f"this needs the laboratory, and {e.name} is missing: pip install 'isonomy[lab]'") from e


def workloads() -> Catalogue:
    """The workloads and trace formats that there are; only the product's where the laboratory is not installed."""
    if importlib.util.find_spec(LAB) is None:
        return CATALOGUE
    found: Catalogue = part("workloads").CATALOGUE
    return found
