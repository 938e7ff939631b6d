"""The event feed: a journal that also passes facts to watchers and metrics."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pycontrol.arbiter.ledger import facts as f
from pycontrol.arbiter.ledger.durable import Durable
from pycontrol.arbiter.supply.gpu_supply import deals_of
from pycontrol.model.cluster import STANDIN
from pycontrol.model.topology import Gpu
from pycontrol.queries.metrics import Metrics
from pycontrol.queries.recent_leases import Spans
from pycontrol.queries.trends import Trends
from pycontrol.queries.views import act, round_text
from pycontrol.runtime.journal import Journal
from pycontrol.runtime.spans import IntervalChange
from pycontrol.web.notify import Notifier

EVENTS_KEPT = 2000
WATCHERS_MAX = 4
"""The most concurrent long polls; others get an immediate answer and poll again."""
_Told = tuple[str, str, Sequence[Gpu]]
"""(app, description, GPUs)."""


class Feed:
    """Wraps the journal: facts go to it first, then to the watchers and the metrics.

    Sequence numbers begin at the start's time in Unix milliseconds, so they increase across restarts.
    """

    def __init__(
        self,
        journal: Journal,
        durable: Durable | None = None,
        first_seq: int | None = None,
        past: Iterable[tuple[float, f.Fact]] = (),
        jobs_file: Path | None = None,
    ) -> None:
        """`past`: (time, fact), the journal's newest facts, oldest first. `jobs_file`: as in `Trends`."""
        self._journal = journal
        self.metrics = Metrics(durable)
        self.notifier: Notifier | None = None
        """If set, also gets the facts."""
        self.trends = Trends(jobs_file)
        self.spans = Spans(durable, past)
        self._names: dict[str, str] = {}
        self._users: dict[str, str] = {}
        """App -> its user."""
        self._deals: dict[str, str] = {}
        """By deal id: a description of each present deal."""
        if durable is not None:
            self._know(durable)
        self._changed = threading.Condition()
        self._events: deque[dict[str, Any]] = deque(maxlen=EVENTS_KEPT)
        self._seq = int(time.time() * 1000) if first_seq is None else first_seq
        self.watchers = 0

    def _know(self, durable: Durable) -> None:
        self._names = {x.app_id: x.name for x in durable.apps.values()}
        self._users = {x.app_id: x.user for x in durable.apps.values()}
        self._deals = _deals(durable.exchange)

    def _take_over(self, durable: Durable) -> None:
        self._know(durable)
        self.metrics.know_all(durable)
        if self.notifier is not None:
            self.notifier.know_all(durable)

    def append(self, facts: Iterable[f.Fact], now_s: float) -> None:
        """Make the facts durable, then publish them."""
        facts = list(facts)
        self._journal.append(facts, now_s)
        if not facts:
            return
        changed = [(fact, self.spans.take(fact, now_s)) for fact in facts]
        about = [(fact, [c.span for c in changes if c.span is not None]) for fact, changes in changed]
        for fact, changes in changed:
            self.metrics.observe(fact, now_s, changes)
            if isinstance(fact, f.AppEnded):
                self.trends.ended(fact.app_id)
            elif isinstance(fact, f.Restored):
                self._take_over(Durable.load(fact.data))
        if self.notifier is not None:
            self.notifier.take(((fact, spans[0] if spans else None) for fact, spans in about), now_s)
        with self._changed:
            for event in self._merged(changed, now_s):
                self._seq += 1
                self._events.append({"seq": self._seq, **event})
            self._changed.notify_all()

    def since(self, seq: int | None, wait_s: float, limit: int) -> dict[str, Any]:
        """Events after `seq` (None: the newest ones), waiting up to `wait_s` for the first."""
        with self._changed:
            if seq is not None and seq == self._seq and self.watchers < WATCHERS_MAX:
                self.watchers += 1
                try:
                    self._changed.wait_for(lambda: self._seq != seq, wait_s)
                finally:
                    self.watchers -= 1
            events = list(self._events)
            missed = seq is not None and seq < self._seq - len(events)
            events = events[-limit:] if seq is None else [e for e in events if e["seq"] > seq][:limit]
            return {"events": events, "next": events[-1]["seq"] if events else self._seq, "missed": missed}

    # ---- facts as events

    def _merged(self, facts: Iterable[tuple[f.Fact, Sequence[IntervalChange]]], now_s: float) -> list[dict[str, Any]]:
        """The facts as events, with one event for GPUs that have the same change."""
        merged: dict[tuple[str, ...], dict[str, Any]] = {}
        for fact, changes in facts:
            for app_id, text, gpus in self._describe(fact, changes):
                key = (type(fact).__name__, app_id, text)
                about = {"kind": key[0], "app_id": app_id, "user": self._users.get(app_id, "")}
                event = merged.setdefault(key, {"at_s": now_s, **about, "gpus": []})
                event["gpus"] += map(str, gpus)
        for (_, app_id, text), event in merged.items():
            where = f" {', '.join(event['gpus'])}" if event["gpus"] else ""
            name = self._names.get(app_id, app_id)
            event["text"] = f"{name}: {text}{where}" if app_id else f"{text}{where}"
        return list(merged.values())

    def _describe(self, fact: f.Fact, changes: Sequence[IntervalChange]) -> list[_Told]:
        """What is said of a fact; nothing if it is not published."""
        match fact:
            case f.AppArrived():
                self._names[fact.app_id], self._users[fact.app_id] = fact.name, fact.user
                return [(fact.app_id, f"arrived in {fact.queue} ({fact.kind}, {fact.app_id})", ())]
            case f.AppsForgotten():
                for app_id in fact.app_ids:
                    self._names.pop(app_id, None)
                    self._users.pop(app_id, None)
                return []
            case f.ClockBehind():
                return [("", f"the control plane's clock is {fact.by_s:.0f} s behind the cluster's", ())]
            case f.AppEnded():
                return [(fact.app_id, f"ended {fact.final_state}".rstrip(), ())]
            case f.AppChanged():
                return _app_changed(fact)
            case f.RoundHeld():
                return [("", f"round {fact.receipt.round_id}: {round_text(fact.receipt, self._names)}", ())]
            case f.Switched():
                return [("", act(fact), ())]
            case f.LimitsSet() | f.BudgetSpent():
                return [("", _limits_told(fact), ())]
            case f.Boosted():
                return [("", _boosted(fact), ())]
            case f.ExchangeChanged():
                return self._exchanged(fact)
            case f.AllocationChanged():
                return [(fact.app_id, f"job {fact.job_id} trains {fact.seconds:.1f} s after its grant", ())]
        if isinstance(fact, f.OF_LEASE):
            return _describe_lease(fact, changes)
        return []

    def _exchanged(self, fact: f.ExchangeChanged) -> list[_Told]:
        before, self._deals = self._deals, _deals(fact.values)
        made = [text for name, text in self._deals.items() if name not in before]
        over = [f"over: {text}" for name, text in before.items() if name not in self._deals]
        return [("", f"exchange {'; '.join([*over, *made])}", ())] if over or made else []


