"""Metrics by queue, user and reason; the shipped rules and dashboard use only existing metrics."""

import inspect
import json
import re
import shutil
import socket
import ssl
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from pycontrol.arbiter.core import Arbiter
from pycontrol.arbiter.views.settings import Settings
from pycontrol.config import Config, ConfigError, MetricsListener, Tls, parse
from pycontrol.daemon import control_plane
from pycontrol.model import events as ev
from pycontrol.model.cluster import Mode, ModeSwitch
from pycontrol.model.reasons import SENTENCES, EndReason
from pycontrol.model.topology import Scope
from pycontrol.policies.themis import Themis
from pycontrol.queries import views
from pycontrol.queries.metrics import Metrics
from pycontrol.runtime.driver import Overloaded
from pycontrol.web import metrics_server
from pycontrol.web.metrics_server import MetricsServer
from tests.arbiter.mini import Mini
from tests.cli.test_certificates import certificate
from tests.web.scene import EARLY, Scene
from tests.web.stage import Stage, router_of

MONITORING = Path(__file__).parents[2] / "confs" / "monitoring"
Samples = dict[str, list[tuple[dict[str, str], float]]]


def samples(text: str) -> Samples:
    found: Samples = {}
    for family in text_string_to_metric_families(text):
        assert family.documentation, family.name
        for sample in family.samples:
            found.setdefault(sample.name, []).append((sample.labels, sample.value))
    return found


@pytest.fixture(scope="module")
def seen(stage: Stage) -> Samples:
    for name in re.findall(r'\("(\w+)", "[A-Z0-9].*"', inspect.getsource(control_plane)):
        stage.feed.metrics.watch(f"isonomy_{name}", "x", lambda: 1.0)
    return samples(router_of(stage).metrics_text())


def total(rows: list[tuple[dict[str, str], float]], **labels: str) -> float:
    return sum(value for found, value in rows if labels.items() <= found.items())


def test_gpus_are_counted_by_queue_user_and_reason(stage: Stage, seen: Samples) -> None:
    a = stage.arbiter
    for app in a.durable.live.values():
        mine = [x for x in a.durable.live.values() if (x.queue, x.user) == (app.queue, app.user)]
        labels = {"queue": app.queue, "user": app.user}
        assert total(seen["isonomy_queue_gpus_held"], **labels) == sum(a.holdings.holding(x.app_id) for x in mine)
        wanted = sum(max(0, a.agents[x.app_id].demand.gpus - a.holdings.holding(x.app_id)) for x in mine)
        assert total(seen["isonomy_queue_gpus_pending"], **labels) == wanted
    assert {labels["reason"] for labels, _ in seen["isonomy_queue_gpus_pending"]} <= SENTENCES.keys()
    waiting = sum(a.holdings.holding(x) == 0 for x in a.durable.live)
    assert total(seen["isonomy_apps_waiting"]) == total(seen["isonomy_apps"], state="waiting") == waiting


def test_first_waits_and_preemptions_with_their_cost(stage: Stage, seen: Samples) -> None:
    a = stage.arbiter
    assert total(seen["isonomy_first_gpu_wait_seconds_count"]) == sum(x.leases > 0 for x in a.durable.apps.values())
    assert total(seen["isonomy_leases_granted_total"]) == sum(x.leases for x in a.durable.apps.values())
    taken = total(seen["isonomy_preemptions_total"])
    assert taken > sum(x.revocations for x in a.durable.apps.values()) > 0, "a lease may have several GPUs"
    assert total(seen["isonomy_preemptions_total"], reason=EndReason.LOST_ROUND) > 0
    assert total(seen["isonomy_preemptions_total"], reason=EndReason.DRAINED) == 8
    cost = total(seen["isonomy_preempted_gpu_seconds_total"], reason=EndReason.LOST_ROUND)
    gpus = total(seen["isonomy_preemptions_total"], reason=EndReason.LOST_ROUND)
    assert cost == pytest.approx(gpus * stage.settings.checkpoint_s, rel=0.01)
    assert {labels["reason"] for labels, _ in seen["isonomy_leases_revoked_total"]} <= set(EndReason)


