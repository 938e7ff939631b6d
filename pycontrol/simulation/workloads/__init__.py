"""Workloads: generators calibrated to the papers, importers of public traces, and one front door to both."""

from pycontrol.simulation.workloads.building import Selection
from pycontrol.simulation.workloads.front import FORMATS, GENERATORS, detect, load, open_workload
from pycontrol.simulation.workloads.imports import Import, Imported
from pycontrol.simulation.workloads.own import write
from pycontrol.simulation.workloads.reading import BadTrace, Skipped

__all__ = [
    "FORMATS",
    "GENERATORS",
    "BadTrace",
    "Import",
    "Imported",
    "Selection",
    "Skipped",
    "detect",
    "load",
    "open_workload",
    "write",
]  # fmt: skip
