"""The Arbiter run forward from a picture of itself: running gangs continue, and the first in the order starts first."""

import dataclasses
import json
import multiprocessing
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pycontrol.arbiter.core import Arbiter
from pycontrol.arbiter.ledger.durable import Durable
from pycontrol.arbiter.ledger.facts import AllocationChanged, AppChanged
from pycontrol.arbiter.ledger.lease import gpus_in
from pycontrol.arbiter.supply.cell_supply import CellSupply
from pycontrol.arbiter.views.settings import Settings as ArbiterSettings
from pycontrol.bridge.endpoint import to_json
from pycontrol.model import events as ev
from pycontrol.model.accounts import Account, Accounts, Limits
from pycontrol.model.auction import Demand
from pycontrol.model.cluster import Ask, PartitionCapacity, Queue, YarnApp
from pycontrol.model.topology import Gpu, Machine, Topology
from pycontrol.policies import registry
from pycontrol.policies.by_vc import ByVirtualCluster
from pycontrol.queries.pictures import Picture
from pycontrol.simulation import forecaster as forecasts
from pycontrol.simulation.engine import Simulator
from pycontrol.simulation.forecaster import Forecaster
from pycontrol.simulation.outlook import NoOutlook, Resumed, arrivals, outlooks, phases
from pycontrol.simulation.scene import ASKED, Reported, Scene, picture, scene_from, scene_of, with_app
from pycontrol.simulation.simulation_settings import ARBITER, SimulationSettings
from pycontrol.simulation.trace_apps import TraceApp, Workload
from tests.cells.files import layout_of
from tests.web.stage import Stage, add_troubles, busy

pytestmark = pytest.mark.interpreted


@pytest.fixture(scope="module")
def stage() -> Stage:
    stage = busy(registry.make("isonomy"), machines=3, gpus=8, apps=16, hours=3.0)
    add_troubles_of_small(stage)
    return stage


def add_troubles_of_small(stage: Stage) -> None:
    stage.run_until(stage.now + 65)


@pytest.fixture(scope="module")
def taken(stage: Stage) -> Scene:
    found = scene_from(json.loads(to_json(picture(stage.arbiter, stage.now))))
    assert found == scene_of(stage.arbiter, stage.now)
    return found


def changed(x: Reported, **changes: Any) -> Reported:
    """What the Agent reported, with changes of its demand."""
    return dataclasses.replace(x, up=dataclasses.replace(x.up, demand=dataclasses.replace(x.up.demand, **changes)))


def test_running_gangs_continue_in_place(stage: Stage, taken: Scene) -> None:
    world = Resumed(taken, 1, error=0.0)
    running = [x for x in stage.arbiter.durable.leases.each() if x.container_id]
    assert running
    for lease in running:
        assert set(lease.gpus) <= set(gpus_in(world.arbiter.durable.leases.of(lease.app_id)))
        assert all(world.apps[lease.app_id].job_at[gpu].containers for gpu in lease.gpus)
    assert world.now == stage.now


def test_gangs_go_on_from_the_checkpoints_that_they_told(stage: Stage, taken: Scene) -> None:
    """So that those are revoked that lose least, as they would be."""
    told = {w.container_id: w.saved_s for w in stage.arbiter.workers if w.saved_s and w.container_id}
    assert len(told) > 3
    world = Resumed(taken, 1, error=0.0)

    def lost_s(a: Arbiter) -> dict[str, float]:
        gangs = (gang for app_id in a.durable.live for gang in a.holdings.gangs_of(app_id))
        return {x.container_id: a.holdings.event_s - a.holdings.unsaved_s(gang) for gang in gangs for x in gang}

    known, real = lost_s(world.arbiter), lost_s(stage.arbiter)
    assert {x: known[x] for x in told if x in real} == pytest.approx({x: real[x] for x in told if x in real}, abs=1.0)
    world.settings = dataclasses.replace(world.settings, until_s=taken.now_s + 1300.0)
    world.run_out(taken.started)
    later = {w.container_id: w.saved_s for w in world.arbiter.workers if w.container_id in told}
    assert later
    assert all(saved_s > told[x] for x, saved_s in later.items())


