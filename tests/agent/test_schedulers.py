"""App schedulers: rungs, budgets, promotions, determinism; configurations inside their space."""

from __future__ import annotations

import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pycontrol.fairness.slowdown import Profiler
from submarine_patch.agent import schedulers
from submarine_patch.agent.profiler import JobProfile
from submarine_patch.agent.schedulers.port import AppScheduler, Verdict
from submarine_patch.agent.schedulers.rungs import RungScheduler, brackets_of, halving
from submarine_patch.agent.schedulers.space import sample
from submarine_patch.agent.spec import AppSpec
from tests.agent.world import SPACE, hyperband, spec_of

SPECS = st.builds(
    lambda **changes: hyperband(**changes),
    app_scheduler=st.sampled_from(["hyperband", "successive_halving", "single"]),
    eta=st.integers(2, 4),
    max_iterations=st.integers(1, 90),
    min_iterations=st.integers(0, 10),
    jobs=st.integers(0, 30),
    budget_iterations=st.integers(0, 400),
    metric=st.sampled_from(["accuracy", "loss"]),
    seed=st.integers(0, 3),
)


def quality(job_id: str) -> float:
    return random.Random(job_id).random()


def run_to_end(scheduler: AppScheduler, fails: float = 0.0, seed: int = 0) -> tuple[int, list[str]]:
    """Iterations trained in all, and the story."""
    rng, steps, story = random.Random(seed), dict[str, int](), list[str]()
    while not scheduler.finished:
        job_id = rng.choice(scheduler.runnable())
        until = scheduler.until_step()
        if rng.random() < fails:
            scheduler.on_failure(job_id)
            story.append(f"{job_id} failed")
            continue
        assert steps.get(job_id, 0) < until, "each rung goes further"
        steps[job_id] = until
        verdict = scheduler.on_result(job_id, 1 - quality(job_id), quality(job_id))
        story.append(f"{job_id} {until} {verdict}")
    return sum(steps.values()), story


@pytest.mark.parametrize(
    ("n", "first", "last", "counts", "steps"),
    [
        (9, 1, 9, [9, 3, 1], [1, 3, 9]),
        (27, 9, 27, [27, 9], [9, 27]),
        (4, 1, 27, [4, 1], [1, 27]),  # one job alone has nobody to be compared with
        (1, 1, 27, [1], [27]),
        (10, 1, 9, [10, 3, 1], [1, 3, 9]),
    ],
)
def test_halving(n: int, first: int, last: int, counts: list[int], steps: list[int]) -> None:
    bracket = halving(n, first, last, 3)
    assert (bracket.counts, bracket.steps) == (counts, steps)


def test_hyperband_has_the_brackets_of_the_paper() -> None:
    spec = hyperband(app_scheduler="hyperband", jobs=0, max_iterations=81)
    assert [(b.counts, b.steps) for b in brackets_of(spec)] == [
        ([81, 27, 9, 3, 1], [1, 3, 9, 27, 81]),
        ([34, 11, 3, 1], [3, 9, 27, 81]),
        ([15, 5, 1], [9, 27, 81]),
        ([8, 2], [27, 81]),
        ([5], [81]),
    ]


def test_the_best_of_a_rung_go_on_and_the_best_of_all_wins() -> None:
    scheduler = schedulers.create(hyperband())
    for k, job_id in enumerate(list(scheduler.runnable())):
        verdict = scheduler.on_result(job_id, 0.0, k / 10)
        assert verdict is (Verdict.PAUSE if k < 8 else Verdict.CONTINUE)
    assert scheduler.runnable() == ["job008", "job007", "job006"]
    assert scheduler.until_step() == 3
    assert scheduler.on_result("job006", 0.0, 0.99) is Verdict.PAUSE
    scheduler.on_failure("job007")
    assert scheduler.on_result("job008", 0.0, 0.5) is Verdict.STOP
    assert scheduler.runnable() == ["job006"]
    scheduler.on_failure("job006")
    assert scheduler.finished
    assert scheduler.best() == "job006", "its last result still counts"


