"""The room below a queue's limit, as leases begin, end and move with their apps."""

import dataclasses

from pycontrol.arbiter.round.commit import commit
from pycontrol.arbiter.round.parts import own_part
from pycontrol.arbiter.round.resolve import Refuse, Work
from pycontrol.model import events as ev
from pycontrol.model.auction import Award, Plan, gang_of
from pycontrol.model.cluster import Queue
from pycontrol.model.reasons import Pending, Reason
from tests.arbiter.mini import Mini

QUEUES = (Queue("root.q", 0.5, 0.75), Queue("root.r", 0.5, 0.5), Queue("root.free", 1.0, 1.0))


def rooms(m: Mini) -> list[int | None]:
    return [m.a.holdings.queue_room(q.path) for q in QUEUES]


def test_held_gpus_reduce_the_room_of_their_queue() -> None:
    m = Mini(nodes=(("n1", 8),), queues=QUEUES)
    assert rooms(m) == [6, 4, None]
    m.app("a", gang=2)
    m.app("b", gang=1, queue="root.r")
    m.run(5)
    assert rooms(m) == [4, 3, None]
    m.send(ev.AppRemoved("a", "FINISHED"))
    assert rooms(m) == [6, 3, None]


def test_a_moved_app_takes_its_gpus_to_the_new_queue() -> None:
    m = Mini(nodes=(("n1", 8),), queues=QUEUES)
    app = m.app("a", gang=2, gangs=3)
    m.run(5)
    assert rooms(m)[0] == 0
    m.send(ev.AppUpdated(dataclasses.replace(app, queue="root.r")))
    assert rooms(m) == [6, -2, None]  # more than its new queue may have


def test_a_cluster_that_shrinks_during_a_round_leaves_no_queue_above_its_limit() -> None:
    m = Mini(nodes=(("n1", 4), ("n2", 4)), queues=QUEUES)
    m.send(ev.OperatorCommand("pause"))  # no round but this one
    m.app("a", gang=4, queue="root.r")
    m.send(ev.NodeDown("n2:1", "lost"))  # root.r may have 2 of 4 instead of 4 of 8
    plan = Plan("r9", (Award("a", (gang_of({"n1": 4}),)),))
    why = Reason(Pending.QUEUE_LIMIT, "root.r, 2 GPUs left for gangs of 4")
    done = commit(m.a.holdings, m.a.clerk, Work("r9", own_part(m.a.holdings, "", {}), {}), plan, m.now)
    assert done == [Refuse("a", f"a: {why.sentence}", why)]
