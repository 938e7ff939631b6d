"""Estimates and snapshots against a control plane that serves pictures."""

import dataclasses
import json
import re
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
from click.testing import CliRunner, Result

from pycontrol.arbiter.ledger.facts import Boosted, LimitsSet, PlainUse, PolicyMemory, Switched
from pycontrol.bridge.endpoint import to_json
from pycontrol.cli import main, screens
from pycontrol.cli.client import Misused
from pycontrol.cli.estimate import anonymous
from pycontrol.config.accounts_section import GroupSection, accounts_of
from pycontrol.lab.whatif import read_snapshot
from pycontrol.model.cluster import ModeSwitch
from pycontrol.policies import registry
from pycontrol.simulation.questions import Questions
from pycontrol.simulation.scene import picture, scene_from
from pycontrol.web.router import Router
from tests.web.stage import Stage, busy, served


@pytest.fixture(scope="module")
def stage() -> Stage:
    return busy(registry.make("isonomy"), machines=2, gpus=4, apps=6, hours=1.0)


@pytest.fixture(scope="module")
def server(stage: Stage) -> Iterator[str]:
    def estimates() -> dict[str, object]:
        quantiles = [stage.now + 60, stage.now + 600, stage.now + 7200]
        apps = {x: {"start_s": quantiles, "end_s": quantiles} for x in stage.arbiter.durable.live}
        return {"made_s": stage.now, "assumed": "all goes well", "problem": "", "apps": apps}

    questions = Questions({}, slower=30.0)
    router = Router(
        stage,
        issue=lambda a, u: "",
        arbiter_address="h:1",
        feed=stage.feed,
        picture=picture,
        estimates=estimates,
        why_not=questions.answer,
    )
    request = requests.Session.request

    def patient(*args: Any, **more: Any) -> requests.Response:
        return request(*args, **{**more, "timeout": 500.0})

    with served(router) as found, pytest.MonkeyPatch.context() as patch:
        patch.setattr("pycontrol.simulation.questions.SHARE", 1.0)
        patch.setattr(
            requests.Session, "request", patient
        )  # a busy machine takes more than 20 s to start the process that answers
        yield found.url.partition("/ws/")[0]
    questions.stop()


def run(server: str, *args: str) -> Result:
    return CliRunner().invoke(main, ["--rm", server, *args], env={"ISONOMY_RM": None})


def test_estimates_are_in_queue_explain_and_page(server: str, stage: Stage) -> None:
    assert "in ~10 min (60 s to 2 h 00 min)" in run(server, "queue").output
    app_id = next(iter(stage.arbiter.durable.live))
    text = run(server, "explain", app_id).output
    assert "estimate: " in text
    assert "if all goes well" in text


def test_an_app_that_has_ended_has_no_estimate() -> None:
    """The newest forecast may be older than its end."""
    forecast = {"assumed": "all goes well", "apps": {"a": {"start_s": [1.0, 2.0, 3.0], "end_s": [4.0, 5.0, 6.0]}}}
    why = {"code": "NoFreeGpus", "sentence": "no GPU is free"}
    live, ended = (
        Router._with_estimate(
            {"app": {"app_id": "a", "finished_s": x, "gpus_held": 0}, "jobs": [], "reason": why, "now_s": 0.5}, forecast
        )
        for x in (None, 9.0)
    )
    assert live["estimate"]["end_s"] == [4.0, 5.0, 6.0]
    assert "you start" in live["reason"]["sentence"]
    assert ended["estimate"]["end_s"] is ended["estimate"]["start_s"] is None
    assert ended["reason"] == why


def test_the_estimate_of_a_future_app(server: str) -> None:
    asked = ("estimate", "--gpus", "4", "--hours", "0.2", "--queue", "root.prod")
    result = run(server, *asked)
    assert result.exit_code == 0, result.output
    assert "starts in ~" in result.output
    found = json.loads(run(server, *asked, "-o", "json").output)
    assert "why_not" not in found
    assert found["now_s"] <= found["start_s"][0] <= found["start_s"][2]
    assert "did you mean root.prod?" in run(server, *asked[:5], "--queue", "root.prdo").output
    assert run(server, "estimate", "--gpus", "400", "--hours", "1", "--queue", "root.prod").exit_code == 2


