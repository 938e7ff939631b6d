"""Search with optuna's samplers: a few jobs run in parallel to their end, and their results guide the next ones."""

from __future__ import annotations

import importlib
import math
import random
import warnings
from collections.abc import Mapping
from typing import Any

from submarine_patch.agent.schedulers.base import WholeRuns, whole_runs
from submarine_patch.agent.schedulers.port import SchedulerError
from submarine_patch.agent.schedulers.search_space import parameters_of, range_of, text
from submarine_patch.agent.spec import AppSpec

STARTUP = 10
"""Jobs drawn at random before a sampler uses results, but at most a third of all."""
NEEDS = {
    "tpe": ("optuna", "isonomy[optuna]"),
    "random": ("optuna", "isonomy[optuna]"),
    "gp": ("torch", "isonomy[optuna] torch"),
}
"""By sampler: the module that it needs besides optuna, and what to install."""


def load_optuna(sampler: str) -> Any:
    """The module optuna, with its log reduced to errors; raises SchedulerError that says what to install."""
    module, packages = NEEDS[sampler]
    try:
        importlib.import_module(module)
        optuna = importlib.import_module("optuna")
    except ImportError as e:
        raise SchedulerError(
            f"isonomy.app_scheduler=optuna with isonomy.sampler={sampler} needs {e.name}, which is not installed where"
            f" the Agent runs: pip install '{packages}', or choose another scheduler"
        ) from e
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna


class OptunaSearch(WholeRuns):
    """Search with optuna; a suggestion depends only on the results so far, the running jobs and the seed."""

    def __init__(self, spec: AppSpec) -> None:
        super().__init__(spec)
        self.optuna = load_optuna(spec.sampler)
        self.total = whole_runs(spec)
        self._fill()

    def _fill(self) -> None:
        while len(self.open) < self.spec.parallel and len(self.configurations) < self.total:
            self.open.append(self.suggest())

    def close(self, job_id: str) -> None:
        """End a job, and start another in its place."""
        super().close(job_id)
        self._fill()

    # ---- optuna

    def _draw(self, index: int) -> dict[str, str]:
        parameters = parameters_of(self.spec.search_space)
        space = {name: self._distribution(parameters[name]) for name in sorted(parameters)}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about options that optuna calls experimental
            study = self.optuna.create_study(direction="maximize", sampler=self._sampler(index))
            study.add_trials([t for job_id in self.configurations if (t := self._trial(job_id, space)) is not None])
            drawn = study.ask(space).params
        return {n: str(drawn[n]) if parameters[n]["type"] == "choice" else text(parameters[n], drawn[n]) for n in space}

    def _sampler(self, index: int) -> Any:
        seed = random.Random(f"{self.spec.seed}/{index}").randrange(1 << 31)
        startup = min(STARTUP, max(1, whole_runs(self.spec) // 3))
        samplers = self.optuna.samplers
        match self.spec.sampler:
            case "random":
                return samplers.RandomSampler(seed=seed)
            case "gp":
                return samplers.GPSampler(seed=seed, n_startup_trials=startup)
            case _:
                return samplers.TPESampler(seed=seed, n_startup_trials=startup, constant_liar=True)

    def _distribution(self, p: Mapping[str, Any]) -> Any:
        kinds, log = self.optuna.distributions, bool(p.get("log"))
        if p["type"] == "choice":
            return kinds.CategoricalDistribution(list(dict.fromkeys(map(str, p["values"]))))
        low, high = range_of(p)
        if p["type"] == "int":
            return kinds.IntDistribution(int(low), int(high), log=log)
        return kinds.FloatDistribution(float(low), float(high), log=log)

    def _trial(self, job_id: str, space: Mapping[str, Any]) -> Any:
        """A job as an optuna trial, complete or running; None if it ended without a result."""
        state = self.optuna.trial.TrialState
        good = self.scores.get(job_id, (0, -math.inf))[1]
        complete = math.isfinite(good)
        if not complete and job_id not in self.open:
            return None
        said = self.configurations[job_id]
        kinds = self.optuna.distributions
        read = {kinds.IntDistribution: int, kinds.FloatDistribution: float, kinds.CategoricalDistribution: str}
        return self.optuna.trial.create_trial(
            state=state.COMPLETE if complete else state.RUNNING,
            params={name: read[type(space[name])](said[name]) for name in space},
            distributions=dict(space),
            value=good if complete else None,
        )

    # ---- Figure 7

    def widest(self) -> int:
        return min(self.spec.parallel, self.total)

    def later(self) -> list[tuple[int, int]]:
        """(jobs, iterations each) of the later batches of parallel jobs."""
        starts = range(len(self.configurations), self.total, self.spec.parallel)
        return [(min(self.spec.parallel, self.total - at), self.spec.max_iterations) for at in starts]
