"""What a submission answers: its trials and rungs, and the work that it declares, in words."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from pycontrol.words import count, gpu_time
from submarine_patch.agent.schedulers import plan
from submarine_patch.agent.spec import AppSpec, gpus_range
from submarine_patch.cli.checks import load_search_space
from submarine_patch.cli.options import RunArguments

NOWHERE = {
    "app_id": "", "name": "", "staging": "", "webhdfs": "", "hdfs_user": "", "arbiter": "", "paths": {},
    "worker": {"launch_cmd": "", "memory_mb": 0, "vcores": 0},
}  # fmt: skip
"""What of a spec is not known before the submission, and says nothing of its work."""


def declared(parsed: RunArguments) -> list[str]:
    """The lines for the user, after all checks; none where an app scheduler of another distribution or a spec file
    decides it."""
    conf, gang_gpus = parsed.conf, gpus_of_job(parsed)
    if not gang_gpus:
        return []
    search = load_search_space(Path(conf["search_space"])) if conf.get("search_space") else None
    given: dict[str, Any] = {key: conf.get(key) for key in ("app_scheduler", "max_iterations", "min_iterations", "eta",
                                                            "jobs", "iteration_s")}  # fmt: skip
    spec = AppSpec.of({
        **NOWHERE, **given, "gpus_per_job": gang_gpus, "budget_iterations": conf.get("budget"),
        "search_space": {"parameters": search}, "conf": {"isonomy.hours": conf.get("hours")},
    })  # fmt: skip
    planned = plan(spec)
    if planned is None:
        return []
    trials, steps, iterations = planned
    lines = [_trials(spec, trials, steps, iterations, parsed.session)] if spec.app_scheduler != "single" else []
    gpus = count(spec.gang_gpus, "GPU")
    if not iterations and not spec.hours:
        return [*lines, "note: nothing says how long it trains, so its declared work is one lease of its GPUs, and it"
                " falls behind others once that is used; with --hours H a job trains H hours on its GPUs"]  # fmt: skip
    if not iterations:
        return [*lines, f"declared work: {gpu_time(spec.job_gpu_s)}, {spec.hours:g} h on {gpus}"]
    each_s = spec.iteration_s or spec.guess_s
    work = gpu_time(iterations * each_s)
    if spec.iteration_s:
        return [*lines, f"declared work: {work}, {count(iterations, 'iteration')} of {each_s:g} GPU-s"]
    if spec.hours:
        most = " at most" if trials > 1 else ""
        return [*lines, f"declared work: {work}, {spec.hours:g} h on {gpus} for a whole job{most}"]
    return [*lines, f"note: nothing says how long its {count(iterations, 'iteration')} take, so its declared work is"
            f" {work}, 1 GPU-s each; with --hours H a whole job trains H hours on its GPUs"]  # fmt: skip


def _trials(spec: AppSpec, trials: int, steps: list[int], iterations: int, session: bool) -> str:
    at = f", rungs at {', '.join(map(str, steps))}" if len(steps) > 1 else ""
    unit = "steps of the session" if session else "as the script's log counts them: batches, or epochs if it names none"
    return f"{count(trials, 'trial')}{at} iterations ({unit}), {iterations:,} in all at most"


def gpus_of_job(parsed: RunArguments) -> int:
    """The fewest GPUs of a job; 0 where a spec file says it."""
    of_worker = re.search(r"(?:^|,)\s*(?:yarn\.io/)?gpu=([0-9]+)", parsed.values.get("worker_resources", [""])[-1])
    workers = int(parsed.values.get("num_workers", ["1"])[-1])
    return gpus_range(parsed.conf.get("gpus_per_job", ""))[0] or workers * int(of_worker[1] if of_worker else 0)
