"""Prometheus text from the Arbiter's state: base units, low cardinality, no labels for apps or jobs."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

from pycontrol.arbiter.core import Arbiter
from pycontrol.arbiter.facts import REVOKING

RHO_BUCKETS = (0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 4.0, 8.0)
SOLVE_BUCKETS_S = (0.001, 0.005, 0.02, 0.1, 0.5, 2.0)


class _Once:
    """Hands ready-made metrics to the registry."""

    def __init__(self, families: list[object]) -> None:
        self._families = families

    def collect(self) -> list[object]:
        """The metrics."""
        return self._families


def _histogram(name: str, text: str, values: list[float], buckets: tuple[float, ...]) -> HistogramMetricFamily:
    counts = [(str(b), float(sum(v <= b for v in values))) for b in buckets]
    family = HistogramMetricFamily(name, text)
    family.add_metric([], [*counts, ("+Inf", float(len(values)))], sum(values))
    return family


def render(a: Arbiter) -> str:
    """The exposition text."""
    states = {"free": len(a.free_gpus()), "revoking": 0, "leased": 0}
    for lease in a.durable.leases.values():
        states["revoking" if lease.state == REVOKING else "leased"] += 1
    gpus = GaugeMetricFamily("isonomy_gpus", "GPUs by state", labels=["state"])
    for state, n in states.items():
        gpus.add_metric([state], n)
    apps = GaugeMetricFamily("isonomy_apps", "Apps in the system", value=sum(1 for _ in a.in_system()))
    held = CounterMetricFamily("isonomy_rounds", "Rounds held", value=a.durable.rounds)
    revoked = CounterMetricFamily(
        "isonomy_leases_revoked", "Leases revoked", value=sum(x.revocations for x in a.durable.apps.values())
    )
    renewed = CounterMetricFamily(
        "isonomy_leases_renewed", "Leases renewed", value=sum(x.renewals for x in a.durable.apps.values())
    )
    rho = [v for v in (a.receipts[-1]["rho"].values() if a.receipts else ()) if v is not None]
    solve = [r["solve_s"] for r in a.receipts if "solve_s" in r]
    families: list[object] = [
        gpus, apps, held, revoked, renewed,
        _histogram("isonomy_rho", "rho of the apps in the last round", rho, RHO_BUCKETS),
        _histogram("isonomy_auction_solve_seconds", "Seconds of recent auctions", solve, SOLVE_BUCKETS_S),
    ]  # fmt: skip
    registry = CollectorRegistry()
    registry.register(_Once(families))  # type: ignore[arg-type]
    return generate_latest(registry).decode()
