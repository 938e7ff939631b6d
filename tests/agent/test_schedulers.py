"""App schedulers: rungs, budgets, promotions, determinism, and configurations within their search space."""

from __future__ import annotations

import math
import random
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pycontrol.fairness.slowdown import Profiler
from submarine_patch.agent import schedulers
from submarine_patch.agent.schedulers.base import Scheduler
from submarine_patch.agent.schedulers.port import Profile, Verdict
from submarine_patch.agent.schedulers.rungs import RungScheduler, brackets_of
from submarine_patch.agent.schedulers.search_space import sample
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
    metric=st.sampled_from(["accuracy", "loss", "f1"]),
    seed=st.integers(0, 3),
)


def quality(job_id: str) -> float:
    return random.Random(job_id).random()


def run_to_end(scheduler: Scheduler, fails: float = 0.0, seed: int = 0) -> tuple[int, list[str]]:
    """The total number of trained iterations, and the history of events."""
    rng, steps, story = random.Random(seed), dict[str, int](), list[str]()
    while not scheduler.finished:
        job_id = rng.choice(scheduler.runnable())
        until = scheduler.until_step(job_id)
        if rng.random() < fails:
            scheduler.on_failure(job_id)
            story.append(f"{job_id} failed")
            continue
        assert steps.get(job_id, 0) < until, "each rung goes further"
        steps[job_id] = until
        verdict = scheduler.on_result(job_id, quality(job_id))
        story.append(f"{job_id} {until} {verdict}")
    return sum(steps.values()), story


@pytest.mark.parametrize(
    ("n", "first", "last", "counts", "steps"),
    [
        (9, 1, 9, [9, 3, 1], [1, 3, 9]),
        (27, 9, 27, [27, 9], [9, 27]),
        (4, 1, 27, [4, 1], [1, 27]),  # a single job cannot be compared
        (1, 1, 27, [1], [27]),
        (10, 1, 9, [10, 3, 1], [1, 3, 9]),
        (54, 1, 30, [54, 18, 6, 2], [1, 3, 9, 30]),  # rather than a rung of three steps
        (8, 33, 100, [8, 2], [33, 100]),
    ],
)
def test_a_bracket_keeps_one_job_in_eta_at_each_rung(
    n: int, first: int, last: int, counts: list[int], steps: list[int]
) -> None:
    spec = hyperband(app_scheduler="successive_halving", jobs=n, min_iterations=first, max_iterations=last)
    (bracket,) = brackets_of(spec)
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


def test_hyperband_has_the_rungs_of_the_paper_where_eta_does_not_divide_the_iterations() -> None:
    spec = hyperband(app_scheduler="hyperband", jobs=0, max_iterations=100)
    assert [(b.counts, b.steps) for b in brackets_of(spec)] == [
        ([81, 27, 9, 3, 1], [1, 3, 11, 33, 100]),
        ([34, 11, 3, 1], [3, 11, 33, 100]),
        ([15, 5, 1], [11, 33, 100]),
        ([8, 2], [33, 100]),
        ([5], [100]),
    ]


def test_the_best_of_a_rung_continue_and_the_best_of_all_wins() -> None:
    scheduler = schedulers.create(hyperband())
    for k, job_id in enumerate(list(scheduler.runnable())):
        verdict = scheduler.on_result(job_id, k / 10)
        assert verdict is (Verdict.PAUSE if k < 8 else Verdict.CONTINUE)
    assert scheduler.runnable() == ["job008", "job007", "job006"]
    assert scheduler.until_step("job008") == 3
    assert scheduler.on_result("job006", 0.99) is Verdict.PAUSE
    scheduler.on_failure("job007")
    assert scheduler.on_result("job008", 0.5) is Verdict.STOP
    assert scheduler.runnable() == ["job006"]
    scheduler.on_failure("job006")
    assert scheduler.finished
    assert scheduler.best() == "job006", "its last result still counts"


