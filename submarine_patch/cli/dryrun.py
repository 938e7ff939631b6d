"""`submarine job run --dry-run`: which GPUs a job would get now, on what terms and from when, or what would help."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

from pycontrol.cli import screens
from pycontrol.cli.client import Rm, rm_address
from pycontrol.cli.tables import out
from pycontrol.model.topology import Scope
from submarine_patch.agent.spec import CELL_TYPES, WITHIN, segments_of
from submarine_patch.cli.declared import work_of
from submarine_patch.cli.errors import UsageError
from submarine_patch.cli.jobchecks import gpus_of_job, resources_of
from submarine_patch.cli.options import RunArguments


def dry_run(parsed: RunArguments) -> int:
    """Print the answer for one job; 0 if it would start in the next round, else 1. Raises UsageError."""
    gpus = gpus_of_job(parsed)
    if not gpus:
        raise UsageError("--dry-run: needs --worker_resources with gpu=N or --gpus-per-job; a spec (-f) is not read")
    conf, within = parsed.conf, parsed.conf.get("within", "cluster")
    parts, place = segments_of(conf.get("segments", ""), gpus)
    client = Rm(rm_address())
    _check_size(parsed, client.yarn("nodes"))
    asked: dict[str, Any] = {"queue": parsed.value("queue", "default"), "gang": gpus, "segments": parts}
    asked |= {"scope": WITHIN.get(within, Scope.CLUSTER).name.lower(), "segment": WITHIN[place].name.lower()}
    asked |= {"within": next((x for x in (within, place) if x in CELL_TYPES), ""), "type": conf.get("gpu_type", "")}
    asked |= {key: conf[key] for key in ("pinned", "opportunistic", "priority") if conf.get(key)}
    asked["work_total_gpu_s"] = work.gpu_s if (work := work_of(parsed)) else 0.0
    found = client.get("why-not", **asked)
    if parsed.json:
        print(json.dumps(found))
    else:
        out(screens.why_not(found))
    return os.EX_OK if found["gets"] else 1


def _check_size(parsed: RunArguments, answer: Mapping[str, Any]) -> None:
    """As ClusterCheck.java at a submission: one worker, with all servers beside it, fits on a running machine."""
    nodes = [n for n in (answer.get("nodes") or {}).get("node", ()) if n["state"] == "RUNNING"]
    has = [(n["usedMemoryMB"] + n["availMemoryMB"], n["usedVirtualCores"] + n["availableVirtualCores"]) for n in nodes]
    given, servers = parsed.value("worker_resources"), int(parsed.value("num_ps", "0"))
    (mb, vcores), (more_mb, more_vcores) = _size(given), _size(parsed.value("ps_resources"))
    mb, vcores = mb + servers * more_mb, vcores + servers * more_vcores
    if has and not any(mb <= most_mb and vcores <= most_vcores for most_mb, most_vcores in has):
        beside = f", and --ps_resources for each of {servers} servers" if servers else ""
        machines = ", or ".join(dict.fromkeys(f"{mb} MB and {vcores} vcores" for mb, vcores in has))
        raise UsageError(
            f"--worker_resources {given}{beside}: no running machine has as much; the machines have {machines}"
        )


def _size(resources: str) -> tuple[float, int]:
    """MB and vcores of resources that were checked."""
    of = resources_of(resources)
    memory = of.get("memory", "0").upper()
    return float(memory.rstrip("MG ")) * (1024 if memory.endswith("G") else 1), int(of.get("vcores", "1"))
