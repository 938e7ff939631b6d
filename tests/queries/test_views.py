"""The REST views of a running Arbiter: they agree with its state, and are JSON."""

import dataclasses
import json
import re

import pytest

from pycontrol.arbiter.ledger.facts import LeaseStarted
from pycontrol.arbiter.round import standin
from pycontrol.arbiter.round.candidates import view
from pycontrol.arbiter.state import Holdings
from pycontrol.bridge.endpoint import to_json
from pycontrol.model import events as ev
from pycontrol.model.auction import Demand
from pycontrol.model.reasons import SENTENCES
from pycontrol.policies.isonomy import Isonomy
from pycontrol.queries import cells_view, views
from tests.arbiter.mini import CELLS, Mini
from tests.web.scene import EARLY, LATE, SHELL, Scene


@pytest.fixture(scope="module")
def scene() -> Scene:
    return Scene()


def test_every_view_is_json(scene: Scene) -> None:
    params = {name: {"app": EARLY} for name in ("explain", "logs", "spans", "why-not")} | {
        "token": {"app": "application_9_1"}
    }
    for path, route in scene.router.routes.items():
        if route.method == "GET" and path not in ("metrics", "usage"):  # usage: an hour after the first fact
            json.loads(to_json(scene.get(path, **params.get(path, {}))))
    scene.questions.stop()


def test_status_counts_every_gpu_once(scene: Scene) -> None:
    d, a = scene.get("status"), scene.world.arbiter
    assert d["ready"]
    assert d["policy"] == "themis"
    assert d["gpus"]["total"] == 12
    assert d["gpus"]["leased"] == len(a.durable.leases)
    assert d["gpus"]["free"] + d["gpus"]["leased"] + d["gpus"]["unleased_in_use"] == 12
    assert sum(n["gpus"] for n in d["nodes"]) == 12
    assert sum(n["leased"] for n in d["nodes"]) == d["gpus"]["leased"]
    assert d["rounds"] == len(a.receipts)


def test_queue_lists_waiting_apps_first_with_a_reason(scene: Scene) -> None:
    rows = scene.get("queue")["apps"]
    assert {r["app_id"] for r in rows} == {EARLY, LATE, SHELL}
    assert all(r["reason"] in SENTENCES for r in rows)
    wanting = [r for r in rows if r["gpus_wanted"]]
    assert rows[: len(wanting)] == wanting
    assert [r["rho"] for r in wanting] == sorted((r["rho"] for r in wanting), reverse=True)
    shell = next(r for r in rows if r["app_id"] == SHELL)
    assert (shell["kind"], shell["gpus_held"], shell["gpus_wanted"]) == ("foreign", 2, 0)


def test_an_app_that_runs_has_used_its_gpus_until_now(scene: Scene) -> None:
    a, now_s = scene.world.arbiter, scene.world.now
    rows = {r["app_id"]: r["attained_gpu_s"] for r in scene.get("apps")["apps"]}
    assert rows == {app_id: a.durable.attained_gpu_s(app_id, now_s) for app_id in a.durable.apps}
    assert rows[SHELL] > a.durable.apps[SHELL].attained_gpu_s
    assert scene.get("explain", app=SHELL)["app"]["attained_gpu_s"] == rows[SHELL]


def test_explain_gives_rho_with_its_terms_and_the_rounds(scene: Scene) -> None:
    d = scene.get("explain", app=LATE)
    r = d["rho"]
    assert r["t_id_s"] == pytest.approx(r["work_total_gpu_s"] / min(r["cluster_gpus"], r["demand_gpus"]) * r["n_avg"])
    assert r["t_sh_s"] / r["t_id_s"] == pytest.approx(r["rho"])
    assert len(d["leases"]) >= scene.world.arbiter.holdings.holding(LATE)
    receipts = {x.round_id: x.dump() for x in scene.world.arbiter.receipts}
    assert d["rounds"]
    for lived in d["rounds"]:
        receipt = receipts[lived["round_id"]]
        mine = next((b for b in receipt["bids"] if b["app_id"] == LATE), None)
        assert lived["bid"] == mine
        assert (lived["role"] in ("won", "lost")) == (mine is not None)
        assert all(o["app_id"] != LATE for o in lived["others"])
    assert scene.get("explain", app=SHELL)["rho"]["by"] == "stand-in"


def test_explain_says_why_a_policy_without_bids_served_an_app() -> None:
    scene = Scene(policy=Isonomy())
    receipts = {x.round_id: x.dump() for x in scene.world.arbiter.receipts}
    for app in (EARLY, SHELL):
        lived = scene.get("explain", app=app)["rounds"]
        assert lived
        for r in lived:
            receipt = receipts[r["round_id"]]
            assert r["why"] == receipt["why"].get(app, "")
            assert r["role"] == ("served" if r["got"] else "outranked" if r["others"] else "nobody")
            assert r["why"].startswith("equal sharing would") == bool(r["got"])


def test_an_app_is_found_by_name_id_and_the_end_of_its_id(scene: Scene) -> None:
    assert scene.get("logs", app="0002")["app_id"] == LATE
    status, text = scene.error("GET", "explain", app="000")
    assert (status, "app 000: no application" in text) == (404, True)
    status, text = scene.error("GET", "explain", app="")
    assert status == 400