def test_a_loss_that_is_no_number_is_the_worst() -> None:
    scheduler = schedulers.create(hyperband(metric="loss", jobs=2, eta=2, max_iterations=2))
    scheduler.on_result("job000", float("nan"), 0.0)
    scheduler.on_result("job001", 9.0, 0.0)
    assert scheduler.runnable() == ["job001"]


def test_figure_7_tells_phases_and_jobs() -> None:
    scheduler = schedulers.create(hyperband())
    profile = JobProfile(Profiler(2.0, (1.0, 1.1, 1.3)), {"job000": 0})
    assert scheduler.num_phases() == 3
    phases = [scheduler.jobs_in_phase(p, profile) for p in range(3)]
    assert [(len(p), p[0].iters_remaining, p[0].serial_s) for p in phases] == [(9, 1, 2.0), (3, 2, 4.0), (1, 6, 12.0)]
    assert phases[0][0].locality_sensitivity == pytest.approx(1.1)


@given(SPECS)
def test_the_budget_is_kept(spec: AppSpec) -> None:
    brackets = brackets_of(spec)
    spent = sum(b.iterations for b in brackets)
    if spec.app_scheduler != "single":
        assert spent <= (spec.budget_iterations or spent)
        assert sum(b.counts[0] for b in brackets) <= (spec.jobs or 1 << 30)
    for b in brackets:
        assert b.steps == sorted(set(b.steps))
        assert b.counts == sorted(b.counts, reverse=True)


@given(SPECS, st.floats(0, 0.4), st.integers(0, 5))
def test_it_ends_is_deterministic_and_goes_on_equally_from_its_saved_state(
    spec: AppSpec, fails: float, seed: int
) -> None:
    scheduler = RungScheduler(spec)
    rng = random.Random(seed)
    for _ in range(rng.randint(0, 20)):
        if not scheduler.finished:
            scheduler.on_result(scheduler.runnable()[0], 0.1, quality(scheduler.runnable()[0]))
    again = schedulers.create(spec, json.loads(json.dumps(scheduler.dump())))
    assert again.dump() == scheduler.dump()
    spent, story = run_to_end_from(scheduler, fails, seed)
    assert (spent, story) == run_to_end_from(again, fails, seed)
    assert scheduler.best() == again.best()


def run_to_end_from(scheduler: AppScheduler, fails: float, seed: int) -> tuple[int, list[str]]:
    return run_to_end(scheduler, fails, seed)


@given(SPECS)
def test_iterations_spent_are_those_planned(spec: AppSpec) -> None:
    scheduler = RungScheduler(spec)
    spent, _ = run_to_end(scheduler)
    assert spent == sum(b.iterations for b in scheduler.brackets)
    assert scheduler.best() is not None


@given(st.integers(0, 1000))
def test_samples_lie_in_the_space_and_depend_on_the_seed_alone(seed: int) -> None:
    space = {
        "parameters": {
            "rate": {"type": "float", "min": 0.001, "max": 0.1, "log": True},
            "layers": {"type": "int", "min": 1, "max": 3},
            "batch": {"type": "choice", "values": [32, 64]},
        }
    }
    drawn = sample(space, random.Random(seed))
    assert 0.001 <= float(drawn["rate"]) <= 0.1
    assert int(drawn["layers"]) in (1, 2, 3)
    assert drawn["batch"] in ("32", "64")
    assert drawn == sample(space, random.Random(seed))


def test_a_launch_command_gets_the_configuration_where_it_says_or_at_its_end() -> None:
    configuration = {"rate": "0.1", "name": "a b"}
    assert spec_of(launch_cmd="x --lr %rate%").command(configuration) == "x --lr 0.1"
    assert spec_of(launch_cmd="x %hyperparameters% y").command(configuration) == "x --rate 0.1 --name 'a b' y"
    assert spec_of(launch_cmd="x").command(configuration) == "x --rate 0.1 --name 'a b'"
    assert spec_of(launch_cmd="x").command({}) == "x"
    assert sample(SPACE, random.Random(0)).keys() == {"rate"}
