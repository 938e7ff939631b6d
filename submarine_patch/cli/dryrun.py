"""`submarine job run --dry-run`: which GPUs a job would get now, on what terms and from when, or what would help."""

from __future__ import annotations

import json
import os

from pycontrol.cli import screens
from pycontrol.cli.client import Rm, rm_address
from pycontrol.cli.tables import out
from pycontrol.model.topology import Scope
from submarine_patch.agent.spec import CELL_TYPES, WITHIN, segments_of
from submarine_patch.cli.errors import UsageError
from submarine_patch.cli.jobchecks import gpus_of_job
from submarine_patch.cli.options import RunArguments


def dry_run(parsed: RunArguments) -> int:
    """Print the answer for one job; 0 if it would start in the next round, else 1. Raises UsageError."""
    gpus = gpus_of_job(parsed)
    if not gpus:
        raise UsageError("--dry-run: needs --worker_resources with gpu=N or --gpus-per-job; a spec (-f) is not read")
    conf, within = parsed.conf, parsed.conf.get("within", "cluster")
    parts, place = segments_of(conf.get("segments", ""), gpus)
    found = Rm(rm_address()).get(
        "why-not", queue=parsed.value("queue", "default"), gang=gpus, type=conf.get("gpu_type", ""),
        scope=WITHIN.get(within, Scope.CLUSTER).name.lower(), segments=parts,
        within=next((x for x in (within, place) if x in CELL_TYPES), ""), segment=WITHIN[place].name.lower(),
    )  # fmt: skip
    if parsed.json:
        print(json.dumps(found))
    else:
        out(screens.why_not(found))
    return os.EX_OK if found["gets"] else 1
