"""The room below the limits of a queue, of those above it and of its users, as leases begin, end and move."""

import dataclasses

import pytest

from pycontrol.arbiter.round.commit import commit
from pycontrol.arbiter.round.parts import own_part
from pycontrol.arbiter.round.resolve import Refuse, Work
from pycontrol.model import events as ev
from pycontrol.model.auction import Award, Plan, gang_of
from pycontrol.model.cluster import Ask, Node, PartitionCapacity, Queue
from pycontrol.model.reasons import Pending, Reason
from tests.arbiter.mini import Mini

QUEUES = (Queue("root.q", 0.5, 0.75), Queue("root.r", 0.5, 0.5), Queue("root.free", 1.0, 1.0))


def rooms(m: Mini, *apps: str) -> list[dict[str, int]]:
    return [m.a.holdings.queue_rooms(app_id) for app_id in apps]


def test_held_gpus_reduce_the_room_of_their_queue() -> None:
    m = Mini(nodes=(("n1", 8),), queues=QUEUES)
    m.app("a", gang=2)
    m.app("b", gang=1, queue="root.r")
    m.app("c", gang=1, queue="root.free")
    assert rooms(m, "a", "b", "c") == [{"root.q": 6}, {"root.r": 4}, {}]
    m.run(5)
    assert rooms(m, "a", "b") == [{"root.q": 4}, {"root.r": 3}]
    m.app("d", gang=1)
    m.send(ev.AppRemoved("a", "FINISHED"))
    assert rooms(m, "d") == [{"root.q": 6}]


def test_a_moved_app_takes_its_gpus_to_the_new_queue() -> None:
    m = Mini(nodes=(("n1", 8),), queues=QUEUES)
    app = m.app("a", gang=2, gangs=3)
    m.run(5)
    assert rooms(m, "a") == [{"root.q": 0}]
    m.send(ev.AppUpdated(dataclasses.replace(app, queue="root.r")))
    assert rooms(m, "a") == [{"root.r": -2}]  # more than its new queue may have


def test_a_queue_that_yarn_makes_has_its_limit_at_once() -> None:
    m = Mini(nodes=(("n1", 8),), queues=QUEUES)
    m.app("a", gang=2, gangs=4, queue="root.free.made")
    m.send(ev.ClusterChanged((*QUEUES, Queue("root.free.made", 0.5, 0.5))))
    assert rooms(m, "a") == [{"root.free.made": 4}]
    m.run(5)
    assert len(m.held("a")) == 4


def test_queues_below_one_share_its_maximum() -> None:
    above = Queue("root.p", 0.5, 0.5, leaf=False)
    m = Mini(nodes=(("n1", 8),), queues=(above, Queue("root.p.q", 0.25, 0.5), Queue("root.p.r", 0.25, 0.5)))
    m.app("a", gang=1, gangs=3, queue="root.p.q")
    m.run(5)
    m.app("b", gang=2, queue="root.p.r")
    m.run(5)
    assert rooms(m, "b") == [{"root.p.r": 4, "root.p": 1}]
    assert m.held("b") == set()
    why = m.a.holdings.full("b", 2, m.now)
    assert why == Reason(Pending.QUEUE_LIMIT, "root.p, 1 GPUs left for gangs of 2")


def test_a_user_may_exceed_the_limit_by_one_gang_and_others_go_on() -> None:
    m = Mini(nodes=(("n1", 8),), queues=(Queue("root.q", 0.5, 1.0, user_limit_factor=0.5),))
    m.app("a", gang=2, gangs=4, user="ann")
    m.run(5)
    assert len(m.held("a")) == 4, "at 2 of 2 GPUs another gang starts, as in YARN; at 4 none"
    m.app("b", gang=1, user="ann")
    m.app("c", gang=1, user="bob")
    m.run(5)
    assert (m.held("b"), len(m.held("c"))) == (set(), 1)
    assert m.a.holdings.full("b", 1, m.now) == Reason(Pending.QUEUE_LIMIT, "ann in root.q")


@pytest.mark.parametrize("agent", [True, False])
def test_a_maximum_counts_in_the_partition_where_the_app_runs(agent: bool) -> None:
    there = {"": PartitionCapacity(0.5, 0.5), "fast": PartitionCapacity(1.0, 0.5)}
    queues = (Queue("root.q", 0.5, 0.5, partitions=there, default_partition="fast" if agent else ""),)
    m = Mini(nodes=(), queues=queues)
    for host, gpus, label in (("n1", 8, ""), ("n2", 4, "fast")):
        m.send(ev.NodeUp(Node(f"{host}:1", host, "r", gpus, 65536, 64, {}, partition=label)))
    if agent:
        m.app("a", gang=1, gangs=4)
    else:
        app = m.foreign("a", 1, 0)
        m.send(ev.AskChanged(Ask(app.attempt_id, "a", 1, 1, 4, partition="fast")))
    m.run(5)
    assert {gpu.host for gpu in m.held("a")} == {"n2"}
    assert len(m.held("a")) == 2, "half of the four there"
    assert rooms(m, "a") == [{"root.q in partition fast": 0}]


def test_a_cluster_that_shrinks_during_a_round_leaves_no_queue_above_its_limit() -> None:
    m = Mini(nodes=(("n1", 4), ("n2", 4)), queues=QUEUES)
    m.send(ev.OperatorCommand("pause"))  # no round but this one
    m.app("a", gang=4, queue="root.r")
    m.send(ev.NodeDown("n2:1", "lost"))  # root.r may have 2 of 4 instead of 4 of 8
    plan = Plan("r9", (Award("a", (gang_of({"n1": 4}),)),))
    why = Reason(Pending.QUEUE_LIMIT, "root.r, 2 GPUs left for gangs of 4")
    done = commit(m.a.holdings, m.a.clerk, Work("r9", own_part(m.a.holdings, "", {}), {}), plan, m.now)
    assert done == [Refuse("a", f"a: {why.sentence}", why)]
