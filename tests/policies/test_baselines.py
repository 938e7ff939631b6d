"""The order of each baseline: a table of cases for each policy, and where DRF and LAS fail (Themis, section 3.1)."""

from __future__ import annotations

import random
from typing import Any

import pytest

from pycontrol.lab.conformance.snapshots import QUEUES, app, snapshot
from pycontrol.lab.policies.variants import make
from pycontrol.model.auction import AppView, Gang, Plan, Snapshot
from pycontrol.model.bounds import LONGEST_S
from pycontrol.model.cluster import Queue
from pycontrol.model.topology import Machine, Scope, Topology
from pycontrol.policies import registry

FLAT, SHARP = (1.0, 1.0, 1.0), (1.0, 1.5, 2.5)


def gang(**gpus: int) -> Gang:
    """GPUs of a gang by host."""
    return tuple(sorted(gpus.items()))


def gangs_of(name: str, s: Snapshot, seed: int = 0, **options: Any) -> dict[str, list[Gang]]:
    """The gangs that each app gets."""
    plan: Plan = make(name, **options).decide(s, {}, random.Random(seed))
    return {a.app_id: list(a.gangs) for a in plan.awards}


def gpus_of(name: str, *apps: AppView, **options: Any) -> dict[str, int]:
    """GPUs by app when two are free."""
    got = gangs_of(name, snapshot(*apps, free={"n3": 2}), **options)
    return {a: sum(n for g in gangs for _, n in g) for a, gangs in got.items()}


CASES = [
    ("drf", {}, "the fewest GPUs first", [app("a", retained_gpus=2, gangs=9), app("b", gangs=9)], {"b": 2}),
    ("drf", {}, "equals share", [app("a", gangs=9), app("b", gangs=9)], {"a": 1, "b": 1}),
    ("tiresias", {}, "the least service first", [app("a", attained_gpu_s=9000.0), app("b")], {"b": 2}),
    (
        "tiresias",
        {},
        "what it wins counts at once",
        [app("a", attained_gpu_s=500.0, gangs=9), app("b", gangs=9)],
        {"a": 1, "b": 1},
    ),
    (
        "tiresias",
        {"greedy": True},
        "the first takes all that it can use",
        [app("a", attained_gpu_s=500.0, gangs=9), app("b", gangs=9)],
        {"b": 2},
    ),
    (
        "tiresias",
        {"threshold_gpu_s": 5000.0},
        "in a queue, who came first",
        [app("a", attained_gpu_s=500.0), app("b", submitted_s=1.0)],
        {"a": 2},
    ),
    (
        "tiresias",
        {"threshold_gpu_s": 5000.0},
        "the first queue before the second",
        [app("a", attained_gpu_s=6000.0), app("b", submitted_s=1.0)],
        {"b": 2},
    ),
    (
        "tiresias",
        {"threshold_gpu_s": 0.5},
        "a GPU leads out of a short first queue",
        [app("a", attained_gpu_s=0.6), app("b", submitted_s=1.0)],
        {"a": 1, "b": 1},
    ),
    ("slaq", {}, "the steepest loss first", [app("a", loss_rate=1e-4), app("b", loss_rate=1e-3)], {"b": 2}),
    ("slaq", {}, "unknown comes last", [app("a"), app("b", loss_rate=1e-9)], {"b": 2}),
    (
        "srsf",
        {},
        "the least work left",
        [app("a", work_left_gpu_s=4000.0, gangs=4), app("b", work_left_gpu_s=2000.0)],
        {"b": 2},
    ),
    (
        "srtf",
        {},
        "the least time left with the offer",
        [app("a", work_left_gpu_s=3000.0, gangs=2), app("b", work_left_gpu_s=2000.0, gangs=1)],
        {"a": 2},
    ),
    (
        "srtf",
        {},
        "slowdown where the offer lies counts",
        [
            app("a", 4, 1, work_left_gpu_s=2000.0, slowdown=SHARP, retained_gpus=0),
            app("b", 2, 1, work_left_gpu_s=2500.0),
        ],
        {"b": 2},
    ),
    ("optimus", {}, "who has nothing first", [app("a", retained_gpus=1, gangs=9), app("b")], {"b": 1, "a": 1}),
    (
        "optimus",
        {},
        "the largest ratio of throughput",
        [app("a", retained_gpus=4, gangs=9, work_left_gpu_s=90000.0), app("b", retained_gpus=1, gangs=9)],
        {"b": 2},
    ),
    (
        "optimus",
        {"gain": "time"},
        "the largest cut of remaining time",
        [app("a", retained_gpus=4, gangs=9, work_left_gpu_s=90000.0), app("b", retained_gpus=1, gangs=9)],
        {"a": 2},
    ),
    (
        "gandiva",
        {},
        "who runs slower far apart first",
        [app("a", 2, 1, slowdown=FLAT), app("b", 2, 1, slowdown=SHARP)],
        {"b": 2},
    ),
    ("gandiva", {}, "among equals who came first", [app("a", submitted_s=1.0), app("b")], {"b": 2}),
    ("max_min", {}, "the fewest GPUs first", [app("a", retained_gpus=2, gangs=9), app("b", gangs=9)], {"b": 2}),
    ("yarn_cs", {}, "who came first", [app("a", submitted_s=1.0), app("b")], {"b": 2}),
    (
        "yarn_cs",
        {},
        "a gang that fits goes ahead of one that does not",
        [app("a", 4, 1), app("b", 2, 1, submitted_s=1.0)],
        {"b": 2},
    ),
]


