"""Trees of accounts under the default policy, through the Arbiter: level by level, over all queues, with and without
past use, and in a virtual cluster."""

from __future__ import annotations

import dataclasses
import json
import random
from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pycontrol.arbiter.ledger.facts import plain
from pycontrol.arbiter.supply.cell_supply import CellSupply
from pycontrol.lab.clusters import uniform
from pycontrol.lab.conformance.snapshots import CLUSTER, app, snapshot
from pycontrol.lab.runs import paired_ratio, simulate
from pycontrol.model.accounts import NO_ACCOUNTS, OTHERS, PLAIN, Account, Accounts
from pycontrol.model.auction import Snapshot
from pycontrol.policies.fluid import Fluid
from pycontrol.policies.hierarchy import VirtualApp, Weights
from pycontrol.policies.isonomy import Isonomy
from pycontrol.policies.past_use import MOST, PastUse
from pycontrol.simulation.engine import Simulator
from pycontrol.simulation.outlook import Resumed
from pycontrol.simulation.scene import picture, scene_from
from pycontrol.simulation.simulation_settings import ARBITER, SimulationSettings
from pycontrol.simulation.trace_apps import TraceApp, Workload
from tests.cells.files import supply_of

GPUS = 12
WEIGHT = st.floats(0.1, 10)
TREES = st.recursive(
    WEIGHT.map(Account),
    lambda below: st.builds(
        lambda w, xs: Account(w, below={f"g{i}": x for i, x in enumerate(xs)}),
        WEIGHT,
        st.lists(below, min_size=1, max_size=3),
    ),
    max_leaves=10,
)


def leaves(account: Account, path: tuple[str, ...] = ()) -> dict[tuple[str, ...], Account]:
    if not account.below:
        return {path: account}
    return {p: x for name, child in account.below.items() for p, x in leaves(child, (*path, name)).items()}


@settings(max_examples=60, deadline=None)
@given(groups=st.lists(TREES, min_size=1, max_size=4), data=st.data())
def test_siblings_share_by_weight_at_each_level_of_any_depth(groups: list[Account], data: st.DataObject) -> None:
    """Whatever the apps of a user and their queues are; all can use the whole cluster."""
    root = Account(below={f"r{i}": x for i, x in enumerate(groups)})
    paths = list(leaves(root))
    accounts = Accounts(root.below, {"/".join(p): (*p, "me") for p in paths})
    apps = {
        f"{user}{k}": VirtualApp(data.draw(st.sampled_from(["q", "r"])), user, 1e9, GPUS, 1e9)
        for user in accounts.users
        for k in range(data.draw(st.integers(1, 3)))
    }
    fluid = Fluid(0.0, Weights(GPUS, accounts.tree({}), accounts)).having(
        {a: (x, x.need_gpu_s) for a, x in apps.items()}
    )
    of_user = {u: sum(fluid.rate(a) or 0.0 for a, x in apps.items() if x.user == u) for u in accounts.users}

    def share(path: tuple[str, ...]) -> float:
        return sum(gpus for u, gpus in of_user.items() if accounts.users[u][: len(path)] == path)

    assert share(()) == pytest.approx(GPUS)
    for path in {p[:k] for p in paths for k in range(len(p))}:
        account = root
        for name in path:
            account = account.below[name]
        total = sum(x.weight for x in account.below.values())
        for name, x in account.below.items():
            assert share((*path, name)) == pytest.approx(share(path) * x.weight / total)


# ---- through the Arbiter

USERS = {u: ("ours", u) for u in ("u", "u0", "u1", "u2", "u3", "u4")} | {v: ("theirs", v) for v in ("v0", "v1", "v2")}
TREE = Accounts({"ours": Account(), "theirs": Account(), OTHERS: PLAIN}, USERS)


def ends(
    apps: list[TraceApp], accounts: Accounts, supply: CellSupply | None = None, **options: float
) -> dict[str, float]:
    """App -> when it ends on 16 GPUs without restarts."""
    control = dataclasses.replace(ARBITER, lease_s=30.0, accounts=accounts)
    world = SimulationSettings(arbiter=control, checkpoint_s=0.0, restart_s=0.0)
    found = simulate(Workload("w", tuple(apps)), uniform(2, 8), "isonomy", world, supply=supply)
    return {a.app_id: a.finished_s or 0.0 for a in found.apps}


