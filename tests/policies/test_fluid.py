"""The ideal of the default policy: max-min shares by queue, user and app, and the effect of splitting on them."""

from __future__ import annotations

import itertools
import json
import math
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from pycontrol.arbiter.ledger.facts import plain
from pycontrol.model.accounts import NO_ACCOUNTS, OTHERS, Account, Accounts, Limits
from pycontrol.policies.fluid import Fluid, joined
from pycontrol.policies.hierarchy import Node, User, VirtualApp, Weights, max_min
from tests.policies import stepwise

GPUS = 12


def app(user: str = "u", work: float = 1200.0, width: int = GPUS, queue: str = "q") -> VirtualApp:
    return VirtualApp(queue, user, work, width, work)


def weights(gpus: int = GPUS, accounts: Accounts = NO_ACCOUNTS, **queues: Account) -> Weights:
    return Weights(gpus, accounts.tree(queues), accounts)


def fresh(apps: Mapping[str, VirtualApp], at_s: float = 0.0, by: Weights | None = None) -> Fluid:
    """The ideal in which no app was served anything."""
    return Fluid(at_s, by or Weights(GPUS)).having({a: (e, e.need_gpu_s) for a, e in apps.items()})


def finishes(fluid: Fluid) -> dict[str, float]:
    """The virtual finish times of all apps that have not ended."""
    return {a: fluid.finish_s(a) for a, e in fluid.apps.items() if not e.gone}


def served(fluid: Fluid) -> dict[str, float]:
    """What each app was served, GPU-s."""
    return {a: e.need_gpu_s - fluid.left_gpu_s(a) for a, e in fluid.apps.items()}


def finish(apps: Mapping[str, VirtualApp], by: Weights | None = None) -> dict[str, float]:
    """When the ideal finishes each app, by running it until all are done."""
    return {a: e.done_s or 0.0 for a, e in fresh(apps, 0.0, by).at(1e9).apps.items()}


FIVE = {f"a{i}": app("u", queue=f"q{i}") for i in range(5)}
TREE = Accounts(
    {"g": Account(below={"u": Account(), "v": Account()}), OTHERS: Account()}, {"u": ("g", "u"), "v": ("g", "v")}
)


@pytest.mark.parametrize(
    ("apps", "by", "expected"),
    [
        ({"a": app("u"), "b": app("v")}, Weights(12), {"a": 6, "b": 6}),
        ({"a": app("u"), "b": app("u"), "c": app("v")}, Weights(12), {"a": 3, "b": 3, "c": 6}),
        ({"a": app("u", width=2), "b": app("u"), "c": app("v")}, Weights(12), {"a": 2, "b": 4, "c": 6}),
        ({"a": app("u", width=2), "c": app("v")}, Weights(12), {"a": 2, "c": 10}),
        ({"a": app("u", queue="x"), "b": app("v"), "c": app("w")}, Weights(12), {"a": 6, "b": 3, "c": 3}),
        ({"a": app("u", queue="x"), "b": app("v")}, weights(12, x=Account(3.0), q=Account()), {"a": 9, "b": 3}),
        ({"a": app("u", queue="x"), "b": app("v")}, weights(12, x=Account(3.0)), {"a": 12, "b": 4e-6}),
        ({"a": app("u", queue="x"), "b": app("v")}, weights(12, x=Account(3.0, Limits(gpus=4))), {"a": 4, "b": 8}),
        ({"a": app("u"), "b": app("v")}, weights(12, Accounts(queue_users={"u": Account(2.0)})), {"a": 8, "b": 4}),
        (FIVE | {"z": app("v", queue="q9")}, weights(12, TREE), dict.fromkeys(FIVE, 1.2) | {"z": 6}),
        ({"a": app("u"), "b": app("w"), "c": app("x")}, weights(12, TREE), {"a": 6, "b": 3, "c": 3}),
        (
            {"a": app("u"), "b": app("w"), "d": app("x"), "c": app("v")},
            weights(12, TREE),
            {"a": 3, "b": 3, "c": 3, "d": 3},
        ),
        ({"a": app("v", width=2), "b": app("w")}, weights(12, TREE), {"a": 2, "b": 10}),
    ],
    ids=[
        "two users alike",
        "a user's apps share",
        "an app leaves the user what it cannot use",
        "a user leaves the others what it cannot use",
        "queues before users",
        "queues by weight",
        "a queue that YARN has not told of gets what is left",
        "a queue's limit",
        "users by weight",
        "a user of the tree has one share of all queues",
        "all others have one share",
        "two groups",
        "a group leaves the others what it cannot use",
    ],
)
def test_rates_are_weighted_max_min_of_queues_users_and_apps(
    apps: Mapping[str, VirtualApp], by: Weights, expected: Mapping[str, float]
) -> None:
    fluid = fresh(apps, 0.0, by)
    assert {a: fluid.rate(a) for a in apps} == pytest.approx(expected)


