"""The Arbiter's invariants, broken on purpose; the state of a GPU; and the history in a failure's message."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest

from pycontrol.arbiter.ledger.facts import Fact, LeaseEnded, LeaseExtended, LeaseGranted
from pycontrol.arbiter.ledger.lease import Reservation
from pycontrol.arbiter.validate import Inconsistent, classify
from pycontrol.arbiter.views.gpu_index import GpuState
from pycontrol.arbiter.views.settings import Settings
from pycontrol.model import events as ev
from pycontrol.model.auction import HeldGrant
from pycontrol.model.cluster import Ask, Queue
from pycontrol.model.topology import Gpu
from tests.arbiter.mini import Mini

GPU = Gpu("n1", 0)


def running() -> Mini:
    """App a runs on n1:0; n1:1 to 3 are free."""
    m = Mini(settings=Settings(lease_s=600, grant_timeout_s=60, recovery_s=0))
    m.app("a")
    m.run(5)
    assert m.held("a") == {GPU}
    m.start("a")
    return m


def _lease_under_another_app(m: Mini) -> None:
    m.a.durable.leases[GPU] = dataclasses.replace(m.a.durable.leases[GPU], app_id="b")


def _reserved_though_not_revoked(m: Mini) -> None:
    m.a.durable.reservations[GPU] = Reservation((GPU,), "a", "r9.0", m.now, m.now + 600)


def _free_though_leased(m: Mini) -> None:
    m.a.gpus.free.put(GPU)


def _not_free_though_nobody_has_it(m: Mini) -> None:
    m.a.gpus.free.take(Gpu("n1", 3))


def _revoked_in_the_index_alone(m: Mini) -> None:
    m.a.gpus.revoking.add(GPU)


def _counted_wrongly(m: Mini) -> None:
    m.a.durable.held["a"] = 3


def _wants_more_in_the_list_alone(m: Mini) -> None:
    m.a.agents.unmet["a"] = None


def _a_container_that_is_not_there(m: Mini) -> None:
    m.a.cluster.containers.clear()


def _bad_and_leased(m: Mini) -> None:
    node = m.a.cluster.node_at["n1"]
    m.a.cluster.machines.put(dataclasses.replace(node, bad_gpus=frozenset({0})))


@pytest.mark.parametrize(
    ("breaks", "about"),
    [
        (_lease_under_another_app, GPU),
        (_reserved_though_not_revoked, GPU),
        (_free_though_leased, GPU),
        (_not_free_though_nobody_has_it, Gpu("n1", 3)),
        (_revoked_in_the_index_alone, GPU),
        (_counted_wrongly, "a"),
        (_wants_more_in_the_list_alone, "a"),
        (_a_container_that_is_not_there, GPU),
        (_bad_and_leased, GPU),
    ],
)
def test_contradictions_are_found(breaks: Callable[[Mini], None], about: Gpu | str) -> None:
    m = running()
    breaks(m)
    with pytest.raises(Inconsistent) as found:
        m.send(ev.Tick())
    assert found.value.about == about


def _another_rho(m: Mini) -> None:
    m.a.agents["b"].rho = 7.0


def _a_label(m: Mini) -> None:
    m.a.cluster.nodes["n1:1"] = dataclasses.replace(m.a.cluster.nodes["n1:1"], partition="gpu")


def _none_alike(m: Mini) -> None:
    m.a.rounds.candidates._alike.clear()


def _moved_without_a_fact(m: Mini) -> None:
    assert m.a.holdings.limits.held_in("root.q") == 1
    m.a.durable.live["a"].queue = "root.z"


@pytest.mark.parametrize(
    ("breaks", "problem"),
    [
        (_another_rho, "its view is outdated"),
        (_a_label, "labels is outdated"),
        (_none_alike, "among the apps like it"),
        (_moved_without_a_fact, r"root.[qz] holds [01] GPUs, [01] were counted"),
    ],
)
def test_what_stands_between_rounds_is_compared_with_a_recomputation(
    breaks: Callable[[Mini], None], problem: str
) -> None:
    m = running()
    m.app("b", gang=4)
    m.run(5)
    breaks(m)
    with pytest.raises(Inconsistent, match=problem):
        m.send(ev.Tick())


def test_gpus_below_limits_are_counted_anew_when_the_last_label_goes() -> None:
    """No fact tells of it: the counts by partition stayed, and the next comparison ended the control plane."""
    m = running()
    (node,) = (n for n in m.a.cluster.nodes.values() if n.host == "n1")
    m.send(ev.NodeUp(dataclasses.replace(node, partition="fast")))
    assert m.a.holdings.limits.held_in("root.q") == 0
    m.send(ev.NodeUp(node))
    assert m.a.holdings.limits.held_in("root.q") == len(m.held("a")) == 1


def test_the_view_of_an_app_that_waits_below_a_limit_is_compared_too() -> None:
    m = Mini(queues=(Queue("root.q", 0.5, 0.5),))
    m.app("a", gang=2)
    m.app("b", gang=2)
    m.run(5)
    assert (len(m.held("a")), len(m.held("b"))) == (2, 0), "the queue has room for one of them"
    _another_rho(m)
    with pytest.raises(Inconsistent, match="its view is outdated"):
        m.send(ev.Tick())


def test_a_failure_shows_the_history_of_the_gpu_in_order() -> None:
    m = running()
    _free_though_leased(m)
    with pytest.raises(Inconsistent) as found:
        m.send(ev.Tick())
    first, *story = str(found.value).splitlines()
    assert first == "n1:0: it is not free, but the index disagrees"
    told = [line.split()[1].partition("(")[0] for line in story]
    wanted = ["LeaseGranted", "SendGrant", "UsePlanned", "Place", "ContainerUp", "LeaseStarted"]
    assert list(dict.fromkeys(x for x in told if x in wanted)) == wanted, told


def test_the_history_of_an_app_has_nothing_of_another() -> None:
    m = running()
    m.app("b", gang=2)
    m.run(5)
    story = "\n".join(m.a.story.of("b"))
    assert "AppAdded" in story
    assert "LeaseGranted" in story
    assert "'a'" not in story


def unvalidated() -> Mini:
    """As `running`, in a control plane."""
    m = running()
    m.a.settings = dataclasses.replace(m.a.settings, validate=False)
    return m


def test_the_whole_state_is_not_checked_unless_requested() -> None:
    m = unvalidated()
    _free_though_leased(m)
    m.send(ev.Tick())


def _not_leased(m: Mini) -> None:
    m.a.durable.leases[GPU] = dataclasses.replace(m.a.durable.leases[GPU], gpus=(GPU, Gpu("n1", 3)))


@pytest.mark.parametrize(
    ("breaks", "fact", "problem"),
    [
        (_free_though_leased, LeaseExtended((GPU,), 5000.0), "it is not free"),
        (lambda m: m.a.gpus.revoking.add(GPU), LeaseExtended((GPU,), 5000.0), "it is not being revoked"),
        (_reserved_though_not_revoked, LeaseExtended((GPU,), 5000.0), "reserved for a and not being revoked"),
        (_not_leased, LeaseExtended((GPU,), 5000.0), "names it, but it is not its"),
        (_not_free_though_nobody_has_it, LeaseEnded((Gpu("n1", 3),), 5000.0, "revoked"), "it is free"),
    ],
)
def test_what_facts_are_about_is_always_checked(breaks: Callable[[Mini], None], fact: Fact, problem: str) -> None:
    m = unvalidated()
    m.a.check([fact], [])
    breaks(m)
    m.a.check([], [])
    with pytest.raises(Inconsistent, match=problem) as found:
        m.a.check([fact], [])
    assert "LeaseGranted" in "".join(found.value.whole)


def test_no_effect_is_carried_out_on_gpus_of_another() -> None:
    m = unvalidated()
    place = ev.Place("d1", Ask("b_1", "b", 1, 1, 1), "n1:1", (GPU,), "r1.0")
    grant = ev.SendGrant("b", "r1", HeldGrant("r1.0", (GPU,), 5000.0))
    for effect in (place, grant):
        with pytest.raises(Inconsistent, match="b is to use it, and has no lease of it"):
            m.a.check([], [effect])
        m.a.check([LeaseEnded((GPU,), 5000.0, "revoked")], [effect])
    m.a.check([], [dataclasses.replace(place, ask=Ask("a_1", "a", 1, 1, 1)), dataclasses.replace(grant, app_id="a")])


def test_classify_gives_a_gpus_state_through_its_whole_life() -> None:
    m = Mini(settings=Settings(lease_s=600, grant_timeout_s=60, recovery_s=0))
    a, seen = m.a, []

    def see() -> None:
        state = classify(a.holdings, GPU)
        if not seen or seen[-1] is not state:
            seen.append(state)

    see()
    m.app("a", gang=4)
    m.run(5)
    see()
    m.send(ev.UsePlanned("a", "u1", (ev.WorkerPlan("w1", "j", tuple(sorted(m.held("a"))), 1),)))
    see()
    m.send(ev.AskChanged(Ask("a_1", "a", 1, 4, 1)))
    see()
    (place,) = m.places()
    container = m.up(place, running=False)
    see()
    m.send(ev.ContainerUp(container, True))
    see()
    m.send(ev.OperatorCommand("drain", "n1", "root"))
    see()
    m.send(ev.ContainerGone(container.container_id))
    see()
    m.send(ev.NodeDown("n1:1", "lost"))
    see()
    assert seen == [
        GpuState.FREE,
        GpuState.GRANTED,
        GpuState.PLANNED,
        GpuState.PLACING,
        GpuState.STARTING,
        GpuState.ACTIVE,
        GpuState.REVOKING,
        GpuState.WITHHELD,
        GpuState.AWAY,
    ]


def test_a_returned_gpu_with_a_next_owner_is_reserved() -> None:
    m = running()
    m.send(ev.OperatorCommand("drain", "n1", "root"))
    m.a.clerk.record(LeaseGranted((GPU,), "a", "r9.0", m.now, m.now + 600, after=(GPU,)))
    assert classify(m.a.holdings, GPU) is GpuState.RESERVED
