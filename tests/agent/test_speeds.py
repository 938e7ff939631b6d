"""Speedups: tried type by type, stored by job type, updated by running jobs; an app uses only the type it asks for."""

from __future__ import annotations

import json

import pytest

from pycontrol.fairness.slowdown import ENOUGH, Profiler
from pycontrol.model.auction import SLOWDOWN_PRIOR
from pycontrol.model.topology import Gpu, Scope
from pycontrol.wire.v1 import agent_pb2 as pb
from submarine_patch.agent.agent_core import AgentCore
from submarine_patch.agent.messages import KeepSpeeds
from submarine_patch.agent.speeds import FEW, Speeds, file_of
from tests.agent.world import World, hyperband, spec_of

TYPES = {"a1": "K80", "a2": "P100", "b1": "V100", "b2": "V100"}
HOST_OF = {"K80": "a1", "P100": "a2", "V100": "b1"}
SECONDS = {"K80": 1.0, "P100": 0.5, "V100": 0.2}
"""Seconds of an iteration of a gang of two."""


def demand(world: World) -> pb.Demand:
    return world.core.register().register.demand


def run_on(world: World, gpu_type: str, steps: int = 8) -> None:
    """Grants GPUs of the type and runs the job there; its first step takes long."""
    if not world.running():
        world.grant(*(Gpu(HOST_OF[gpu_type], i) for i in (0, 1)))
        world.rise()
    (job,) = world.running()
    world.train(world.gang(job)[0], 1, iter_s=9.0)
    world.train(world.gang(job)[0], steps - 1, iter_s=SECONDS[gpu_type])


def tried(world: World) -> list[str]:
    """All trials that the app asks for, in their order."""
    order = []
    while gpu_type := demand(world).gpu_type:
        order.append(gpu_type)
        assert demand(world).gangs == 1, "one gang is enough to try"
        run_on(world, gpu_type)
        world.obey_stops()
    return order


def test_each_type_is_tried_once_before_the_app_takes_what_its_policy_gives() -> None:
    world = World(hyperband(gang_gpus=2, trial_steps=5), types=TYPES)
    world.register()
    assert sorted(tried(world)) == ["K80", "P100", "V100"]
    assert dict(demand(world).speedups) == {"K80": 1.0, "P100": 2.0, "V100": 5.0}
    assert demand(world).gangs == 9
    assert len(world.running()) == 1, "the last trial continues"


def test_apps_begin_their_trials_on_different_types() -> None:
    first = set()
    for k in range(3):
        world = World(spec_of(app_id=f"application_1_000{k}", trial_steps=5), types=TYPES)
        world.register()
        first.add(demand(world).gpu_type)
    assert first == set(TYPES.values())


def test_measured_speeds_are_stored_for_later_apps_of_the_job_type() -> None:
    spec = hyperband(gang_gpus=2, trial_steps=5, job_type="vgg")
    world = World(spec, types=TYPES)
    world.register()
    kept: list[KeepSpeeds] = []
    take = world.take_command
    world.take_command = lambda c: kept.append(c) if isinstance(c, KeepSpeeds) else take(c)  # type: ignore[method-assign]
    tried(world)
    assert kept[-1].file == file_of("vgg")
    later = World(spec, types=TYPES)
    later.core.speeds.restore(json.loads(json.dumps(kept[-1].speeds)))
    later.register()
    assert demand(later).gpu_type == ""
    assert dict(demand(later).speedups) == {"K80": 1.0, "P100": 2.0, "V100": 5.0}


def test_an_unavailable_type_is_not_tried() -> None:
    world = World(spec_of(trial_steps=5), types=TYPES)
    world.register()
    first = demand(world).gpu_type
    world.pass_time(599)
    assert demand(world).gpu_type == first
    world.pass_time(2)
    assert demand(world).gpu_type not in ("", first)


