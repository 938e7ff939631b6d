"""Applications in the Arbiter: they arrive with their first demand, are moved between queues, and end."""

from __future__ import annotations

from pycontrol.arbiter import leases
from pycontrol.arbiter.ledger.durable import FOREIGN
from pycontrol.arbiter.ledger.facts import AppArrived, AppChanged, AppEnded, AppMoved
from pycontrol.arbiter.state import State
from pycontrol.arbiter.views.workers import WAITING
from pycontrol.model.cluster import YarnApp
from pycontrol.model.reasons import Cause, EndReason

SINGLE = "single"
FINISHED = "FINISHED"
"""YARN's final state of an app that reported none to it."""


def arrive(s: State, app_id: str, now_s: float) -> None:
    """Makes the app active; called at its first demand for GPUs."""
    app = s.cluster.apps.get(app_id)
    if app is None or app_id in s.durable.apps:
        return
    agent = s.agents.get(app_id)
    kind = FOREIGN if not s.expects_agent(app) else "job"
    if agent is not None and agent.app_scheduler != SINGLE:
        kind = agent.app_scheduler
    vc = s.vc_of(app.queue)
    s.record(AppArrived(app_id, app.name, app.queue, app.user, kind, app.submitted_s or now_s, now_s, vc))
    s.refresh_kind(app_id)
    s.request_round(now_s + s.settings.settle_s)


def note(s: State, app: YarnApp, now_s: float) -> bool:
    """Notes what YARN reports about an application; returns whether its virtual cluster changed."""
    s.cluster.app_known(app)
    record = s.durable.live.get(app.app_id)
    moved = record is not None and app.queue != record.queue
    other = record is not None and moved and s.vc_of(app.queue) != record.vc
    if moved:
        s.record(AppMoved(app.app_id, s.vc_of(app.queue), now_s, app.queue))
        s.agents.changed(s.durable.live)  # the limits of both queues
        s.request_round(now_s + s.settings.settle_s)
    s.refresh_kind(app.app_id)
    return other


def note_demand(s: State, app_id: str, gpus: int) -> None:
    """Records the app's demand (GPUs) if it is its largest so far."""
    record = s.durable.apps.get(app_id)
    if record is not None and gpus > record.demand_gpus:
        s.record(AppChanged(app_id, {"demand_gpus": gpus}))


def end(s: State, app_id: str, final_state: str, now_s: float) -> None:
    """Ends an app: cancels its reservations and revokes its leases."""
    record = s.durable.apps.get(app_id)
    if record is None:
        return
    leases.drop_reservations(s, app_id, "app ended")
    for worker in s.workers.of(app_id):
        if worker.state is WAITING:
            s.drop_worker(worker)
    leases.revoke(s, s.leases_of(app_id), now_s, now_s, Cause(EndReason.APP_ENDED, "app ended"))
    news = final_state and final_state != record.final_state and not (record.done and final_state == FINISHED)
    if record.finished_s is None or news:
        s.record(AppEnded(app_id, final_state, now_s))
        s.refresh_kind(app_id)