def test_a_loss_of_nan_is_the_worst() -> None:
    scheduler = schedulers.create(hyperband(metric="loss", jobs=2, eta=2, max_iterations=2))
    scheduler.on_result("job000", float("nan"))
    scheduler.on_result("job001", 9.0)
    assert scheduler.runnable() == ["job001"]


@pytest.mark.parametrize(
    ("metric", "mode", "best"),
    [("f1", "", "job001"), ("f1", "max", "job001"), ("val_loss", "min", "job000"), ("loss", "", "job000")],
)
def test_the_better_job_continues_under_either_mode_of_the_metric(metric: str, mode: str, best: str) -> None:
    scheduler = schedulers.create(hyperband(metric=metric, mode=mode, jobs=2, eta=2, max_iterations=2))
    scheduler.on_result("job000", 0.2)
    scheduler.on_result("job001", 0.4)
    assert scheduler.runnable() == [best]


def test_figure_7_gives_phases_and_jobs() -> None:
    scheduler = schedulers.create(hyperband())
    profile = Profile(Profiler(2.0, (1.0, 1.1, 1.3)), {"job000": 0})
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


@given(SPECS)
def test_iterations_spent_are_those_planned(spec: AppSpec) -> None:
    scheduler = RungScheduler(spec)
    spent, _ = run_to_end(scheduler)
    assert spent == sum(b.iterations for b in scheduler.brackets)
    assert scheduler.best() is not None


@given(st.integers(0, 1000))
def test_samples_are_in_the_space_and_depend_only_on_the_seed(seed: int) -> None:
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


def test_a_launch_command_gets_the_configuration_at_its_placeholders_or_at_its_end() -> None:
    configuration = {"rate": "0.1", "name": "a b"}
    assert spec_of(launch_cmd="x --lr %rate%").command(configuration) == "x --lr 0.1"
    assert spec_of(launch_cmd="x %hyperparameters% y").command(configuration) == "x --rate 0.1 --name 'a b' y"
    assert spec_of(launch_cmd="x").command(configuration) == "x --rate 0.1 --name 'a b'"
    assert spec_of(launch_cmd="x").command({}) == "x"
    assert sample(SPACE, random.Random(0)).keys() == {"rate"}


class TestAsha:
    def test_a_job_among_the_best_third_so_far_continues_immediately(self) -> None:
        scheduler = schedulers.create(hyperband(app_scheduler="asha"))
        assert scheduler.runnable() == [f"job{k:03d}" for k in range(9)]
        assert scheduler.on_result("job000", 0.5) is Verdict.PAUSE
        assert scheduler.on_result("job001", 0.6) is Verdict.PAUSE
        assert scheduler.on_result("job002", 0.4) is Verdict.PAUSE
        assert scheduler.runnable()[0] == "job001", "the best of three continues while six train"
        assert (scheduler.until_step("job001"), scheduler.rung("job001")) == (3, 1)
        assert scheduler.until_step("job003") == 1

    def test_the_best_job_continues_if_too_few_are_left(self) -> None:
        scheduler = schedulers.create(hyperband(app_scheduler="asha", jobs=3))
        scheduler.on_result("job000", 0.5)
        scheduler.on_failure("job001")
        assert scheduler.on_result("job002", 0.6) is Verdict.CONTINUE
        assert scheduler.on_result("job002", 0.7) is Verdict.CONTINUE
        assert scheduler.until_step("job002") == 9
        assert scheduler.on_result("job002", 0.8) is Verdict.STOP
        assert scheduler.finished
        assert scheduler.best() == "job002"

    def test_the_budget_holds_with_one_rung(self) -> None:
        spec = hyperband(app_scheduler="asha", eta=4, max_iterations=3, min_iterations=0, jobs=17, budget_iterations=50)
        assert len(schedulers.create(spec).runnable()) == 16

    def test_the_budget_holds_if_each_job_beats_the_previous_ones(self) -> None:
        def spent(budget: int) -> int:
            scheduler, steps, good = (
                schedulers.create(hyperband(app_scheduler="asha", budget_iterations=budget)),
                {},
                0.0,
            )
            while not scheduler.finished:
                job_id = min(scheduler.runnable(), key=lambda j: (steps.get(j, 0), j))
                steps[job_id], good = scheduler.until_step(job_id), good + 0.01
                scheduler.on_result(job_id, good)
            assert max(steps.values()) == 9, "one job trains all the way"
            return sum(steps.values())

        assert spent(21) <= 21 < spent(0)

    def test_figure_7_expects_a_third_of_each_rung_to_continue(self) -> None:
        scheduler = schedulers.create(hyperband(app_scheduler="asha"))
        profile = Profile(Profiler(2.0), {})
        phases = [scheduler.jobs_in_phase(p, profile) for p in range(scheduler.num_phases())]
        assert [(len(p), p[0].iters_remaining) for p in phases] == [(9, 1), (3, 2), (1, 6)]