def test_the_process_and_the_build_are_known(seen: Samples) -> None:
    assert total(seen["process_resident_memory_bytes"]) > 1e6
    assert total(seen["process_cpu_seconds_total"]) > 0
    ((labels, value),) = seen["isonomy_build_info"]
    assert (labels["policy"], value) == ("isonomy", 1.0)


def test_nodes_are_counted_by_state() -> None:
    scene = Scene(run_s=5)
    scene.submit(ev.OperatorCommand("drain", "n2", "root"))
    down = next(n for n in scene.world.nodes if not n.startswith("n2"))
    scene.submit(ev.NodeDown(down, "LOST"))
    found = {labels["state"]: n for labels, n in samples(scene.router.metrics_text())["isonomy_nodes"]}
    assert found == {"up": len(scene.world.nodes) - 2, "drained": 1, "closed": 0, "down": 1}


def test_jobs_that_cannot_save_are_counted_by_queue() -> None:
    scene = Scene(run_s=30)
    a = scene.world.arbiter
    agent, queue = a.agents[EARLY], a.durable.live[EARLY].queue
    assert total(samples(scene.router.metrics_text()).get("isonomy_jobs_unsaved", [])) == 0
    jobs = (ev.JobProgress("j0", "running", checkpoints_failed=2), ev.JobProgress("j1", "running"))
    scene.submit(ev.ProgressReported(EARLY, agent.demand, jobs))
    assert total(samples(scene.router.metrics_text())["isonomy_jobs_unsaved"], queue=queue) == 1


def test_jobs_that_hang_are_counted_and_each_hang_is_a_line_of_the_feed() -> None:
    scene = Scene(run_s=30)
    a = scene.world.arbiter
    agent, app = a.agents[EARLY], a.durable.live[EARLY]
    for note, hangs in (("board", False), ("board again", False), ("rank 1 hangs", True), ("other", False)):
        jobs = (ev.JobProgress("j0", "running", note="other"), ev.JobProgress("j1", "running", note=note, hangs=hangs))
        scene.submit(ev.ProgressReported(EARLY, agent.demand, jobs))
        if hangs:
            assert total(samples(scene.router.metrics_text())["isonomy_jobs_hanging"], queue=app.queue) == 1
            assert app.message == "j1: rank 1 hangs"
    assert total(samples(scene.router.metrics_text())["isonomy_jobs_hanging"], queue=app.queue) == 0
    assert app.message == "j1: rank 1 hangs", "the first other note only is a fact, and a hang"


def test_watching_and_off_count_as_ready_while_the_plugin_is_heard() -> None:
    def told(a: Arbiter) -> tuple[float, dict[str, float]]:
        found = samples(Metrics().text(a, views.gpu_counts(a), 100.0))
        return total(found["isonomy_ready"]), {labels["mode"]: n for labels, n in found["isonomy_mode"]}

    a = Arbiter(Settings(), Themis())
    assert told(a) == (0, {"on": 0, "shadow": 0, "off": 0, "unreadable": 0})
    for mode, ready in ((Mode.SHADOW, 1), (Mode.OFF, 1), (Mode.UNREADABLE, 0)):
        a.handle(ev.ClusterSnapshot(False, (), (), (), (), switch=ModeSwitch(mode)), 100.0)
        assert told(a) == (ready, {m: m is mode for m in Mode})
        a.handle(ev.ClusterLost(), 101.0)
        assert told(a)[0] == 0


def test_a_queue_without_apps_disappears_and_an_unused_grant_is_counted() -> None:
    scene = Scene(run_s=30)
    scene.world.agents[EARLY].silent = True
    before = samples(scene.router.metrics_text())
    assert total(before["isonomy_queue_gpus_held"]) > 0
    for app_id in list(scene.world.arbiter.durable.live):
        scene.submit(ev.AppRemoved(app_id, "KILLED"))
    after = samples(scene.router.metrics_text())
    assert total(after.get("isonomy_queue_gpus_pending", [])) == 0
    assert total(after.get("isonomy_apps_waiting", [])) == 0


