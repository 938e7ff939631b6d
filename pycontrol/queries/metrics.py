"""Metrics in Prometheus' text format, in base units; no label names an app or a job, to bound their number."""

from __future__ import annotations

import importlib.metadata
import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest

from pycontrol.arbiter.core import Arbiter
from pycontrol.arbiter.ledger import facts as f
from pycontrol.arbiter.ledger.durable import AppRecord, Durable
from pycontrol.model.cluster import Mode
from pycontrol.model.reasons import PREEMPTIONS, EndReason, Pending
from pycontrol.queries.pending_reasons import Reasons
from pycontrol.queries.views import node_counts
from pycontrol.runtime.spans import IntervalChange

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
WAITS = (10, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 28800, 86400)
CHANGES = (1, 2, 5, 10, 20, 30, 60, 120, 300)
RHO = (0.5, 0.8, 1.0, 1.2, 1.5, 2.0, 3.0, 5.0, 10.0, 20.0, 50.0)
SAT_OUT = (Pending.LATE_RHO, Pending.LATE_BID, Pending.BAD_BID, Pending.AGENT_AWAY)
APPS_KEPT = 10_000
"""The most apps whose queue and user are remembered."""


class Metrics:
    """Counts facts as they arrive, and reads gauges from the Arbiter when the metrics are requested."""

    def __init__(self, durable: Durable | None = None) -> None:
        """`durable`: the state at the start, for the apps in it."""
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self._define_counters()
        self._define_gauges()
        self._labels: dict[str, tuple[str, str]] = {}
        """(queue, user) by app."""
        self._waiting: dict[str, float] = {}
        """Submission time, in Unix seconds, of the apps that have had no GPU yet."""
        self._revoked_jobs: dict[tuple[str, str], tuple[str, int]] = {}
        """By (app, job): why GPUs were revoked from it, and how many; until it trains again."""
        self._sources: list[tuple[Gauge, Callable[[], float]]] = []
        if durable is not None:
            self.know_all(durable)

    def _define_counters(self) -> None:
        histogram, counter = partial(Histogram, registry=self.registry), partial(Counter, registry=self.registry)
        self._round = histogram("isonomy_round_seconds", "From a round's begin to its decision.", buckets=SECONDS)
        self._solve = histogram("isonomy_auction_solve_seconds", "Time of the policy's decision.", buckets=SECONDS)
        self._bid = histogram("isonomy_bid_seconds", "From an offer to an Agent's bid.", buckets=SECONDS)
        self._rho = histogram("isonomy_rho", "Finish-time fairness of the apps, once a round.", buckets=RHO)
        self._paid = counter("isonomy_payments", "Winners that paid gangs (c < 1).")
        self._sat_out = counter(
            "isonomy_sat_out", f"Apps that took no part in a round, by reason: {', '.join(SAT_OUT)}.", ["reason"]
        )
        for code in SAT_OUT:
            self._sat_out.labels(code)
        self._corrected = counter(
            "isonomy_reports_corrected", "Apps with figures that contradicted what was seen, once a round."
        )
        self._change = histogram(
            "isonomy_allocation_change_seconds", "From a grant to the job's next training step.", buckets=CHANGES
        )
        self._first = histogram(
            "isonomy_first_gpu_wait_seconds",
            "From an app's submission to its first container with GPUs.",
            ["queue"],
            buckets=WAITS,
        )
        self._granted = counter("isonomy_leases_granted", "Leases granted.")
        self._renewed = counter("isonomy_leases_renewed", "Leases renewed without a restart.")
        self._revoked = counter("isonomy_leases_revoked", "Leases taken back.", ["reason"])
        for kind in filter(None, EndReason):
            self._revoked.labels(kind)
        self._lapsed = counter("isonomy_grants_lapsed", "Leases that ended unused.", ["queue"])
        self._preempted = counter(
            "isonomy_preemptions",
            "GPUs taken from apps that used them, not by their own doing.",
            ["queue", "user", "reason"],
        )
        self._lost = counter(
            "isonomy_preempted_gpu_seconds",
            "GPU-seconds that preemptions cost: until the GPUs were given back, and from the next grant to the first"
            " step.",
            ["queue", "reason"],
        )

    def _define_gauges(self) -> None:
        gauge = partial(Gauge, registry=self.registry)
        self._gpus = gauge("isonomy_gpus", "GPUs by state.", ["state"])
        self._nodes = gauge("isonomy_nodes", "NodeManagers by state: up, drained, closed, down.", ["state"])
        self._held = gauge("isonomy_queue_gpus_held", "GPUs that apps hold.", ["queue", "user"])
        self._pending = gauge(
            "isonomy_queue_gpus_pending",
            "GPUs that apps could use and do not hold, by the reason.",
            ["queue", "user", "reason"],
        )
        self._guaranteed = gauge(
            "isonomy_queue_gpus_guaranteed", "The queue's capacity in GPUs, or its virtual cluster's.", ["queue"]
        )
        self._apps = gauge("isonomy_apps", "Apps in the system by state.", ["state"])
        self._blocked = gauge("isonomy_apps_waiting", "Apps that hold no GPU, by the reason.", ["queue", "reason"])
        self._unsaved = gauge("isonomy_jobs_unsaved", "Jobs whose newest checkpoint failed.", ["queue"])
        self._hanging = gauge("isonomy_jobs_hanging", "Jobs that live and make no steps.", ["queue"])
        self._agents = gauge("isonomy_agents_connected", "Agents that are connected.")
        self._ready = gauge("isonomy_ready", "1 while the ResourceManager is heard of and the mode is in force.")
        self._mode = gauge("isonomy_mode", "1 for the mode that the plugin told last.", ["mode"])
        self._paused = gauge("isonomy_paused", "1 while an operator paused the rounds.")
        self._limit = gauge(
            "isonomy_limit_used_ratio",
            "The used part of an account's limit: gpus, or gpu_hours of a period.",
            ["account", "kind"],
        )
        self._build = gauge("isonomy_build_info", "Always 1.", ["version", "policy"])

    def watch(self, name: str, about: str, source: Callable[[], float]) -> None:
        """Register a gauge that is read from `source` at each request; from any thread."""
        self._sources.append((Gauge(name, about, registry=self.registry), source))

    # ---- facts

    def know_all(self, durable: Durable) -> None:
        """Know the apps of this state, at the start or after a takeover."""
        for app in durable.live.values():
            self._know(app.app_id, app.queue, app.user)
            if not app.leases:
                self._waiting[app.app_id] = app.submitted_s

    def _know(self, app_id: str, queue: str, user: str) -> None:
        self._labels[app_id] = queue, user
        self._lapsed.labels(queue)
        self._first.labels(queue)
        while len(self._labels) > APPS_KEPT:
            self._labels.pop(next(iter(self._labels)))

    def observe(self, fact: f.Fact, now_s: float, changes: Sequence[IntervalChange] = ()) -> None:
        """Count one fact recorded at `now_s`; `changes`: of the leases of one app that it is about, GPU by GPU."""
        spans = [x.span for x in changes if x.span is not None]
        app_id = spans[0].app_id if spans else ""
        queue, user = self._labels.get(app_id, ("", ""))
        match fact:
            case f.AppArrived():
                self._know(fact.app_id, fact.queue, fact.user)
                self._waiting[fact.app_id] = fact.submitted_s
            case f.AppMoved() if fact.queue and fact.app_id in self._labels:
                self._know(fact.app_id, fact.queue, self._labels[fact.app_id][1])
            case f.AppEnded():
                self._waiting.pop(fact.app_id, None)
                for key in [k for k in self._revoked_jobs if k[0] == fact.app_id]:
                    del self._revoked_jobs[key]
            case f.LeaseGranted():
                self._granted.inc()
            case f.LeaseStarted():
                since_s = self._waiting.pop(app_id, None)
                if since_s is not None:
                    self._first.labels(queue).observe(max(0.0, fact.at_s - since_s))
            case f.LeaseExtended():
                self._renewed.inc(len({x.lease.grant_id for x in spans}) * fact.counted)
            case f.LeaseRevoking():
                self._revoked.labels(fact.cause or "other").inc(sum(x.revokes for x in changes))
                for span in spans if fact.cause in PREEMPTIONS else ():
                    if span.started_s is not None:
                        self._preempted.labels(queue, user, fact.cause).inc()
                        key = app_id, span.job_id
                        self._revoked_jobs[key] = fact.cause, self._revoked_jobs.get(key, ("", 0))[1] + 1
            case f.LeaseEnded():
                if fact.cause is EndReason.LAPSED:
                    self._lapsed.labels(queue).inc()
                for span in spans:
                    if span.stop_s and span.started_s and span.cause in PREEMPTIONS:
                        self._lost.labels(queue, span.cause).inc(span.stop_s)
            case f.AllocationChanged():
                self._change.observe(fact.seconds)
                why, gpus = self._revoked_jobs.pop((fact.app_id, fact.job_id), ("", 0))
                if why:
                    self._lost.labels(self._labels.get(fact.app_id, ("", ""))[0], why).inc(fact.seconds * gpus)
            case f.RoundHeld():
                self._held_round(fact, now_s)

    def _held_round(self, fact: f.RoundHeld, now_s: float) -> None:
        receipt = fact.receipt
        self._round.observe(max(0.0, now_s - fact.at_s))
        if receipt.done.bids:
            self._solve.observe(receipt.done.solve_s)
        for seconds in receipt.bid_s.values():
            if seconds > 0:  # the stand-in bids in no time
                self._bid.observe(seconds)
        for rho in receipt.rho.values():
            if rho is not None and math.isfinite(rho):
                self._rho.observe(rho)
        for why in receipt.out.values():
            self._sat_out.labels(why.code).inc()
        self._corrected.inc(len(receipt.corrected))
        self._paid.inc(sum(bool(b.paid_gangs) for b in receipt.done.bids))

    # ---- what is

    def text(self, a: Arbiter, gpus: dict[str, int], now_s: float) -> str:
        """All metrics in Prometheus' text format; `gpus`: GPUs by state (`views.gpu_counts`)."""
        for state, n in gpus.items():
            if state != "total":
                self._gpus.labels(state).set(n)
        for state, n in node_counts(a).items():
            self._nodes.labels(state).set(n)
        running = sum(a.holdings.holding(app_id) > 0 for app_id in a.durable.live)
        self._apps.labels("running").set(running)
        self._apps.labels("waiting").set(len(a.durable.live) - running)
        self._agents.set(sum(agent.connected for agent in a.agents.values()))
        mode = a.cluster.switch.mode
        ready = a.cluster.ready or (a.cluster.heard and mode in (Mode.SHADOW, Mode.OFF))
        self._ready.set(ready and not a.holdings.held)
        for each in Mode:
            self._mode.labels(each).set(a.cluster.seen and each is mode)
        self._paused.set(a.holdings.paused)
        self._build.clear()
        self._build.labels(_version(), a.policy_name).set(1)
        self._limit.clear()
        for level in (x for name in a.holdings.limits.in_force for x in a.holdings.limits.levels(name, now_s)):
            self._limit.labels(level.account, level.kind).set(level.share)
        self._set_queues(a, a.durable.live.values(), now_s)
        for gauge, source in self._sources:
            gauge.set(source())
        return generate_latest(self.registry).decode()

    def _set_queues(self, a: Arbiter, apps: Iterable[AppRecord], now_s: float) -> None:
        for gauge in (self._held, self._pending, self._guaranteed, self._blocked, self._unsaved, self._hanging):
            gauge.clear()
        for path, queue in a.cluster.queues.items():
            self._unsaved.labels(path).set(0)
            self._hanging.labels(path).set(0)
            own = a.supply.gpus_of(a.supply.vc_of(path))
            self._guaranteed.labels(path).set(own or queue.capacity * a.holdings.topology.gpus)
        reasons = Reasons(a, now_s)
        for app in apps:
            held, demand = a.holdings.holding(app.app_id), reasons.demands.of(app.app_id)
            if held:
                self._held.labels(app.queue, app.user).inc(held)
            if (agent := a.agents.get(app.app_id)) is not None:
                self._unsaved.labels(app.queue).inc(sum(job.checkpoints_failed > 0 for job in agent.jobs))
                self._hanging.labels(app.queue).inc(sum(job.hangs for job in agent.jobs))
            wanted = max(0, demand.gpus - held) if demand is not None else 0
            if wanted or not held:
                why, _ = reasons.told(app.app_id)
                if wanted:
                    self._pending.labels(app.queue, app.user, why).inc(wanted)
                if not held:
                    self._blocked.labels(app.queue, why).inc()


def _version() -> str:
    try:
        return importlib.metadata.version("isonomy")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"
