"""YARN's VIEW_APP: callers without it see that an app exists, but nothing of its training."""

import json
from typing import Any

import pytest

from pycontrol.arbiter.ledger.facts import AppChanged
from pycontrol.bridge.endpoint import BridgeEndpoint
from pycontrol.policies import registry
from pycontrol.simulation.scene import picture
from pycontrol.web.acls import LEFT_OUT
from pycontrol.web.router import Router
from pycontrol.wire.v1 import bridge_pb2 as pb
from tests.web.stage import Stage, busy

SECRET = "only-for-its-owner"
NOBODY: frozenset[str] = frozenset()
READS = (
    "status",
    "queue",
    "apps",
    "leases",
    "explain",
    "picture",
    "trends",
    "spans",
    "rounds",
    "events",
    "metrics",
    "ui",
    "ui/app/",
)


@pytest.fixture(scope="module")
def stage() -> Stage:
    stage = busy(registry.make("isonomy"), machines=2, gpus=4, apps=5, hours=1.0)
    record = next(x for x in stage.arbiter.durable.live.values() if stage.arbiter.agents[x.app_id].jobs)
    record.message = record.model_path = SECRET
    record.best = {"accuracy": 0.5, "configuration": {"lr": SECRET}}
    told = {"done": True, "final_state": "SUCCEEDED", "message": SECRET, "best": record.best}
    stage.feed.append([AppChanged(record.app_id, {"message": SECRET}), AppChanged(record.app_id, told)], stage.now)
    agent = stage.arbiter.agents[record.app_id]
    for job in agent.jobs:
        job.configuration["lr"] = SECRET  # type: ignore[index]
    assert stage.feed.trends.trends(stage.arbiter, stage.now, {"app": record.app_id})["losses"]
    stage.hidden = record  # type: ignore[attr-defined]
    return stage


@pytest.fixture
def router(stage: Stage) -> Router:
    return Router(stage, issue=lambda a, u: "", arbiter_address="h:1", feed=stage.feed, picture=picture)


def said(router: Router, stage: Stage, path: str, user: str, admin: bool, viewable: frozenset[str] | None) -> str:
    app_id = stage.hidden.app_id  # type: ignore[attr-defined]
    params = {"app": app_id} if path in ("explain", "trends", "spans") else {}
    path += app_id if path == "ui/app/" else ""
    status, answer = router.handle("GET", path, params, user, admin, viewable)
    assert status == 200, answer
    return answer["text"] if "text" in answer else json.dumps(answer, default=str)


@pytest.mark.parametrize("path", READS)
def test_without_view_app_no_configuration_and_no_message_is_shown(router: Router, stage: Stage, path: str) -> None:
    mine: Any = stage.hidden  # type: ignore[attr-defined]
    text = said(router, stage, path, "mallory", False, NOBODY)
    assert SECRET not in text
    if path in ("queue", "apps", "explain", "picture"):
        assert mine.app_id in text, "that it is there is no secret"
    if path == "trends":
        assert json.loads(text)["losses"] == {}


@pytest.mark.parametrize("path", sorted({"apps", "explain", "picture", "events", "ui/app/"}))
def test_with_view_app_everything_is_shown(router: Router, stage: Stage, path: str) -> None:
    mine: Any = stage.hidden  # type: ignore[attr-defined]
    for user, admin, viewable in (
        ("mallory", False, None),
        (mine.user, False, NOBODY),
        ("mallory", True, NOBODY),
        ("mallory", False, frozenset({mine.app_id})),
    ):
        assert SECRET in said(router, stage, path, user, admin, viewable)
        assert SECRET not in said(router, stage, path, "", False, NOBODY), "an answer is kept for all who ask"


def test_the_owner_sees_the_losses_when_yarn_lists_the_app_no_more(router: Router, stage: Stage) -> None:
    user: str = stage.hidden.user  # type: ignore[attr-defined]
    assert json.loads(said(router, stage, "trends", user, False, NOBODY))["losses"]


def test_logs_are_refused(router: Router, stage: Stage) -> None:
    app_id = stage.hidden.app_id  # type: ignore[attr-defined]
    assert router.handle("GET", "logs", {"app": app_id}, "mallory", False, NOBODY)[0] == 403
    assert router.handle("GET", "logs", {"app": app_id}, "mallory", False, frozenset({app_id}))[0] == 200
    assert set(LEFT_OUT) <= router.routes.keys()


def test_the_plugin_decides_which_apps_a_caller_may_view() -> None:
    asked: list[Any] = []

    def route(*query: Any) -> tuple[int, dict[str, Any]]:
        asked.append(query)
        return 200, {}

    endpoint = BridgeEndpoint(lambda event: None, route, lambda: None)
    endpoint.query(pb.Query(method="GET", path="queue", user="u"))
    endpoint.query(pb.Query(method="GET", path="queue", user="u", acls=True, viewable=["a"]))
    endpoint.query(pb.Query(method="GET", path="queue", acls=True))
    assert [q[5] for q in asked] == [None, frozenset({"a"}), frozenset()]
