"""What unmanaged apps declare by tags: how long their containers run, and that they are interactive."""

from __future__ import annotations

import dataclasses
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pycontrol.arbiter.ledger.facts import LeaseEnded
from pycontrol.arbiter.round import standin
from pycontrol.model import events as ev
from pycontrol.model import tags
from pycontrol.model.cluster import Ask, YarnApp
from pycontrol.model.reasons import EndReason, Pending
from tests.arbiter.mini import SETTINGS, Mini
from tests.arbiter.world import World

TERMS = {"lease_s": 60, "lead_s": 6, "interactive_gpus": 2, "interactive_idle_s": 100}
MACHINES = (("n1", "r", 4), ("n2", "r", 4))
MINUTE = 1 / 60


def world(policy: str = "isonomy", **changes: object) -> World:
    return World(policy, machines=MACHINES, **{**TERMS, **changes})


def causes(w: World) -> Counter[str]:
    return Counter(str(f.cause) for f in w.journal if isinstance(f, LeaseEnded))


@pytest.mark.parametrize("revocable", [False, True])
@pytest.mark.parametrize("policy", ["isonomy", "themis", "max_min"])
def test_a_container_ends_when_its_declared_time_is_over(policy: str, revocable: bool) -> None:
    w = world(policy, standin_revocable=revocable)
    w.add_foreign("a", 2, 1, tags=[f"{tags.MAX_HOURS}={5 * MINUTE}"])
    w.run(290)
    assert len(w.of("a")) == 1
    w.run(330)
    assert len(w.of("a")) == 0
    w.check()


@pytest.mark.parametrize("crash_s", [50, 310])
def test_the_declared_time_survives_a_restart_of_the_control_plane(crash_s: float) -> None:
    w = world()
    w.add_foreign("a", 2, 1, tags=[f"{tags.MAX_HOURS}={5 * MINUTE}"])
    w.run(crash_s)
    w.crash()
    w.run(340)
    assert len(w.of("a")) == 0


@pytest.mark.parametrize("text", ["", "x", "0", "-1", "nan", "inf", "1e999"])
def test_a_tag_without_a_positive_number_of_hours_is_ignored_and_said(text: str) -> None:
    app = YarnApp("a", "u", "root.q", "a", tags=frozenset({f"{tags.MAX_HOURS}={text}"}))
    assert tags.max_s(app) is None
    assert "ignored" in tags.declared(app)


def test_the_declared_time_is_the_declared_work() -> None:
    w = world()
    w.add_foreign("a", 2, 3, tags=[f"{tags.MAX_HOURS}=2"])
    w.run(1)
    before = standin.demand(w.arbiter.holdings, "a", w.now)
    assert before.work_total_gpu_s == pytest.approx(3 * 2 * 7200)
    w.run(60)
    running_gpu_s = w.arbiter.durable.attained_gpu_s("a", w.now)
    now = standin.demand(w.arbiter.holdings, "a", w.now)
    assert running_gpu_s > 0
    assert now.work_total_gpu_s == pytest.approx(before.work_total_gpu_s)
    assert now.work_left_gpu_s == pytest.approx(before.work_total_gpu_s - running_gpu_s)


def test_who_declares_less_comes_first() -> None:
    w = world()
    w.add_foreign("whole", 4, 2)
    w.run(10)
    w.add_foreign("long", 4, 1, tags=[f"{tags.MAX_HOURS}=20"])
    w.run(20)
    w.add_foreign("short", 4, 1, tags=[f"{tags.MAX_HOURS}=0.1"])
    w.run(30)
    w.container_ends(next(iter(w.containers)))
    w.run(60)
    assert (len(w.of("short")), len(w.of("long"))) == (1, 0)


def test_interactive_apps_of_a_user_share_a_limit() -> None:
    w = world()
    w.add_foreign("a", 1, 1, tags=[tags.INTERACTIVE])
    w.add_foreign("b", 1, 3, tags=[tags.INTERACTIVE])
    w.add_foreign("c", 1, 1, tags=[tags.INTERACTIVE])
    w.add_foreign("batch", 1, 2)
    w.run(30)
    assert [len(w.of(x)) for x in ("a", "b", "c", "batch")] == [1, 1, 0, 2]
    assert w.why("c") is Pending.INTERACTIVE_LIMIT
    w.end_app("a")
    w.end_app("b")
    w.run(60)
    assert len(w.of("c")) == 1


