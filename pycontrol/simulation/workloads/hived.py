"""HiveD's workload, generated to the paper's tables (OSDI '20, section 5, Tables 1 and 2).

Exact: the tenants, their quotas, and their jobs by size. What the paper does not print is taken from the marginals of
the public Philly trace: log-normal durations that grow with the size, arrivals by hour and weekday with bursts.
"""

from __future__ import annotations

import numpy as np

from pycontrol.simulation.apps import TraceApp, Workload

CLUSTER_GPUS = 2232
DAYS = 61.0
SIZES = (1, 2, 4, 8, 16)
"""The paper's last column is 16 and more: 16, 24, 32 or 64 here."""
LARGE, LARGE_SHARE = (16, 24, 32, 64), (0.62, 0.2, 0.15, 0.03)
JOBS: dict[str, tuple[int, int, int, int, int]] = {
    "res-a": (429, 14, 260, 625, 40),
    "res-b": (18319, 1593, 931, 148, 238),
    "res-c": (3285, 161, 716, 185, 0),
    "res-d": (1754, 0, 0, 0, 0),
    "res-e": (2682, 110, 3005, 0, 0),
    "res-f": (8181, 88, 618, 1337, 559),
    "prod-a": (227, 54, 23, 1132, 138),
    "prod-b": (16446, 67, 605, 1344, 22),
    "prod-c": (4692, 301, 1905, 4415, 1206),
    "prod-d": (781, 6, 545, 650, 95),
    "prod-e": (58407, 532, 2118, 959, 2),
}
"""Table 2: jobs by 1, 2, 4, 8 and at least 16 GPUs."""
QUOTA_PERCENT = {
    "res-a": 0.37, "res-b": 0.73, "res-c": 0.73, "res-d": 1.47, "res-e": 1.83, "res-f": 28.57,
    "prod-a": 8.79, "prod-b": 10.62, "prod-c": 11.36, "prod-d": 15.75, "prod-e": 19.78,
}  # fmt: skip
"""Table 1."""
MEDIAN_S = {1: 700.0, 2: 1500.0, 4: 2200.0, 8: 3600.0, 16: 7200.0}
SIGMA = 1.9
LONGEST_S = 14 * 86400.0
BY_HOUR = 1 + 0.5 * np.sin((np.arange(24) - 9) / 24 * 2 * np.pi)
BY_WEEKDAY = np.array([1.1, 1.15, 1.15, 1.1, 1.0, 0.75, 0.75])


def hived(seed: int = 0, jobs: float = 1.0, load: float = 1.0, days: float = DAYS) -> Workload:
    """The 11 tenants' jobs. `jobs`: a share of them, evenly drawn; `load`: multiplies durations; queues are tenants."""
    rng = np.random.default_rng([seed, 3])
    made: list[tuple[float, str, int, float]] = []
    for tenant, counts in JOBS.items():
        for size, count in zip(SIZES, counts, strict=True):
            n = round(count * jobs)
            gpus = rng.choice(LARGE, n, p=LARGE_SHARE) if size == SIZES[-1] else np.full(n, size)
            run_s = np.minimum(rng.lognormal(np.log(MEDIAN_S[size]), SIGMA, n), LONGEST_S) * load
            at_s = _arrivals(rng, n, days)
            made += [(float(t), tenant, int(g), float(r)) for t, g, r in zip(at_s, gpus, run_s, strict=True)]
    made.sort()
    apps = tuple(
        TraceApp(f"{tenant}-{k:06d}", at_s, gpus, ((run_s * gpus,),), queue=tenant)
        for k, (at_s, tenant, gpus, run_s) in enumerate(made)
    )
    return Workload("hived", apps, f"HiveD Tables 1-2, seed {seed}, {len(apps)} jobs, load {load:g}")


def _arrivals(rng: np.random.Generator, n: int, days: float) -> np.ndarray:
    """Seconds: a day by weekday, an hour by the time of day, a third of them in bursts."""
    whole = max(1, int(days))
    weights = BY_WEEKDAY[np.arange(whole) % 7] * rng.lognormal(0.0, 0.4, whole)
    day = rng.choice(whole, n, p=weights / weights.sum())
    hour = rng.choice(24, n, p=BY_HOUR / BY_HOUR.sum())
    at_s = np.sort(day * 86400.0 + hour * 3600.0 + rng.random(n) * 3600.0)
    follows = np.flatnonzero(rng.random(n) < 1 / 3)
    follows = follows[follows > 0]
    at_s[follows] = at_s[follows - 1] + rng.exponential(20.0, len(follows))
    return np.asarray(np.sort(at_s))


def quotas_gpus(total_gpus: int, machine_gpus: int = 8) -> dict[str, int]:
    """Each tenant's GPUs: whole machines where it has at least one, by largest remainder, all machines given."""
    machines = total_gpus // machine_gpus
    exact = {t: p / sum(QUOTA_PERCENT.values()) * machines for t, p in QUOTA_PERCENT.items()}
    got = {t: max(1, int(n)) for t, n in exact.items()}
    for tenant in sorted(exact, key=lambda t: got[t] - exact[t]):
        if sum(got.values()) < machines:
            got[tenant] += 1
    while sum(got.values()) > machines:
        largest = max(got, key=lambda t: got[t])
        got[largest] -= 1
    return {t: n * machine_gpus for t, n in got.items()}
