"""HiveD's trace, a sixteenth of it, in the simulator: by cells, by quota and on private clusters."""

from __future__ import annotations

import time
from typing import Any

from pycontrol.lab.hived.cases import CaseRuns, full
from pycontrol.lab.hived.trace_case import TraceCase


def run(quick: bool) -> dict[str, Any]:
    """Processor seconds of each run; the first two days of the trace with `quick`, else ten."""
    begin_s = time.process_time()
    case = full(part=16, days=2.0 if quick else 10.0)
    made_s = time.process_time() - begin_s
    return {"jobs": len(case.spec), "nodes": case.nodes, "workload_s": made_s, **_ways(case)}


def _ways(case: TraceCase) -> dict[str, float]:
    runs, found = CaseRuns(case), {}
    for name in ("hived", "quota", "private"):
        begin_s = time.process_time()
        getattr(runs, name)
        found[f"{name}_s"] = time.process_time() - begin_s
    return found
