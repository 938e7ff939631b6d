"""Why not me: each answer is the smallest of its kind, comes true, and tells nobody what YARN hides."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from pycontrol.arbiter.ledger.lease import is_revoking
from pycontrol.model import events as ev
from pycontrol.model.auction import Demand
from pycontrol.model.cluster import PartitionCapacity, Queue
from pycontrol.model.topology import Scope
from pycontrol.policies import registry
from pycontrol.queries.lookup import Refusal
from pycontrol.simulation import agents
from pycontrol.simulation.forecaster import Helper
from pycontrol.simulation.questions import OTHER, Questions
from pycontrol.simulation.scene import Gets, Stage, scene_of, with_app
from pycontrol.simulation.whynot import Change, Changes, Kind, search, sentence, why_not
from tests.arbiter.mini import Mini
from tests.web.stage import busy
from tests.whynot.rounds import full, run

pytestmark = pytest.mark.interpreted


def test_what_helps_is_found_none_smaller_does_and_it_comes_true() -> None:
    tally = run(range(140))
    assert tally.problems() == []
    assert tally.asked >= 70
    assert tally.unchanged >= 20
    assert len(tally.helps) >= 6
    assert sum(tally.came_true.values()) >= 30


# ---- each kind


def found(m: Mini, app_id: str) -> dict[Kind, Change]:
    """The smallest change of each kind."""
    scene = scene_of(m.a, m.now)
    kinds = Changes(Stage(scene).a, scene, app_id).by_kind()
    return {c.kind: c for c, _ in search(kinds, lambda events: Stage(scene).play(app_id, events))[0]}


def wants(m: Mini, gang: int = 2, queue: str = "root.q", **wishes: Any) -> None:
    """The app `me` comes."""
    m.app("me", gang, queue=queue, **wishes)
    m.run(1.0)


def smaller_gang() -> Mini:
    m = full()
    wants(m)
    return m


def other_type() -> Mini:
    m = Mini("isonomy", nodes=(("n1", 2), ("n2", 2)))
    m.nodes = tuple(replace(n, attributes={"gpu_type": t}) for n, t in zip(m.nodes, ("old", "new"), strict=True))
    m.send(m.snapshot())
    m.start_app("big", 2, 1, "root.other", user="v", after_s=1.0)
    taken = next(iter(m.held("big"))).host
    wants(m, gpu_type="old" if taken == "n1" else "new")
    return m


def wider_place(**wishes: Any) -> Mini:
    m = Mini("isonomy", nodes=(("n1", 2), ("n2", 2)))
    for name, host in (("a", "n1"), ("b", "n2")):
        m.foreign(name, 1, user="v", only_on=(host,))
    m.run(1.0)
    for place in m.places():
        m.up(place)
        m.send(ev.AskChanged(replace(place.ask, count=0)))
    wants(m, **(wishes or {"scope": Scope.MACHINE}))
    return m


def other_queue() -> Mini:
    m = Mini("isonomy", queues=(Queue("root.q", 0.5, 0.25), Queue("root.wide", 0.5)))
    wants(m)
    return m


def returning_node() -> Mini:
    m = Mini("isonomy", nodes=(("n1", 1), ("n2", 2)))
    m.send(ev.NodeDown("n2:1", "lost"))
    wants(m)
    return m


def drained_node() -> Mini:
    m = Mini("isonomy", nodes=(("n1", 1), ("n2", 2)))
    m.send(ev.OperatorCommand("drain", "n2"))
    wants(m)
    return m


def fewer_containers() -> Mini:
    m = full()
    m.foreign("me", 1, 2, tags=["isonomy.gang=2"])
    m.run(1.0)
    return m


def strict_locality() -> Mini:
    m = Mini("isonomy", nodes=(("n1", 2), ("n2", 2)))
    m.start_app("big", 2, 1, "root.other", user="v", after_s=1.0)
    taken = next(iter(m.held("big"))).host
    m.foreign("me", 2, only_on=(taken,))
    m.run(1.0)
    return m


def other_label() -> Mini:
    labels = {label: PartitionCapacity() for label in ("", "fast")}
    m = Mini("isonomy", nodes=(("n1", 2),), queues=(Queue("root.q", partitions=labels),))
    m.nodes = tuple(replace(n, partition="fast") for n in m.nodes)
    m.send(m.snapshot())
    m.foreign("me", 2)
    m.run(1.0)
    return m


def limited_user(**limits: float) -> Mini:
    m = Mini("isonomy", nodes=(("n1", 4),))
    m.send(ev.OperatorCommand("budget-set", "user u", "admin", values=limits))
    wants(m)
    return m


def limited(mine: str = "", most: float = 0.25, factor: float = -1.0, above: float = 1.0) -> Mini:
    """Machines n1 and, with the label fast, n2 to n4; root.q has half of those labelled `mine`, at most `most`."""
    labels = {"": PartitionCapacity(0.5), "fast": PartitionCapacity(0.5), mine: PartitionCapacity(0.5, most)}
    whole = dict.fromkeys(labels, PartitionCapacity()) | {mine: PartitionCapacity(1.0, above)}
    root = Queue("root", 1.0, whole[""].max_capacity, leaf=False, partitions=whole)
    q = Queue("root.q", 0.5, labels[""].max_capacity, True, 1.0, factor, labels, mine)
    m = Mini("isonomy", nodes=[(f"n{i}", 4) for i in range(1, 5)], queues=(root, q))
    m.nodes = (m.nodes[0], *(replace(n, partition="fast") for n in m.nodes[1:]))
    m.send(m.snapshot())
    if factor >= 0:
        m.start_app("big", 4, after_s=1.0)
    wants(m, gang=4)
    return m


CASES: dict[str, tuple[Callable[[], Mini], Kind, int, str]] = {
    "a gang that fits": (smaller_gang, Kind.GANG, 1, "with gangs of 1 GPU instead of 2"),
    "a type with free GPUs": (other_type, Kind.TYPE, 1, "on GPUs of type "),
    "free GPUs of two machines": (wider_place, Kind.PLACE, 1, "with each gang in one rack instead of on one machine"),
    "free GPUs for no segment": (
        lambda: wider_place(members=(2,)),
        Kind.PLACE,
        1,
        "without segments of 1 x 2 GPUs, each on one machine",
    ),
    "a queue with room": (other_queue, Kind.QUEUE, 1, "in the queue root.wide, if YARN lets its user submit there"),
    "a limit with room": (other_queue, Kind.LIMIT, 1, "if the limit of the queue root.q rose from 1 to 2 GPUs"),
    "a limit in the default partition": (
        limited,
        Kind.LIMIT,
        3,
        "if the limit of the queue root.q rose from 1 to 4 GPUs",
    ),
    "a limit in another partition": (
        lambda: limited("fast"),
        Kind.LIMIT,
        1,
        "if the limit of the queue root.q in partition fast rose from 3 to 4 GPUs",
    ),
    "a limit of the queue above, too": (
        lambda: limited("fast", above=0.3),
        Kind.LIMIT,
        1,
        "if the limit of the queue root.q in partition fast rose from 3 to 4 GPUs and the limit of the queue root in",
    ),
    "a limit of its user there": (
        lambda: limited("fast", most=1.0, factor=0.2),
        Kind.LIMIT,
        3,
        "if the limit of u in root.q in partition fast rose from 1 to 4 GPUs",
    ),
    "a limit of an account with room": (
        lambda: limited_user(gpus=1),
        Kind.LIMIT,
        1,
        "if the limit of user u rose from 1 to 2 GPUs",
    ),
    "a budget that is used up": (
        lambda: limited_user(gpu_hours_day=0),
        Kind.LIMIT,
        2,
        "if gpu_hours_day of user u rose above 0",
    ),
    "a budget and a limit at once": (
        lambda: limited_user(gpus=1, gpu_hours_day=0),
        Kind.LIMIT,
        1,
        "if the limit of user u rose from 1 to 2 GPUs, and gpu_hours_day of user u rose above 0",
    ),
    "an app that ends": (smaller_gang, Kind.END, 3, "if {app} ended, which holds 3 GPUs"),
    "a gang that is given back": (smaller_gang, Kind.LEASE, 3, "if {app} gave 3 GPUs of one gang back"),
    "a machine that comes back": (returning_node, Kind.NODE, 2, "if the machine n2 came back with its 2 GPUs"),
    "a machine in use again": (drained_node, Kind.NODE, 2, "if the machine n2 were in use, which the operator drains"),
    "a gang of fewer containers": (fewer_containers, Kind.GANG, 1, "with 1 container in its gang instead of 2"),
    "no strict locality": (strict_locality, Kind.PLACE, 1, "not only on n"),
    "a node label": (other_label, Kind.PLACE, 1, "on machines with the label fast"),
}


@pytest.mark.parametrize("case", CASES)
def test_each_kind_of_change(case: str) -> None:
    make, kind, size, text = CASES[case]
    m = make()
    change = found(m, "me")[kind]
    assert (change.size, change.text[: len(text)]) == (size, text)
    held = len(m.held("me"))
    for event in change.events:
        m.send(event)
    m.run(8.0)
    assert m.a.holdings.holding("me") > held, "it does not come true"


def test_a_lease_says_when_it_ends() -> None:
    m = smaller_gang()
    change = found(m, "me")[Kind.LEASE]
    assert change.due_s == m.a.durable.leases.of("big")[0].end_s
    row = {
        "kind": change.kind,
        "text": change.text,
        "due_s": m.now + 600.0,
        "gets": {"gpus": {"n1": 2}, "borrowed_gpus": 1, "from_s": m.now + 40.0},
    }
    assert sentence(row, "big", m.now) == (
        "if big gave 3 GPUs of one gang back (its lease ends in 10 min): 2 GPUs (2 on n1, 1 of them borrowed) in 40 s"
    )


def test_nothing_helps_where_no_round_is_held() -> None:
    m = smaller_gang()
    m.send(ev.OperatorCommand("pause"))
    assert found(m, "me") == {}


def test_an_app_avoids_the_same_machines_on_a_stage() -> None:
    m = Mini("isonomy", nodes=(("n1", 2),))
    m.foreign("me", 2)
    for k in range(9):
        m.run(4.0)
        for place in m.places():
            m.send(ev.DirectiveDone(place.directive_id, False, "", f"too little memory {k}"))
    assert m.a.cluster.refusals.avoided("me")
    m.run(1.0)
    assert Stage(scene_of(m.a, m.now)).play("me") is None
    assert "which refused its containers" in found(m, "me")[Kind.NODE].text


# ---- auctions


def test_agents_on_a_stage_bid_as_they_do() -> None:
    sim = busy(registry.make("themis"), machines=3, gpus=8, apps=16, hours=3.0)
    scene = scene_of(sim.arbiter, sim.now)
    stage, compared = Stage(scene), 0
    offered = {host: m.gpus for host, m in sim.topology.machines.items()}
    for app_id, app in sim.apps.items():
        if app_id not in sim.arbiter.agents or sim.arbiter.agents[app_id].phases is None or app.trace.elastic:
            continue
        c = stage.a.holdings.contention(app_id, sim.now)
        offer = ev.SendOffer(app_id, "r", c, offered, (), sim.now + 2)
        theirs = agents.bid(app, offer, sim.topology, stage.a.durable.launch_s)
        answer = stage.answer(offer)
        assert isinstance(answer, ev.BidReceived)
        assert answer.bid is not None
        assert answer.bid.rho_nothing == pytest.approx(theirs.rho_nothing, rel=0.25)
        assert [(r.new_gangs, r.scope) for r in answer.bid.rows[:1]] == [
            (r.new_gangs, r.scope) for r in theirs.rows[:1]
        ]
        compared += 1
    assert compared >= 3


# ---- the answer for a user


@pytest.fixture(scope="module")
def questions() -> Iterator[Questions]:
    """With a process of its own."""
    q = Questions({}, ends=lambda: {"big": {"end_s": [1.0, 1480.0, 3.0]}}, slower=10.0)
    yield q
    q.stop()


ASKERS = itertools.count()
"""Each question is another user's, as one user's would be refused."""


def ask(q: Questions, m: Mini, user: str, hidden: bool = False, **params: str) -> dict[str, Any]:
    return q.answer(m.a, m.now, params, f"{user}{next(ASKERS)}", lambda x: "" if hidden else x)


def test_the_process_finds_what_the_stage_finds(questions: Questions) -> None:
    m = smaller_gang()
    answer = ask(questions, m, "u", app="me")
    mine = found(m, "me")
    assert {c["kind"]: c["size"] for c in answer["changes"]} == {c.kind: c.size for c in mine.values()}
    assert answer["complete"]
    assert answer["reason"]["code"]
    assert answer["sentence"].startswith(f"{len(mine)} changes would give it GPUs now")
    end = next(c for c in answer["changes"] if c["kind"] == Kind.END)
    assert (end["app_id"], end["due_s"]) == ("big", 1480.0)
    assert f"if big ended, which holds 3 GPUs (expected in {round((1480.0 - m.now) / 60)} min" in end["sentence"]


def test_an_app_that_the_user_may_not_view_has_no_name(questions: Questions) -> None:
    answer = ask(questions, smaller_gang(), "u", hidden=True, app="me")
    assert "big" not in str(answer["changes"])
    assert any(OTHER in c["sentence"] for c in answer["changes"])


def test_of_a_gpu_that_it_loses_an_app_gets_the_next_lease() -> None:
    m = Mini("isonomy", nodes=(("n1", 2),))
    m.start_app("big", 1, 2, "root.other", user="v", after_s=1.0)
    wants(m, 1)
    for _ in range(400):
        if m.a.holdings.holding("big") == 1 and any(map(is_revoking, m.a.durable.claims_of("big"))):
            break
        m.run(5.0)
    gets = Stage(scene_of(m.a, m.now)).play("big", (ev.AppRemoved("me", "FINISHED"),))
    assert gets is not None
    assert gets.gpus == {"n1": 1}


def test_an_app_before_its_submission(questions: Questions) -> None:
    m = full(queues=(Queue("root.q"),))
    one = ask(questions, m, "u", queue="q", gang="1")
    assert one["sentence"] == "it gets 1 GPU (1 on n1) at once in the next round"
    assert (one["app_id"], one["changes"]) == ("", [])
    two = ask(questions, m, "u", queue="root.q", gang="2")
    assert two["gets"] is None
    assert {c["kind"] for c in two["changes"]} >= {Kind.GANG, Kind.END}
    nothing = ask(questions, m, "u", queue="root.q", gang="64", scope="machine")
    assert nothing["reason"]["code"] == "ExceedsClusterSize"
    assert all(c["kind"] == Kind.GANG for c in nothing["changes"])
    kinds = [{c["kind"] for c in ask(questions, m, "u", queue="q", gang="4", segments=n)["changes"]} for n in "02"]
    assert [Kind.GANG in found for found in kinds] == [True, False], "a gang of one GPU has no segment of two"
    uneven = {"queue": "q", "gang": "4", "segments": "3"}
    wrong = {"queue": "root.nope"}, {"queue": "q", "gang": "3", "gpus": "4"}, {"queue": "q", "scope": "moon"}, uneven
    for params in wrong:
        with pytest.raises(Refusal):
            ask(questions, m, "u", **params)


def test_who_asked_much_waits_and_others_do_not(questions: Questions, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pycontrol.simulation.questions.SHARE", 1e-5)
    m = smaller_gang()
    assert questions.answer(m.a, m.now, {"app": "me"}, "busy", str)["changes"]
    with pytest.raises(Refusal, match="ask again in") as refused:
        questions.answer(m.a, m.now, {"app": "me"}, "busy", str)
    assert refused.value.status == 429
    assert questions.answer(m.a, m.now, {"app": "me"}, "idle", str)["changes"]


def test_who_asks_twice_at_once_is_answered_once(questions: Questions, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pycontrol.simulation.questions.SHARE", 1e-5)
    m, both = smaller_gang(), threading.Barrier(2)

    def asked() -> int:
        both.wait(30)
        try:
            return len(questions.answer(m.a, m.now, {"app": "me"}, "twice", str)["changes"])
        except Refusal as e:
            return e.status

    with ThreadPoolExecutor(2) as pool:
        answers = [pool.submit(asked) for _ in range(2)]
    changes, status = sorted(x.result() for x in answers)
    assert 0 < changes < status == 429


@pytest.mark.parametrize("enough", [1, 5, 16, 29, 30, 31])
def test_large_changes_are_tried_early_and_the_smallest_that_helps_is_the_answer(enough: int) -> None:
    tried = list[int]()

    def play(events: Sequence[ev.Event]) -> Gets | None:
        tried.append(len(events))
        return Gets({"n1": 1}) if len(events) >= enough else None

    sizes = sorted([*range(1, 31), *range(1, 31)])
    changes = [Change(Kind.END, size, "", (ev.Tick(),) * size) for size in sizes]
    answer, played, complete = search({Kind.END: iter(changes)}, play)
    assert [c.size for c, _ in answer] == [size for size in [enough] if size <= 30]
    assert complete
    assert played == len(tried)
    assert max(tried[:12]) >= min(enough, 26)
    assert len(tried) == len(sizes) if enough > 30 else len(tried) <= 2 * enough + 6


def test_an_answer_says_that_the_time_was_too_short() -> None:
    m, helper = smaller_gang(), Helper(why_not, "short")
    said = helper.ask((scene_of(m.a, m.now), "me", 0.0), 60.0, threading.Event())
    helper.end()
    assert (said["gets"], said["changes"], said["complete"]) == (None, [], False)


def test_a_question_ends_with_the_control_plane() -> None:
    q = Questions({}, slower=10.0)
    q.stop()
    m = smaller_gang()
    with pytest.raises(TimeoutError):
        q.answer(m.a, m.now, {"app": "me"}, "u", str)


def test_a_hypothetical_app_changes_nothing_of_the_scene() -> None:
    m = full()
    scene = scene_of(m.a, m.now)
    assert with_app(scene, "u", "root.q", Demand(1, 1)).cluster.apps != scene.cluster.apps
    assert Stage(scene).exact