# ---- what is shipped


def asked(expression: str, known: Samples) -> None:
    """Every metric and label of an expression is among the real ones."""
    bare = re.sub(r'"[^"]*"', '""', expression)
    for name, selector in re.findall(r"\b((?:isonomy|process)_\w+)(?:\{([^}]*)\})?", bare):
        assert name in known, f"{name} in {expression}"
        labels = {label for found, _ in known[name] for label in found} | {"job", "instance"}
        for label in re.findall(r"(\w+)\s*[=!]", selector):
            assert label in labels, f"{label} of {name} in {expression}"
    names = re.findall(r"\b((?:isonomy|process)_\w+)", bare)
    every = {"job"} | {label for name in names for found, _ in known.get(name, []) for label in found}
    for group in re.findall(r"\b(?:by|on)\s*\(([^)]*)\)", bare):
        for label in filter(None, (part.strip() for part in group.split(","))):
            assert label in every, f"{label} in {expression}"


def dashboard() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((MONITORING / "isonomy.grafana.json").read_text())
    return found


def test_each_panel_uses_existing_metrics(seen: Samples) -> None:
    panels = dashboard()["panels"]
    assert len({p["id"] for p in panels}) == len(panels) >= 15
    for panel in panels:
        for target in panel["targets"]:
            asked(target["expr"], seen)
    boxes = [(p["gridPos"]["x"], p["gridPos"]["y"], p["gridPos"]["w"], p["gridPos"]["h"]) for p in panels]
    for i, (x, y, w, h) in enumerate(boxes):
        assert x + w <= 24
        assert not any(x < u + k and u < x + w and y < v + n and v < y + h for u, v, k, n in boxes[i + 1 :])


def test_each_alert_uses_existing_metrics(seen: Samples) -> None:
    rules = [r for g in yaml.safe_load((MONITORING / "isonomy.rules.yml").read_text())["groups"] for r in g["rules"]]
    assert len(rules) >= 6
    for rule in rules:
        asked(rule["expr"], seen)
        assert rule["annotations"]["summary"]
        for code in re.findall(r'reason=~"([^"]*)"', rule["expr"]):
            assert set(code.split("|")) <= SENTENCES.keys()


def test_free_gpus_that_have_no_room_for_a_waiting_gang_raise_no_alert() -> None:
    m = Mini(nodes=[("n1", 4), ("n2", 4)])
    for app_id in ("a", "b"):
        m.start_app(app_id, 3, 1, work=1e9)
    m.app("c", 4, 1, work=1e9, scope=Scope.MACHINE)
    m.run(60)
    found = samples(Metrics(m.a.durable).text(m.a, views.gpu_counts(m.a), m.now))
    assert total(found["isonomy_gpus"], state="free") == 2
    ((labels, _),) = found["isonomy_queue_gpus_pending"]
    rules = (MONITORING / "isonomy.rules.yml").read_text()
    (codes,) = re.findall(r'isonomy_queue_gpus_pending\{reason=~"([^"]*)"', rules)
    assert labels["reason"] not in codes.split("|")


