"""Sharing safety through the real Arbiter: random cases, and those that once failed."""

from __future__ import annotations

import dataclasses

import pytest

from pycontrol.arbiter.ledger.facts import LeaseEnded
from pycontrol.arbiter.ledger.lease import gpus_in
from pycontrol.model.reasons import EndReason, Reason
from pycontrol.policies import on_schedule
from pycontrol.queries.pending_reasons import reason
from tests.safety.cases import Ask, Case, Cell, Kind, draw
from tests.safety.oracle import GRACE_S, Shared, complaints, play_private, play_shared

BATCH = 20
BATCHES = 15
PAIRS = Kind(("gpu", "pair", "node"), (1, 2, 4), ("n0", "n1"))
NODES = Kind(("gpu", "node"), (1, 4), ("n0", "n1"))
EVER_S = 10_000


@pytest.mark.parametrize("first", range(0, BATCH * BATCHES, BATCH))
def test_what_the_private_cluster_runs_runs_here_one_revocation_later(first: int) -> None:
    """One seed again: `make safety SEED=n EXAMPLES=1`, which also makes the case smaller."""
    assert {seed: found for seed in range(first, first + BATCH) if (found := complaints(draw(seed)))} == {}


def test_all_policies_that_may_have_a_private_schedule_are_drawn_with_one() -> None:
    found = [c for c in map(draw, range(BATCH * BATCHES)) if c.private_schedule]
    assert {c.policy for c in found} == set(on_schedule.KEEPS)
    assert {c.f for c in found if c.policy == "themis"} == {0.0, 0.8}