@given(
    total=st.floats(0, 1e4),
    parts=st.lists(st.tuples(st.floats(0.1, 10), st.floats(0, 1e4)), min_size=1, max_size=8),
)
def test_shares_are_max_min(total: float, parts: Sequence[tuple[float, float]]) -> None:
    """Feasible and work-conserving; an app below its cap has as large a weighted share as any other."""
    weights, caps = [w for w, _ in parts], [c for _, c in parts]
    shares = max_min(total, weights, caps)
    assert all(0 <= s <= c * (1 + 1e-9) for s, c in zip(shares, caps, strict=True))
    assert sum(shares) == pytest.approx(min(total, sum(caps)), abs=1e-6)
    level = max(s / w for s, w in zip(shares, weights, strict=True))
    for s, w, c in zip(shares, weights, caps, strict=True):
        assert s >= min(c, level * w) - 1e-6


def test_work_done_in_the_ideal_is_done_at_its_time() -> None:
    """Apps a and b share until b is done at 200 s; then a has everything."""
    assert finish({"a": app("u", 2400.0), "b": app("v", 1200.0)}) == pytest.approx({"a": 300.0, "b": 200.0})


@settings(max_examples=100, deadline=None)
@given(
    works=st.lists(st.floats(1, 1e5), min_size=1, max_size=6),
    others=st.lists(st.floats(1, 1e5), max_size=4),
    hops=st.lists(st.floats(0, 1e4), max_size=5),
)
def test_splitting_an_app_changes_no_other_virtual_finish_time(
    works: list[float], others: list[float], hops: list[float]
) -> None:
    """One user's pieces against the whole: the last piece ends when the whole would, and other apps end as before."""
    rest = {f"o{i}": app(f"v{i}", w) for i, w in enumerate(others)}
    whole = finish({"whole": app("u", sum(works)), **rest})
    split = fresh({**{f"p{i}": app("u", w) for i, w in enumerate(works)}, **rest})
    for hop_s in hops:  # with and without reads in between
        split = split.at(split.at_s + hop_s)
    done = {a: e.done_s or 0.0 for a, e in split.at(1e9).apps.items()}
    assert max(done[f"p{i}"] for i in range(len(works))) == pytest.approx(whole["whole"])
    assert {a: done[a] for a in rest} == pytest.approx({a: whole[a] for a in rest})


@settings(max_examples=100, deadline=None)
@given(first=st.floats(10, 1e4), second=st.floats(10, 1e4), ahead=st.floats(0, 1))
def test_submitting_apps_one_by_one_is_no_better_than_as_one(first: float, second: float, ahead: float) -> None:
    """The first is served ahead of its share and ends early; the ideal first serves its debt, then the second."""
    other = {"o": app("v", 1e6)}
    as_one = finish({"both": app("u", first + second), **other})["both"]
    fluid = fresh({"1": app("u", first), **other}).at(ahead * first / (GPUS / 2))
    fluid = fluid.changed({"1": replace(fluid.apps["1"], gone=True)})
    fluid = joined(fluid, [(fluid.at_s, "2", app("u", second))])
    assert fluid.at(1e9).apps["2"].done_s == pytest.approx(as_one)
    assert fluid.finish_s("2") == pytest.approx(as_one)


@settings(max_examples=60, deadline=None)
@given(works=st.lists(st.floats(1, 1e4), min_size=1, max_size=6))
def test_the_forecast_of_a_users_apps_comes_true(works: list[float]) -> None:
    fluid = fresh({f"a{i}": app("u", w) for i, w in enumerate(works)})
    assert finishes(fluid) == pytest.approx(finish(fluid.apps))


def test_the_ideal_survives_serialization() -> None:
    fluid = Fluid(3.0, Weights(GPUS)).having(
        {"a": (app("u", 100.0), 93.0), "b": (replace(app("v", 9.0), done_s=2.0), 0.0)}
    )
    rows = {"a": ["q", "u", 100.0, 12, 100.0, 7.0, None, False], "b": ["q", "v", 9.0, 12, 9.0, 9.0, 2.0, False]}
    assert json.loads(json.dumps(plain(fluid.to_json()))) == {"at_s": 3.0, "apps": rows}
    anew = Fluid.from_json({"at_s": 3.0, "apps": rows}, fluid.weights)
    assert anew is not None
    assert anew.to_json() == fluid.to_json()
    assert pickle.loads(pickle.dumps(fluid.to_json())) == {"at_s": 3.0, "apps": rows}
    assert Fluid.from_json({"clock": [1.0, 2.0, 3]}, fluid.weights) is None, "what the policy remembered in 0.1"


