"""Hypothetical rounds in shadow mode: what Isonomy would have done with CapacityScheduler's free GPUs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pycontrol.arbiter.core import Arbiter
from pycontrol.arbiter.views.settings import Settings
from pycontrol.model import events as ev
from pycontrol.model.cluster import Ask, Container, Mode, ModeSwitch, Node, Queue, YarnApp
from pycontrol.policies import registry
from pycontrol.queries.shadow import AsIf, ShadowRounds, seen

NODES = tuple(
    Node(f"m{i}:1", f"m{i}", "rack", 4, 65536, 64, {}, untagged_gpus=4, withheld="no executor") for i in (1, 2)
)
QUEUES = tuple(Queue(f"root.{q}", 0.5, 1.0) for q in ("prod", "research"))
EARLY, LATE = "application_1_0001", "application_1_0002"
APPS = (
    YarnApp(EARLY, "ann", "root.prod", "early", "YARN", 50.0, frozenset(), "appattempt_1_0001_000001"),
    YarnApp(LATE, "bob", "root.research", "late", "YARN", 60.0, frozenset(), "appattempt_1_0002_000001"),
)


def container(app_id: str, k: int, node: str, gpus: int = 4) -> Container:
    return Container(f"container_{app_id[12:]}_01_{k:06}", app_id, node, (), "", k, gpu_count=gpus)


def ask(app_id: str, k: int, count: int = 1, gpus: int = 4) -> Ask:
    attempt = next(a.attempt_id for a in APPS if a.app_id == app_id)
    return Ask(attempt, app_id, k, gpus, count, 1, 1024, 1)


def cluster(asks: tuple[Ask, ...] = (), containers: tuple[Container, ...] = ()) -> ev.ClusterSnapshot:
    return ev.ClusterSnapshot(True, NODES, APPS, asks, containers, QUEUES, "shadow")


def rounds(policy: str = "isonomy") -> ShadowRounds:
    return ShadowRounds(Settings(lease_s=60), lambda: registry.make(policy))


HAS = container(EARLY, 2, "m1:1")


@pytest.fixture
def watched() -> ShadowRounds:
    """App EARLY has held a machine for long; LATE waits; the other machine becomes free."""
    made = rounds()
    assert made.look(cluster(containers=(HAS,)), 100.0) is None, "what ran before is nobody's decision"
    return made


def test_gpus_that_went_to_the_largest_holder_would_have_gone_to_an_app_without_any(watched: ShadowRounds) -> None:
    waits = ask(LATE, 7)
    found = watched.look(cluster((waits,), (HAS, container(EARLY, 3, "m2:1"))), 200.0)
    assert found == AsIf(200.0, {EARLY: 4}, {LATE: 4}, {}, found.why if found else {})
    assert found is not None
    assert found.why.keys() == {EARLY}
    assert found.why[EARLY]
    view = watched.view()
    assert (view["decisions"], view["same"], view["gpus"], view["same_gpus"]) == (1, 0, 4, 0)
    assert view["by_user"] == [
        {"queue": "root.prod", "user": "ann", "given": 4, "would_give": 0, "would_take": 0},
        {"queue": "root.research", "user": "bob", "given": 0, "would_give": 4, "would_take": 0},
    ]
    assert view["newest"][0]["given"] == {EARLY: 4}
    assert watched.look(cluster((waits,), (HAS, container(EARLY, 3, "m2:1"))), 210.0) is None, "nothing happened"


def test_equal_decisions_show_no_difference(watched: ShadowRounds) -> None:
    found = watched.look(cluster((), (HAS, container(LATE, 7, "m2:1"))), 200.0)
    assert found is not None
    assert (found.given, found.would_give, dict(found.why)) == ({LATE: 4}, {LATE: 4}, {})
    assert watched.view()["same"] == 1


def test_gpus_that_capacityscheduler_leaves_idle_are_reported_once(watched: ShadowRounds) -> None:
    found = watched.look(cluster((ask(LATE, 7),), (HAS,)), 200.0)
    assert found is not None
    assert (found.given, found.would_give) == ({}, {LATE: 4})
    assert watched.look(cluster((ask(LATE, 7),), (HAS,)), 210.0) is None
    assert watched.look(cluster((ask(LATE, 7), ask(LATE, 8, gpus=9)), (HAS,)), 220.0) is None, "it would do the same"
    assert watched.view()["by_user"][0]["would_give"] == 4


def test_attained_service_counts_and_no_gpu_is_given_twice(watched: ShadowRounds) -> None:
    """Many small containers come and go; never more GPUs are given out than there were."""
    for k in range(10, 30):
        mine = tuple(container(EARLY if k % 2 else LATE, i, "m2:1", 1) for i in range(k, k + 3))
        asks = (ask(EARLY, 99, 5, 1), ask(LATE, 98, 5, 1))
        found = watched.look(cluster(asks, (HAS, *mine)), 200.0 + 30 * k)
        assert found is not None
        assert sum(found.would_give.values()) == 4
        assert sum(found.given.values()) <= 3
    view = watched.view()
    given = {row["user"]: row["would_give"] for row in view["by_user"]}
    assert given["bob"] > given["ann"], "who has four GPUs all the time would have got fewer of the others"
    assert len(view["newest"]) == 20


def test_every_policy_can_be_watched() -> None:
    for name in registry.names():
        made = rounds(name)
        made.look(cluster(), 100.0)
        found = made.look(cluster((ask(EARLY, 1),), (container(LATE, 2, "m1:1"),)), 130.0)
        assert found is not None, name
        assert sum(found.would_give.values()) == 8, name


def test_the_view_of_the_cluster_is_there_only_in_shadow() -> None:
    arbiter = Arbiter(Settings(lease_s=60), registry.make("isonomy"))
    assert seen(arbiter) is None
    told = replace(cluster((ask(LATE, 7),), (HAS,)), ready=False, switch=ModeSwitch(Mode.SHADOW))
    arbiter.handle(told, 100.0)
    found = seen(arbiter)
    assert found is not None
    assert (found.asks, found.containers, found.nodes) == ((ask(LATE, 7),), (HAS,), NODES)
    for _ in range(3):
        made = rounds()
        made.look(found, 100.0)
        made.look(replace(found, containers=(HAS, container(LATE, 8, "m2:1"))), 110.0)
    assert arbiter.durable.leases == {}
    arbiter.handle(replace(told, ready=True, switch=ModeSwitch()), 200.0)
    assert seen(arbiter) is None
