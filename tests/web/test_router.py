"""Permissions: a closed table of routes, commands for admins, tokens for the app's own user."""

import dataclasses
import html
import threading
from typing import Any

import pytest

from pycontrol.arbiter.core import Arbiter
from pycontrol.arbiter.ledger.durable import Durable
from pycontrol.arbiter.ledger.facts import Switched
from pycontrol.model.cluster import YarnApp
from pycontrol.model.events import AppAdded, Event
from pycontrol.queries.lookup import find_app
from pycontrol.runtime.driver import Overloaded
from pycontrol.runtime.journal import NoJournal
from pycontrol.web.feed import WATCHERS_MAX, Feed
from tests.web.scene import EARLY, LATE, SHELL, Scene


@pytest.fixture
def scene() -> Scene:
    return Scene(run_s=10)


def test_unknown_paths_methods_and_parameters(scene: Scene) -> None:
    status, answer = scene.router.handle("GET", "secrets", {}, "u", True)
    assert status == 404
    assert "status" in answer["paths"]
    assert scene.error("GET", "pause", admin=True) == (405, "pause: needs POST (got GET)")
    assert scene.error("POST", "status")[0] == 405
    assert scene.error("GET", "rounds", n="0")[0] == 400
    assert scene.error("GET", "rounds", n="201") == (400, "n: must be from 1 to 200 (got 201)")
    assert scene.error("GET", "rounds", n="x") == (400, "n: must be a whole number (got x)")
    assert "known: n" in scene.error("GET", "rounds", m="1")[1]


@pytest.mark.parametrize(
    ("verb", "params"),
    [
        ("pause", {}),
        ("resume", {}),
        ("drain", {"node": "n1"}),
        ("undrain", {"node": "n1"}),
        ("kill", {"app": EARLY}),
        ("budget-set", {"account": "user u", "gpus": "1"}),
        ("budget-reset", {"account": "user u"}),
        ("boost", {"target": EARLY, "for_s": "60"}),
    ],
)
def test_commands_need_admin_rights(scene: Scene, verb: str, params: dict[str, str]) -> None:
    before = scene.world.arbiter.durable.dump()
    for user in ("mallory", ""):
        status, text = scene.error("POST", verb, user=user, **params)
        assert status == 403
        assert "yarn.admin.acl" in text
        assert user in text
    assert scene.world.arbiter.durable.dump() == before


def test_an_admin_pauses_drains_and_kills(scene: Scene) -> None:
    def post(verb: str, **params: str) -> None:
        status, answer = scene.router.handle("POST", verb, params, "root", True)
        assert (status, answer["ok"]) == (200, True)

    post("pause")
    assert scene.world.arbiter.holdings.paused
    post("resume")
    assert not scene.world.arbiter.holdings.paused
    post("drain", node="n2")
    assert scene.world.arbiter.holdings.drained("n2")
    post("undrain", node="n2")
    assert not scene.world.arbiter.holdings.drained("n2")
    post("kill", app=EARLY)
    assert ("finish", EARLY) in scene.world.history
    done = [f"ended {EARLY}", "undrains n2", "drains n2", "resumed the rounds", "paused the rounds"]
    assert [x["text"] for x in scene.get("status")["acts"]] == [f"root {x}" for x in done]
    a = scene.world.arbiter
    assert (
        Durable.load(a.durable.dump()).acts
        == a.durable.acts
        == tuple(fact for _, _, fact in scene.kept.facts if isinstance(fact, Switched))
    )
    assert scene.error("POST", "drain", user="root", admin=True, node="n9")[0] == 404


def test_an_admin_sets_limits_which_are_shown_with_what_is_used_of_them(scene: Scene) -> None:
    def post(verb: str, **params: str) -> str:
        status, answer = scene.router.handle("POST", verb, params, "root", True)
        assert (status, answer["ok"]) == (200, True)
        return str(answer["text"])

    assert "user u has gpus 2, gpu_hours_week 50" in post(
        "budget-set", account="user u", gpus="2", gpu_hours_week="50", gpu_hours_day="none"
    )
    assert "user u has gpu_hours_week 50" in post("budget-set", account="user u", gpus="none")
    status, answer = scene.router.handle("GET", "budget", {}, "mallory", False)
    assert status == 200
    (row,) = answer["limits"]
    assert (row["account"], row["kind"], row["limit"], row["set_by"]) == ("user u", "gpu_hours_week", 50, "root")
    uses = scene.world.arbiter.durable.uses.values()
    assert row["used"] == pytest.approx(sum(x.seen(answer["now_s"])[1] for x in uses) / 3600)
    assert "isonomy.yaml again" in post("budget-reset", account="user u")
    assert scene.router.handle("GET", "budget", {}, "mallory", False)[1]["limits"] == []


