"""The report of a run, from its journal."""

import json

import pytest

from pycontrol.arbiter.ledger import facts as f
from pycontrol.audit.accounting import quantile
from pycontrol.lab.runreport import build
from pycontrol.model.topology import Gpu
from tests.web.scene import EARLY, LATE, SHELL, Scene


def test_rho_is_t_sh_over_t_id() -> None:
    facts = [
        f.AppArrived("application_1_1", "a", "root.q", "u", "hyperband", 90.0, 100.0),
        f.AppChanged("application_1_1", {"demand_gpus": 8}),
        f.AppChanged(
            "application_1_1",
            {
                "done": True,
                "work_done_gpu_s": 400.0,
                "final_state": "SUCCEEDED",
                "best": {"configuration": {"lr": "0.1"}, "accuracy": 0.97},
                "launches": {"j0": 3, "j1": 1},
            },
        ),
        f.AppEnded("application_1_1", "", 290.0),
        f.AppEnded("application_1_1", "FINISHED", 291.0),
        f.AllocationChanged("application_1_1", "j0", 120.0, 8.0),
    ]
    report = build(((i, 100.0, x) for i, x in enumerate(facts)), cluster_gpus=4)
    [app] = report["apps"]
    assert app["T_sh_s"] == 200.0
    assert app["T_id_s"] == pytest.approx(400.0 / 4)
    assert app["rho"] == pytest.approx(2.0)
    assert (app["kind"], app["final_state"], app["restarts"]) == ("hyperband", "SUCCEEDED", 2)
    assert app["best"]["accuracy"] == 0.97
    assert report["allocation_change_s"] == {"median": 8.0, "p95": 8.0, "n": 1}
    assert report["audit"] is None


def test_unknown_stays_null() -> None:
    facts = [f.AppArrived("application_1_1", "a", "root.q", "u", "foreign", 90.0, 100.0)]
    [app] = build(((i, 100.0, x) for i, x in enumerate(facts)), 4)["apps"]
    assert [app[k] for k in ("rho", "T_sh_s", "T_id_s", "best")] == [None] * 4


def test_a_pruned_journal_is_reported_as_far_as_it_reaches() -> None:
    facts: list[f.Fact] = [f.LeaseStarted((Gpu("n1", 0),), "c", "j", 1.0, 2.0), f.AppEnded("application_1_1", "", 3.0)]
    assert build(((i, 1.0, x) for i, x in enumerate(facts)), 4)["apps"] == []


def test_a_whole_world() -> None:
    scene = Scene(run_s=4000)
    report = json.loads(json.dumps(build(scene.kept.facts, 12, {"checked": {}, "violations": []})))
    apps = {a["id"]: a for a in report["apps"]}
    assert {apps[x]["kind"] for x in (EARLY, LATE)} == {"hyperband"}
    assert apps[SHELL]["kind"] == "foreign"
    for app_id in (EARLY, LATE):
        record = scene.world.arbiter.durable.apps[app_id]
        assert apps[app_id]["final_state"] == "SUCCEEDED"
        assert apps[app_id]["rho"] > 0
        assert apps[app_id]["revocations"] == record.revocations
    assert report["rounds"] == report["round_s"]["n"] == scene.world.arbiter.durable.rounds
    assert report["seen"]["rounds_with_two_bidders"] > 0
    assert report["seen"]["standin_awards"] > 0
    assert report["auction_solve_s"]["n"] > 0


def test_quantiles() -> None:
    assert quantile([3.0, 1.0, 2.0], 0.5) == 2.0
    assert quantile([0.0, 10.0], 0.95) == pytest.approx(9.5)
    assert quantile([], 0.5) is None
