"""What a submission answers: its trials and rungs, the work that it declares, and when it would start and end."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pycontrol.configerror import ConfigError
from pycontrol.hadoopconf.sitefile import rm_web_url
from pycontrol.words import count, gpu_time
from submarine_patch.agent.schedulers import plan
from submarine_patch.agent.spec import AppSpec
from submarine_patch.cli.checks import load_search_space
from submarine_patch.cli.jobchecks import gpus_of_job
from submarine_patch.cli.options import RunArguments

if TYPE_CHECKING:
    from pycontrol.simulation.outlook import Outlook

_NAMES = dict.fromkeys(("app_id", "name", "staging", "webhdfs", "hdfs_user", "arbiter"), "")
NOWHERE = {**_NAMES, "paths": {}, "worker": {"launch_cmd": "", "memory_mb": 0, "vcores": 0}}
"""What of a spec is not known before the submission, and says nothing of its work."""


PATIENCE_S = 1.0
"""How long a submission waits for its forecast once YARN has it."""


@dataclass(frozen=True, slots=True)
class Work:
    """The work of a submission. `steps`: of its rungs; `iterations`: of all trials at most, 0 if only its script
    knows."""

    spec: AppSpec
    trials: int
    steps: list[int]
    iterations: int

    @property
    def gpu_s(self) -> float:
        """The declared GPU-seconds; 0: one lease."""
        return (
            self.iterations * (self.spec.iteration_s or self.spec.guess_s) if self.iterations else self.spec.job_gpu_s
        )

    @property
    def told(self) -> bool:
        """Whether the user said how long it takes."""
        return bool(self.spec.hours or (self.iterations and self.spec.iteration_s))


def work_of(parsed: RunArguments) -> Work | None:
    """After all checks; None where an app scheduler of another distribution or a spec file decides it."""
    conf, gang_gpus = parsed.conf, gpus_of_job(parsed)
    if not gang_gpus:
        return None
    search = load_search_space(Path(conf["search_space"])) if conf.get("search_space") else None
    own = {"gpus_per_job": gang_gpus, "budget_iterations": conf.get("budget"), "conf": conf}
    spec = AppSpec.of({**NOWHERE, **own, "search_space": {"parameters": search}})
    planned = plan(spec)
    return Work(spec, *planned) if planned is not None else None


def declared(parsed: RunArguments) -> list[str]:
    """The lines for the user, after all checks."""
    work = work_of(parsed)
    if work is None:
        return []
    spec, iterations = work.spec, work.iterations
    lines = [_trials(work, parsed.session)] if spec.app_scheduler != "single" else []
    gpus, said = count(spec.gang_gpus, "GPU"), gpu_time(work.gpu_s)
    epochs = f" for {count(spec.epochs, 'epoch')}" if spec.epochs else ""
    if not iterations and not spec.hours:
        what = f"its {count(spec.epochs, 'epoch')} take" if epochs else "it trains"
        assumed = "its declared work is one lease of its GPUs, and it falls behind others once that is used"
        return [
            *lines,
            f"note: nothing says how long {what}, so {assumed}; with --hours H a job trains H hours on its GPUs",
        ]
    if not iterations:
        return [*lines, f"declared work: {said}, {spec.hours:g} h on {gpus}{epochs}"]
    if spec.iteration_s:
        return [*lines, f"declared work: {said}, {count(iterations, 'iteration')} of {spec.iteration_s:g} GPU-s"]
    if spec.hours:
        most = " at most" if work.trials > 1 else ""
        return [*lines, f"declared work: {said}, {spec.hours:g} h on {gpus} for a whole job{most}"]
    assumed = f"its declared work is {said}, 1 GPU-s each; with --hours H a whole job trains H hours on its GPUs"
    return [*lines, f"note: nothing says how long its {count(iterations, 'iteration')} take, so {assumed}"]


class Foresight:
    """When an app would start and end; computed in a thread while the app is being submitted."""

    def __init__(self, parsed: RunArguments, conf: Path) -> None:
        self._work, self._queue, self._conf = work_of(parsed), parsed.value("queue", "default"), conf
        self._found: Outlook | None = None
        self._now_s, self._problem = 0.0, "that takes longer than a second here"
        self._until_s = float("inf")
        self._thread = threading.Thread(target=self._look, name="isonomy-foresight", daemon=True)
        if self._work is not None:
            self._thread.start()

    def _look(self) -> None:
        from pycontrol.cli.client import Failure, Rm
        from pycontrol.cli.estimate import scene_at
        from pycontrol.model.auction import Demand
        from pycontrol.simulation.forecaster import ERROR, RUNS
        from pycontrol.simulation.outlook import NoOutlook, outlooks
        from pycontrol.simulation.scene import ASKED, with_app

        work = self._work
        assert work is not None
        try:
            client = Rm(rm_web_url(conf_dir=self._conf))
            scene = scene_at(client)
            queues = (q.path for q in scene.cluster.queues if q.leaf)
            queue = next(path for path in queues if f".{path}".endswith(f".{self._queue}"))
            gang = work.spec.gang_gpus
            jobs = work.trials if work.spec.app_scheduler != "optuna" else min(work.trials, work.spec.parallel)
            gangs = max(1, min(jobs, scene.topology.gpus // gang))
            work_gpu_s = work.gpu_s or scene.settings.lease_s * gang
            demand = Demand(gang, gangs, gang, work_gpu_s, work_gpu_s, scope=work.spec.scope)
            asked = with_app(scene, client.user, queue, demand)
            said = outlooks(asked, runs=RUNS, error=ERROR, only=ASKED, pause=self._in_time)
            self._found, self._now_s, self._problem = said[ASKED], scene.now_s, "later than a forecast looks ahead"
        except Exception as e:
            self._problem = str(e) if isinstance(e, Failure | ConfigError | NoOutlook) else repr(e)

    def _in_time(self) -> None:
        if time.monotonic() > self._until_s:
            raise TimeoutError(self._problem)

    def line(self) -> str:
        """In words; empty for an app without GPUs."""
        from pycontrol.cli.screens import estimate

        if self._work is None:
            return ""
        self._thread.join(PATIENCE_S)
        self._until_s = 0.0
        start_s, end_s = self.times.values()
        if start_s is None or start_s[1] is None:
            return f"when it starts is not known yet ({self._problem}); isonomy explain says it in a minute"
        end = estimate(None, end_s, 1, self._now_s) if end_s else "its end is not known: nobody said how long it trains"
        return f"{estimate(start_s, None, 0, self._now_s)}; {end}"

    @property
    def times(self) -> dict[str, Any]:
        """`start_s` and `end_s`, each 10, 50 and 90 % quantiles, Unix seconds; None where that is not known."""
        found, work = self._found, self._work
        told = found is not None and work is not None and work.told
        return {"start_s": found.start_s if found else None, "end_s": found.end_s if found and told else None}


def _trials(work: Work, session: bool) -> str:
    at = f", rungs at {', '.join(map(str, work.steps))}" if len(work.steps) > 1 else ""
    unit = "steps of the session" if session else "as the script's log counts them: batches, or epochs if it names none"
    return f"{count(work.trials, 'trial')}{at} iterations ({unit}), {work.iterations:,} in all at most"