def test_an_interactive_gang_starts_whole_within_the_limit_or_waits() -> None:
    w = world()
    w.add_foreign("large", 1, 3, tags=[tags.INTERACTIVE, f"{tags.GANG}=3"], user="u")
    w.add_foreign("small", 1, 2, tags=[tags.INTERACTIVE, f"{tags.GANG}=2"], user="v")
    w.run(30)
    assert [len(w.of(x)) for x in ("large", "small")] == [0, 2]
    assert w.why("large") is Pending.INTERACTIVE_LIMIT


def test_an_idle_interactive_container_ends_and_a_busy_or_plain_one_does_not() -> None:
    w = world()
    w.add_foreign("a", 1, 1, tags=[tags.INTERACTIVE])
    w.add_foreign("plain", 1, 1)
    w.run(30)
    idle = {c.gpus[0]: w.now for c in w.containers.values()}
    hosts = {gpu.host for gpu in idle}
    assert len(idle) == 2

    def says(since_s: dict[int, dict[str, float]] | None) -> None:
        for host in sorted(hosts):
            at = {g.index: t for g, t in idle.items() if g.host == host} if since_s is None else {}
            w.submit(ev.NodeUp(dataclasses.replace(w.nodes[f"{host}:1"], idle_since_s=at)))

    says(None)
    w.run(100)
    says({})  # someone typed
    w.run(200)
    assert len(w.of("a")) == 1
    idle = dict.fromkeys(idle, w.now)
    says(None)
    w.run(295)
    assert len(w.of("a")) == 1
    w.run(320)
    assert (len(w.of("a")), len(w.of("plain"))) == (0, 1)


@settings(max_examples=30, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from("uv"), st.integers(1, 2), st.integers(1, 3), st.floats(1.0, 5.0), st.booleans()),
        min_size=1,
        max_size=6,
    ),
    st.sampled_from(["isonomy", "themis", "gandiva"]),
)
def test_neither_limit_is_ever_exceeded(apps: list[tuple[str, int, int, float, bool]], policy: str) -> None:
    w = world(policy)
    of, longest_s = dict[str, str](), dict[str, float]()
    first_s = dict[str, float]()
    for k, (user, gpus, count, minutes, interactive) in enumerate(apps):
        name = f"app{k}"
        mine = [f"{tags.MAX_HOURS}={minutes / 60}", *([tags.INTERACTIVE] if interactive else [])]
        w.add_foreign(name, gpus, count, tags=mine, user=user)
        of[name], longest_s[name] = user if interactive else "", minutes * 60
        w.run(20 * k)
    for k in range(170):
        w.run(20 * len(apps) + 5 * k)
        held = Counter[str]()
        for c in w.containers.values():
            first_s.setdefault(c.container_id, w.now)
            assert w.now - first_s[c.container_id] <= longest_s[c.app_id] + w.settings.lead + 10
            held[of[c.app_id]] += len(c.gpus)
        assert all(n <= TERMS["interactive_gpus"] for user, n in held.items() if user)
    assert causes(w)[EndReason.TIME_LIMIT] > 0 or not first_s


def test_an_interactive_app_that_can_never_start_keeps_no_other_of_its_user_out() -> None:
    w = world()
    w.add_foreign("large", 3, 1, tags=[tags.INTERACTIVE])
    w.add_foreign("incomplete", 1, 1, tags=[tags.INTERACTIVE, f"{tags.GANG}=2"])
    w.add_foreign("small", 1, 2, tags=[tags.INTERACTIVE])
    w.run(30)
    assert [len(w.of(x)) for x in ("large", "incomplete", "small")] == [0, 0, 2]


@pytest.mark.parametrize("how", ["ends", "asks for no more", "is killed"])
def test_an_interactive_app_starts_once_the_one_before_it_wants_nothing(how: str) -> None:
    """It waits for a machine with two GPUs, of which there is none, and its user may have two in all."""
    m = Mini(nodes=[("n1", 1), ("n2", 1)], settings=dataclasses.replace(SETTINGS, interactive_gpus=2))
    old = m.foreign("old", 2, tags=[tags.INTERACTIVE])
    m.foreign("young", 1, tags=[tags.INTERACTIVE])
    m.run(30)
    assert not m.held("young")
    news = {
        "ends": ev.AppRemoved("old", "KILLED"),
        "asks for no more": ev.AskChanged(Ask(old.attempt_id, "old", 0, 2, 0)),
        "is killed": ev.OperatorCommand("kill", "old", "root"),
    }
    m.send(news[how])
    m.run(5)
    assert m.held("young")