def test_the_ideal_does_not_depend_on_the_length_of_time_steps() -> None:
    fluid = fresh({"a": app("u", 1e-3), "b": app("v", 5e5), "c": app("w", 3e5, width=1)}, 1.7e9)
    at_once = fluid.at(1.7e9 + 40_000.3)
    for i in range(400):
        fluid = fluid.at(1.7e9 + 100 * i)
    fluid = fluid.at(1.7e9 + 40_000.3)
    assert fluid.to_json() == at_once.to_json(), "not even by rounding"
    assert not math.isinf(sum(served(fluid).values()))


@settings(max_examples=60, deadline=None)
@given(
    gaps_s=st.lists(st.floats(0, 500), min_size=1, max_size=12),
    works_gpu_s=st.lists(st.floats(1, 5000), min_size=12, max_size=12),
    heard_s=st.lists(st.floats(0, 6000), max_size=5),
)
def test_an_arrival_counts_from_its_time_whenever_the_rounds_are(
    gaps_s: list[float], works_gpu_s: list[float], heard_s: list[float]
) -> None:
    """The virtual finish times after rounds at any times are those after a round at each arrival."""
    came_s = [sum(gaps_s[: i + 1]) for i in range(len(gaps_s))]
    new = [(at_s, str(i), app("u", work)) for i, (at_s, work) in enumerate(zip(came_s, works_gpu_s, strict=False))]
    end_s = max([*came_s, *heard_s])

    def after(rounds_s: list[float]) -> dict[str, float]:
        fluid, told = fresh({}), 0
        for at_s in sorted(rounds_s):
            known = [x for x in new[told:] if x[0] <= at_s]
            fluid, told = joined(fluid, known).at(at_s), told + len(known)
        return finishes(fluid)

    often, seldom = after([*came_s, end_s]), after([*heard_s, end_s])
    assert often.keys() == seldom.keys()
    for name, at_s in often.items():
        assert seldom[name] == pytest.approx(at_s, rel=1e-6)


def test_many_arrivals_between_two_rounds_are_joined_in_groups_with_little_loss() -> None:
    new = [(float(i), str(i), app("u", 100.0)) for i in range(1000)]
    fluid = joined(fresh({}), new)
    assert fluid.at_s == 999.0
    assert len(fluid.apps) == 1000
    assert sum(served(fluid).values()) == pytest.approx(999.0 * GPUS, rel=0.1), (
        "little is lost by joining neighbours together"
    )


def test_an_arrival_changes_only_the_users_whose_share_it_changes() -> None:
    """Of 300 users who have all that they can use, and 20 who share a queue: the newcomer's user, and then the 20."""
    narrow = {f"n{i}": app(f"n{i}", width=1) for i in range(300)}
    shared = {f"s{i}": app(f"s{i}", width=8, queue="r") for i in range(20)}
    before = fresh({**narrow, **shared}, 0.0, weights(480, r=Account(limits=Limits(gpus=100))))
    for queue, expected in (("q", {"new"}), ("r", {"new", *shared})):
        after = joined(before, [(10.0, "new", app("new", width=1, queue=queue))])
        was, now = (_users(fluid.cluster) for fluid in (before, after))
        assert {name for name, user in now.items() if user is not was.get(name)} == expected
    assert after.cluster.children["q"] is before.cluster.children["q"]


def _users(node: Node | User, name: str = "") -> dict[str, User]:
    if isinstance(node, User):
        return {name: node}
    return {name: user for n, child in node.children.items() for name, user in _users(child, n).items()}


U, V = Account(2.0), Account(0.5, Limits(gpus=3))
NESTED = {"a": Account(3.0, below={"b": Account(2.0, Limits(gpus=7), {"u": U}), "v": V}), OTHERS: Account(0.5)}
WEIGHTINGS: list[tuple[Accounts, dict[str, Account]]] = [
    (NO_ACCOUNTS, {}),
    (NO_ACCOUNTS, {"q": Account(2.0), "r": Account(limits=Limits(gpus=9))}),
    (Accounts(queue_users={"u": U, "v": V}), {"r": Account(3.0), "q": Account(limits=Limits(gpus=5))}),
    (Accounts(NESTED, {"u": ("a", "b", "u"), "v": ("a", "v")}), {"r": Account(3.0)}),
    (Accounts(NESTED, {"u": ("a", "b", "u"), "v": ("a", "b", "v"), "w": ("a", "c", "d", "w")}), {}),
]
SOME = st.integers(0, 20)