def test_why_a_future_app_would_wait(server: str) -> None:
    asked = ("estimate", "--gpus", "4", "--hours", "0.2", "--queue", "root.prod", "--why")
    found = json.loads(run(server, *asked, "-o", "json").output)
    said = found["why_not"]
    assert said["gets"] or said["changes"] or said["reason"]["code"]
    assert said["sentence"] in run(server, *asked).output.replace("\n", " ")


def test_explain_why_not(server: str, stage: Stage) -> None:
    app_id = next(x for x in stage.arbiter.agents.unmet)
    found = json.loads(run(server, "explain", app_id, "--why-not", "-o", "json").output)
    assert found["app_id"] == app_id
    text = " ".join(run(server, "explain", app_id, "--why-not").output.split())
    assert found["sentence"] in text
    assert all(" ".join(c["sentence"].split()) in text for c in found["changes"])


def test_a_snapshot_without_names(server: str, stage: Stage, tmp_path: Path) -> None:
    for flags in ((), ("--anonymise",)):
        file = tmp_path / f"s{len(flags)}.zip"
        assert run(server, "snapshot", "--out", str(file), *flags).exit_code == 0
        state = read_snapshot(file)
        with zipfile.ZipFile(file) as archive:
            text = archive.read("state.json").decode()
        named = [
            *stage.arbiter.durable.live,
            *(x.user for x in stage.arbiter.durable.live.values()),
            "r00m00",
            "root.prod",
        ]
        assert all((f'"{name}"' in text) != bool(flags) for name in named)
        assert len(state.started) == len(stage.arbiter.durable.live)


OWN = re.compile(
    r"c\d+|r\d+(\.\d+)+|p\d+j\d+(/\d+)?"  # containers, leases, jobs and plans
    "|SUBMARINE|active|aligned|auto|dict|frozenset|gpu|isonomy|job|median|on|others|paused|plain|single"
    "|Account|Accounts|AgentUp|ClusterSnapshot|Container|Demand|Gpu|Limits|Machine|Mode|ModeSwitch|Node|Queue|Recent"
    "|Reported|Scene|Scope|Settings|Topology|WorkerPlan|YarnApp|"
)


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (lambda whole: whole.replace(b"state.json", b"state.jsom"), "no item named"),
        (lambda whole: whole[:40] + b"\xff" * 20 + whole[60:], "decompressing"),
        (
            lambda whole: whole.replace(b"PK\x01\x02\x14\x03\x14\x00\x00", b"PK\x01\x02\x14\x03\x14\x00\x01"),
            "encrypted",
        ),
        (lambda whole: whole[:-40], "not a zip file"),
    ],
)
def test_a_damaged_snapshot_is_one_line(tmp_path: Path, damage: Callable[[bytes], bytes], why: str) -> None:
    file = tmp_path / "s.zip"
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("state.json", json.dumps(list(range(1000))))
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(Misused, match=f"is not a snapshot .*{why}"):
        read_snapshot(file)


def strings(of: Any) -> set[str]:
    if isinstance(of, dict):
        return set().union(*map(strings, of.values()))
    return set().union(*map(strings, of)) if isinstance(of, list) else {of} if isinstance(of, str) else set()


def test_no_name_of_a_rich_state_is_left() -> None:
    """Users and queues of accounts, limits, boosts, the mode and past use, also those that have no app now."""
    a = (stage := busy(registry.make("isonomy"), machines=2, gpus=4, apps=6, hours=1.0)).arbiter
    tree = {
        "vision": GroupSection.model_validate({"users": {"alice": {}}, "groups": {"robots": {"users": {"on": {}}}}}),
        "others": GroupSection.model_validate({"users": {"bob": {}}, "queues": {"root.secret": {"weight": 2}}}),
    }
    a.settings = a.holdings.settings = dataclasses.replace(
        a.settings, accounts=accounts_of(tree), exempt_queues=("root.hush",)
    )
    a.cluster.switch = ModeSwitch(by="carol", at_s=1.0)
    for fact in (
        LimitsSet("user dave", {"gpus": 4.0}, "elton", stage.now),
        LimitsSet("group vision/robots", {"gpus": 4.0}, "elton", stage.now),
        Switched("drained:gone", True, "freddie", stage.now),
        PlainUse("george", "root.legacy", "plain", "gpu", 4, stage.now),
        Boosted("user harry", stage.now + 100, "elton", stage.now),
        PolicyMemory({"gpu_s": {"root.old": {"iris": 5.0}}}, "root.prod (borrowed)"),
    ):
        a.clerk.record(fact)
    raw = json.loads(to_json(picture(a, stage.now)))
    hidden = anonymous(raw)
    assert {x for x in strings(hidden) & strings(raw) if not OWN.fullmatch(x)} == set()
    assert not re.search("root|iris", json.dumps(hidden["durable"]["memory"]))
    scene = scene_from(hidden)
    limited = {x["account"] for x in scene.durable["limits"] if x["account"].startswith("group ")}
    assert limited < scene.settings.accounts.groups_named(), "a limit follows its group"
    assert scene.cluster.switch == dataclasses.replace(a.cluster.switch, by=scene.cluster.switch.by)


