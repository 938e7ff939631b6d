"""The placer over many rounds: shares are met, no app starves, no gang moves without need; the paper's rounding."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pycontrol.lab.oef.placers import paper_round
from pycontrol.lab.shares.tenants import wait_bound_rounds
from pycontrol.shares.placer import Placement, PlacerJob, PlacerRound

Shares = dict[str, dict[str, float]]


@dataclass
class Counts:
    """Devices by type, without hosts."""

    free: dict[str, int]
    got: Counter[str] = field(default_factory=Counter)

    def stay(self, job: PlacerJob) -> bool:
        """Staying is as good as a new place."""
        return job.home is not None and self.settle(job, job.home)

    def settle(self, job: PlacerJob, gpu_type: str) -> bool:
        """Places a gang if there are enough devices."""
        if self.free.get(gpu_type, 0) < job.gpus:
            return False
        self.free[gpu_type] -= job.gpus
        self.got[job.user] += job.gpus
        return True

    def hold(self, job: PlacerJob) -> None:
        """No devices are held: all are on offer in each round."""
        raise AssertionError("the first that is ready fits")


@dataclass
class World:
    """Users with jobs of given sizes, over many rounds, each with all devices on offer."""

    devices: dict[str, int]
    ideal: Shares
    sizes: dict[str, list[int]]
    patience: float = 4.0
    stays: bool = True
    stint: float = 1.0

    def run(self, rounds: int) -> tuple[dict[str, int], dict[str, Counter[str]], list[Placement]]:
        """The longest wait of each job, devices by user and type over all rounds, and the rounds."""
        waited = {f"{u}/{i}": 0 for u, sizes in self.sizes.items() for i in range(len(sizes))}
        home: dict[str, str | None] = dict.fromkeys(waited)
        longest, total = dict(waited), {u: Counter[str]() for u in self.sizes}
        deviation: Shares = {}
        placed = []
        for _ in range(rounds):
            jobs = [
                PlacerJob(f"{u}/{i}", u, n, tuple(self.devices), waited[f"{u}/{i}"], home[f"{u}/{i}"])
                for u, sizes in self.sizes.items()
                for i, n in enumerate(sizes)
            ]
            hosts = Counts(dict(self.devices))
            outcome = PlacerRound(self.ideal, deviation, jobs, hosts, self.patience, self.stint).run()
            deviation = outcome.deviation
            placed.append(outcome)
            for job in jobs:
                ran = job.job_id in outcome.how
                waited[job.job_id] = 0 if ran else waited[job.job_id] + 1
                longest[job.job_id] = max(longest[job.job_id], waited[job.job_id])
                home[job.job_id] = outcome.how[job.job_id][0] if ran and self.stays else None
                if ran:
                    total[job.user][outcome.how[job.job_id][0]] += job.gpus
        return longest, total, placed


@given(seed=st.integers(0, 10**6), stint=st.sampled_from([1.0, 1.0, 2.0, 3.0]))
@settings(max_examples=25, deadline=None)
def test_every_job_runs_within_the_bound(seed: int, stint: float) -> None:
    rng = random.Random(seed)
    devices = {t: rng.randint(2, 8) for t in ("K80", "P100", "V100")[: rng.randint(1, 3)]}
    users = [f"u{i}" for i in range(rng.randint(1, 5))]
    parts = {u: {t: rng.random() + 0.05 for t in devices} for u in users}
    sums = {t: sum(p[t] for p in parts.values()) for t in devices}
    ideal = {u: {t: devices[t] * parts[u][t] / sums[t] for t in devices} for u in users}
    largest = max(devices.values())
    sizes = {u: [rng.randint(1, largest) for _ in range(rng.randint(1, 6))] for u in users}
    longest, _, _ = World(devices, ideal, sizes, stint=stint).run(150)
    apps = sum(map(len, sizes.values()))
    for user in users:
        share = sum(ideal[user].values())
        bound = wait_bound_rounds(4.0, max(sizes[user]), share, len(sizes[user]), apps, stint)
        assert max(longest[f"{user}/{i}"] for i in range(len(sizes[user]))) <= bound


def test_a_large_job_of_a_small_share_is_not_starved_by_small_ones() -> None:
    """This case fails without saving: small jobs take every device as soon as it is due."""
    sizes = {"a": [4, 1, 1, 1], "b": [1] * 20}
    longest, _, _ = World({"V100": 4}, {"a": {"V100": 1.0}, "b": {"V100": 3.0}}, sizes).run(200)
    assert longest["a/0"] <= wait_bound_rounds(4.0, 4, 1.0, 4, 24)
    greedy, _, _ = World({"V100": 4}, {"a": {"V100": 1.0}, "b": {"V100": 3.0}}, sizes, patience=1e9).run(200)
    assert greedy["a/0"] > longest["a/0"]


def test_shares_are_met_in_the_long_run_by_type() -> None:
    ideal = {"a": {"K80": 3.5, "V100": 0.25}, "b": {"K80": 0.5, "V100": 3.75}}
    _, total, _ = World({"K80": 4, "V100": 4}, ideal, {"a": [1] * 12, "b": [1] * 12}).run(200)
    for user, shares in ideal.items():
        for gpu_type, share in shares.items():
            assert total[user][gpu_type] / 200 == pytest.approx(share, abs=0.05)


def test_longer_stints_mean_fewer_restarts_and_the_same_shares() -> None:
    ideal = {u: {"V100": 4 / 3} for u in "abc"}
    starts, got = {}, {}
    for stint in (1.0, 3.0):
        _, total, placed = World({"V100": 4}, ideal, {u: [4] for u in "abc"}, stint=stint).run(240)
        runs = [set(p.how) for p in placed]
        starts[stint] = sum(len(now - before) for before, now in pairwise(runs))
        got[stint] = [n["V100"] for n in total.values()]
    assert starts[3.0] < 0.6 * starts[1.0]
    assert got[3.0] == pytest.approx([320] * 3, abs=12)
    assert got[1.0] == [320] * 3


def test_an_app_that_has_whole_shares_never_moves() -> None:
    ideal = {"a": {"K80": 4.0, "V100": 0.0}, "b": {"K80": 0.0, "V100": 4.0}}
    _, _, placed = World({"K80": 4, "V100": 4}, ideal, {"a": [2, 2], "b": [4]}).run(20)
    assert sum(p.migrations for p in placed) == 0
    assert {why for p in placed[1:] for _, why in p.how.values()} == {"stays"}


def test_a_user_without_a_whole_share_keeps_its_job_on_the_type_that_it_is_owed() -> None:
    """Half a lease after `a` got everything: it is due 1.8 of 2 fast devices a lease, `b` the slow ones."""
    both = ("fast", "slow")
    jobs = [
        PlacerJob("a/0", "a", 2, both, 0.0, "slow"),
        PlacerJob("a/1", "a", 2, both, 0.0, "fast"),
        PlacerJob("b/0", "b", 2, both, 0.5),
    ]
    ideal = {"a": {"fast": 0.92, "slow": 0.0}, "b": {"fast": 0.08, "slow": 1.0}}
    placed = PlacerRound(ideal, {}, jobs, Counts({"fast": 2, "slow": 2}), patience=12.0).run()
    assert placed.how == {"a/1": ("fast", "spare, stays"), "b/0": ("slow", "spare")}


def test_spare_devices_are_charged_and_cost_later() -> None:
    ideal = {"a": {"V100": 2.0}, "b": {"V100": 2.0}}
    alone = PlacerRound(ideal, {}, [PlacerJob("a/0", "a", 4, ("V100",))], Counts({"V100": 4}), 4.0).run()
    assert alone.how == {"a/0": ("V100", "spare")}
    assert alone.deviation["a"]["V100"] == pytest.approx(-2.0)
    jobs = [PlacerJob("a/0", "a", 4, ("V100",), 0.0, "V100"), PlacerJob("b/0", "b", 4, ("V100",), 1.0)]
    both = PlacerRound(ideal, alone.deviation, jobs, Counts({"V100": 4}), 4.0).run()
    assert set(both.how) == {"b/0"}


@given(
    shares=st.lists(st.tuples(st.floats(0, 4), st.floats(0, 4)), min_size=1, max_size=5),
    smallest=st.integers(1, 2),
)
@settings(max_examples=60, deadline=None)
def test_the_papers_rounding_fits_and_carries_all_deviations(shares: list[tuple[float, float]], smallest: int) -> None:
    sums = [max(1e-9, sum(s[j] for s in shares)) for j in (0, 1)]
    ideal = {f"u{i}": {"K80": 6 * s[0] / sums[0], "V100": 4 * s[1] / sums[1]} for i, s in enumerate(shares)}
    deviation: Shares = {}
    given_out = {u: Counter[str]() for u in ideal}
    for _ in range(30):
        outcome = paper_round(ideal, deviation, dict.fromkeys(ideal, smallest), {"K80": 6, "V100": 4})
        deviation = outcome.deviation
        for t, devices in (("K80", 6), ("V100", 4)):
            assert sum(real[t] for real in outcome.real.values()) <= devices
        for user, real in outcome.real.items():
            assert sum(real.values()) == 0 or sum(real.values()) >= smallest
            given_out[user].update(real)
    for user, own in ideal.items():
        for t, share in own.items():
            assert 30 * share - given_out[user][t] == pytest.approx(deviation[user][t], abs=1e-6)
