"""`isonomy shadow`: YARN's own history on the machines that the control plane sees, under both schedulers."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest
from click.testing import CliRunner, Result

from pycontrol.arbiter.core import Arbiter
from pycontrol.arbiter.views.settings import Settings
from pycontrol.cli import main
from pycontrol.cli.screens import status as screen
from pycontrol.model import events as ev
from pycontrol.model.cluster import Ask, Container, Mode, ModeSwitch, Node, PartitionCapacity, Queue, YarnApp
from pycontrol.policies import registry
from pycontrol.policies.themis import Themis
from pycontrol.queries import views
from pycontrol.queries.explain import explain
from pycontrol.queries.shadow import NOTHING, ShadowRounds
from pycontrol.simulation.scene import picture
from tests.cli.test_whatif import APPS, CPU
from tests.httpd import Reply, serving

NODE = Node("m1:1", "m1", "rack-a", 4, 65536, 64, {})
APP = YarnApp("application_1_0001", "u", "root.q", "new", "YARN", 100.0, frozenset(), "appattempt_1_0001_000001")


class Cluster:
    """A ResourceManager with the plugin in shadow mode."""

    def __init__(self) -> None:
        self.shadow, self.apps = True, [*APPS, CPU]
        self.live: Mapping[str, Any] = NOTHING
        self.nodes, self.queues = [NODE], list[Queue]()

    def answer(self, path: str) -> dict[str, Any]:
        if path.endswith("isonomy/status"):
            return {"shadow": self.shadow, "policy": "isonomy", "lease_s": 120.0}
        if path.endswith("isonomy/shadow"):
            return dict(self.live)
        if path.endswith("isonomy/picture"):
            a = Arbiter(Settings(), registry.make("isonomy"))
            a.handle(ev.ClusterSnapshot(True, tuple(self.nodes), (), (), (), tuple(self.queues)), 0.0)
            return picture(a, 0.0)
        return {"apps": {"app": self.apps}}


@pytest.fixture
def cluster() -> Iterator[tuple[Cluster, str]]:
    made = Cluster()
    with serving(lambda asked: Reply(made.answer(asked.path))) as url:
        yield made, url


def run(url: str, *words: str) -> Result:
    return CliRunner().invoke(main, ["shadow", "--rm", url, "--since", "2020-01-01T00:00", *words])


def test_both_schedulers_get_the_same_apps_and_machines(cluster: tuple[Cluster, str]) -> None:
    result = run(cluster[1], "-o", "json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["policies"] == ["yarn_cs", "isonomy"]
    assert {n: t["apps"] for n, t in found["totals"].items()} == {"yarn_cs": 8, "isonomy": 8}
    assert {r["queue"] for r in found["completion"]} == {"root.prod", "root.research"}
    # 8 apps of 4 GPUs on 4 GPUs: CapacityScheduler runs them one after the other, and so it must be replayed
    assert found["calibration"]["replayed_median_s"] > found["calibration"]["real_median_s"]
    assert sum(r["restarts"] for r in found["revocations"]) == found["totals"]["isonomy"]["restarts"]
    assert found["totals"]["yarn_cs"]["restarts"] == 0
    assert "isonomy instead of yarn_cs: " in run(cluster[1]).output


def test_the_replay_has_the_clusters_queues_and_labels(cluster: tuple[Cluster, str]) -> None:
    made, url = cluster
    made.nodes = [replace(NODE, node_id=f"{h}:1", host=h, partition=label) for h, label in (("m1", ""), ("m2", "fast"))]
    whole = {"": PartitionCapacity(), "fast": PartitionCapacity()}
    made.queues = [Queue("root.research"), Queue("root.prod", partitions=whole, default_partition="fast")]

    def waits() -> tuple[dict[str, float], int]:
        found = json.loads(run(url, "-o", "json").stdout)
        return {r["queue"]: r["median_s"]["yarn_cs"] for r in found["waits"]["queue"]}, found["skipped"]

    each, skipped = waits()
    assert (each.keys(), skipped) == ({"root.research", "root.prod"}, 1)
    assert max(each.values()) < 1300, "each queue has a machine of its own"
    made.apps[0] = {**APPS[0], "queue": "prod", "appNodeLabelExpression": "<Not set>"}
    assert waits() == (each, 1), "YARN may name the leaf queue alone"
    made.apps[1] = {**APPS[1], "appNodeLabelExpression": "slow"}
    assert waits()[1] == 2, "an app whose label is gone is left out"
    made.apps[1] = APPS[1]
    made.queues[0] = Queue("root.research", 0.5, 0.5)
    assert waits()[0].keys() == {"root.prod"}, "half of the four GPUs hold no gang of four"


def test_revocations_are_shown_by_queue_and_user(cluster: tuple[Cluster, str]) -> None:
    result = run(cluster[1], "--policy", "themis", "-o", "json")
    found = json.loads(result.stdout)
    assert found["revocations"]
    assert sum(r["restarts"] for r in found["revocations"]) == found["totals"]["themis"]["restarts"] > 0
    assert {r["user"] for r in found["revocations"]} <= {"u0", "u1"}
    assert "WHY" in run(cluster[1], "--policy", "themis").output


def test_an_impossible_comparison_is_one_line(cluster: tuple[Cluster, str]) -> None:
    made, url = cluster
    assert "is what CapacityScheduler does already" in run(url, "--policy", "yarn_cs").output
    made.apps = [CPU]
    assert "no application with GPUs has ended" in run(url).output
    made.live = live()
    assert run(url).exit_code == 0, "there is something to say without a replay"
    assert "there is nothing to replay" in run(url).output
    made.shadow = False
    result = run(url)
    assert (result.exit_code, result.output.count("\n")) == (1, 1)
    assert "the mode is not shadow" in result.output


def live() -> dict[str, Any]:
    """Hypothetical rounds from a real snapshot."""
    rounds = ShadowRounds(Settings(lease_s=60), lambda: registry.make("isonomy"))
    app = YarnApp("application_1_0009", "u9", "root.q", "waits", "YARN", 90.0, frozenset(), "appattempt_1_0009_000001")
    first = replace(shadowed(), ready=True, switch=ModeSwitch(), containers=())
    given = Container("container_1_0001_01_000002", APP.app_id, "m1:1", (), gpu_count=4)
    rounds.look(replace(first, apps=(APP, app)), 100.0)
    waits = Ask(app.attempt_id, app.app_id, 1, 2, 3)
    assert rounds.look(replace(first, apps=(APP, app), asks=(waits,), containers=(given,)), 110.0) is not None
    return rounds.view()


def test_hypothetical_rounds_come_before_the_replay(cluster: tuple[Cluster, str]) -> None:
    cluster[0].live = live()
    found = json.loads(run(cluster[1], "-o", "json").stdout)
    assert found["live"]["gpus"] == 4
    assert found["replayed"] == 8
    text = run(cluster[1]).output
    assert "AS IF, since " in text
    assert "4 GPUs were given" in text
    assert "1_0001: 4" in text
    assert text.index("AS IF") < text.index("REPLAY of 8 apps")
    cluster[0].live = NOTHING
    assert "AS IF: no GPUs were given out" in run(cluster[1]).output


def shadowed(shadow: bool = True) -> ev.ClusterSnapshot:
    runs = Container("container_1_0001_01_000002", APP.app_id, "m1", (), gpu_count=2)
    switch = ModeSwitch(Mode.SHADOW if shadow else Mode.ON, by="ann", at_s=90.0)
    return ev.ClusterSnapshot(not shadow, (NODE,), (APP,), (), (runs,), (Queue("root.q", 1, 1),), "life", switch)


def test_the_arbiter_decides_nothing_in_shadow_and_says_so() -> None:
    arbiter = Arbiter(Settings(lease_s=20), Themis())
    effects = list(arbiter.handle(shadowed(), 100.0))
    for second in range(101, 400, 5):
        effects += arbiter.handle(ev.Tick(), float(second))
    assert effects == []
    assert arbiter.durable.leases == {}
    view = views.status(arbiter, 400.0, {})
    assert (view["shadow"], view["ready"], view["rounds"]) == (True, False, 0)
    head = str(next(iter(screen(view).renderables)))
    assert head.startswith("shadow: ")
    assert "the mode is shadow by ann, " in head
    assert explain(arbiter, 400.0, {"app": APP.app_id})["reason"]["code"] in ("Shadow", "Unknown")
    arbiter.handle(shadowed(shadow=False), 401.0)
    assert views.status(arbiter, 401.0, {})["shadow"] is False
    assert arbiter.cluster.ready