class TheIdealInVirtualTime(RuleBasedStateMachine):
    """It is the ideal that is reckoned step by step, whatever comes, ends, overruns, widens, shrinks or returns."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = Weights(GPUS)
        self.fluid, self.steps = fresh({}), stepwise.Fluid(0.0, {}, {})
        self.came = 0

    def change(self, k: int, **values: Any) -> None:
        """Replaces fields of the k-th app."""
        names = list(self.steps.apps)
        if names:
            name = names[k % len(names)]
            new = {name: replace(self.steps.apps[name], **values)}
            self.fluid, self.steps = self.fluid.changed(new), self.steps.changed(new, self.weights)

    def of(self, k: int) -> VirtualApp:
        return list(self.steps.apps.values())[k % len(self.steps.apps)]

    @rule(step_s=st.integers(0, 400))
    def wait(self, step_s: float) -> None:
        at_s = self.steps.at_s + step_s
        self.fluid, self.steps = self.fluid.at(at_s), self.steps.at(at_s, self.weights)

    @rule(k=SOME)
    def wait_for_a_finish(self, k: int) -> None:
        """Until an app is done, if nothing comes and its user's rate stays the same: rounds are often at such times."""
        if any(not e.gone for e in self.steps.apps.values()):
            found = sorted(self.steps.finish_s(self.weights).values())
            self.wait(min(1e4, max(0.0, found[k % len(found)] - self.steps.at_s)))

    @rule(
        late_s=st.sampled_from([0.0, 0.0, 20.0]),
        user=st.sampled_from("uvw"),
        queue=st.sampled_from("qr"),
        work=st.integers(1, 3000) | st.sampled_from([100, 1200]),
        width=st.integers(1, GPUS),
        twins=st.integers(1, 3),
    )
    def come(self, late_s: float, user: str, queue: str, work: float, width: int, twins: int) -> None:
        new = [(self.steps.at_s - late_s, f"a{self.came + i}", app(user, work, width, queue)) for i in range(twins)]
        self.came += twins
        self.fluid, self.steps = joined(self.fluid, new), stepwise.joined(self.steps, new, self.weights)

    @rule(k=SOME, part=st.integers(0, 12).map(lambda n: n / 8))
    def end(self, k: int, part: float) -> None:
        if self.steps.apps:
            old = self.of(k)
            self.change(k, gone=True, need_gpu_s=min(old.need_gpu_s, old.declared_gpu_s * part))

    @rule(k=SOME, more_gpu_s=st.integers(1, 2000))
    def overrun_or_return(self, k: int, more_gpu_s: float) -> None:
        if self.steps.apps:
            self.change(k, gone=False, need_gpu_s=self.of(k).need_gpu_s + more_gpu_s, done_s=None)

    @rule(k=SOME, width=st.integers(1, GPUS))
    def width_changes(self, k: int, width: int) -> None:
        self.change(k, width_gpus=width)

    @rule(chosen=st.sampled_from(WEIGHTINGS), gpus=st.sampled_from([GPUS, GPUS, GPUS - 5]))
    def weights_change(self, chosen: tuple[Accounts, dict[str, Account]], gpus: int) -> None:
        accounts, queues = chosen
        self.weights = weights(gpus, accounts, **queues)
        self.fluid = self.fluid.weighted(self.weights)

    @rule()
    def restart(self) -> None:
        """The plain values alone say all."""
        anew = Fluid.from_json(json.loads(json.dumps(plain(self.fluid.to_json()))), self.weights)
        assert anew is not None
        self.fluid = anew

    @invariant()
    def shares_finishes_and_order_are_the_same(self) -> None:
        fluid, steps = self.fluid, self.steps
        assert set(fluid.apps) == set(steps.apps)
        assert fluid.at_s == steps.at_s
        rates, ideal = steps.rates(self.weights), steps.finish_s(self.weights)
        for a, e in steps.apps.items():
            assert fluid.left_gpu_s(a) == close(e.need_gpu_s - steps.served_gpu_s.get(a, e.need_gpu_s))
            if a in rates and e.need_gpu_s - steps.served_gpu_s[a] > 1e-5:
                assert fluid.rate(a) == close(rates[a])
        found = {a: fluid.finish_s(a) for a in ideal}
        assert found == {a: close(at_s) for a, at_s in ideal.items()}
        order = sorted(ideal, key=ideal.__getitem__)
        for a, b in itertools.pairwise(order):
            assert found[a] <= found[b] or ideal[a] == close(ideal[b])
        assert sum(fluid.rate(a) or 0.0 for a in fluid.apps) <= self.weights.gpus * (1 + 1e-9)


def close(of: float) -> Any:
    return pytest.approx(of, rel=1e-9, abs=1e-6)


TestTheIdealInVirtualTime = TheIdealInVirtualTime.TestCase
TestTheIdealInVirtualTime.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
