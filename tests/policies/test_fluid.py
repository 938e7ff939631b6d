"""The ideal of the default policy: max-min shares by queue, user and app, and the effect of splitting on them."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pycontrol.policies.fluid import Fluid, joined
from pycontrol.policies.hierarchy import Hierarchy, VirtualApp, Weights, max_min

GPUS = 12


def app(user: str = "u", work: float = 1200.0, width: int = GPUS, queue: str = "q") -> VirtualApp:
    return VirtualApp(queue, user, work, width, work)


def fresh(apps: Mapping[str, VirtualApp], at_s: float = 0.0) -> Fluid:
    """The ideal in which no app was served anything."""
    return Fluid(at_s, apps, dict.fromkeys(apps, 0.0))


def finish(apps: Mapping[str, VirtualApp], weights: Weights | None = None) -> dict[str, float]:
    """When the ideal finishes each app, by running it until all are done."""
    weights = weights or Weights(GPUS)
    return {a: e.done_s or 0.0 for a, e in fresh(apps).at(1e9, weights).apps.items()}


@pytest.mark.parametrize(
    ("apps", "weights", "expected"),
    [
        ({"a": app("u"), "b": app("v")}, Weights(12), {"a": 6, "b": 6}),
        ({"a": app("u"), "b": app("u"), "c": app("v")}, Weights(12), {"a": 3, "b": 3, "c": 6}),
        ({"a": app("u", width=2), "b": app("u"), "c": app("v")}, Weights(12), {"a": 2, "b": 4, "c": 6}),
        ({"a": app("u", width=2), "c": app("v")}, Weights(12), {"a": 2, "c": 10}),
        ({"a": app("u", queue="x"), "b": app("v"), "c": app("w")}, Weights(12), {"a": 6, "b": 3, "c": 3}),
        ({"a": app("u", queue="x"), "b": app("v")}, Weights(12, {"x": 3.0}), {"a": 9, "b": 3}),
        ({"a": app("u", queue="x"), "b": app("v")}, Weights(12, {"x": 3.0}, {"x": 4.0}), {"a": 4, "b": 8}),
        ({"a": app("u"), "b": app("v")}, Weights(12, users={"u": 2.0}), {"a": 8, "b": 4}),
    ],
    ids=[
        "two users alike", "a user's apps share", "an app leaves the user what it cannot use",
        "a user leaves the others what it cannot use", "queues before users", "queues by weight", "a queue's limit",
        "users by weight",
    ],
)  # fmt: skip
def test_rates_are_weighted_max_min_of_queues_users_and_apps(
    apps: Mapping[str, VirtualApp], weights: Weights, expected: Mapping[str, float]
) -> None:
    assert Hierarchy(apps, weights).rates() == pytest.approx(expected)


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
        split = split.at(split.at_s + hop_s, Weights(GPUS))
    done = {a: e.done_s or 0.0 for a, e in split.at(1e9, Weights(GPUS)).apps.items()}
    assert max(done[f"p{i}"] for i in range(len(works))) == pytest.approx(whole["whole"])
    assert {a: done[a] for a in rest} == pytest.approx({a: whole[a] for a in rest})


@settings(max_examples=100, deadline=None)
@given(first=st.floats(10, 1e4), second=st.floats(10, 1e4), ahead=st.floats(0, 1))
def test_submitting_apps_one_by_one_is_no_better_than_as_one(first: float, second: float, ahead: float) -> None:
    """The first is served ahead of its share and ends early; the ideal first serves its debt, then the second."""
    weights, other = Weights(GPUS), {"o": app("v", 1e6)}
    as_one = finish({"both": app("u", first + second), **other})["both"]
    fluid = fresh({"1": app("u", first), **other}).at(ahead * first / (GPUS / 2), weights)
    fluid = fluid.changed({"1": replace(fluid.apps["1"], gone=True)}, weights)
    fluid = joined(fluid, [(fluid.at_s, "2", app("u", second))], weights)
    assert fluid.at(1e9, weights).apps["2"].done_s == pytest.approx(as_one)
    assert fluid.finish_s(weights)["2"] == pytest.approx(as_one)


@settings(max_examples=60, deadline=None)
@given(works=st.lists(st.floats(1, 1e4), min_size=1, max_size=6))
def test_the_forecast_of_a_users_apps_comes_true(works: list[float]) -> None:
    fluid = fresh({f"a{i}": app("u", w) for i, w in enumerate(works)})
    assert fluid.finish_s(Weights(GPUS)) == pytest.approx(finish(fluid.apps))


def test_the_ideal_survives_serialization() -> None:
    fluid = Fluid(3.0, {"a": app("u", 100.0), "b": replace(app("v", 9.0), done_s=2.0)}, {"a": 7.0})
    assert Fluid.from_json(json.loads(json.dumps(fluid.to_json()))) == fluid
    assert Fluid.from_json({"clock": [1.0, 2.0, 3]}) is None, "what the policy remembered in 0.1"


def test_the_ideal_does_not_depend_on_the_length_of_time_steps() -> None:
    fluid = fresh({"a": app("u", 1e-3), "b": app("v", 5e5), "c": app("w", 3e5, width=1)}, 1.7e9)
    at_once = fluid.at(1.7e9 + 40_000.3, Weights(GPUS))
    for i in range(400):
        fluid = fluid.at(1.7e9 + 100 * i, Weights(GPUS))
    fluid = fluid.at(1.7e9 + 40_000.3, Weights(GPUS))
    assert fluid.served_gpu_s == pytest.approx(at_once.served_gpu_s)
    assert fluid.apps["a"].done_s == pytest.approx(at_once.apps["a"].done_s)
    assert not math.isinf(sum(fluid.served_gpu_s.values()))


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
            fluid, told = joined(fluid, known, Weights(GPUS)).at(at_s, Weights(GPUS)), told + len(known)
        return fluid.finish_s(Weights(GPUS))

    often, seldom = after([*came_s, end_s]), after([*heard_s, end_s])
    assert often.keys() == seldom.keys()
    for name, at_s in often.items():
        assert seldom[name] == pytest.approx(at_s, rel=1e-6)


def test_many_arrivals_between_two_rounds_are_joined_in_groups_with_little_loss() -> None:
    new = [(float(i), str(i), app("u", 100.0)) for i in range(1000)]
    fluid = joined(fresh({}), new, Weights(GPUS))
    assert fluid.at_s == 999.0
    assert len(fluid.apps) == 1000
    served_gpu_s = sum(fluid.served_gpu_s.get(a, e.need_gpu_s) for a, e in fluid.apps.items())
    assert served_gpu_s == pytest.approx(999.0 * GPUS, rel=0.1), "little is lost by joining neighbours together"


EVENTS = st.one_of(
    st.tuples(st.just("wait"), st.floats(0, 400)),
    st.tuples(st.just("come"), st.sampled_from("uvw"), st.sampled_from("qr"), st.floats(1, 3000), st.integers(1, GPUS)),
    st.tuples(st.just("end"), st.integers(0, 20), st.floats(0, 1.5)),
    st.tuples(st.just("overrun"), st.integers(0, 20), st.floats(1, 2000)),
)


@settings(max_examples=200, deadline=None)
@given(st.lists(EVENTS, max_size=25))
def test_what_is_kept_from_round_to_round_is_what_would_be_read_anew(events: list[tuple[Any, ...]]) -> None:
    """Shares and finish times follow from the plain values alone, whatever came, ended, overran or came back."""
    weights, fluid = Weights(GPUS, {"q": 2.0}, {"r": 9.0}), fresh({})
    for k, (what, *details) in enumerate(events):
        names = list(fluid.apps)
        if what == "wait":
            fluid = fluid.at(fluid.at_s + details[0], weights)
        elif what == "come":
            user, queue, work, width = details
            fluid = joined(fluid, [(fluid.at_s - (k % 3) * 20.0, str(k), app(user, work, width, queue))], weights)
        elif names:
            name, amount = names[details[0] % len(names)], details[1]
            old = fluid.apps[name]
            new = (
                replace(old, gone=True, need_gpu_s=min(old.need_gpu_s, old.declared_gpu_s * amount))
                if what == "end"
                else replace(old, gone=False, need_gpu_s=old.need_gpu_s + amount, done_s=None)
            )
            fluid = fluid.changed({name: new}, weights)
        anew = Fluid.from_json(json.loads(json.dumps(fluid.to_json())))
        assert anew == fluid
        assert fluid.rates(weights) == pytest.approx(anew.rates(weights))
        assert fluid.finish_s(weights) == pytest.approx(anew.finish_s(weights))
        assert sum(fluid.rates(weights).values()) <= GPUS * (1 + 1e-9)
        assert all(0 <= s < fluid.apps[a].need_gpu_s for a, s in fluid.served_gpu_s.items())
        assert not any(e.gone for a, e in fluid.apps.items() if a not in fluid.served_gpu_s), (
            "served and ended: it left"
        )