def test_prometheus_itself_accepts_rules_and_queries(tmp_path: Path) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("no promtool: apt-get install prometheus")
    queries = [
        {"record": f"q:{i}", "expr": t["expr"]}
        for i, t in enumerate(t for p in dashboard()["panels"] for t in p["targets"])
    ]
    (tmp_path / "queries.yml").write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": queries}]}))
    for file in (MONITORING / "isonomy.rules.yml", tmp_path / "queries.yml"):
        done = subprocess.run([promtool, "check", "rules", str(file)], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stdout + done.stderr


def test_each_alert_fires_where_it_should_and_is_silent_where_all_is_well(tmp_path: Path) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("no promtool: apt-get install prometheus")
    rules = shutil.copy(MONITORING / "isonomy.rules.yml", tmp_path)
    cases = Path(shutil.copy(Path(__file__).with_name("alerts.yml"), tmp_path))
    done = subprocess.run(
        [promtool, "test", "rules", cases.name], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr
    names = set(re.findall(r"alert: (\w+)", Path(rules).read_text()))
    assert names == set(re.findall(r'alertname="(\w+)"', cases.read_text())), "each alert is seen firing"


def test_prometheus_itself_accepts_the_exposition(stage: Stage, seen: Samples) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("no promtool: apt-get install prometheus")
    text = router_of(stage).metrics_text()
    done = subprocess.run([promtool, "check", "metrics"], input=text, capture_output=True, text=True, timeout=60)
    assert [line for line in (done.stdout + done.stderr).splitlines() if "isonomy" in line] == []


# ---- the listener


@pytest.fixture
def listener(stage: Stage) -> Iterator[MetricsServer]:
    server = MetricsServer(
        MetricsListener.model_construct(host="127.0.0.1", port=0), router_of(stage).metrics_text, None, Path("none")
    )
    server.start()
    yield server
    server.stop()


def get(server: MetricsServer, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{server.port}{path}", timeout=10) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as e:
        return e.code, e.read().decode()


def test_the_listener_serves_only_metrics(
    listener: MetricsServer, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def busy(*_: object) -> None:
        raise Overloaded

    with monkeypatch.context() as m:
        m.setattr(stage, "call", busy)
        assert get(listener, "/metrics")[0] == 503
    status, text = get(listener, "/metrics")
    assert (status, "isonomy_build_info" in text) == (200, True)
    assert get(listener, "/ui")[0] == 404
    monkeypatch.setattr(stage, "call", busy)
    assert get(listener, "/metrics")[0] == 200, "of the last picture"


def test_a_port_that_is_taken_is_one_line(listener: MetricsServer, stage: Stage) -> None:
    taken = MetricsListener.model_construct(host="127.0.0.1", port=listener.port)
    with pytest.raises(ConfigError, match="cannot listen"):
        MetricsServer(taken, str, None, Path("none")).start()


@pytest.fixture
def remote(tmp_path: Path) -> Iterator[tuple[int, Path, Path]]:
    """A listener that other machines reach: (port, certificate, token's file)."""
    key, pem = certificate(tmp_path, "rm", "IP:127.0.0.1")
    at, token_file = MetricsListener.model_construct(host="0.0.0.0", port=0), tmp_path / "metrics.token"
    server = MetricsServer(at, lambda: "isonomy_ready 1\n", Tls(cert=pem, key=key, ca=pem), token_file)
    server.start()
    yield server.port, pem, token_file
    server.stop()


def scraped(remote: tuple[int, Path, Path], given: str) -> tuple[int, bytes]:
    port, pem, token_file = remote
    assert token_file.stat().st_mode & 0o777 == 0o600
    header = {"Authorization": given.format(token_file.read_text().strip())}
    request = urllib.request.Request(f"https://127.0.0.1:{port}/metrics", headers=header)
    try:
        with urllib.request.urlopen(request, context=ssl.create_default_context(cafile=pem), timeout=10) as reply:
            return reply.status, reply.read()
    except urllib.error.HTTPError as e:
        return e.code, e.read()


def test_another_machine_scrapes_with_tls_and_the_token(remote: tuple[int, Path, Path]) -> None:
    assert scraped(remote, "Bearer {}") == (200, b"isonomy_ready 1\n")
    for given in ("Bearer x", "{}", ""):
        status, said = scraped(remote, given)
        assert (status, b"metrics.token" in said) == (401, True)


def test_a_client_that_says_nothing_does_not_keep_others_out(
    remote: tuple[int, Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics_server, "REQUEST_S", 0.2)
    with socket.create_connection(("127.0.0.1", remote[0])):
        assert scraped(remote, "Bearer {}")[0] == 200


def test_metrics_are_open_to_other_machines_only_with_tls() -> None:
    with pytest.raises(ConfigError, match=r"metrics.host: other machines reach it: set agents.tls"):
        parse("metrics: {host: 0.0.0.0, port: 26502}", Config, "isonomy.yaml")
