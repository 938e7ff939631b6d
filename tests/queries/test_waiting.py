"""The sentence for a wait says whether the free GPUs have room, whose leases end first, and when the app starts."""

from __future__ import annotations

import dataclasses
import re
import time

import pytest

from pycontrol.model import events as ev
from pycontrol.model.auction import Demand
from pycontrol.model.cluster import YarnApp
from pycontrol.model.reasons import Pending, Reason
from pycontrol.model.topology import Scope
from pycontrol.queries.pending_reasons import Reasons, reason
from pycontrol.queries.waiting import Waiting, with_start
from tests.arbiter.mini import CELLS, SETTINGS, Mini

TWO = (("n1", 4), ("n2", 4))


def busy(*gangs: tuple[str, int]) -> Mini:
    """Two machines of 4 GPUs in one rack; these apps hold a gang each, whose leases end 10 s apart."""
    m = Mini(nodes=TWO)
    for name, gang in gangs:
        m.app(name, gang)
        m.run(10)
        assert m.held(name)
    return m


def seen(m: Mini, gang: int, scope: Scope = Scope.MACHINE, gpu_type: str = "") -> tuple[Pending, str]:
    """What a new app `a` is told, without the time."""
    app = m.app("a", gang)
    demand = Demand(gang, 1, gang, 1e6, 1e6, 0.0, scope=scope, gpu_type=gpu_type)
    m.send(ev.AgentUp("a", app.attempt_id, "hyperband", demand))
    code, sentence = Waiting(m.a, m.now).told("a", demand, reason(m.a, "a", m.now))
    return code, re.sub(r"(in|within) \d+ (s|min)$", r"\1 #", sentence)


@pytest.mark.parametrize(
    ("holders", "gang", "scope", "sentence"),
    [
        ((("long", 3), ("other", 3)), 4, Scope.MACHINE, "no machine has 4 free GPUs; the lease of long ends in #"),
        ((("long", 3), ("other", 3)), 4, Scope.RACK, "no rack has 4 free GPUs; the lease of long ends in #"),
        (
            (("long", 4), ("x", 2), ("y", 2)),
            4,
            Scope.CLUSTER,
            "the cluster does not have 4 free GPUs; the lease of long ends in #",
        ),
        (
            (("long", 4), ("x", 2), ("y", 2)),
            6,
            Scope.CLUSTER,
            "the cluster does not have 6 free GPUs; leases of long, x end within #",
        ),
    ],
)
def test_no_room_is_said_with_the_leases_that_make_it(
    holders: tuple[tuple[str, int], ...], gang: int, scope: Scope, sentence: str
) -> None:
    assert seen(busy(*holders), gang, scope) == (Pending.NO_FREE_GPUS, sentence)


@pytest.mark.parametrize("full", [True, False])
@pytest.mark.parametrize(
    ("gang", "scope", "code", "most"),
    [
        (6, Scope.MACHINE, Pending.NO_MACHINE_LARGE_ENOUGH, "at most 4 on a machine"),
        (6, Scope.RACK, Pending.NO_MACHINE_LARGE_ENOUGH, "at most 4 in a rack"),
        (9, Scope.MACHINE, Pending.EXCEEDS_CLUSTER_SIZE, "the cluster has 8"),
        (9, Scope.RACK, Pending.EXCEEDS_CLUSTER_SIZE, "the cluster has 8"),
    ],
)
def test_a_gang_that_fits_nowhere_does_not_wait(gang: int, scope: Scope, code: Pending, most: str, full: bool) -> None:
    m = busy(*(("x", 4), ("y", 4)) if full else ())
    m.send(ev.NodeUp(dataclasses.replace(m.nodes[1], rack="other")))
    said, sentence = seen(m, gang, scope)
    assert (said, sentence.partition(": ")[2]) == (code, f"{gang} GPUs in one gang; {most}")
    m.run(15)
    assert Waiting(m.a, m.now).told("a", m.a.agents["a"].demand, reason(m.a, "a", m.now)) == (said, sentence)


def test_only_the_leases_of_the_machine_with_room_are_named() -> None:
    code, sentence = seen(busy(("x", 2), ("long", 4), ("y", 2)), 4)
    assert sentence == "no machine has 4 free GPUs; the lease of long ends in #"
    assert code is Pending.NO_FREE_GPUS


def test_who_wants_more_is_not_told_to_wait_for_its_own_lease() -> None:
    m = busy(("x", 4), ("y", 4))
    demand = dataclasses.replace(m.a.agents["x"].demand, gangs=2, scope=Scope.MACHINE)
    waiting, why = Waiting(m.a, m.now), Reason(Pending.NO_FREE_GPUS)
    assert "no machine has 4 free GPUs; the lease of x ends in" in waiting.told("y", demand, why)[1]
    assert waiting.told("x", demand, why)[1] == "no machine has 4 free GPUs"


