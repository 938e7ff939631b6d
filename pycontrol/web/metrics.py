"""Metrics in Prometheus' text format: base units, few labels, none of them an app or a job."""

from __future__ import annotations

import math

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from pycontrol.arbiter.core import Arbiter
from pycontrol.arbiter.facts import AllocationChanged, Fact, LeaseExtended, LeaseGranted, LeaseRevoking, RoundHeld

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
RHO = (0.5, 0.8, 1.0, 1.2, 1.5, 2.0, 3.0, 5.0, 10.0, 20.0, 50.0)
REASONS = (("lost round", "lost_round"), ("is being drained", "drained"), ("is bad", "bad_gpu"),
           ("released", "released"), ("app ended", "app_ended"))  # fmt: skip


class Metrics:
    """Counts facts as they come, and reads gauges off the Arbiter when asked."""

    def __init__(self) -> None:
        self.registry = r = CollectorRegistry()
        self._round = Histogram(
            "isonomy_round_seconds", "From a round's begin to its decision.", buckets=SECONDS, registry=r)
        self._solve = Histogram(
            "isonomy_auction_solve_seconds", "Time of the policy's decision.", buckets=SECONDS, registry=r)
        self._bid = Histogram(
            "isonomy_bid_seconds", "From an offer to an Agent's bid.", buckets=SECONDS, registry=r)
        self._rho = Histogram(
            "isonomy_rho", "Finish-time fairness of the apps, once a round.", buckets=RHO, registry=r)
        self._change = Histogram(
            "isonomy_allocation_change_seconds", "From a grant to the job's next training step.",
            buckets=(1, 2, 5, 10, 20, 30, 60, 120, 300), registry=r)
        self._granted = Counter("isonomy_leases_granted", "Leases granted.", registry=r)
        self._renewed = Counter("isonomy_leases_renewed", "Leases renewed without a restart.", registry=r)
        self._revoked = Counter("isonomy_leases_revoked", "Leases taken back.", ["reason"], registry=r)
        self._paid = Counter("isonomy_payments", "Winners that paid gangs (c < 1).", registry=r)
        self._gpus = Gauge("isonomy_gpus", "GPUs by state.", ["state"], registry=r)
        self._apps = Gauge("isonomy_apps", "Apps in the system by state.", ["state"], registry=r)
        self._ready = Gauge("isonomy_ready", "1 while the ResourceManager is heard of.", registry=r)

    def observe(self, fact: Fact, now_s: float) -> None:
        """Counts one fact, recorded at `now_s`."""
        if isinstance(fact, LeaseGranted):
            self._granted.inc()
        elif isinstance(fact, LeaseExtended) and fact.counted:
            self._renewed.inc()
        elif isinstance(fact, LeaseRevoking):
            self._revoked.labels(_reason(fact.reason)).inc()
        elif isinstance(fact, AllocationChanged):
            self._change.observe(fact.seconds)
        elif isinstance(fact, RoundHeld):
            self._held(fact, now_s)

    def _held(self, fact: RoundHeld, now_s: float) -> None:
        receipt = fact.receipt
        self._round.observe(max(0.0, now_s - fact.at_s))
        if receipt.get("bids"):
            self._solve.observe(receipt["solve_s"])
        for seconds in receipt["bid_s"].values():
            if seconds > 0:  # the stand-in answers at once
                self._bid.observe(seconds)
        for rho in receipt["rho"].values():
            if rho is not None and math.isfinite(rho):
                self._rho.observe(rho)
        self._paid.inc(sum(bool(b["paid_gangs"]) for b in receipt.get("bids", ())))

    def text(self, a: Arbiter, gpus: dict[str, int]) -> str:
        """All metrics now."""
        for state, n in gpus.items():
            if state != "total":
                self._gpus.labels(state).set(n)
        running = sum(a.holding(app_id) > 0 for app_id in a.in_system())
        self._apps.labels("running").set(running)
        self._apps.labels("waiting").set(len(a.durable.live) - running)
        self._ready.set(a.ready)
        return generate_latest(self.registry).decode()


def _reason(text: str) -> str:
    """A reason as a label of few values."""
    return next((label for part, label in REASONS if part in text), "other")
