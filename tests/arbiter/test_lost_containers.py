"""The workers of containers that ended or came back while the control plane received no events."""

import dataclasses

import pytest

from pycontrol.model import events as ev
from pycontrol.model.cluster import Ask
from tests.arbiter.mini import SETTINGS, Mini


@pytest.mark.parametrize("planned", ["before the snapshot", "after it"])
@pytest.mark.parametrize("life", ["the same", "a new one"])
def test_a_container_that_ended_while_the_plugin_was_away_does_not_block_the_next_plan(planned: str, life: str) -> None:
    m = Mini("tiresias")
    m.send(dataclasses.replace(m.snapshot(), rm_life="life 1"))
    app = m.app("a", gang=2)
    m.run(2)
    m.start("a")
    m.send(ev.ClusterLost())
    if planned.startswith("before"):
        m.use("a", "next")  # the app learned of the end from YARN
    m.send(dataclasses.replace(m.snapshot([app]), rm_life="life 1" if life == "the same" else "life 2"))
    if planned.startswith("after"):
        m.use("a", "next")
    reply = m.of(ev.SendUseReply)[-1]
    assert (reply.accepted, reply.reason) == (True, "")
    (plan,) = [w.plan for w in m.a.workers]
    m.send(ev.AskChanged(Ask("a_1", "a", plan.allocation_request_id, 2, 1)))
    (place,) = m.places()
    assert place.ask.allocation_request_id == plan.allocation_request_id


def test_a_container_on_a_machine_that_comes_back_late_still_belongs_to_its_worker() -> None:
    m = Mini("tiresias", dataclasses.replace(SETTINGS, recovery_s=5))
    app = m.app("a", gang=2)
    m.run(8)
    (container,) = m.start("a")
    nodes, m.nodes = m.nodes, ()
    m.send(ev.ClusterLost())
    m.send(m.snapshot([app]))
    m.send(ev.NodeUp(nodes[0]))
    m.send(ev.ContainerUp(container, True))
    (worker,) = m.a.workers
    assert worker.container_id == container.container_id
    m.send(ev.ContainerGone(container.container_id))
    assert not list(m.a.workers)