@pytest.mark.parametrize(
    ("name", "options", "apps", "gpus"),
    [pytest.param(n, o, apps, gpus, id=f"{n}: {text}") for n, o, text, apps, gpus in CASES],
)
def test_two_free_gpus_go_to(name: str, options: dict[str, Any], apps: list[AppView], gpus: dict[str, int]) -> None:
    assert gpus_of(name, *apps, **options) == gpus


def in_queues(*apps: AppView, free: dict[str, int]) -> Snapshot:
    """Queue a has 60 % of 13 GPUs (7.8), b 40 % (5.2)."""
    s = snapshot(*apps, free=free)
    return Snapshot(s.round_id, s.now_s, s.topology, s.free, s.apps, queues=QUEUES)


def test_max_min_weighs_queues_before_apps() -> None:
    """Queue a: one app with 4 GPUs, 51 % of its share; b: three apps with 3, 58 %."""
    apps = [app("a", retained_gpus=4, gangs=9), *(app(f"b{i}", retained_gpus=1, queue="root.b") for i in range(3))]
    assert gangs_of("max_min", in_queues(*apps, free={"n3": 1})) == {"a": [gang(n3=1)]}
    assert gangs_of("drf", in_queues(*apps, free={"n3": 1})) == {"b0": [gang(n3=1)]}


def test_max_min_serves_a_queue_without_capacity_last() -> None:
    s = snapshot(app("a", queue="root.zero"), app("b", gangs=1), free={"n3": 2})
    queues = {"root.zero": Queue("root.zero", 0.0), "root.a": Queue("root.a", 1.0)}
    s = Snapshot(s.round_id, s.now_s, s.topology, s.free, s.apps, queues=queues)
    assert gangs_of("max_min", s) == {"b": [gang(n3=1)], "a": [gang(n3=1)]}


HELD = (gang(n1=2), gang(n2=2), gang(n3=2))


@pytest.mark.parametrize(
    ("waits", "expected"),
    [
        pytest.param([], {"b": [*HELD]}, id="beyond its capacity a queue keeps what nobody needs"),
        pytest.param(
            [app("a", 2, 9)],
            {"b": [*HELD[:2]], "a": [HELD[2]]},
            id="what runs beyond capacity yields to a queue below its own, what runs within stays",
        ),
        pytest.param(
            [app("b0", 2, 9, queue="root.b", submitted_s=-1.0)],
            {"b": [*HELD]},
            id="who came first does not displace what runs in its queue",
        ),
    ],
)
def test_yarn_cs_takes_back_at_a_leases_end(waits: list[AppView], expected: dict[str, list[Gang]]) -> None:
    """Queue b holds 6 GPUs; its capacity is 5.2."""
    b = app("b", 2, 3, queue="root.b", ending_gangs=HELD)
    assert gangs_of("yarn_cs", in_queues(b, *waits, free={"n1": 2, "n2": 2, "n3": 2})) == expected