def ours_done_s(seed: int, accounts: Accounts, pieces: int, queues: bool) -> float:
    """When the work of "ours" is done beside three users of "theirs": as one app, or dealt to several."""
    rng = random.Random(seed)
    jobs, *others = ([rng.uniform(20, 60) for _ in range(100)] for _ in range(4))
    ours = [
        TraceApp(
            f"o{i}",
            0.0,
            1,
            (tuple(jobs[i::pieces]),),
            f"root.q{i if queues else 0}",
            "u" if queues or pieces == 1 else f"u{i}",
        )
        for i in range(pieces)
    ]
    theirs = [TraceApp(f"t{i}", 0.0, 1, (tuple(x),), f"root.q{i}", f"v{i}") for i, x in enumerate(others)]
    return max(at_s for a, at_s in ends([*ours, *theirs], accounts).items() if a.startswith("o"))


def test_splitting_work_over_queues_and_users_of_a_group_gains_nothing() -> None:
    """Five queues of one user were five shares: without a tree they end in a third of the time."""
    whole = [ours_done_s(seed, TREE, 1, True) for seed in range(8)]
    for queues in (True, False):
        found = paired_ratio([ours_done_s(seed, TREE, 5, queues) for seed in range(8)], whole)
        assert found.low > 0.99, found
        assert found.high - found.low < 0.02, found
    alone = ours_done_s(0, NO_ACCOUNTS, 5, True) / ours_done_s(0, NO_ACCOUNTS, 1, True)
    assert alone < 0.5


def test_forecasts_and_explanations_know_the_tree() -> None:
    """The picture travels as JSON; the sentence names the accounts above the app."""
    apps = tuple(TraceApp(a, 0.0, 1, ((600.0,) * 2,), "root.q", a) for a in ("u", "w"))
    world = SimulationSettings(arbiter=dataclasses.replace(ARBITER, accounts=TREE), until_s=300.0)
    sim = Simulator(Workload("w", apps), uniform(1, 4), Isonomy(), world)
    sim.run()
    told = json.loads(json.dumps(picture(sim.arbiter, sim.now)))
    assert Resumed(scene_from(told), 1, error=0.0).arbiter.holdings.settings.accounts == TREE
    said = " ".join(why for r in sim.arbiter.holdings.receipts for why in r.done.why.values())
    assert "(as ours/u)" in said
    assert "(as others/root.q/w)" in said


def test_a_virtual_cluster_is_shared_by_the_groups_whose_users_are_in_it() -> None:
    """Two apps of 4,000 GPU-s on its 8 GPUs; the group of weight 7 is done when the other has an eighth of its work."""
    cells = "cell_types: {box: {child: gpu, count: 8, node_level: true}}\n"
    cells += "physical_cells: [{type: box, hosts: [HOST0]}, {type: box, hosts: [HOST1]}]\n"
    cells += "virtual_clusters: {root.a: {box: 1}, root.b: {box: 1}}"
    for k, host in enumerate(uniform(2, 8).machines):
        cells = cells.replace(f"HOST{k}", host)
    jobs = ((20.0,) * 200,)
    apps = [TraceApp(user, 0.0, 1, jobs, "root.a", user) for user in ("u", "v0")]
    heavy = Accounts({**TREE.groups, "theirs": Account(7.0)}, USERS)
    for accounts, first, last in ((TREE, "u", "v0"), (heavy, "v0", "u")):
        supply = supply_of(cells)
        found = ends(apps, accounts, supply)
        assert found[first] < 0.6 * found[last], found


# ---- past use

HOUR_S, DAY_S = 3600.0, 86400.0
WEEK_S = 7 * DAY_S
ALL = 2 * CLUSTER.gpus
TEAMS = Accounts(
    {"busy": Account(), "idle": Account(), OTHERS: PLAIN},
    {"ann": ("busy", "ann"), "amy": ("busy", "amy"), "bob": ("idle", "bob")},
)


def after_days(days: float, half_life_s: float, every_s: float = 6 * HOUR_S) -> Snapshot:
    """Ann's app alone used all GPUs for some days and has ended."""
    policy, memory, attained = Isonomy(half_life_s=half_life_s), {}, 0.0
    s = dataclasses.replace(snapshot(), accounts=TEAMS)
    for k in range(int(days * DAY_S / every_s) + 1):
        at_s, attained = k * every_s, k * every_s * CLUSTER.gpus
        ann = app("ann's", 1, ALL, user="ann", work_total_gpu_s=1e9, attained_gpu_s=attained)
        s = dataclasses.replace(s, now_s=at_s, apps=(ann,), present=frozenset({"ann's"}), memory=memory)
        memory = json.loads(json.dumps(plain(policy.decide(s, {}, random.Random(0)).memory)))
    return dataclasses.replace(s, apps=(), present=frozenset(), memory=memory, ended={"ann's": attained})