def test_logs_name_the_containers_with_their_jobs(scene: Scene) -> None:
    live = {c.container_id for c in scene.world.containers.values()}
    found = [c for app_id in (EARLY, LATE, SHELL) for c in scene.get("logs", app=app_id)["containers"]]
    ended = {x.container_id for x in scene.world.journal if isinstance(x, LeaseStarted)} - live
    assert {c["container_id"] for c in found} == live | ended
    assert len(live) > 2
    assert len(ended) > 2
    assert all(c["job_id"] and c["node_id"] for c in found)
    assert {c["container_id"] for c in found if c["worker_id"]} == live


def test_the_audit_view_is_clean_and_detects_a_false_record(scene: Scene) -> None:
    assert scene.get("audit")["violations"] == []
    a = scene.world.arbiter
    gpu, lease = next((g, x) for g, x in a.durable.leases.items() if x.container_id)
    a.durable.leases[gpu] = dataclasses.replace(lease, app_id=SHELL if lease.app_id != SHELL else EARLY)
    try:
        found = views.audit(a, scene.world.now, {})["violations"]
    finally:
        a.durable.leases[gpu] = lease
    assert [v["kind"] for v in found] == ["container_without_lease"]
    assert str(gpu) in found[0]["what"]


def test_a_lost_node_and_a_drained_one_are_shown() -> None:
    scene = Scene(run_s=10)
    scene.world.lose_node("n4")
    scene.world.submit(ev.OperatorCommand("drain", "n3", "root"))
    d = scene.get("status")
    states = {n["host"]: n["state"] for n in d["nodes"]}
    assert states == {"n1": "up", "n2": "up", "n3": "drained", "n4": "down"}
    assert d["drained"] == ["n3"]
    assert d["gpus"]["total"] == 10


def test_a_machine_that_takes_no_containers_is_shown_with_the_reason() -> None:
    scene = Scene(run_s=10)
    node = dataclasses.replace(scene.world.nodes["n2:1"], withheld="its executor is another one")
    scene.world.submit(ev.NodeUp(node))
    (n2,) = (n for n in scene.get("status")["nodes"] if n["host"] == "n2")
    assert (n2["state"], n2["reason"], n2["free"]) == ("closed", "its executor is another one", 0)


def test_bad_gpus_are_shown() -> None:
    scene = Scene(run_s=10)
    scene.world.mark("n2", 1, 3)
    d = scene.get("status")
    assert {n["host"]: n["bad_gpus"] for n in d["nodes"]} == {"n1": [], "n2": [1, 3], "n3": [], "n4": []}
    assert (d["gpus"]["total"], d["gpus"]["bad"]) == (12, 2)
    revoked = [x for x in scene.get("leases")["leases"] if x["state"] == "revoking"]
    assert revoked
    assert {x["reason"].partition(" is ")[2] for x in revoked} == {"bad"}
    text = scene.get("metrics")["text"]
    assert 'isonomy_gpus{state="bad"} 2.0' in text
    assert 'isonomy_leases_revoked_total{reason="bad_gpu"}' in text


def test_metrics_have_the_promised_names(scene: Scene) -> None:
    d = scene.get("metrics")
    assert d["content_type"].startswith("text/plain")
    assert 'isonomy_gpus{state="leased"}' in d["text"]
    count = re.search(r"^isonomy_round_seconds_count (\S+)$", d["text"], re.M)
    assert count
    assert float(count[1]) == len(scene.world.arbiter.receipts)
    for name in ("isonomy_auction_solve_seconds", "isonomy_rho", "isonomy_leases_revoked"):
        assert f"# TYPE {name}" in d["text"]
    assert "application_" not in d["text"]


def test_events_are_listed_in_order(scene: Scene) -> None:
    newest = scene.get("events", limit="5")
    assert len(newest["events"]) == 5
    everything = scene.get("events", since="1000", limit="500")
    seqs = [e["seq"] for e in everything["events"]]
    assert seqs == sorted(set(seqs))
    assert not everything["missed"]
    kinds = {e["kind"] for e in everything["events"]}
    assert {"AppArrived", "RoundHeld", "LeaseGranted", "LeaseStarted"} <= kinds
    assert any(EARLY in e["text"] and "granted" in e["text"] for e in everything["events"])
    later = scene.get("events", since=str(newest["next"]), wait_s="0")
    assert later["events"] == []
    assert scene.get("events", since="3")["missed"]


@pytest.mark.interpreted
def test_a_bid_of_an_app_without_agent_takes_its_demand_once(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    a, now_s = scene.world.arbiter, scene.world.now
    asked = dataclasses.replace(
        standin.demand(a.holdings, SHELL, now_s), gang_gpus=1, gangs=a.holdings.holding(SHELL) + 4, members=()
    )
    wants = view(a.holdings, SHELL, None, (), now_s, demand=asked)
    calls, real = list[str](), standin.demand

    def counted(s: Holdings, app_id: str, at_s: float) -> Demand:
        calls.append(app_id)
        return real(s, app_id, at_s)

    monkeypatch.setattr(standin, "demand", counted)
    made = standin.bid(a.holdings, wants, {"n1": 4}, now_s)
    assert len(made.rows) == 4
    assert len(calls) == 1
    assert [row.rho for row in made.rows] == [
        standin.rho(a.holdings, SHELL, wants.retained_gpus + row.new_gangs, now_s) for row in made.rows
    ]


def test_what_apps_without_an_agent_wait_for_counts_for_their_virtual_cluster() -> None:
    m = Mini(nodes=(("n1", 4), ("n2", 4)), supply=CELLS)
    m.start_app("a", 4, 2, "root.a")
    m.foreign("shell", 2, 2, queue="root.b")
    rows = cells_view.cells(m.a, m.now, {})["tenants"]
    assert {row["name"]: row["wanted"] for row in rows} == {"root.a": 0, "root.b": 4}