def train_together(scheduler: Scheduler, ends: dict[str, float], steps: int) -> dict[str, int]:
    """Trains all jobs in step towards these accuracies; returns the steps that each was given."""
    given_steps = dict.fromkeys(ends, 0)
    for step in range(1, steps + 1):
        for job_id in scheduler.runnable():
            given_steps[job_id] = step
            good = ends[job_id] * (1 - 0.9**step)
            if step == steps:
                scheduler.on_result(job_id, good)
            else:
                scheduler.on_progress(job_id, step, good)
    return given_steps


def test_median_stopping_ends_the_worse_half_after_the_grace() -> None:
    scheduler = schedulers.create(hyperband(app_scheduler="median", jobs=6, max_iterations=50, min_iterations=10))
    ends = {f"job{k:03d}": 0.1 + 0.15 * k for k in range(6)}
    steps = train_together(scheduler, ends, 50)
    assert 10 <= steps["job000"] <= 12
    assert steps["job005"] == 50
    assert scheduler.best() == "job005"


def test_a_job_whose_curve_cannot_win_is_stopped_and_a_late_one_that_can_is_not() -> None:
    scheduler = schedulers.create(hyperband(app_scheduler="curve", jobs=3, max_iterations=60))
    slow = {"job000": (0.5, 3), "job001": (0.95, 25), "job002": (0.3, 3)}
    steps = dict.fromkeys(slow, 0)
    for step in range(1, 60):
        for job_id in scheduler.runnable():
            end, speed = slow[job_id]
            steps[job_id] = step
            good = end * (1 - math.exp(-step / speed))
            scheduler.on_progress(job_id, step, good)
    assert steps["job002"] < 20
    assert steps["job000"] < 59
    assert steps["job001"] == 59, "behind for long, but its curve wins"
    assert scheduler.best() == "job001"


@pytest.mark.parametrize("every", [100, 1])
def test_how_often_jobs_report_does_not_decide_which_are_stopped(every: int) -> None:
    scheduler = schedulers.create(hyperband(app_scheduler="median", jobs=5, max_iterations=2000, min_iterations=1000))
    ends = {f"job{k:03d}": 0.6 + 0.1 * k for k in range(5)}
    for step in range(every, 2000, every):
        for job_id in scheduler.runnable():
            scheduler.on_progress(job_id, step, ends[job_id] * step / 2000)
    assert scheduler.runnable() == sorted(ends), (
        "the best values are above the running averages, halves of the others' best ones"
    )


def test_a_best_value_counts_long_after_it_was_reported_and_after_a_restart() -> None:
    spec = hyperband(app_scheduler="median", jobs=4, max_iterations=1000)
    scheduler = schedulers.create(spec)
    for step in range(1, 1000):
        for job_id in scheduler.runnable():
            scheduler.on_progress(
                job_id, step, 0.9 if (job_id, step) == ("job000", 42) else 0.2 + 0.1 * int(job_id[3:])
            )
        if step == 500:
            saved = scheduler.dump()
            scheduler = schedulers.create(spec)
            scheduler.restore(saved)
    assert scheduler.runnable() == ["job000", "job002", "job003"]