def order(s: Snapshot, half_life_s: float, **work_gpu_s: float) -> list[str]:
    """Users by the virtual finish times of an app of each, which come now."""
    apps = tuple(
        app(user, 1, ALL, user=user, work_total_gpu_s=work, submitted_s=s.now_s) for user, work in work_gpu_s.items()
    )
    s = dataclasses.replace(s, apps=apps, present=frozenset(work_gpu_s))
    policy = Isonomy(half_life_s=half_life_s)
    policy = Isonomy(half_life_s=half_life_s)
    first = policy.decide(
        s, {}, random.Random(0)
    )  # the use until now counts from the next round on, if it is the first
    seen = policy.prepared(dataclasses.replace(s, memory=first.memory, ended={}))
    return sorted(work_gpu_s, key=seen.memory["ideal"].finish_s)


def test_a_team_that_was_idle_for_six_days_has_its_burst_on_the_seventh() -> None:
    """Its app comes before one of a quarter of its work, whose team was busy."""
    s = after_days(6, WEEK_S)
    assert order(s, WEEK_S, amy=1e5, bob=4e5) == ["bob", "amy"]
    assert order(dataclasses.replace(s, memory={}), 0.0, amy=1e5, bob=4e5) == ["amy", "bob"]


def test_the_use_of_a_team_weighs_on_all_its_users_and_within_it_on_who_used_it() -> None:
    s = after_days(6, WEEK_S)
    assert order(s, WEEK_S, bob=1e5, amy=1e5, ann=1e5) == ["bob", "amy", "ann"]


def test_use_is_forgotten_by_half_lives() -> None:
    """Two days later, of a half-life of three hours, hardly anything is left, and teams are equal again."""
    s = after_days(6, 3 * HOUR_S)
    later = dataclasses.replace(s, now_s=s.now_s + 2 * DAY_S)
    assert order(s, 3 * HOUR_S, amy=1e5, bob=4e5) == ["bob", "amy"]
    assert order(later, 3 * HOUR_S, amy=1e5, bob=4e5) == ["amy", "bob"]


def test_use_is_the_same_however_often_it_is_counted() -> None:
    """Six days of 13 GPUs: H / ln 2 x (1 - 2^(-6 / 7)) x 13."""
    expected = 13 * WEEK_S / 0.6931472 * (1 - 0.5 ** (6 / 7))
    for every_s in (HOUR_S, DAY_S, 3 * DAY_S):
        used = PastUse.load(after_days(6, WEEK_S, every_s).memory["use"], 0.0)
        assert used.gpu_s["root.a"]["ann"] == pytest.approx(expected, rel=1e-6)


@settings(max_examples=60, deadline=None)
@given(
    tree=TREES.filter(lambda x: bool(x.below)),
    used=st.lists(st.floats(0, 1e9), min_size=10, max_size=10),
    gpus=st.integers(1, 1000),
)
def test_past_use_orders_siblings_and_never_shifts_a_weight_by_more_than_its_most(
    tree: Account, used: list[float], gpus: int
) -> None:
    users = {"/".join(p): p for p in leaves(tree)}
    accounts = Accounts(tree.below, users)
    use = PastUse(0.0, {"q": dict(zip(users, used, strict=False))})
    found = use.weighed(Account(below=tree.below), accounts, gpus, DAY_S)

    def of(path: tuple[str, ...]) -> float:
        return sum(x for u, x in use.gpu_s["q"].items() if users[u][: len(path)] == path)

    def check(old: Account, new: Account, path: tuple[str, ...]) -> None:
        factors: Mapping[str, float] = {n: new.at(n).weight / x.weight for n, x in old.below.items()}
        assert all(0.999 / MOST <= f <= 1.001 * MOST for f in factors.values())
        rates = {n: of((*path, n)) / x.weight for n, x in old.below.items()}
        for a in rates:
            assert all(factors[a] >= factors[b] * (1 - 1e-9) for b in rates if rates[a] <= rates[b])
            check(old.below[a], new.at(a), (*path, a))

    check(Account(below=tree.below), found, ())
