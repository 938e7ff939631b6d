"""A run as data: the cluster, its settings, its apps and its faults. Drawn from a seed; stored as JSON."""

from __future__ import annotations

import random
from typing import Any

from pycontrol.policies import registry
from tests.faults.workers import STUCK

Schedule = dict[str, Any]
NODES = (("n1", "r1", 4), ("n2", "r1", 4), ("n3", "r2", 2), ("n4", "r2", 2))
HORIZON_S = (40.0, 110.0)
"""The bounds of the time in which faults occur."""

FAULTS: dict[str, float] = {
    "plane_kill": 1.0,
    "plane_crash": 2.0,
    "disk_full": 0.5,
    "power": 0.5,
    "journal_lost": 0.4,
    "prune": 0.5,
    "rm_restart": 0.8,
    "bridge_wall": 1.0,
    "bridge_loss": 0.7,
    "bridge_twice": 0.7,
    "am_kill": 1.0,
    "agent_cut": 1.0,
    "agent_mute": 1.0,
    "agent_wall": 0.8,
    "am_wall": 0.6,
    "worker_kill": 1.0,
    "worker_cut": 0.7,
    "worker_deaf": 0.7,
    "nm_down": 0.8,
    "machine_down": 0.6,
    "nm_wall": 0.7,
    "refuses": 0.6,
    "decommission": 0.6,
    "resize": 0.5,
    "bad_gpus": 0.6,
    "drain": 0.6,
    "pause": 0.5,
    "kill_app": 0.4,
    "yarn_kill": 0.4,
    "move": 0.5,
    "flood": 0.3,
    "clock": 0.5,
    "skew": 0.5,
    "slow": 0.7,
    "hdfs_away": 0.5,
    "rest": 0.6,
    "liar": 0.9,
    "mallory": 0.4,
    "other_policy": 0.3,
    "cells_change": 0.4,
}
"""Kinds, and how often each is drawn where it is on."""
RARE = ("failover", "cells_apply", "keeper", "label", "blacklist", "user_limit", "nm_at_kill", "switch")
"""Drawn apart, for some seeds."""
ALONE = ("kill_fails", "limit")
"""Each drawn by a chance of its own."""


def draw(seed: int) -> Schedule:
    """The schedule of a seed. Each class of faults is on in some seeds and off in others."""
    rng = random.Random(f"schedule {seed}")
    cells = rng.random() < 0.3
    until_s = rng.uniform(*HORIZON_S)
    apps = [_app(rng, k, until_s) for k in range(rng.randint(2, 5))]
    on = [k for k in FAULTS if rng.random() < 0.3]
    faults = [a_fault(rng, kind, until_s, len(apps)) for kind in _kinds(rng, on)]
    rare = random.Random(f"rare {seed}")
    if rare.random() < 0.4:
        kinds = rare.sample(RARE, rare.randint(1, 3))
        faults += [a_fault(rare, rare.choice(kinds), until_s, len(apps)) for _ in range(rare.randint(1, 3))]
    orders = random.Random(f"orders {seed}")
    if orders.random() < 0.2:
        faults += [a_fault(orders, "kill_fails", until_s, len(apps)) for _ in range(orders.randint(1, 3))]
    people = random.Random(f"limits {seed}")
    if people.random() < 0.2:
        faults += [a_fault(people, "limit", until_s, len(apps)) for _ in range(people.randint(1, 3))]
    old_journal = rare.random() < 0.05
    slow = random.Random(f"slow {seed}")
    for app in apps:
        if app["kind"] == "agent" and slow.random() < 0.4:
            app["checkpoint_s"] = slow.choice((6.0, STUCK))
    asked = slow.random() < 0.4
    return {
        "seed": seed,
        "policy": slow.choice((*(["themis"] if asked else []), rng.choice(registry.names()))),
        "vc_policies": [rng.choice(registry.names()) for _ in range(2)],
        "cells": cells,
        "exchange": cells and rng.random() < 0.3,
        "sqlite": (rng.random() < 0.1) or old_journal,
        "old_journal": old_journal,
        "standby": any(f["kind"] in ("failover", "switch") for f in faults),
        "queue_capacity": rng.choice((10_000, 10_000, 200, 40)),
        "queue_max": {"root.small": 0.34} if rng.random() < 0.3 else {},
        "settings": _settings(rng),
        "apps": sorted(apps, key=lambda a: a["at"]),
        "faults": sorted(faults, key=lambda f: f["at"]),
        "until": until_s,
    }


def _settings(rng: random.Random) -> dict[str, Any]:
    lease_s = rng.choice((10.0, 20.0, 30.0))
    return {
        "lease_s": lease_s,
        "lead_s": rng.choice((None, 4.0)),
        "lease_timing": rng.choice(("aligned", "machine", "spread")),
        "grant_timeout_s": rng.choice((10.0, 20.0)),
        "f": rng.choice((0.0, 0.5, 0.8, 1.0)),
        "round_retry_s": rng.choice((2.0, 5.0)),
        "recovery_s": rng.choice((2.0, 5.0)),
        "standin_revocable": rng.random() < 0.3,
        "open_leases": rng.random() < 0.2,
        "seed": rng.randrange(1000),
    }


def _app(rng: random.Random, k: int, until_s: float) -> dict[str, Any]:
    queue = rng.choice(("root.a", "root.a", "root.b", "root.small"))
    app = {"id": k + 1, "at": rng.uniform(0, 0.7 * until_s), "queue": queue, "user": rng.choice(("ann", "bob"))}
    if rng.random() < 0.25:
        return app | {
            "kind": "foreign",
            "gpus": rng.choice((1, 1, 2, 4, 9 if rng.random() < 0.1 else 1)),
            "count": rng.randint(1, 4),
            "seconds": rng.uniform(2, 25),
        }
    scheduler = rng.choice(("single", "single", "successive_halving", "hyperband", "asha"))
    return app | {
        "kind": "agent",
        "scheduler": scheduler,
        "gang": rng.choice((1, 2, 2, 3, 4, 5)),
        "jobs": rng.randint(2, 5),
        "steps": rng.randint(6, 30) if scheduler == "single" else 9,
        "step_s": rng.choice((0.4, 1.0)),
        "iteration_s": rng.choice((None, 1.0)),
    }


def _kinds(rng: random.Random, on: list[str]) -> list[str]:
    if not on:
        return []
    count = rng.choice((1, 3, 6, 12))
    return rng.choices(on, [FAULTS[k] for k in on], k=count)


def a_fault(rng: random.Random, kind: str, until_s: float, apps: int) -> dict[str, Any]:
    """A fault of the kind, with all that any may need; `for_s`: how long it lasts."""
    return {
        "kind": kind,
        "at": rng.uniform(1.0, until_s),
        "for_s": rng.choice((1.0, 4.0, 8.0, 16.0, 30.0)),
        "host": rng.choice([n[0] for n in NODES]),
        "app": rng.randint(1, apps),
        "way": rng.choice(("in", "out", "both")),
        "where": rng.choice(("before the journal", "after the journal", "between effects")),
        "n": rng.randint(1, 12),
        "amount": rng.random(),
        "seed": rng.randrange(1 << 30),
    }