@pytest.mark.parametrize(
    ("free", "options", "where"),
    [
        pytest.param({"n1": 2}, {}, gang(n1=2), id="to one machine that has room"),
        pytest.param({"n1": 2}, {"restart_s": 250.0}, gang(n3=1, n4=1), id="not where a restart costs more"),
        pytest.param({"n1": 2}, {"restart_s": LONGEST_S}, gang(n3=1, n4=1), id="not if moves are off"),
        pytest.param({"n1": 1, "n2": 1}, {}, gang(n3=1, n4=1), id="not to a place as bad"),
        pytest.param({}, {}, gang(n3=1, n4=1), id="not without room"),
    ],
)
def test_gandiva_moves_a_badly_placed_gang(free: dict[str, int], options: dict[str, float], where: Gang) -> None:
    """It runs on two machines, 1.5 times slower than on one."""
    view = app("a", 2, 1, ending_gangs=(gang(n3=1, n4=1),), slowdown=SHARP)
    assert gangs_of("gandiva", snapshot(view, free={**free, "n3": 1, "n4": 1}), **options) == {"a": [where]}


def test_gpus_that_a_move_frees_go_to_another_app() -> None:
    """App b needs two GPUs of one machine: there are none while a is spread over both."""
    a = app("a", 2, 1, ending_gangs=(gang(n3=1, n4=1),), slowdown=SHARP)
    b = app("b", 2, 1, scope=Scope.MACHINE, slowdown=FLAT)
    s = snapshot(a, b, free={"n3": 2, "n4": 2})
    assert gangs_of("gandiva", s) == {"a": [gang(n3=2)], "b": [gang(n4=2)]}
    assert gangs_of("gandiva", s, restart_s=LONGEST_S) == {"a": [gang(n3=1, n4=1)]}


@pytest.mark.parametrize(("packing", "where"), [("tight", gang(n2=4)), ("first", gang(n1=1, n2=3)), ("random", None)])
def test_packing_options_place_gangs_differently(packing: str, where: Gang | None) -> None:
    s = snapshot(app("a", 4, 1), free={"n1": 1, "n2": 4, "n3": 2})
    places = {gangs_of("drf", s, seed, packing=packing)["a"][0] for seed in range(20)}
    assert places == {where} if where else len(places) > 2


def test_random_ties_differ_by_seed() -> None:
    s = snapshot(*(app(f"a{i}") for i in range(5)), free={"n5": 1})
    assert len({next(iter(gangs_of("gandiva", s, seed, ties="random"))) for seed in range(20)}) > 2


class TestStaysInPlace:
    """Restarts are rare: the order decides which apps run, not which ones move."""

    def test_a_job_late_in_the_order_that_is_entitled_stays(self) -> None:
        late = app("late", 2, 1, ending_gangs=(gang(n3=2),), attained_gpu_s=9000.0)
        got = gangs_of("tiresias", snapshot(app("new", 2, 1), late, free={"n1": 4, "n3": 2}))
        assert got == {"new": [gang(n1=2)], "late": [gang(n3=2)]}, "n3 would have been the tighter fit"

    def test_a_job_that_is_not_entitled_makes_room(self) -> None:
        late = app("late", 2, 1, ending_gangs=(gang(n3=2),), attained_gpu_s=9000.0)
        assert gangs_of("tiresias", snapshot(app("new", 2, 1), late, free={"n3": 2})) == {"new": [gang(n3=2)]}

    def test_a_large_gang_ahead_displaces_the_last_in_the_order(self) -> None:
        """Four GPUs of one machine: one of the others must move, though both are entitled to stay."""
        large = app("large", 4, 1, scope=Scope.MACHINE)
        middle = app("middle", 1, 1, ending_gangs=(gang(n1=1),), attained_gpu_s=100.0)
        last = app("last", 1, 1, ending_gangs=(gang(n2=1),), attained_gpu_s=200.0)
        got = gangs_of("tiresias", snapshot(large, middle, last, free={"n1": 4, "n2": 4}))
        assert got == {"large": [gang(n2=4)], "middle": [gang(n1=1)], "last": [gang(n1=1)]}


