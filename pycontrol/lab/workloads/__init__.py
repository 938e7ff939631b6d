"""The papers' workloads: generators calibrated to them, and importers of public traces."""

from pycontrol.lab.workloads.workload_catalogue import CATALOGUE, load

__all__ = ["CATALOGUE", "load"]