def test_without_trials_the_prior_holds_until_measured() -> None:
    world = World(spec_of(speedups={"K80": 1.0, "P100": 3.0, "V100": 4.0}), types=TYPES)
    world.register()
    run_on(world, "P100", FEW)
    assert dict(demand(world).speedups) == {"K80": 1.0, "P100": 3.0, "V100": 4.0}
    run_on(world, "P100", 4)
    world.revoke(*world.held)
    world.obey_stops()
    run_on(world, "V100")
    assert dict(demand(world).speedups) != {"K80": 1.0, "P100": 3.0, "V100": 4.0}
    said = demand(world).speedups
    assert said["V100"] / said["P100"] == pytest.approx(2.5, rel=0.05), "two digits of what was measured"


def test_small_changes_are_not_reported() -> None:
    speeds = Speeds(spec_of(trial_steps=4))
    speeds.types = ("K80", "V100")
    for gpu_type, serial_s in (("K80", 1.0), ("V100", 0.5)):
        for step in range(5):
            speeds.observe(gpu_type, gpu_type, step, serial_s, step > 0)
    assert speeds.vector() == {"K80": 1.0, "V100": 2.0}
    speeds.observe("later", "V100", 9, 0.45, True)
    assert speeds.vector() == {"K80": 1.0, "V100": 2.0}
    for step in range(30):
        speeds.observe("later", "V100", step, 0.25, True)
    assert speeds.vector() == {"K80": 1.0, "V100": 4.0}


def test_gpus_of_another_type_than_requested_are_returned() -> None:
    world = World(spec_of(gpu_type="V100"), types=TYPES)
    world.register()
    world.grant(Gpu("a1", 0), Gpu("a1", 1), Gpu("b1", 0), Gpu("b1", 1))
    assert world.held == {Gpu("b1", 0), Gpu("b1", 1)}
    assert world.messages("released")[0].reason == "not of the type V100"


def test_with_one_gpu_type_no_speedups_are_reported_or_tried() -> None:
    world = World(spec_of(trial_steps=5))
    world.register()
    assert not demand(world).gpu_type
    assert not demand(world).speedups


def test_slowdowns_are_stored_for_later_apps_and_declared_ones_take_precedence() -> None:
    profiler = Profiler()
    for _ in range(ENOUGH):
        profiler.add("job000", 1.0, 2, Scope.MACHINE)
        profiler.add("job000", 2.0, 2, Scope.RACK)
    kept = json.loads(json.dumps(profiler.kept()))
    assert kept == {"RACK": 2.0}
    later = AgentCore(spec_of(slowdown=SLOWDOWN_PRIOR))
    later.recall({"times": {}, "slowdowns": kept})
    assert later.profiler.slowdown(Scope.RACK) == 2.0
    assert later.profiler.slowdown(Scope.CLUSTER) >= 2.0, "no scope is faster than a narrower one"
    assert later.profiler.kept() == kept, "and kept on, if nothing new is measured"
    declared = AgentCore(spec_of(slowdown=(1.0, 1.5, 1.6)))
    declared.recall({"times": {}, "slowdowns": kept})
    assert declared.profiler.slowdown(Scope.RACK) == 1.5
    for wrong in ({"RACK": 0.5}, {"RACK": float("nan")}, {"RACK": 1e9}, {"RACK": "x"}):
        with pytest.raises(ValueError, match=r"slowdowns|could not convert"):
            AgentCore(spec_of(slowdown=SLOWDOWN_PRIOR)).recall({"times": {}, "slowdowns": wrong})


def test_an_app_stores_its_measured_slowdowns_at_its_end() -> None:
    world = World(spec_of(slowdown=SLOWDOWN_PRIOR, iteration_s=None))
    for _ in range(ENOUGH):
        world.core.profiler.add("job000", 1.0, 2, Scope.MACHINE)
        world.core.profiler.add("job000", 3.0, 2, Scope.CLUSTER)
    kept: list[KeepSpeeds] = []
    take = world.take_command
    world.take_command = lambda c: (kept.append(c) if isinstance(c, KeepSpeeds) else None, take(c))[1]  # type: ignore[method-assign]
    world.register()
    world.grant(Gpu("a1", 0), Gpu("a1", 1))
    world.rise()
    world.finish_gang("job000", accuracy=0.9)
    world.publish()
    assert kept[-1].speeds["slowdowns"] == {"CLUSTER": 3.0}
