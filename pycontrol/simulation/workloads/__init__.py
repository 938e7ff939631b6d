"""Workloads by name or file: Themis' two, and files in Isonomy's own format. The lab's catalogue adds other papers'."""

from pycontrol.simulation.workloads.building import Import, Imported, Selection
from pycontrol.simulation.workloads.front import CATALOGUE, Catalogue
from pycontrol.simulation.workloads.own_format import write
from pycontrol.simulation.workloads.trace_table import BadTrace, Skipped

__all__ = ["CATALOGUE", "BadTrace", "Catalogue", "Import", "Imported", "Selection", "Skipped", "write"]
