"""HiveD's full trace: 141,950 jobs on 2,232 GPUs, replayed by cells and by quota."""

from __future__ import annotations

import time
from typing import Any

from pycontrol.experiments.hived.cases import Case, Runs, full


def run(quick: bool) -> dict[str, Any]:
    """Processor seconds of each replay; a quarter of the cluster and jobs with `quick`."""
    begin_s = time.process_time()
    case = full(part=4 if quick else 1)
    made_s = time.process_time() - begin_s
    return {"jobs": len(case.spec), "nodes": case.nodes, "workload_s": made_s, **_replays(case)}


def _replays(case: Case) -> dict[str, float]:
    runs, found = Runs(case), {}
    for name in ("hived", "quota", "private"):
        begin_s = time.process_time()
        getattr(runs, name)
        found[f"{name}_s"] = time.process_time() - begin_s
    return found
