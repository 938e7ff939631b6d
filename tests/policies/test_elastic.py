"""Elastic apps in a round: gangs as large as there is room, or smaller and closer together if that is faster."""

from __future__ import annotations

import random

from pycontrol.lab.conformance.snapshots import app, snapshot
from pycontrol.model.auction import AppView, Gang
from pycontrol.policies.drf import Drf
from pycontrol.policies.filling import Filling
from pycontrol.policies.isonomy import Isonomy

FREE = {"n1": 4, "n2": 4, "n3": 2, "n4": 2, "n5": 1}


def gangs(policy: Filling, *apps: AppView, free: dict[str, int] | None = None) -> dict[str, tuple[Gang, ...]]:
    plan = policy.decide(snapshot(*apps, free=free), {}, random.Random(0))
    return {a.app_id: a.gangs for a in plan.awards}


def elastic(name: str, gangs: int = 8, most: int = 8, **more: object) -> AppView:
    return app(name, 1, gangs, job_demand_max=most, **more)


def test_a_gang_is_as_large_as_its_job_may_have() -> None:
    found = gangs(Isonomy(), elastic("a"))["a"]
    assert found == ((("n1", 4), ("n2", 4)),)


def test_a_smaller_gang_on_one_machine_is_chosen_if_it_is_faster() -> None:
    far = gangs(Isonomy(), elastic("a", gangs=4, most=4, slowdown=(1.0, 3.0, 4.0)), free={"n1": 3, "n3": 2})["a"]
    assert far[0] in ((("n1", 2),), (("n3", 2),))


def test_an_app_uses_all_free_gpus_in_addition_to_those_it_keeps() -> None:
    home = (("n1", 2),)
    found = gangs(Isonomy(), elastic("a", ending_gangs=(home,)), free={"n1": 4, "n5": 1})["a"]
    assert found[0] == home
    assert sum(n for gang in found for _, n in gang) == 5


def test_a_policy_that_counts_gpus_gives_them_one_by_one() -> None:
    found = gangs(Drf(), elastic("a"), elastic("b"), free={"n1": 4})
    assert [sum(n for gang in found[a] for _, n in gang) for a in "ab"] == [2, 2]


def test_the_last_app_in_the_order_shrinks() -> None:
    """The only machine is n1: b, first in the order, takes two of a's four GPUs, and a continues with two."""
    a = elastic("a", ending_gangs=((("n1", 4),),), work_total_gpu_s=9e9)
    b = app("b", 2, 1, work_total_gpu_s=1.0)
    found = gangs(Isonomy(), a, b, free={"n1": 4})
    assert found == {"b": ((("n1", 2),),), "a": ((("n1", 2),),)}