def test_without_names_a_queue_is_still_the_same_with_and_without_root() -> None:
    state = {"queues": [{"path": "root.prod"}], "vcs": [{"name": "prod"}]}
    hidden = anonymous({**state, "durable": {"apps": [], "leases": [], "plain": [], "uses": []}})
    assert hidden["queues"][0]["path"] == hidden["vcs"][0]["name"] != "prod"


def test_an_estimate_is_shown_with_its_range() -> None:
    assert screens.estimate(None, None, 0, 0.0) == "-"
    assert screens.estimate([60.0, 600.0, None], None, 0, 0.0) == "starts in ~10 min (60 s or more)"


def test_other_policies_continue_from_the_present_state(server: str, stage: Stage, tmp_path: Path) -> None:
    """A snapshot gives the same result: only the state is read from the cluster."""
    now = json.loads(run(server, "whatif", "--now", "--policy", "isonomy,drf,themis", "-o", "json").output)
    assert now["policies"] == ["isonomy", "drf", "themis"]
    waiting = {a for a, app in stage.apps.items() if app.started_s is None}
    assert waiting
    assert sum(row["apps"] for row in now["waits"]["queue"]) == len(waiting), "who had started waited for none of them"
    assert all(t["finished"] == t["apps"] == len(stage.apps) for t in now["totals"].values())
    assert now["gains"]["drf"]["compared"] == len(stage.apps)
    file = tmp_path / "s.zip"
    run(server, "snapshot", "--out", str(file))
    later = json.loads(run(server, "whatif", str(file), "--policy", "isonomy,drf,themis", "-o", "json").output)
    assert {k: later[k] for k in ("sentences", "totals")} == {k: now[k] for k in ("sentences", "totals")}
    text = run(server, "whatif", str(file)).output
    assert text.startswith("yarn_cs instead of isonomy: ")
    assert "no app arrives after" in text


def test_a_state_that_cannot_continue_is_one_line(server: str, stage: Stage, tmp_path: Path) -> None:
    file = tmp_path / "s.zip"
    run(server, "snapshot", "--out", str(file))
    for words, why in (
        (("whatif",), "give a WORKLOAD or a snapshot, or --now"),
        (("whatif", str(file), "--now"), "one of them"),
        (("whatif", "--now", "--cluster", "2x4"), "a state has its own machines"),
        (("whatif", "mine.csv"), "--cluster is absent"),
        (("whatif", "--now", "--cells", str(tmp_path / "none.yaml")), "cannot be read"),
    ):
        result = run(server, *words)
        assert result.exit_code == 2, words
        assert why in " ".join(result.output.split())


def test_a_state_can_continue_under_virtual_clusters(server: str, stage: Stage, tmp_path: Path) -> None:
    queues = sorted({x.queue for x in stage.arbiter.durable.live.values()})
    cells = tmp_path / "cells.yaml"
    cells.write_text(
        json.dumps(
            {
                "cell_types": {"node": {"child": "gpu", "count": 4, "node_level": True}},
                "physical_cells": [{"type": "node", "hosts": [host]} for host in sorted(stage.topology.machines)],
                "virtual_clusters": {q: {"node": 1} for q in queues[:2]},
            }
        )
    )
    found = run(server, "whatif", "--now", "--policy", "isonomy,drf", "--cells", str(cells), "-o", "json")
    assert found.exit_code == 0, found.output
    assert all(t["finished"] == t["apps"] for t in json.loads(found.output)["totals"].values())
