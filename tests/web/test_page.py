"""The page: complete without a script, no foreign text as markup, an answer for each mistake, and fast when large."""

import copy
import cProfile
import dataclasses
import json
import re
from collections.abc import Mapping
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from pycontrol import words
from pycontrol.model.cluster import Container, Mode, ModeSwitch, YarnApp
from pycontrol.model.events import JobProgress
from pycontrol.model.topology import Gpu
from pycontrol.policies import registry
from pycontrol.queries import trends, views
from pycontrol.runtime.driver import Overloaded
from pycontrol.simulation.questions import Questions
from pycontrol.web.page.cluster_page import charts
from pycontrol.web.page.machine_map import GPUS_DRAWN, Drawer
from pycontrol.web.page.site import FILES, Page, version
from pycontrol.web.router import Router
from tests.arbiter.mini import Mini
from tests.web.rest import counted
from tests.web.scene import EARLY, LATE, Scene
from tests.web.stage import HOSTILE, Stage, busy, router_of

VOID = {"meta", "link", "input", "br", "img"}


class Markup(HTMLParser):
    """Every element is closed, and none has code or style of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def parsed(page: str) -> Markup:
    markup = Markup()
    markup.feed(page)
    markup.close()
    assert markup.open == []
    for tag, attributes in markup.tags:
        assert tag not in ("img", "style")
        assert not any(name.startswith("on") or name == "style" for name in attributes), (tag, attributes)
        if tag == "script":
            assert re.fullmatch(r"(\.\./)*ui/static/\w+/(page|uplot-1\.6\.32\.min)\.js", attributes["src"] or "")
    return markup


def get(stage: Stage, path: str, **params: str) -> tuple[int, str]:
    status, answer = router_of(stage).handle("GET", path, params, "ann", False)
    assert answer["content_type"].startswith("text/html")
    assert "script-src 'self'" in answer["headers"]["Content-Security-Policy"]
    assert "unsafe" not in answer["headers"]["Content-Security-Policy"]
    assert answer["headers"]["X-Content-Type-Options"] == "nosniff"
    return status, answer["text"]


def test_the_cluster_page_has_everything(stage: Stage) -> None:
    status, page = get(stage, "ui")
    assert status == 200
    markup = parsed(page)
    shown = " ".join(markup.text)
    a = stage.arbiter
    assert f"{len(a.durable.leases)} of" in re.sub(r"\s+", " ", shown)
    for host in a.holdings.topology.machines:
        assert host in shown
    cells = [at["class"] for tag, at in markup.tags if tag == "i" and "title" in at]
    assert sum("bad" in c for c in cells) == 1
    assert sum(re.search(r"\bc\d", c) is not None for c in cells) == len(a.durable.leases)
    assert len(cells) == stage.topology.gpus
    for app_id in a.durable.live:
        assert f"ui/app/{app_id}" in page
    assert a.receipts[-1].round_id in shown


def test_the_page_of_usage_says_what_it_covers(stage: Stage) -> None:
    router = Router(stage, issue=lambda *_: "", arbiter_address="host:1", feed=stage.feed, usage=counted)
    status, answer = router.handle("GET", "ui/usage", {"by": "day,user"}, "ann", False)
    shown = " ".join(" ".join(parsed(answer["text"]).text).split())
    assert status == 200
    rows = ("2024-10-04 ann 2 1.0 1.0 0.0 0.0 2.50 2 h", "2024-10-05 eve 0 0.5 0.0 0.0 0.0 0.00 2 h")
    for said in (*rows, "in all 2 1.5 1.0 0.0 0.0 2.50", "only GPUs under leases are counted:", "GPUs of type T4"):
        assert said in shown
    assert get(stage, "ui/usage")[0] == 404, "nothing is counted yet"
    assert router.handle("GET", "ui/usage", {"by": "app"}, "ann", False)[0] == 400


def test_an_app_that_has_ended_is_listed_and_keeps_its_jobs_and_curves(stage: Stage) -> None:
    ended = [r for r in stage.arbiter.durable.apps.values() if r.finished_s is not None]
    app_id = max(ended, key=lambda r: r.finished_s or 0.0).app_id
    assert app_id not in stage.arbiter.agents
    _, page = get(stage, "ui")
    listed = page.partition('id="h-ended"')[2].partition("</section>")[0]
    assert re.findall(r"ui/app/(\w+)", listed)[0] == app_id
    _, mine = get(stage, f"ui/app/{app_id}")
    jobs = mine.partition('id="h-jobs"')[2].partition("</section>")[0]
    assert "lr=0.001" in jobs
    assert "polyline" in jobs
    gantt = mine.partition('id="h-gantt"')[2].partition("</section>")[0]
    bars = re.findall(r'<rect[^>]* x="([\d.]+)"[^>]* width="([\d.]+)"', gantt)
    assert max(float(x) + float(width) for x, width in bars) > 990, "the axis ends with the app"


def test_curves_span_the_training_and_the_oldest_apps_are_dropped_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trends, "JOBS_KEPT", 2)
    kept = trends.Trends()
    for step in range(1, 1001):
        kept.progressed("a", (JobProgress("j", "running", step, 1 / step),))
    curve = kept.trends(Scene(run_s=1).world.arbiter, 0.0, {"app": "a"})["losses"]["j"]
    assert (curve[0][0], curve[-1][0]) == (1, 1000)
    assert trends.LOSSES_KEPT / 2 <= len(curve) <= trends.LOSSES_KEPT
    assert max(b - a for (a, _), (b, _) in pairwise(curve)) <= 2 * 1000 / len(curve)
    for app_id in ("b", "c"):
        kept.progressed(app_id, (JobProgress("j", "done"),))
    assert [len(kept.jobs(app_id)) for app_id in "abc"] == [0, 1, 1]


def test_an_app_that_tells_of_ever_new_jobs_takes_no_more_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trends, "JOBS_OF_APP", 3)
    kept, arbiter = trends.Trends(), Scene(run_s=1).world.arbiter
    for k in range(100):
        kept.progressed("a", (JobProgress("always", "running", k + 1, 1.0), JobProgress(f"j{k}", "running", 1, 1.0)))
    assert kept.trends(arbiter, 0.0, {"app": "a"})["losses"].keys() == {"j98", "j99", "always"}


def test_the_jobs_and_curves_of_ended_apps_outlive_the_control_plane(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "jobs.jsonl"
    kept = trends.Trends(file)
    arbiter = Scene(run_s=1).world.arbiter
    for app_id in ("old", "a", "running"):
        for step in (1, 2):
            kept.progressed(app_id, (JobProgress("j", "done", step, 1 / step, configuration={"lr": "0.1"}),))
    for app_id in ("old", "a", "never-heard-of"):
        kept.ended(app_id)
    kept.keep()
    deep = "[" * 100_000
    file.write_bytes(file.read_bytes() + b'{"app_id": "\xff"}\n' + deep.encode() + b'\n{"app_id": "cut')
    again = trends.Trends(file)
    assert again.jobs("a") == kept.jobs("a")
    assert again.trends(arbiter, 0.0, {"app": "a"})["losses"] == {"j": [(1, 1.0), (2, 0.5)]}
    assert again.jobs("running") == ()
    monkeypatch.setattr(trends, "JOBS_KEPT", 1)
    assert [len(trends.Trends(file).jobs(x)) for x in ("old", "a")] == [0, 1], "the newest are kept"
    assert "old" not in file.read_text(), "the file has bounds, too"
    (tmp_path / "away").mkdir()
    trends.Trends(tmp_path / "away").keep()


def test_a_running_app_keeps_its_curves_when_the_file_of_ended_apps_is_shortened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trends, "JOBS_KEPT", 4)
    kept, arbiter = trends.Trends(tmp_path / "jobs.jsonl"), Scene(run_s=1).world.arbiter
    lines = 0
    for step in range(1, 20):
        kept.progressed(f"ended{step}", (JobProgress("j", "done", 1, 1.0),))
        kept.progressed("running", (JobProgress("j", "running", step, 1 / step),))
        kept.ended(f"ended{step}")
        kept.keep()
        assert len(kept.trends(arbiter, 0.0, {"app": "running"})["losses"]["j"]) == step
        before, lines = lines, len((tmp_path / "jobs.jsonl").read_text().splitlines())
        assert lines <= before + 1 <= 2 * 4 + 1
    assert [len(kept.jobs(f"ended{k}")) for k in (16, 17, 19)] == [0, 1, 1]
    assert trends.Trends(tmp_path / "jobs.jsonl").jobs("ended19") == kept.jobs("ended19")


def test_rows_are_in_the_order_of_service(stage: Stage) -> None:
    _, page = get(stage, "ui", show="waiting")
    linked = re.findall(r'class="row" href="ui/app/(\w+)"', page)
    ranked = [r["app_id"] for r in router_of(stage).handle("GET", "queue", {}, "ann", False)[1]["apps"] if r["rank"]]
    assert linked == ranked
    assert linked


def test_a_hostile_name_is_text_everywhere(stage: Stage) -> None:
    app_id = next(i for i, record in stage.arbiter.durable.apps.items() if record.name == HOSTILE)
    for path in ("ui", f"ui/app/{app_id}"):
        status, page = get(stage, path)
        assert status == 200
        assert HOSTILE in " ".join(parsed(page).text)
        assert "<img" not in page
    status, page = get(stage, f"ui/app/{HOSTILE}x")
    assert status == 404
    parsed(page)
    parsed(get(stage, "ui", q=HOSTILE)[1])


@pytest.mark.parametrize("policy", ["isonomy", "themis", "yarn_cs", "oef"])
def test_pages_of_every_kind_of_policy(policy: str) -> None:
    stage = busy(registry.make(policy), machines=3, gpus=4, apps=8, hours=2.0)
    parsed(get(stage, "ui")[1])
    for app_id in list(stage.arbiter.durable.apps):
        parsed(get(stage, f"ui/app/{app_id}")[1])


def test_an_app_with_an_auction_and_one_without_an_agent() -> None:
    scene = Scene()
    for app in scene.world.arbiter.durable.apps:
        status, answer = scene.router.handle("GET", f"ui/app/{app}", {}, "u", False)
        assert status == 200
        parsed(answer["text"])
    page = scene.router.handle("GET", "ui", {}, "u", False)[1]["text"]
    parsed(page)
    assert "rho without" in page


def test_sentences_name_apps_instead_of_their_ids() -> None:
    scene = Scene()
    said = f"others gained more: GPUs went to {LATE}, application_9_0009"

    def read(view: str, params: Mapping[str, str]) -> dict[str, Any]:
        found: dict[str, Any] = copy.deepcopy(scene.router.handle("GET", view, dict(params), "u", False)[1])
        if view == "explain":
            found["reason"]["sentence"] = said
        if "names" in found:
            found["names"][LATE] = "vision"
        for row in found["apps"] if view == "queue" else ():
            row["sentence"], row["name"] = said, {LATE: "vision"}.get(row["app_id"], row["name"])
        return found

    for path in ("ui", f"ui/app/{EARLY}"):
        status, answer = Page().answer("GET", path, {}, read)
        assert status == 200
        shown = " ".join(parsed(answer["text"]).text)
        assert "GPUs went to vision, application_9_0009" in shown
        assert LATE not in shown


def test_an_app_page_shows_the_cost_of_revocations(stage: Stage) -> None:
    lost = max(stage.arbiter.durable.live.values(), key=lambda app: app.revocations)
    assert lost.revocations
    spans = router_of(stage).handle("GET", "spans", {"app": lost.app_id}, "ann", False)[1]
    assert len(spans["revocations"]) == lost.revocations
    for r in spans["revocations"]:
        assert r["stop_gpu_s"] == pytest.approx(stage.settings.checkpoint_s * len(r["gpus"]), rel=0.01)
    page = " ".join(parsed(get(stage, f"ui/app/{lost.app_id}")[1]).text)
    assert words.gpu_time(spans["revocations"][-1]["stop_gpu_s"]) in page


def test_a_page_says_what_would_help_a_waiting_app(stage: Stage) -> None:
    questions, app_id = Questions({}, slower=10.0), next(iter(stage.arbiter.agents.unmet))
    router = Router(stage, issue=lambda *_: "", arbiter_address="h:1", feed=stage.feed, why_not=questions.answer)
    assert f"ui/app/{app_id}/why-not" in get(stage, f"ui/app/{app_id}")[1]
    status, answer = router.handle("GET", f"ui/app/{app_id}/why-not", {}, "ann", False)
    questions.stop()
    assert status == 200
    text = " ".join(parsed(answer["text"]).text)
    assert "Why not now" in text
    assert "change" in text
    assert "page.js" not in answer["text"], "the page would ask again and again"
    assert get(stage, f"ui/app/{app_id}/why-not")[0] == 404, "this control plane answers none"


def test_the_map_calls_only_those_gpus_free_that_an_app_may_get() -> None:
    m = Mini(nodes=[("n1", 4), ("n2", 4)])
    m.nodes = (m.nodes[0], dataclasses.replace(m.nodes[1], withheld="no Isonomy executor"))
    used = Container("c1", "a", "n1:1", (Gpu("n1", 0), Gpu("n1", 1)), gpu_count=2, plain=True)
    m.send(m.snapshot([YarnApp("a", "ann", "root.q", "shell")], [used]))
    status, leases = views.status(m.a, m.now, {}), views.leases(m.a, m.now, {})
    drawer = Drawer({}, {}, m.now)
    (rack,) = drawer.map(lambda path, params: leases, status, "")["racks"]
    drawn = [[gpu["what"].partition(", ")[2] for gpu in host["gpus"]] for host in rack["hosts"]]
    assert drawn == [["used without a lease"] * 2 + ["free"] * 2, ["closed"] * 4]
    many = GPUS_DRAWN // 8 + 1  # so that racks are bars
    (bar,) = drawer.map(lambda path, params: leases, {"nodes": status["nodes"] * many}, "")["racks"]
    assert {x["kind"]: x["n"] / many for x in bar["parts"]} == {"free": 2, "unleased_in_use": 2, "closed": 4}


def test_filters_and_mistakes(stage: Stage) -> None:
    assert "No app matches" in get(stage, "ui", q="nobody at all")[1]
    assert get(stage, "ui", show="secret")[0] == 400
    assert get(stage, "ui", x="1")[0] == 400
    assert get(stage, "ui", rack="no such")[0] == 404
    assert get(stage, "ui/app/nobody")[0] == 404
    assert get(stage, "ui/else")[0] == 404
    assert get(stage, "ui/static/x/../../site.py")[0] == 404
    assert router_of(stage).handle("POST", "ui", {}, "root", True)[0] == 405


@pytest.mark.parametrize(("path", "root"), [("/ui", ""), ("ui/", "../"), ("/ui/usage", "../"), ("ui/usage/", "../../")])
def test_a_page_finds_its_style_with_a_slash_behind_it_and_without(stage: Stage, path: str, root: str) -> None:
    links = [a["href"] for tag, a in parsed(get(stage, path)[1]).tags if tag == "link" and a.get("rel") == "stylesheet"]
    assert links
    assert all((link or "").startswith(f"{root}ui/static/") for link in links)


def test_a_busy_control_plane_gets_a_page_that_says_so(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    def busy(*_: object) -> None:
        raise Overloaded

    monkeypatch.setattr(stage, "call", busy)
    status, page = get(stage, "ui")
    assert (status, "busy" in page) == (503, True)


def test_files_have_their_types_and_may_be_cached(stage: Stage) -> None:
    for name, kind in FILES.items():
        status, answer = router_of(stage).handle("GET", f"ui/static/{version()}/{name}", {}, "", False)
        assert (status, answer["content_type"]) == (200, kind)
        assert "max-age" in answer["headers"]["Cache-Control"]
        assert answer["text"]
    own = router_of(stage).handle("GET", "ui/static/x/page.js", {}, "", False)[1]["text"]
    assert len(own.splitlines()) < 150


def test_ten_thousand_gpus_are_a_page_of_racks() -> None:
    """Its cost is counted in calls: on a busy machine CPU time, too, is many times as long."""
    stage = busy(registry.make("isonomy"), machines=1250, gpus=8, apps=300, hours=0.05)
    router = router_of(stage)
    router.handle("GET", "ui", {}, "ann", False)
    profile = cProfile.Profile()
    status, answer = profile.runcall(router.handle, "GET", "ui", {}, "ann", False)
    calls = sum(x.callcount for x in profile.getstats())
    assert status == 200
    markup = parsed(answer["text"])
    assert sum(tag == "rect" for tag, _ in markup.tags) > 300
    assert sum(tag == "i" for tag, _ in markup.tags) < 1000
    assert len(answer["text"]) < 1_000_000
    assert 1000 < calls < 1_500_000  # some 940,000: 0.2 s
    assert router.handle("GET", "ui", {"rack": "rack07"}, "ann", False)[0] == 200
    print(f"10,000 GPUs, 300 apps: {calls} calls, {len(answer['text']) // 1000} kB")


def test_trends_begin_with_the_control_plane_and_hold_a_day() -> None:
    stage = busy(registry.make("isonomy"), machines=2, gpus=4, apps=4, hours=1.0)
    d = router_of(stage).handle("GET", "trends", {}, "ann", False)[1]
    assert 50 <= len(d["at_s"]) <= 64
    for i in range(len(d["at_s"])):
        assert d["gpus"]["leased"][i] + d["gpus"]["free"][i] <= 8
    assert max(d["gpus"]["leased"]) > 0
    for k in range(1600):
        stage.feed.trends.sample(stage.arbiter, stage.now + 60.0 * (k + 1))
    d = stage.feed.trends.trends(stage.arbiter, stage.now + 60.0 * 1600, {})
    assert len(d["at_s"]) == 1440
    assert all(len(series) == 1440 for series in [*d["gpus"].values(), *d["apps"].values()])


def test_one_app_that_waits_for_a_hundred_times_the_cluster_does_not_flatten_the_chart() -> None:
    states = {"leased": [4, 4, 6], "free": [4, 4, 2], "out": [0, 0, 0], "waiting": [2, 1448, 2]}
    drawn = charts({"at_s": [0.0, 60.0, 120.0], "gpus": states, "apps": {}, "measure": ""}, {})["gpus"]
    leased = next(line["points"] for line in drawn["lines"] if line["colour"] == "leased")
    assert leased == "0.0,90.0 300.0,90.0 600.0,75.0", "of a box 120 high, for twice the 8 GPUs"
    assert json.loads(drawn["data"])["most"] == 16


def test_the_page_says_the_mode_and_who_switched_it(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "switched by" not in get(stage, "ui")[1], "on is as it should be"
    for switch, said in (
        (ModeSwitch(Mode.OFF, by="<ann>", at_s=1.0), "switched by <b>&lt;ann&gt;</b>"),
        (ModeSwitch(Mode.UNREADABLE, problem="no <file>"), "no &lt;file&gt;"),
    ):
        monkeypatch.setattr(stage.arbiter.cluster, "switch", switch)
        page = get(stage, "ui")[1]
        assert said in page
        assert ("mode unreadable" if switch.problem else "off") in "".join(parsed(page).text)


def test_an_empty_cluster_has_a_page() -> None:
    stage = busy(registry.make("isonomy"), machines=1, gpus=1, apps=1, hours=0.001)
    stage.arbiter.durable.live.clear()
    stage.arbiter.durable.apps.clear()
    stage.arbiter.cluster.apps.clear()
    stage.arbiter.cluster.nodes.clear()
    page = get(stage, "ui")[1]
    parsed(page)
    assert "No node has registered" in page
    assert "No app shares the cluster now" in page


def test_an_app_that_started_early_has_its_page_by_number_and_by_id() -> None:
    scene = Scene(run_s=10)
    assert scene.router.handle("GET", "ui/app/0001", {}, "u", False)[0] == 200
    assert EARLY in scene.router.handle("GET", f"ui/app/{EARLY}", {}, "u", False)[1]["text"]


def test_a_link_that_is_no_web_address_is_not_shown() -> None:
    stage = busy(registry.make("isonomy"), machines=3, gpus=4, apps=8, hours=2.0)
    app_id = next(iter(stage.arbiter.agents))
    links = (("here", "https://n1/x"), ("bad", "javascript:alert(1)"), ("old", "data:x"))
    stage.arbiter.agents[app_id].links = links
    _, page = get(stage, f"ui/app/{app_id}")
    assert 'href="https://n1/x"' in page
    assert "javascript:" not in page
    assert "data:x" not in page