class Interrupted(Scene):
    """Between what a command looks at and the command itself, another thread has time."""

    other: threading.Thread | None = None

    def submit(self, event: Event) -> None:
        if (other := self.other) is not None:
            self.other = None
            other.start()
            other.join(0.1)
        super().submit(event)


def test_two_limits_of_an_account_that_are_set_at_the_same_time_both_hold() -> None:
    scene, answers = Interrupted(run_s=1), list[int]()

    def post(**limits: str) -> None:
        params = {"account": "user u", **limits}
        answers.append(scene.router.handle("POST", "budget-set", params, "root", True)[0])

    scene.other = other = threading.Thread(target=lambda: post(gpu_hours_week="50"))
    post(gpus="2")
    other.join()
    assert answers == [200, 200]
    found = scene.router.handle("GET", "budget", {}, "root", True)[1]["limits"]
    assert {row["kind"]: row["limit"] for row in found} == {"gpus": 2, "gpu_hours_week": 50}


@pytest.mark.parametrize(
    ("verb", "params", "status", "text"),
    [
        ("budget-set", {"account": "u", "gpus": "1"}, 400, "must be `user NAME`"),
        ("budget-set", {"account": "group x", "gpus": "1"}, 404, "there is no group x"),
        ("budget-set", {"account": "user u"}, 400, "give at least one"),
        ("budget-set", {"account": "user u", "gpus": "1.5"}, 400, "whole number"),
        ("budget-set", {"account": "user u", "gpus": "-1"}, 400, "gpus: must be from 0"),
        ("budget-set", {"account": "user u", "gpu_hours_day": "nan"}, 400, "must be from 0"),
        ("budget-set", {"account": "user u", "gpu_hours_day": "x"}, 400, "a number or none"),
        ("budget-reset", {"account": "user u"}, 409, "no command has set"),
    ],
)
def test_limits_that_make_no_sense_are_refused(
    scene: Scene, verb: str, params: dict[str, str], status: int, text: str
) -> None:
    found = scene.error("POST", verb, user="root", admin=True, **params)
    assert found[0] == status


def test_an_admin_boosts_an_app_or_a_user_until_an_end(scene: Scene) -> None:
    def post(**params: str) -> dict[str, Any]:
        status, answer = scene.router.handle("POST", "boost", params, "root", True)
        assert status == 200, answer
        return answer

    assert post(target=LATE, for_s="7200")["target"] == f"app {LATE}"
    (row,) = (r for r in scene.get("queue")["apps"] if r["app_id"] == LATE)
    assert (row["boost"]["by"], row["boost"]["until_s"]) == ("root", scene.world.now + 7200)
    assert scene.get("explain", app=LATE)["controls"]["boost"] == row["boost"]
    assert [b["target"] for b in scene.get("status")["boosts"]] == [f"app {LATE}"]
    standby = scene.router.pictures.newest().arbiter.durable.kept()
    assert [b["target"] for b in standby["boosts"]] == [f"app {LATE}"]
    post(target=LATE, for_s="0")
    assert scene.get("status")["boosts"] == []
    assert post(target="u", for_s="60")["target"] == "user u"
    assert all(r["boost"] for r in scene.get("queue")["apps"] if r["user"] == "u")


def test_a_boost_of_a_name_that_apps_and_a_user_have_says_how_to_tell_which(scene: Scene) -> None:
    apps = scene.world.arbiter.cluster.apps
    for twins in ([LATE], [LATE, EARLY]):
        for app_id in twins:
            apps[app_id] = dataclasses.replace(apps[app_id], name="u")
        status, text = scene.error("POST", "boost", user="root", admin=True, target="u", for_s="60")
        assert (status, text[-12:]) == (400, ", or: user u"), text
        assert all(app_id in text for app_id in twins)
    params = {"target": "user u", "for_s": "60"}
    assert scene.router.handle("POST", "boost", params, "root", True)[1]["target"] == "user u"


@pytest.mark.parametrize(
    ("status", "text", "params"),
    [
        (400, "for_s: is missing", {"target": EARLY}),
        (400, "for_s: must be from 0 to 2592000", {"target": EARLY, "for_s": "2592001"}),
        (409, "has none", {"target": EARLY, "for_s": "0"}),
        (404, "no application of this id or name", {"target": "nobody", "for_s": "60"}),
        (400, "target: is missing", {"for_s": "60"}),
    ],
)
def test_a_boost_that_cannot_be_is_refused_in_a_sentence(
    scene: Scene, status: int, text: str, params: dict[str, str]
) -> None:
    found = scene.error("POST", "boost", user="root", admin=True, **params)
    assert found[0] == status, found
    assert text in found[1]