def _describe_lease(fact: f.OfLease, changes: Sequence[IntervalChange]) -> list[_Told]:
    if isinstance(fact, f.LeaseGranted):
        now = tuple(gpu for gpu in fact.gpus if gpu not in fact.after)
        given = "mended: its gang goes on with" if isinstance(fact, f.LeaseMended) else "granted"
        told = [(fact.app_id, given, now), (fact.app_id, "is next on", fact.after)]
        return [x for x in told if x[2]]
    if isinstance(fact, f.NextDropped):
        dropped = [x for c in changes if (x := c.reservation) is not None]
        return [(x.app_id, f"is no longer next ({fact.reason}) on", x.gpus) for x in dropped]
    text = ""
    match fact:
        case f.LeaseEnded():
            text = f"lease ended ({fact.reason}) of"
        case f.LeaseStarted():
            job = f"job {fact.job_id} " if fact.job_id and not fact.job_id.startswith(STANDIN) else ""
            text = f"{job}runs on"
        case f.LeaseExtended():
            text = "renewed" if fact.counted else "prolonged"
        case f.LeaseRevoking():
            text = f"must give back ({fact.reason})"
        case f.LeaseIdle():
            text = "stopped on"
    owner = {c.before.gpu: c.before.app_id for c in changes if c.before is not None}
    by_app: dict[str, list[Gpu]] = {}
    for gpu in fact.gpus if text else ():
        by_app.setdefault(owner.get(gpu, ""), []).append(gpu)
    return [(app_id, text, gpus) for app_id, gpus in by_app.items()]


def _limits_told(fact: f.LimitsSet | f.BudgetSpent) -> str:
    if isinstance(fact, f.BudgetSpent):
        if not fact.share:
            return f"{fact.account}: its budget of GPU-hours of the {fact.period} is free again"
        what = "used up: its gangs end with their leases" if fact.share >= 1 else f"used by {fact.share:.0%}"
        return f"{fact.account}: its budget of GPU-hours of the {fact.period} is {what}"
    said = ", ".join(f"{kind} {x:g}" for kind, x in (fact.limits or {}).items()) or "none"
    return f"{fact.user or 'an operator'} set the limits of {fact.account}: " + (
        "those of isonomy.yaml again" if fact.limits is None else said
    )


def _boosted(fact: f.Boosted) -> str:
    if fact.until_s > fact.at_s:
        return f"{fact.user or 'an operator'} boosts {fact.target} for {(fact.until_s - fact.at_s) / 3600:g} h"
    return f"{fact.user} boosts {fact.target} no more" if fact.user else f"the boost of {fact.target} is over"


def _app_changed(fact: f.AppChanged) -> list[_Told]:
    message = fact.changes.get("message") or ""
    if not fact.changes.get("done"):
        return [(fact.app_id, message, ())] if message else []
    best = fact.changes.get("best") or {}
    name, value = best.get("metric") or "accuracy", best.get("value", best.get("accuracy"))
    said = [f"is done: {fact.changes.get('final_state', '')}", f"{name} {value:.4f}" if value else "", message]
    return [(fact.app_id, ", ".join(filter(None, said)), ())]


def _deals(exchange: Mapping[str, Any]) -> dict[str, str]:
    return {
        d["id"]: f"{d['owner']} lends {d['lot']['count']} x {d['lot']['cell_type']} to {d['tenant']} ({d['id']})"
        for d in deals_of(exchange)
    }
