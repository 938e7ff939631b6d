"""The plugin's events other than arrivals and ends: the Arbiter's state after each."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pycontrol.arbiter.core import Arbiter
from pycontrol.arbiter.views.settings import Settings
from pycontrol.model import events as ev
from pycontrol.model.auction import Demand
from pycontrol.model.cluster import Container, Mode, ModeSwitch, Node, YarnApp
from pycontrol.model.topology import Gpu
from pycontrol.policies.themis import Themis
from pycontrol.queries import views
from tests.arbiter.mini import Mini

NODE = Node("n1:1", "n1", "/r", 4)
APP = YarnApp("app", "ann", "root.a", "name", submitted_s=1000.0, attempt_id="at")


def arbiter(*containers: Container) -> Arbiter:
    a = Arbiter(Settings(recovery_s=0.0), Themis())
    a.handle(ev.ClusterSnapshot(True, (NODE,), (APP,), (), containers, rm_life="life"), 1000.0)
    return a


def test_an_apps_new_queue_and_priority_are_known() -> None:
    a = arbiter()
    a.handle(ev.AppUpdated(replace(APP, queue="root.b", priority=3)), 1001.0)
    assert (a.cluster.apps["app"].queue, a.cluster.apps["app"].priority) == ("root.b", 3)
    a.handle(ev.AttemptAdded("at2", "app"), 1002.0)
    assert (a.cluster.apps["app"].attempt_id, a.cluster.apps["app"].priority) == ("at2", 3)
    a.handle(ev.AppUpdated(replace(APP, app_id="unheard-of")), 1003.0)
    assert "unheard-of" not in a.cluster.apps


def test_gpus_of_an_ending_container_are_in_use_and_leased_to_nobody() -> None:
    gpu = Gpu("n1", 2)
    a = arbiter(Container("c", "app", "n1:1", (gpu,), "lease", 1, "at", 1, ending=True))
    assert gpu not in set(a.gpus.free)
    assert gpu not in a.durable.leases
    a.handle(ev.ContainerGone("c"), 1001.0)
    assert gpu in set(a.gpus.free)


def test_a_container_reported_with_other_gpus_uses_these_alone() -> None:
    a = arbiter()
    for index in (2, 3):
        a.handle(ev.ContainerUp(Container("c", "app", "n1:1", (Gpu("n1", index),), "lease", 1, "at", 1)), 1001.0)
    assert a.cluster.container_at == {Gpu("n1", 3): "c"}


def test_an_agent_whose_leases_are_in_the_journal_need_not_wait_until_the_resource_manager_has_recovered() -> None:
    m = Mini()
    app = m.app("a", 2)
    m.run(2)
    started = m.start("a")
    again = Mini(durable=m.a.durable)
    again.send(ev.AgentUp("a", "a_1", "single", Demand(2, 1, 2, 1.0, 1.0)))
    assert "a" not in again.a.agents
    again.send(replace(m.snapshot([app], started), ready=False))
    assert "a" in again.a.agents


@pytest.mark.parametrize("mode", [Mode.SHADOW, Mode.OFF, Mode.UNREADABLE])
def test_while_the_mode_is_not_on_leases_stand_still(mode: Mode) -> None:
    m = Mini()
    app = m.app("a", 2)
    m.run(5)
    started = m.start("a")
    here = m.snapshot([app], started)
    nothing = ev.ClusterSnapshot(False, (), (), (), ())
    m.send(replace(nothing if mode is Mode.OFF else here, ready=False, switch=ModeSwitch(mode, by="ann")))
    since_s, held = m.now, m.held("a")
    assert len(held) == 2
    m.app("b", 2)
    m.run(3000, 5)
    assert [e for e in m.of(object, since_s + 1) if not isinstance(e, ev.SendHosts)] == []
    status = views.status(m.a, m.now, {})
    assert (status["mode"]["name"], status["mode"]["by"], status["ready"]) == (mode, "ann", False)
    assert status["state"] == ("mode unreadable" if mode is Mode.UNREADABLE else mode)
    m.send(here)
    m.run(2)
    assert m.held("a") == held
    assert m.of(ev.Kill) == []