def test_users_kill_their_own_apps(scene: Scene) -> None:
    status, answer = scene.router.handle("POST", "kill", {"app": SHELL}, "u", False)
    assert status == 200
    assert "yarn application -kill" in answer["text"]
    assert SHELL in scene.world.arbiter.agents.terminating
    scene.world.end_app(SHELL)
    assert scene.error("POST", "kill", app=SHELL)[0] == 409


def test_an_app_that_is_to_end_is_not_looked_for_on_the_arbiters_thread(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All names are compared with a name that nobody has: events would wait for a user who asks for such ones."""
    compared: list[Arbiter] = []
    monkeypatch.setattr("pycontrol.web.router.find_app", lambda a, params: compared.append(a) or find_app(a, params))
    assert scene.error("POST", "kill", app="99999")[0] == 404
    assert scene.router.handle("POST", "kill", {"app": "3"}, "u", False)[0] == 200
    assert len(compared) == 2
    assert scene.world.arbiter not in compared


def test_a_token_is_for_the_apps_own_user(scene: Scene) -> None:
    new = "application_1_0042"
    d = scene.get("token", user="ann", app=new)
    assert d["token"] == f"token of {new}"
    assert d["arbiter"] == "host:26501"
    assert d["expires_s"] == pytest.approx(scene.world.now + 60)
    assert scene.error("GET", "token", user="", app=new)[0] == 401
    assert scene.error("GET", "token", app="my-app")[0] == 400
    assert scene.error("GET", "token", user="mallory", admin=True, app=EARLY)[0] == 403
    scene.submit(AppAdded(YarnApp(new, "ann", "root.q", "new", "SUBMARINE", scene.world.now)))
    assert scene.error("GET", "token", user="bob", app=new)[0] == 403
    scene.get("token", user="ann", app=new)
    assert scene.issued == [(new, "ann"), (new, "ann")]


def test_a_busy_control_plane_says_so(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    def busy(*_: object) -> None:
        raise TimeoutError

    def full(*_: object) -> None:
        raise Overloaded

    monkeypatch.setattr(scene, "submit", full)
    assert scene.error("POST", "pause", admin=True)[0] == 503
    monkeypatch.setattr(scene, "call", busy)
    assert scene.error("GET", "status")[0] == 503


def test_a_watcher_is_woken_by_an_event() -> None:
    feed = Feed(NoJournal(), first_seq=10)
    answers = []
    watcher = threading.Thread(target=lambda: answers.append(feed.since(10, 20.0, 50)))
    watcher.start()
    while not feed.watchers:
        pass
    feed.append([Switched("paused", True, "root", 5.0)], 5.0)
    watcher.join(10.0)
    assert [e["text"] for e in answers[0]["events"]] == ["root paused the rounds"]
    assert answers[0]["next"] == 11


def test_watchers_beyond_the_limit_are_answered_immediately() -> None:
    feed = Feed(NoJournal(), first_seq=10)
    feed.watchers = WATCHERS_MAX
    assert feed.since(10, 60.0, 50) == {"events": [], "next": 10, "missed": False}


def test_a_command_is_acknowledged_once_it_outlasts_a_failover(monkeypatch: pytest.MonkeyPatch, scene: Scene) -> None:
    monkeypatch.setattr(scene.router, "secure", lambda: "HDFS is away")
    status, said = scene.error("POST", "pause", admin=True)
    assert status == 503
    assert said.startswith(
        "pause: in force now, but a control plane that takes over would not know of it (HDFS is away)"
    )
    assert scene.world.arbiter.holdings.paused
    assert scene.router.handle("POST", "kill", {"app": EARLY}, "root", True)[0] == 200, "it is over with it"


def test_one_sentence_says_in_every_view_why_an_app_waits_and_when_it_starts(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = "application_1_0007"
    scene.world.add_app(waits, 12, 1, 4000)
    scene.world.run(14)
    start_s = [scene.world.now + 3600, scene.world.now + 7200, scene.world.now + 10800]
    forecast = {"made_s": 0.0, "assumed": "x", "problem": "", "apps": {waits: {"start_s": start_s, "end_s": None}}}
    monkeypatch.setattr(scene.router, "estimates", lambda: forecast)
    (row,) = (r for r in scene.get("queue")["apps"] if r["app_id"] == waits)
    assert row["gpus_held"] == 0
    assert row["sentence"].partition("; you start about ")[2].count(":") == 3
    for view in ("explain", "why-not"):
        assert scene.get(view, app=waits)["reason"] == {"code": row["reason"], "sentence": row["sentence"]}, view
    for path in ("ui", f"ui/app/{waits}"):
        assert row["sentence"].rpartition("; you")[2] in html.unescape(scene.get(path)["text"]), path