VGG, INCEPTION = (1.0, 1.29, 1.29), FLAT
"""Slowdown of VGG16 on two servers (Themis, Table 1: 103.6 and 80.4 images/s); Inception-v3 has none."""


@pytest.mark.parametrize("name", ["drf", "tiresias"])
def test_drf_and_las_split_both_apps_over_both_machines(name: str) -> None:
    """Themis, section 3.1, first example: equal GPUs for two VGG16 apps of 4 tasks, and each is 1.29 times slower."""
    two = Topology.of([Machine("n1", "a", 4), Machine("n2", "a", 4)])
    got = gangs_of(name, snapshot(*(app(a, 1, 4, slowdown=VGG) for a in "ab"), top=two))
    for gangs in got.values():
        assert len(gangs) == 4
        assert {h for g in gangs for h, _ in g} == {"n1", "n2"}


@pytest.mark.parametrize(
    ("name", "vgg16"), [("drf", gang(n2=2, n3=2)), ("tiresias", gang(n2=2, n3=2)), ("gandiva", gang(n1=4))]
)
def test_drf_and_las_ignore_which_app_needs_the_large_machine(name: str, vgg16: Gang) -> None:
    """Second example: one machine of 4 and two of 2. Inception-v3 came first and is insensitive to placement."""
    top = Topology.of([Machine("n1", "a", 4), Machine("n2", "a", 2), Machine("n3", "a", 2)])
    inception = app("inception", 4, 1, slowdown=INCEPTION)
    got = gangs_of(name, snapshot(inception, app("vgg16", 4, 1, slowdown=VGG, submitted_s=1.0), top=top))
    assert got["vgg16"] == [vgg16]


def test_a_receipt_explains_only_apps_that_got_something() -> None:
    plan = registry.make("srsf").decide(snapshot(app("a"), app("b"), free={"n5": 1}), {}, random.Random(0))
    assert plan.why == {"a": "among the least service left: 1000 GPU-s"}


class TestRegistry:
    """Names and options."""

    @pytest.mark.parametrize(
        ("name", "options", "message"),
        [
            ("tiresais", {}, "there is no policy tiresais; did you mean tiresias? Known are themis, "),
            ("lottery", {}, "there is no policy lottery; known are themis, "),
            ("drf", {"restart_s": 1.0}, "drf has no option restart_s"),
            ("gandiva", {"restart_s": -1.0}, "gandiva: restart_s: must be from 0 to 316224000 (got -1)"),
            ("drf", {"name": "x"}, "drf has no option name"),
        ],
    )
    def test_errors(self, name: str, options: dict[str, Any], message: str) -> None:
        with pytest.raises(registry.UnknownPolicy) as caught:
            registry.make(name, **options)
        assert str(caught.value).startswith(message)

    def test_each_has_its_name_and_a_summary(self) -> None:
        assert {"themis", "gandiva", "tiresias", "optimus", "slaq", "srtf", "srsf", "drf"} <= set(registry.names())
        for name in registry.names():
            assert registry.make(name).name == name
            assert registry.summary(name)
            assert registry.make(name, **{o: registry.default(name, o) for o in registry.options(name)})


@pytest.mark.parametrize("lost_s", [(600.0, 60.0), (60.0, 600.0)])
def test_an_app_that_keeps_one_of_two_gangs_keeps_the_one_that_would_train_most_again(
    lost_s: tuple[float, float],
) -> None:
    homes = gang(n1=2), gang(n2=2)
    one = app("a", 2, 1, ending_gangs=homes, unsaved_s=lost_s)
    assert gangs_of("srsf", snapshot(one, free={"n1": 2, "n2": 2})) == {"a": [homes[lost_s.index(600.0)]]}