def test_a_state_of_before_best_values_were_kept_is_taken_over() -> None:
    spec = hyperband(app_scheduler="median", jobs=4, max_iterations=100)
    before, scheduler = (schedulers.create(spec) for _ in range(2))
    for step in range(1, 20):
        for job_id in before.runnable():
            before.on_progress(job_id, step, 0.9 if (job_id, step) == ("job000", 5) else 0.5)
    scheduler.restore({name: of for name, of in before.dump().items() if name != "peaks"})
    for step in (10, 20, 30):
        for job_id in scheduler.runnable():
            scheduler.on_progress(job_id, step, 0.4 if job_id == "job000" else 0.5)
    assert "job000" in scheduler.runnable()


def test_a_job_is_not_stopped_for_falling_behind_its_own_best() -> None:
    scheduler = schedulers.create(hyperband(app_scheduler="curve", jobs=2, max_iterations=60))
    for step in range(1, 40):
        for job_id, good in {"job000": 0.9 if step >= 37 else 0.2, "job001": 0.1}.items():
            if job_id in scheduler.runnable():
                scheduler.on_progress(job_id, step, good)
    assert scheduler.runnable() == ["job000"]


def test_a_target_ends_the_app_and_bounds_what_is_left() -> None:
    spec = hyperband(app_scheduler="curve", jobs=3, max_iterations=400, target=0.6)
    scheduler = schedulers.create(spec)
    profile = Profile(Profiler(1.0), {})
    for step in range(1, 61):
        for job_id, end in {"job000": 0.9, "job001": 0.8, "job002": 0.2}.items():
            if job_id in scheduler.runnable():
                good = end * (1 - math.exp(-step / 80))
                scheduler.on_progress(job_id, step, good)
    assert scheduler.runnable() == ["job000", "job001"], "one never meets the target"
    left = [j.iters_remaining for j in scheduler.jobs_remaining(profile)]
    assert left == pytest.approx([88, 111], rel=0.25)
    assert max(left) < 400
    for step in range(61, 100):
        if not scheduler.finished:
            scheduler.on_progress("job000", step, 0.9 * (1 - math.exp(-step / 80)))
    assert scheduler.finished
    assert scheduler.best() == "job000"


class TestOptuna:
    def test_tpe_finds_better_configurations_than_chance(self) -> None:
        pytest.importorskip("optuna")
        space = {"parameters": {"x": {"type": "float", "min": 0, "max": 1}, "y": {"type": "float", "min": 0, "max": 1}}}

        def miss(sampler: str, seed: int) -> float:
            spec = hyperband(
                app_scheduler="optuna", sampler=sampler, search_space=space, jobs=40, seed=seed, parallel=2
            )
            scheduler, found = schedulers.create(spec), []
            while not scheduler.finished:
                job_id = scheduler.runnable()[0]
                at = scheduler.configuration(job_id)
                found.append(abs(float(at["x"]) - 0.3) + abs(float(at["y"]) - 0.8))
                scheduler.on_result(job_id, 1 - found[-1])
            assert len(found) == 40
            return sum(found[20:])

        assert sum(miss("tpe", s) for s in range(3)) < 0.6 * sum(miss("random", s) for s in range(3))

    @pytest.mark.parametrize(
        ("sampler", "absent", "says"),
        [
            ("tpe", "optuna", r"pip install 'isonomy\[optuna\]'"),
            ("gp", "torch", r"sampler=gp needs torch.* pip install 'isonomy\[optuna\] torch'"),
        ],
    )
    def test_without_the_extra_the_error_names_it(
        self, sampler: str, absent: str, says: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(sys.modules, absent, None)
        with pytest.raises(schedulers.SchedulerError, match=says):
            schedulers.create(hyperband(app_scheduler="optuna", sampler=sampler))