def test_two_runs_of_a_scene_are_equal_and_do_not_change_it(stage: Stage, taken: Scene) -> None:
    first, second = (Resumed(taken, 7, error=0.2).run_out(taken.started) for _ in range(2))
    assert first == second
    assert taken == scene_of(stage.arbiter, taken.now_s)


def test_a_forecast_without_errors_comes_true() -> None:
    """No app arrives and declared work is true; its split among jobs is unknown, so ends may differ."""
    stage = busy(registry.make("isonomy"), machines=3, gpus=8, apps=16, hours=3.0)
    taken = scene_of(stage.arbiter, stage.now)
    said = Resumed(taken, 1, error=0.0).run_out(taken.started)
    waiting = [a for a, app in stage.apps.items() if app.started_s is None]
    ends_s = max(e for _, e in said.values() if e is not None)
    stage.run_until(ends_s + 3600)
    assert len(said) >= 5
    alone = [x.up.app_id for x in taken.agents if x.up.demand.gangs == 1]
    ends = [(said[app_id][1], stage.records[app_id].finished_s) for app_id in alone]
    assert ends
    errors_s = sorted(abs(end_s - real_s) for end_s, real_s in ends if end_s is not None)
    assert errors_s[len(errors_s) // 2] <= 0.3 * (ends_s - taken.now_s)
    for app_id in waiting:
        start_s = said[app_id][0]
        assert start_s is not None
        assert start_s <= ends_s


def test_an_app_that_waits_for_good_takes_no_forecast_from_the_others(taken: Scene) -> None:
    """Its user may not have its gang, and an app without an Agent runs on: a week of rounds that move nothing."""
    stuck = with_app(taken, "zoe", "root.prod", Demand(8, 1, 8, 3600.0, 3600.0))
    note = YarnApp("note", "zoe", "root.prod", "note", "YARN", taken.now_s, frozenset(), "note_1")
    asks = *stuck.cluster.asks, Ask("note_1", "note", 1, 2, 1)
    cluster = dataclasses.replace(stuck.cluster, apps=(*stuck.cluster.apps, note), asks=asks)
    limited = Accounts(queue_users={"zoe": Account(limits=Limits(gpus=4))})
    scene = dataclasses.replace(stuck, cluster=cluster, settings=dataclasses.replace(taken.settings, accounts=limited))
    world = Resumed(scene, 1, error=0.0)
    ends = world.run_out([*taken.started, ASKED])
    assert [app_id for app_id, (_, end_s) in ends.items() if end_s is None] == [ASKED]
    assert world.rounds < 4_000


def test_a_stop_fits_into_the_lead_however_short_that_is(taken: Scene) -> None:
    short = dataclasses.replace(taken, settings=dataclasses.replace(taken.settings, lease_s=20.0, lead_s=2.0))
    assert Resumed(short, 1, error=0.0).settings.checkpoint_s < 2.0


def test_what_scripts_say_of_their_steps_moves_ends_and_no_claim(taken: Scene) -> None:
    running = {x["app_id"] for x in taken.durable["leases"] if x["container_id"]}
    first = next(x for x in taken.agents if x.up.app_id in running and x.up.demand.work_left_gpu_s > 100)
    told, app_id = dataclasses.replace(first, stepwise_left_gpu_s=10.0), first.up.app_id
    agents = tuple(told if x is first else x for x in taken.agents)
    plain, sooner = (Resumed(p, 1, error=0.0) for p in (taken, dataclasses.replace(taken, agents=agents)))
    demands = [w.apps[app_id].demand(w.now) for w in (plain, sooner)]
    assert demands[1].work_left_gpu_s == pytest.approx(demands[0].work_left_gpu_s), "policies see what it declared"
    ends = [w.run_out([app_id])[app_id][1] for w in (plain, sooner)]
    assert ends[1] is not None
    assert ends[0] is None or ends[1] < ends[0]
    assert ends[1] - taken.now_s <= 60.0


def asking(scene: Scene, gpus: int, hours: float) -> Scene:
    """With an app of one gang on one machine, or of some on all."""
    gang, work = min(gpus, 8), gpus * hours * 3600.0
    return with_app(scene, "zoe", "root.prod", Demand(gang, gpus // gang, gang, work, work))


def test_quantiles_are_in_order_and_a_new_app_has_its_place(taken: Scene) -> None:
    small = outlooks(asking(taken, 1, 0.1), runs=5, only=ASKED)[ASKED]
    large = outlooks(asking(taken, 24, 10), runs=5, only=ASKED)[ASKED]
    for found in (small, large):
        assert list(found.end_s) == sorted(found.end_s, key=lambda x: x or 1e18)
        assert found.start_s[1] is not None
        assert found.start_s[1] >= taken.now_s
    assert small.end_s[1] is not None
    assert large.end_s[1] is None or small.end_s[1] < large.end_s[1]


@pytest.mark.parametrize(("lease_s", "hours", "known"), [(1200.0, 8.0, True), (20.0, 8.0, False), (20.0, 0.2, True)])
def test_a_forecast_looks_as_many_leases_ahead_as_a_week_of_default_ones_has(
    taken: Scene, lease_s: float, hours: float, known: bool
) -> None:
    """With leases of 20 s a week took minutes to simulate, in which apps that had begun to wait had no estimate."""
    free = dataclasses.replace(taken, agents=(), settings=dataclasses.replace(taken.settings, lease_s=lease_s))
    said = outlooks(asking(free, 1, hours), runs=1, only=ASKED)[ASKED]
    assert (said.end_s[1] is not None) == known


def test_arrivals_are_drawn_from_the_last_day(taken: Scene) -> None:
    come = arrivals(taken, random.Random(1), taken.now_s + 3600)
    assert come
    assert all(taken.now_s < x.submitted_s <= taken.now_s + 3600 for x in come)
    assert {x.queue for x in come} <= {x.queue for x in taken.recent}
    assert arrivals(dataclasses.replace(taken, recent=()), random.Random(1), taken.now_s + 3600) == []


def test_where_no_round_is_held_nothing_is_foreseen(taken: Scene) -> None:
    for more in (
        {"cluster": dataclasses.replace(taken.cluster, ready=False)},
        {"durable": {**taken.durable, "switches": ["paused"]}},
    ):
        with pytest.raises(NoOutlook, match="no round"):
            outlooks(dataclasses.replace(taken, **more))


CELLS = """
levels: {node: 4}
hosts: [m0, m1]
virtual_clusters: {root.a: {node: 1}, root.b: {node: 1}}
"""


def test_with_virtual_clusters_an_app_waits_for_its_own_cells() -> None:
    """Both have an app on their cells. The second app of `a` gets those of `a` when they are free, not sooner."""
    found = layout_of(CELLS)
    topology = Topology.of([Machine("m0", "r", 4), Machine("m1", "r", 4)])
    apps = (
        TraceApp("a0", 0.0, 4, ((4 * 1200.0,),), "root.a", "ann"),
        TraceApp("b0", 0.0, 4, ((4 * 3e5,),), "root.b", "bob"),
        TraceApp("a1", 30.0, 4, ((4 * 1200.0,),), "root.a", "ann"),
    )
    supply = CellSupply(found)
    world = Simulator(Workload("w", apps), topology, ByVirtualCluster(registry.make("isonomy"), {}), supply=supply)
    seen_json: list[Any] = []
    world.at(60.0, lambda _, stamp: seen_json.append(picture(world.arbiter, world.now)), None)
    p = seen_at(60.0, world)
    assert p.layout is not None
    assert p.layout.vcs == found.vcs
    waiting = [app_id for app_id, started in p.started.items() if not started]
    assert waiting == ["a1"]
    said = outlooks(scene_from(json.loads(to_json(seen_json[0]))), runs=5, error=0.0, sought=waiting)["a1"]
    real_s = world.records["a1"].started_s
    assert real_s is not None
    assert real_s > 600
    assert said.start_s[0] is not None
    assert said.start_s[2] is not None
    assert said.start_s[0] - 60 <= real_s <= said.start_s[2] + 60


def test_with_troubles_there_is_a_forecast_too() -> None:
    stage = busy(registry.make("isonomy"), hours=1.0, apps=10)
    add_troubles(stage)
    real, there = stage.arbiter.holdings, Resumed(scene_of(stage.arbiter, stage.now), 1, error=0.0).arbiter.holdings
    gpus = [Gpu(n.host, i) for n in stage.yarn.nodes.values() for i in range(n.gpus)]
    assert not all(map(real.usable, gpus))
    assert [there.usable(gpu) for gpu in gpus] == [real.usable(gpu) for gpu in gpus]


def test_an_app_that_cannot_be_simulated_in_time_is_left_out(stage: Stage, taken: Scene) -> None:
    """65,536 gangs with a second of work each took all others' estimates; so would those that come like it."""
    like = dataclasses.replace(taken.recent[0], user="mallory", gang_gpus=1, demand_gpus=65_536, total_gpu_s=65_536.0)
    crowded = with_app(taken, "mallory", "root.prod", Demand(1, 65_536, 1, 65_536.0, 65_536.0))
    crowded = dataclasses.replace(crowded, recent=(*taken.recent, like))
    alone = outlooks(taken, runs=2)
    found = outlooks(crowded, runs=2, run_s=4.0)
    assert found.keys() == alone.keys()
    assert all(x.end_s[1] is not None for x in found.values())
    with pytest.raises(NoOutlook, match="too many to be simulated"):
        outlooks(crowded, runs=1, run_s=1.0, only=ASKED)


def two_apps(until_s: float) -> Simulator:
    """One app has all GPUs of the cluster, another waits."""
    apps = tuple(TraceApp(f"a{i}", 30.0 * i, 4, ((4 * 1200.0,),), "root.a", "ann") for i in range(2))
    world = Simulator(
        Workload("w", apps),
        Topology.of([Machine("m0", "r", 4)]),
        registry.make("isonomy"),
        SimulationSettings(until_s=until_s),
    )
    world.run()
    return world


def test_the_forecaster_works_in_a_separate_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pycontrol.simulation.forecaster.REFRESH_S", 0.05)
    seen = Picture(two_apps(60.0).arbiter, 60.0, 0.0)
    forecaster = Forecaster(lambda: seen, {})
    forecaster.start()
    try:
        end_s = time.monotonic() + 240
        while forecaster.latest["made_s"] is None:
            assert time.monotonic() < end_s
            time.sleep(0.2)
        found = forecaster.latest
        assert found["problem"] == ""
        assert set(found["apps"]) == {"a0", "a1"}
    finally:
        forecaster.stop()


def test_the_forecaster_goes_on_after_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """One in what it learns, or a picture that cannot be had, costs that forecast alone."""
    monkeypatch.setattr(forecasts, "REFRESH_S", 0.01)
    problems: list[Exception] = [TimeoutError("busy"), RuntimeError("stopping")]
    nothing = Picture(Arbiter(ARBITER, registry.make("isonomy")), 5.0, 0.0)
    odd = threading.Event()
    odd.set()

    def pictured() -> Picture:
        if problems:
            raise problems.pop()
        return nothing

    forecaster = Forecaster(pictured, {})
    looked = forecaster.calibrations.looked

    def looks(*args: Any) -> bool:
        if odd.is_set():
            raise RuntimeError("odd")
        return looked(*args)

    monkeypatch.setattr(forecaster.calibrations, "looked", looks)
    forecaster.start()
    try:
        wait_for(lambda: forecaster.latest["problem"] == "no forecast could be made: RuntimeError('odd')")
        odd.clear()
        wait_for(lambda: forecaster.latest["problem"] == "" and forecaster.latest["made_s"] == 5.0)
    finally:
        forecaster.stop()


def test_what_errors_taught_outlives_the_forecaster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An app starts after its estimate; the next forecaster knows the error, and a damaged file is no obstacle."""
    monkeypatch.setattr(forecasts, "REFRESH_S", 0.05)
    now, after = (Picture(two_apps(at_s).arbiter, at_s, 0.0) for at_s in (60.0, 1900.0))
    assert scene_of(now.arbiter, 60.0).started == {"a0": True, "a1": False}
    assert scene_of(after.arbiter, 1900.0).started["a1"]
    file = tmp_path / "estimates.json"
    file.write_text("{")
    forecaster = Forecaster(lambda: now, {}, file)
    forecaster.start()
    try:
        wait_for(lambda: forecaster.latest["apps"])
        now = after
        wait_for(lambda: file.read_text() != "{")
    finally:
        forecaster.stop()
    learnt = json.loads(file.read_text())
    assert [len(misses) for misses in learnt["starts"]["isonomy"].values()] == [1]
    next_one = Forecaster(lambda: now, {}, file)
    next_one.start()
    next_one.stop()
    assert next_one.calibrations.dump() == learnt


def seen_at(at_s: float, world: Simulator) -> Scene:
    """The scene at that time of a world, which is run to its end."""
    seen: list[Scene] = []
    world.at(at_s, lambda _, stamp: seen.append(scene_of(world.arbiter, world.now)), None)
    world.run()
    return seen[0]


def wait_for(what: Callable[[], Any]) -> None:
    end_s = time.monotonic() + 240
    while not what():
        assert time.monotonic() < end_s
        time.sleep(0.05)


def test_a_forecast_for_a_control_plane_that_is_gone_ends_silently(capfd: pytest.CaptureFixture[str]) -> None:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=forecasts.worker, args=(theirs, forecasts.estimates_of), daemon=True)
    process.start()
    theirs.close()
    ours.send(({},))  # not a scene: the answer is that the forecast failed, and nobody reads it
    ours.close()
    process.join(60)
    assert process.exitcode == 0
    assert capfd.readouterr().err == ""


def test_an_app_with_rungs_needs_half_as_many_gpus_in_each() -> None:
    rungs = phases("successive_halving", 11, 4000.0, None, False)
    assert [len(works) for works in rungs] == [11, 5, 2, 1]
    assert [sum(works) for works in rungs] == pytest.approx([1000.0] * 4)
    begun = phases("hyperband", 4, 5000.0, random.Random(1), True)
    assert [len(works) for works in begun] == [4, 2, 1]
    assert sum(map(sum, begun)) == pytest.approx(5000.0)
    assert sum(begun[0]) < sum(begun[1]) == pytest.approx(sum(begun[2]))
    assert phases("median", 4, 4000.0, None, True) == ((1000.0,) * 4,)


def test_gpus_that_a_rung_gives_back_are_foreseen() -> None:
    """One app with rungs has all GPUs, another waits; without rungs in the forecast it would wait longer."""
    apps = (
        TraceApp("a", 0.0, 1, ((1200.0,) * 4, (2400.0,) * 2, (4800.0,)), "root.a", "ann"),
        TraceApp("b", 30.0, 2, ((5e4,) * 2,), "root.a", "ann"),
    )
    world = Simulator(Workload("w", apps), Topology.of([Machine("m0", "r", 4)]), registry.make("isonomy"))
    p = seen_at(600.0, world)
    assert {x.up.app_id: x.up.app_scheduler for x in p.agents} == {"a": "successive_halving", "b": "median"}
    said = outlooks(p, runs=12, sought=["b"], starts=True)["b"].start_s
    agents = (dataclasses.replace(x, up=dataclasses.replace(x.up, app_scheduler="median")) for x in p.agents)
    flat = dataclasses.replace(p, agents=tuple(agents))
    later = outlooks(flat, runs=12, sought=["b"], starts=True)["b"].start_s
    real_s = world.records["b"].started_s
    assert said[0] is not None
    assert said[2] is not None
    assert real_s is not None
    assert said[0] - 1 <= real_s <= said[2] + 1
    assert said[1] is not None
    assert later[1] is not None
    assert said[1] + 300 < later[1]


def test_submissions_in_a_row_at_the_beginning_are_not_taken_to_go_on_for_ever(taken: Scene) -> None:
    """Five apps came in the last 40 s, the first apps ever: half of the futures have no more than came so far."""
    now_s = taken.now_s
    recent = tuple(
        dataclasses.replace(taken.recent[0], demand_gpus=1, submitted_s=now_s - ago_s) for ago_s in (40, 30, 20, 10, 0)
    )
    young = dataclasses.replace(taken, recent=recent, since_s=now_s - 40)
    old = dataclasses.replace(young, since_s=now_s - 30 * 86400)
    counts = [[len(arrivals(p, random.Random(k), now_s + 86400)) for k in range(40)] for p in (young, old)]
    assert sum(n <= 6 for n in counts[0]) >= 15
    assert max(counts[0]) > 20, "they may go on for long"
    assert min(counts[1]) == 300, "where apps have come for a month they will not stop today"


def test_restarts_cost_what_they_cost_on_this_cluster(taken: Scene) -> None:
    """The default is 35 s a restart; with three measured, their median counts, also for the very first launches."""
    durable = Durable.load(taken.durable)
    app_id = next(iter(taken.started))
    durable.apply(AppChanged(app_id, {"launched": {"first": 1, "again": 2}}))
    ends_s = []
    for seconds in (2.0, 500.0):
        for took_s in (seconds, seconds, 3000.0):
            durable.apply(AllocationChanged(app_id, "first", taken.now_s, took_s))
        for took_s in (1.0, seconds, seconds):
            durable.apply(AllocationChanged(app_id, "again", taken.now_s, took_s))
        again = Durable.load(json.loads(json.dumps(durable.dump())))
        assert again.dump() == durable.dump()
        world = Resumed(dataclasses.replace(taken, durable=again.dump()), 1, error=0.0)
        ends_s.append(max(end_s or 0.0 for _, end_s in world.run_out(taken.started).values()))
        durable = Durable.load(taken.durable)
        durable.apply(AppChanged(app_id, {"launched": {"first": 1, "again": 2}}))
    assert ends_s[1] > ends_s[0] + 400


def test_a_picture_keeps_the_limits_of_queues(stage: Stage) -> None:
    """Forecasts without them would start apps where YARN and the Arbiter make them wait."""
    queues = (
        Queue("root", leaf=False),
        Queue(
            "root.prod",
            0.5,
            0.8,
            True,
            0.25,
            1.5,
            {"": PartitionCapacity(0.5, 0.8), "a100": PartitionCapacity(gpus=4)},
            "a100",
            True,
            True,
        ),
    )
    scene = scene_of(stage.arbiter, stage.now)
    limited = dataclasses.replace(scene, cluster=dataclasses.replace(scene.cluster, queues=queues))
    a = Resumed(limited, 1, error=0.0).arbiter
    assert tuple(a.cluster.queues.values()) == queues
    assert scene_from(json.loads(to_json(picture(a, stage.now)))).cluster.queues == queues


def test_forecasts_know_node_labels(taken: Scene) -> None:
    """An app without a label starts on none of the labelled nodes."""
    idle = ev.ClusterSnapshot(True, taken.cluster.nodes, (), (), (), taken.cluster.queues)
    asked = asking(Scene(taken.now_s, taken.settings, taken.policy, idle, Durable().dump()), 2, 0.1)
    nodes = tuple(dataclasses.replace(n, partition="a100") for n in idle.nodes)
    labelled = dataclasses.replace(asked, cluster=dataclasses.replace(asked.cluster, nodes=nodes))
    free, shut = (outlooks(p, runs=2, only=ASKED)[ASKED].start_s[1] for p in (asked, labelled))
    assert free is not None
    assert shut is None


def test_an_app_without_an_agent_gives_way_in_a_forecast_as_it_does() -> None:
    """It has all GPUs, loses them at its leases' end, and asks again."""
    apps = (
        TraceApp("shell", 0.0, 1, ((3e4,) * 4,), "root.a", "ann", agentless=True),
        TraceApp("b", 30.0, 4, ((4 * 600.0,),), "root.b", "bob"),
    )
    world = Simulator(Workload("w", apps), Topology.of([Machine("m0", "r", 4)]), registry.make("isonomy"))
    forecast = Resumed(seen_at(60.0, world), 1, error=0.0)
    start_s, end_s = forecast.run_out(["b"])["b"]
    real = world.records["b"]
    assert real.started_s > 300
    assert (start_s, end_s) == pytest.approx((real.started_s, real.finished_s), abs=60)
    assert forecast.yarn.asks or forecast.arbiter.holdings.holding("shell"), "it asks again"


def test_how_long_an_app_trains_that_declared_nothing_is_not_known_to_a_fifth() -> None:
    apps = (TraceApp("a", 0.0, 4, ((9000.0,),), "root.a", "ann"),)
    world = Simulator(Workload("w", apps), Topology.of([Machine("m0", "r", 4)]), registry.make("isonomy"))
    p = seen_at(100.0, world)
    lease_gpu_s = 4 * p.settings.lease_s
    lengths = []
    for work, stepwise in ((lease_gpu_s, None), (lease_gpu_s + 9, None), (lease_gpu_s, lease_gpu_s)):
        said = changed(p.agents[0], work_left_gpu_s=work, work_total_gpu_s=work)
        said = dataclasses.replace(said, stepwise_left_gpu_s=stepwise)
        low, _, high = outlooks(dataclasses.replace(p, agents=(said,)))["a"].end_s
        assert low is not None
        assert high is not None
        lengths.append((high - p.now_s) / (low - p.now_s))
    assert lengths[0] > 5
    assert max(lengths[1:]) < 1.6, "where it was declared, or its steps say it"


class Foreseen(Simulator):
    """A cluster of 8 GPUs with leases of 600 s; forecasts while apps wait, each without errors and with them."""

    def __init__(self, apps: list[TraceApp], times_s: list[float], checkpoint_s: float) -> None:
        settings = SimulationSettings(ArbiterSettings(recovery_s=0.0, lease_s=600.0), checkpoint_s)
        topology = Topology.of([Machine("m0", "r", 4), Machine("m1", "r", 4)])
        super().__init__(Workload("w", tuple(apps)), topology, registry.make("isonomy"), settings)
        self.said: list[tuple[str, float, bool, Any, Any]] = []
        """(app, when, whether it had a promise, the start without errors, the range of starts)."""
        for at_s in times_s:
            self.at(at_s, self._look, None)

    def _look(self, _: Any, stamp: int) -> None:
        sought = [app_id for app_id, app in self.apps.items() if app.started_s is None]
        if not sought:
            return
        for app in self.apps.values():
            self._tell(app)
        self._drain()
        scene = dataclasses.replace(scene_of(self.arbiter, self.now), recent=())
        alone = Resumed(scene, 1, error=0.0).run_out(sought, starts=True)
        ranges = outlooks(scene, error=0.2, sought=sought, starts=True)
        promised = {x["app_id"] for x in scene.durable["next"]}
        self.said += [(x, self.now, x in promised, alone[x][0], ranges[x].start_s) for x in sought]


HOLDER = (4 * 5000.0,)
WAITS = [
    TraceApp("a", 0.0, 4, (HOLDER,), "root.q", "ann"),
    TraceApp("b", 5.0, 4, (HOLDER,), "root.q", "bob"),
    TraceApp("c", 50.0, 4, ((4 * 40.0,),), "root.q", "cid"),
    TraceApp("d", 55.0, 2, ((2 * 30.0,),), "root.q", "dan"),
]


def test_a_start_at_a_leases_end_is_foreseen_alike_before_it_and_while_the_gang_stops() -> None:
    """Pictures of a lease's last two leads foresaw it up to two leads later, as after a takeover; those with its GPUs
    promised, as if they were not."""
    times_s = [60.0, 200.0, 400.0, 450.0, 500.0, 530.0, 539.0, 541.0, 543.0]
    world = Foreseen(WAITS, times_s, checkpoint_s=SimulationSettings().checkpoint_s)
    world.run()
    assert {x for x, *_ in world.said} == {"c", "d"}
    assert any(promised for _, _, promised, *_ in world.said)
    for app_id, at_s, _, start_s, _ in world.said:
        assert start_s == pytest.approx(world.records[app_id].started_s, abs=5.0), (app_id, at_s)


@pytest.mark.parametrize("checkpoint_s", [3.0, 7.0])
def test_most_starts_lie_in_the_range_however_long_gangs_take_to_stop(checkpoint_s: float) -> None:
    """Ranges of no width missed each start by seconds: a stop took as long as is assumed, in all futures."""
    world = Foreseen(WAITS, [60.0 + 60 * k for k in range(8)], checkpoint_s)
    world.run()
    inside = [low <= world.records[x].started_s <= high for x, *_, (low, _, high) in world.said]
    assert len(inside) >= 16
    assert sum(inside) >= 0.8 * len(inside)