@pytest.mark.parametrize(("policy", "seed"), [("tiresias", 44), ("oef", 46), ("oef", 50)])
def test_the_oracle_sees_that_a_schedule_is_not_kept(policy: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """An app waits for gangs that it has in the schedule, also after another one waited on the private cluster."""
    found = dataclasses.replace(draw(seed), policy=policy, private_schedule=True, f=0.0)
    assert not complaints(found)
    monkeypatch.setattr(on_schedule, "_first", lambda *_: [])
    assert "of its schedule" in complaints(found)[0]


def cell(kind: str, gpus: int, owner: str, host: str, first: int = 0, pinned: bool = False) -> Cell:
    return Cell(kind, gpus, owner, first, (host,), pinned)


def case(kind: Kind, cells: tuple[Cell, ...], *asks: Ask, policy: str = "isonomy") -> Case:
    return Case(0, policy, (kind,), cells, asks)


def split(owners: tuple[str, str, str, str]) -> tuple[Cell, ...]:
    """n0 as four single GPUs, n1 whole and root.b's."""
    return (*(cell("gpu", 1, o, "n0", k) for k, o in enumerate(owners)), cell("node", 4, "root.b", "n1"))


STRANGER = Ask("x", "root.x", 1, 4, 5, EVER_S)
OWNER = Ask("b", "root.b", 4, 1, 0, EVER_S)


@pytest.mark.parametrize("policy", ["isonomy", "themis", "tiresias"])
def test_a_gang_takes_several_cells_of_one_host(policy: str) -> None:
    ours = ("root.a", "root.a", "", "")
    asks = OWNER, STRANGER, Ask("a", "root.a", 2, 1, 40, EVER_S)
    assert not complaints(case(NODES, split(ours), *asks, policy=policy))


def test_the_tenant_of_figure_4_gets_all_its_cells_for_one_gang() -> None:
    kind = Kind(("gpu", "switch", "socket", "node"), (1, 2, 4, 8), ("n0", "n1"))
    cells = (
        cell("socket", 4, "root.a", "n0"),
        cell("switch", 2, "root.a", "n0", 4),
        cell("gpu", 1, "root.a", "n0", 6),
        cell("gpu", 1, "root.a", "n0", 7),
        cell("node", 8, "root.b", "n1"),
    )
    others = Ask("b", "root.b", 8, 1, 0, EVER_S), Ask("x", "root.x", 1, 8, 5, EVER_S)
    asks = *others, Ask("a", "root.a", 8, 1, 40, EVER_S)
    assert not complaints(case(kind, cells, *asks))


def test_a_gang_that_can_never_fit_blocks_no_other_app() -> None:
    cells = (
        cell("pair", 2, "root.a", "n0"),
        cell("gpu", 1, "root.a", "n0", 2),
        cell("gpu", 1, "root.a", "n0", 3),
        cell("node", 4, "root.b", "n1"),
    )
    never = Ask("a0", "root.a", 4, 1, 30, EVER_S, together=True)
    fits = Ask("a1", "root.a", 2, 1, 40, EVER_S, together=True)
    assert not complaints(case(PAIRS, cells, OWNER, STRANGER, never, fits))


@pytest.mark.parametrize("kind", ["crash", "takeover", "lost journal"])
def test_a_restarted_control_plane_keeps_the_owners_of_cells(kind: str) -> None:
    cells = (cell("node", 4, "root.a", "n0"), cell("node", 4, "root.b", "n1"))
    asks = Ask("a", "root.a", 4, 1, 5, EVER_S), Ask("b", "root.b", 4, 1, 60, EVER_S)
    found = dataclasses.replace(case(NODES, cells, *asks), failovers=((30, kind),))
    assert not complaints(found)
    w = play_shared(found)
    assert all(x.guaranteed for x in w.arbiter.durable.leases.values())


@pytest.mark.parametrize("kind", ["crash", "takeover", "lost journal"])
def test_a_restarted_control_plane_prolongs_no_lease(kind: str) -> None:
    cells = (cell("node", 4, "root.a", "n0"), cell("node", 4, "root.a", "n1"))
    early = Ask("a0", "root.a", 1, 2, 52, EVER_S), Ask("a3", "root.a", 4, 1, 64, EVER_S)
    calm = dataclasses.replace(case(NODES, cells, *early, Ask("a1", "root.a", 8, 1, 79, EVER_S)), length_s=131)
    there, here = play_shared(calm), play_shared(dataclasses.replace(calm, failovers=((124, kind),)))
    ends_s = {str(gpu): x.end_s for gpu, x in there.arbiter.durable.leases.items()}
    assert len(ends_s) == 6
    assert {str(gpu): x.end_s for gpu, x in here.arbiter.durable.leases.items()} == ends_s


def test_a_gang_of_all_cells_does_not_wait_a_lease_more_for_a_takeover() -> None:
    """Leases with new ends outlasted the one common end, and those of later apps the next: seed 1103."""
    kind = Kind(("gpu", "switch", "socket", "node"), (1, 2, 4, 8), ("n0", "n1", "n2", "n3"))
    cells = (
        cell("socket", 4, "root.b", "n0"),
        cell("socket", 4, "", "n0", 4),
        cell("socket", 4, "root.a", "n1"),
        cell("gpu", 1, "root.a", "n1", 4),
        cell("gpu", 1, "", "n1", 5),
        cell("gpu", 1, "", "n1", 6),
        cell("gpu", 1, "root.b", "n1", 7),
        cell("node", 8, "root.a", "n2", pinned=True),
        cell("switch", 2, "root.a", "n3"),
        cell("switch", 2, "", "n3", 2),
        cell("socket", 4, "", "n3", 4),
    )
    asks = (
        Ask("x1", "root.x", 2, 7, 25, 3000),
        Ask("a0", "root.a", 1, 2, 52, 202, together=True),
        Ask("a1", "root.a", 15, 1, 79, 3079),
        Ask("a2", "root.a", 2, 1, 189, 269),
        Ask("b2", "root.b", 2, 1, 170, 250),
    )
    found = dataclasses.replace(case(kind, cells, *asks), seed=1103, failovers=((124, "takeover"),))
    assert not complaints(found)


@pytest.mark.parametrize("foreign", [False, True])
def test_gpus_borrowed_beyond_the_private_cluster_stay_borrowed_after_a_lost_journal(foreign: bool) -> None:
    """Two cells of one GPU on one host are no machine of two, though a container that runs there says so: seed 872."""
    cells = (
        cell("gpu", 1, "root.b", "n0"),
        cell("gpu", 1, "root.b", "n0", 1),
        cell("gpu", 1, "", "n0", 2),
        cell("gpu", 1, "", "n0", 3),
        cell("node", 4, "root.a", "n1"),
    )
    wide = Ask("b1", "root.b", 2, 1, 5, EVER_S, together=True, foreign=foreign)
    asks = Ask("a", "root.a", 4, 1, 0, EVER_S), wide, Ask("x", "root.x", 1, 2, 20, EVER_S)
    found = case(NODES, cells, *asks, Ask("b0", "root.b", 1, 2, 80, EVER_S))
    assert not complaints(dataclasses.replace(found, failovers=((50, "lost journal"),)))


def test_a_borrower_without_an_agent_gives_way_in_one_revocation() -> None:
    """Its revoked lease used to be renewed like uncontested ones: seeds 16, 92, 104, 106, 157, 209 and 215."""
    cells = (cell("node", 4, "root.a", "n0"), cell("node", 4, "root.b", "n1"))
    stranger = dataclasses.replace(STRANGER, gangs=8, foreign=True)
    found = case(NODES, cells, stranger, Ask("a", "root.a", 4, 1, 22, EVER_S))
    assert not complaints(found)
    w = play_shared(found)
    assert [x.guaranteed for x in w.arbiter.durable.leases.of("a") for _ in x.gpus] == [True] * 4


def test_the_reason_of_an_app_with_one_gpu_type_names_its_cells_of_that_type() -> None:
    """Its queue's free GPUs of another type are useless to it: seed 231."""
    k80 = Kind(("gpu", "small"), (1, 2), ("m0",), gpu_type="k80")
    cells = (cell("node", 4, "root.a", "n0"), cell("node", 4, "root.b", "n1"), cell("small", 2, "root.a", "m0"))
    asks = (Ask("a", "root.a", 2, 2, 5, EVER_S, gpu_type="k80"), OWNER)
    found = dataclasses.replace(case(NODES, cells, *asks), kinds=(NODES, k80))
    assert not complaints(found)
    assert why(play_shared(found), "a").code == "CellsInUse"


def test_a_borrowed_gang_may_have_gpus_of_several_types_as_without_cells() -> None:
    """Type-blind policies used to award it both machines, and cells refused them forever: seed 129."""
    k80 = Kind(("gpu", "small"), (1, 2), ("m0",), gpu_type="k80")
    cells = (cell("node", 4, "root.a", "n0"), cell("node", 4, "root.b", "n1"), cell("small", 2, "root.a", "m0"))
    wide = Ask("x", "root.x", 10, 1, 5, EVER_S)
    found = dataclasses.replace(case(NODES, cells, wide, policy="srsf"), kinds=(NODES, k80))
    assert not complaints(found)
    assert len(gpus_in(play_shared(found).arbiter.durable.leases.of("x"))) == 10


def test_an_app_of_several_sizes_borrows_beside_what_it_has() -> None:
    """Its demand used to be cut to whole gangs of one size, ignoring the other sizes that it held: seed 1405."""
    kind = Kind(("gpu", "node"), (1, 8), ("n0", "n1"))
    cells = (cell("node", 8, "root.b", "n0"), cell("node", 8, "root.a", "n1"))
    mixed = Ask("b", "root.b", 1, 2, 5, EVER_S, foreign=True, more=((6, 1), (7, 1)))
    found = case(kind, cells, mixed, policy="gandiva")
    assert not complaints(found)
    assert len(gpus_in(play_shared(found).arbiter.durable.leases.of("b"))) == 15


def test_a_pinned_cell_is_guaranteed() -> None:
    cells = (cell("node", 4, "root.a", "n0", pinned=True), cell("node", 4, "root.b", "n1"))
    asks = Ask("x", "root.x", 1, 8, 0, EVER_S), Ask("a", "root.a", 4, 1, 40, EVER_S)
    found = case(NODES, cells, *asks)
    assert not complaints(found)
    w = play_shared(found)
    assert {(x.gpus[0].host, x.guaranteed) for x in w.arbiter.durable.leases.of("a")} == {("n0", True)}


def test_apps_of_a_virtual_cluster_have_the_order_that_they_have_on_its_private_cluster() -> None:
    """An app's use is measured against the queue's GPUs, not against the whole cluster's."""
    hosts = tuple(f"n{k}" for k in range(40))
    kind = Kind(("gpu", "node"), (1, 4), hosts)
    cells = (cell("node", 4, "root.a", "n0"), *(cell("node", 4, "root.b", h) for h in hosts[1:]))
    wide = Ask("wide", "root.a", 4, 40, 0, EVER_S, work_gpu_s=20_000)
    narrow = Ask("narrow", "root.a", 4, 1, 1, EVER_S, work_gpu_s=10_000)
    found = case(kind, cells, Ask("b", "root.b", 4, 39, 0, EVER_S), wide, narrow)
    there, here = play_private(found, "root.a"), play_shared(found)
    order = sorted(("wide", "narrow"), key=lambda a: there.log[a][-1])
    assert [len(here.log[a]) > 1 for a in order] == [len(there.log[a]) > 1 for a in order]
    assert not complaints(found)


def test_a_gang_that_borrowed_owns_its_queues_cells_once_they_are_free() -> None:
    cells = (cell("node", 4, "root.a", "n0"), cell("node", 4, "root.b", "n1"))
    asks = (
        Ask("a1", "root.a", 4, 1, 0, 50),
        Ask("a2", "root.a", 4, 1, 10, EVER_S),
        Ask("b", "root.b", 4, 1, 70, EVER_S),
        Ask("a3", "root.a", 4, 1, 100, EVER_S),
    )
    found = case(NODES, cells, *asks)
    w = play_shared(found)
    assert [x.guaranteed for x in w.arbiter.durable.leases.of("a2") for _ in x.gpus] == [True] * 4
    assert w.log["a2"][-1][1] == 1
    assert len(w.log["a2"]) == 2, "it was never stopped"
    assert not complaints(found)


def test_apps_of_a_queue_that_leaves_the_cells_file_continue_as_borrowers() -> None:
    cells = (cell("node", 4, "root.c", "n0"), cell("node", 4, "root.b", "n1"))
    asks = Ask("c0", "root.c", 4, 1, 0, EVER_S), Ask("c1", "root.c", 4, 1, 40, EVER_S)
    w = play_shared(dataclasses.replace(case(NODES, cells, *asks), vanishes_s=50, failovers=((80, "crash"),)))
    assert {x.guaranteed for x in w.arbiter.durable.leases.values()} == {False}
    assert {app.vc for app in w.arbiter.durable.live.values()} == {""}
    assert len(w.arbiter.durable.leases) == 8


def why(w: Shared, app_id: str) -> Reason:
    return reason(w.arbiter, app_id, w.now)


def test_the_reason_names_the_cells_that_an_app_waits_for() -> None:
    cells = (cell("node", 4, "root.a", "n0"), cell("node", 4, "root.b", "n1"))
    wide, later = Ask("wide", "root.a", 8, 1, 10, EVER_S), Ask("later", "root.a", 4, 1, 60, EVER_S)
    asks = Ask("a", "root.a", 4, 1, 0, EVER_S), OWNER, wide, later, Ask("x", "root.x", 1, 1, 5, EVER_S)
    found = case(NODES, cells, *asks)
    w = play_shared(found)
    assert why(w, "wide").code == "CellsTooSmall"
    assert "owns 4" in why(w, "wide").sentence
    assert why(w, "later").code == "CellsInUse"
    assert "a uses 4" in why(w, "later").sentence
    assert why(w, "x").code == "NoCells"


def test_the_reason_says_that_an_apps_cells_are_lent_and_until_when() -> None:
    cells = (cell("node", 4, "root.a", "n0"), cell("node", 4, "root.b", "n1"))
    asks = Ask("b", "root.b", 4, 2, 0, EVER_S), Ask("a", "root.a", 4, 1, 60, EVER_S)
    w = play_shared(dataclasses.replace(case(NODES, cells, *asks), lent=(900, cells[0], "root.b")))
    assert why(w, "a").code == "CellsLent"
    assert "1 x node lent to root.b until 1970-01-01 00:31 UTC" in why(w, "a").sentence


def test_the_reason_says_that_an_apps_cells_are_bad() -> None:
    cells = (cell("node", 4, "root.a", "n0"), cell("node", 4, "root.b", "n1"))
    asks = Ask("b", "root.b", 4, 1, 0, EVER_S), Ask("a", "root.a", 4, 1, 60, EVER_S)
    w = play_shared(dataclasses.replace(case(NODES, cells, *asks), lost=(30, "n0")))
    assert why(w, "a").code == "CellsBad"
    assert "n0" in why(w, "a").sentence


@pytest.mark.parametrize("kind", ["crash", "takeover"])
def test_what_was_promised_to_an_app_without_an_agent_is_promised_again_after_a_restart(kind: str) -> None:
    """The promise came due and lapsed unused, because no container was planned for it any more: seed 102945."""
    nodes = Kind(("gpu", "node"), (1, 4), ("n0", "n1", "n2"))
    cells = tuple(cell("node", 4, "root.a", host) for host in nodes.hosts)
    stranger = Ask("x1", "root.x", 4, 1, 4, EVER_S, foreign=True)
    found = case(nodes, cells, stranger, Ask("a0", "root.a", 4, 3, 94, EVER_S, foreign=True))
    assert not complaints(dataclasses.replace(found, failovers=((97, kind),)))


def test_a_gang_of_containers_keeps_its_guarantee_however_its_containers_lie_on_its_hosts_cells() -> None:
    """Its container of 2 GPUs ran where it owned two cells of one GPU, and so the whole gang borrowed: seed 105227."""
    singles = zip(("root.b", "root.a", "root.a", "root.b"), range(4), strict=True)
    cells = (cell("node", 4, "root.b", "n0"), *(cell("gpu", 1, owner, "n1", k) for owner, k in singles))
    gang = Ask("b2", "root.b", 2, 2, 22, EVER_S, foreign=True, more=((1, 2),), one_gang=True)
    found = dataclasses.replace(case(NODES, cells, gang), failovers=((55, "lost journal"),), length_s=58)
    w = play_shared(found)
    assert [x.guaranteed for x in w.arbiter.durable.leases.of("b2") for _ in x.gpus] == [True] * 6


@pytest.mark.parametrize("policy", ["isonomy", "tiresias"])
def test_a_gang_that_a_bad_gpu_spared_moves_so_that_its_queue_gets_a_spare_cell(policy: str) -> None:
    """It kept the broken machine bound for ever, and half of its app waited beside a whole spare machine: 5000204."""
    cells = (cell("node", 4, "root.a", "n1"),)
    asks = Ask("x0", "root.x", 1, 8, 28, EVER_S, foreign=True), Ask("a0", "root.a", 2, 2, 75, EVER_S)
    found = dataclasses.replace(case(PAIRS, cells, *asks, policy=policy), bad=(115, "n1", 3))
    w = play_shared(found)
    assert {gpu.host for gpu in gpus_in(w.arbiter.durable.leases.of("a0"))} == {"n0"}
    assert w.log["a0"][-1][1] == 2


def test_a_gang_that_a_bad_gpu_spared_stays_while_nobody_of_its_queue_waits() -> None:
    cells = (cell("node", 4, "root.a", "n1"),)
    asks = Ask("x0", "root.x", 1, 8, 28, EVER_S), Ask("a0", "root.a", 2, 1, 75, EVER_S)
    w = play_shared(dataclasses.replace(case(PAIRS, cells, *asks), bad=(115, "n1", 3)))
    assert [n for _, n in w.log["a0"]] == [0, 1]


def test_an_app_of_several_sizes_is_given_no_gang_of_another_size_because_its_schedule_has_one() -> None:
    """It got 4 GPUs for a container of 2, used none of them, and was given them again for ever: seed 910217."""
    kind = Kind(("gpu", "node"), (1, 4), ("n0", "n1", "n2"))
    cells = (cell("node", 4, "root.a", "n1"), cell("node", 4, "root.a", "n2"))
    wide = Ask("a0", "root.a", 4, 3, 13, 163)
    mixed = Ask("a1", "root.a", 4, 1, 120, 270, foreign=True, more=((2, 1),))
    found = case(kind, cells, Ask("x", "root.x", 1, 12, 1, EVER_S, foreign=True), wide, mixed, policy="tiresias")
    assert not complaints(dataclasses.replace(found, private_schedule=True))


def lent(min_lend_s: int) -> Shared:
    """root.a's app wants its node at 40 s, which a stranger borrows since about 5 s; root.b has the other."""
    cells = (cell("node", 4, "root.a", "n0"), cell("node", 4, "root.b", "n1"))
    found = case(NODES, cells, OWNER, STRANGER, Ask("a", "root.a", 4, 1, 40, EVER_S))
    found = dataclasses.replace(found, min_lend_s=min_lend_s)
    assert not complaints(found)
    return play_shared(found)


@pytest.mark.parametrize("min_lend_s", [0, 60, 100])
def test_a_borrower_keeps_its_gpus_for_the_time_that_the_owner_grants_and_the_owner_waits_no_longer(
    min_lend_s: int,
) -> None:
    w = lent(min_lend_s)
    (back_s,) = [at_s for at_s, n in w.log["x"] if at_s > 40 and n == 0]
    (begins_s,) = [at_s for at_s, n in w.log["a"] if n == 1]
    borrowed_s = next(at_s for at_s, n in w.log["x"] if n)
    assert back_s >= borrowed_s + min_lend_s - 1
    assert begins_s <= max(40, borrowed_s + min_lend_s) + GRACE_S


def test_a_borrower_that_is_evicted_gets_its_own_cells_though_others_borrow_them() -> None:
    """Others borrowed those kept for it, and no round was held until leases ended: seed 910307."""
    nodes = Kind(("gpu", "switch", "socket", "node"), (1, 2, 4, 8), ("n0", "n1", "n2"))
    cells = (cell("node", 8, "root.a", "n1"), cell("node", 8, "root.b", "n2"))
    wide, owner = Ask("a0", "root.a", 8, 1, 183, 263), Ask("b0", "root.b", 8, 1, 239, EVER_S)
    few = (
        Ask("a1", "root.a", 1, 3, 188, EVER_S),
        Ask("a2", "root.a", 1, 1, 219, 369),
        Ask("a3", "root.a", 1, 1, 155, 305),
    )
    asks = (Ask("x", "root.x", 4, 3, 11, EVER_S), wide, *few, owner, Ask("b1", "root.b", 2, 1, 94, 244))
    found = dataclasses.replace(case(nodes, cells, *asks), seed=910307, lost=(234, "n0"), min_lend_s=90)
    assert not complaints(found)
    w = play_shared(found)
    assert any(f.cause == EndReason.GUARANTEE and f.at_s > 1263 for f in w.journal if isinstance(f, LeaseEnded))
    assert [(at_s < 263, n) for at_s, n in w.log["a2"]] == [(True, 0), (True, 1)]
    assert [x.guaranteed for x in w.arbiter.durable.leases.of("a2")] == [True]


def test_what_was_borrowed_after_the_owner_wanted_it_is_called_back_at_once() -> None:
    """Else one loan after the other would keep the owner waiting."""
    kind = Kind(("gpu", "node"), (1, 4), ("n0", "n1"))
    cells = (cell("node", 4, "root.a", "n0"), cell("node", 4, "root.b", "n1"))
    early = Ask("x", "root.x", 1, 2, 5, EVER_S)
    late = tuple(Ask(f"x{k}", "root.x", 1, 1, 45 + 10 * k, EVER_S) for k in range(4))
    found = case(kind, cells, OWNER, early, Ask("a", "root.a", 4, 1, 40, EVER_S), *late)
    assert not complaints(dataclasses.replace(found, min_lend_s=70))


def test_the_reason_says_until_when_borrowers_keep_the_cells() -> None:
    cells = (cell("node", 4, "root.a", "n0"), cell("node", 4, "root.b", "n1"))
    found = case(NODES, cells, OWNER, STRANGER, Ask("a", "root.a", 4, 1, 40, EVER_S))
    w = play_shared(dataclasses.replace(found, min_lend_s=900, length_s=60))
    assert why(w, "a").code == "WaitingForRevocation"
    assert "borrowers keep them until 1970-01-01 00:31 UTC (min_lend_s)" in why(w, "a").sentence