def test_a_round_is_awaited_where_it_can_serve() -> None:
    assert seen(busy(("long", 3)), 4)[0] is Pending.WAITING_FOR_ROUND


def test_free_gpus_where_an_app_may_not_start_are_no_room() -> None:
    m = busy(("long", 4))
    free = next(n for n in m.nodes if n.host not in {g.host for g in m.held("long")})
    m.send(ev.NodeUp(dataclasses.replace(free, partition="special")))
    assert seen(m, 4) == (Pending.NO_FREE_GPUS, "no machine has 4 free GPUs; the lease of long ends in #")


def test_who_was_outranked_learns_of_the_room_too() -> None:
    m = busy(("x", 3), ("y", 3))
    seen(m, 4)
    why = Reason(Pending.OUTRANKED, "isonomy, round r1.4")
    code, text = Waiting(m.a, m.now).told("a", m.a.agents["a"].demand, why)
    assert code == Pending.OUTRANKED
    assert text.startswith(f"{why.sentence}; no machine has 4 free GPUs")


def test_other_reasons_and_virtual_clusters_are_left_alone() -> None:
    m = busy(("long", 4), ("other", 4))
    paused = Reason(Pending.PAUSED)
    demand = Demand(4, 1, scope=Scope.MACHINE)
    assert Waiting(m.a, m.now).told("long", demand, paused) == (paused.code, paused.sentence)
    m = Mini(supply=CELLS, nodes=TWO)
    m.app("a", 4, queue="root.a")
    vague = Reason(Pending.WAITING_FOR_ROUND)
    assert Waiting(m.a, m.now).told("a", demand, vague) == (vague.code, vague.sentence)


NOON = time.mktime((2026, 11, 24, 12, 0, 0, 0, 0, -1))


@pytest.mark.parametrize(
    ("code", "held", "start_s", "added"),
    [
        (Pending.NO_FREE_GPUS, 0, (NOON + 60, NOON + 120, NOON + 180), "; you start about 12:02 (12:01 to 12:03)"),
        (Pending.OUTRANKED, 0, (NOON + 61, NOON + 62, NOON + 63), "; you start about 12:01"),
        (Pending.OUTRANKED, 0, (NOON - 60, NOON + 120, None), "; you start about 12:02 (12:00 or later)"),
        (
            Pending.CELLS_IN_USE,
            0,
            (NOON + 60, NOON + 86400, NOON + 172800),
            "; you start about Wed 25 Nov 12:00 (12:01 to Thu 26 Nov 12:00)",
        ),
        (Pending.NO_FREE_GPUS, 0, (NOON - 60, NOON - 40, NOON - 20), ""),
        (Pending.NO_FREE_GPUS, 0, (NOON, None, None), ""),
        (Pending.NO_FREE_GPUS, 0, None, ""),
        (Pending.NO_FREE_GPUS, 2, (NOON + 60, NOON + 120, NOON + 180), ""),
        (Pending.EXCEEDS_CLUSTER_SIZE, 0, (NOON + 60, NOON + 120, NOON + 180), ""),
    ],
)
def test_an_app_without_gpus_learns_when_it_starts(
    code: Pending, held: int, start_s: tuple[float | None, ...] | None, added: str
) -> None:
    assert with_start(code, "why", held, start_s, NOON) == f"why{added}"


def test_no_lease_is_named_whose_end_makes_no_room() -> None:
    """That on a machine that is drained, and that of an app without an Agent which keeps its GPUs."""
    m = busy(("x", 4), ("y", 4))
    at = {gpu.host: name for name in "xy" for gpu in m.held(name)}
    m.send(ev.OperatorCommand("drain", "n1", "root"))
    m.run(1)
    m.app("w", 4, scope=Scope.MACHINE)
    m.run(5)
    assert f"the lease of {at['n2']} ends in" in Reasons(m.a, m.now).told("w")[1]
    m = Mini(settings=dataclasses.replace(SETTINGS, standin_revocable=False))
    m.foreign("note", 4)
    m.run(2)
    for place in m.places():
        m.up(place)
    m.app("w", 4)
    m.run(5)
    assert Reasons(m.a, m.now).told("w")[1] == "the cluster does not have 4 free GPUs"


def test_what_apps_of_one_name_use_is_added_up() -> None:
    m = Mini(supply=CELLS, nodes=TWO)
    m.start_app("b", 4, queue="root.b")
    for app_id, name in (("a1", "train"), ("a2", "train"), ("a3", "eval")):
        app = YarnApp(app_id, "u", "root.a", name, "SUBMARINE", m.now, frozenset({"isonomy"}), f"{app_id}_1")
        m.send(ev.AppAdded(app))
        m.send(ev.AgentUp(app_id, app.attempt_id, "single", Demand(2, 1, 2, 1e6, 1e6, 0.0)))
        m.run(2)
    assert "0 of 4 are free; train uses 4" in Reasons(m.a, m.now).told("a3")[1]
