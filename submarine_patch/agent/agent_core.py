"""The Agent's logic: a pure state machine, `handle(event, now_s) -> commands`, without I/O, clock or log.

Events are messages of the Arbiter and the AM shell, and ticks. Commands are messages to both, and I/O for the caller
to do.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from pycontrol.model.auction import SLOWDOWN_PRIOR
from pycontrol.wire.v1 import agent_pb2 as pb
from pycontrol.wire.v1 import am_pb2 as am
from submarine_patch.agent import app_leases, gangs, jobs, report, results
from submarine_patch.agent.agent_state import SavedState
from submarine_patch.agent.jobs import Job
from submarine_patch.agent.launch import checkpoint_dir
from submarine_patch.agent.messages import (
    Command,
    CommandRefused,
    End,
    Event,
    HasBoard,
    HasToken,
    KeepSpeeds,
    LinkLost,
    Publish,
    Published,
)
from submarine_patch.agent.schedulers.port import Verdict
from submarine_patch.agent.speeds import file_of

SHUTDOWN_CODE = 70
TRIAL_WAIT_S = 60.0
"""The least time to wait for a GPU type before giving up its trial."""
RESTART_WEIGHT = 0.5
"""Weight of the newest measurement in the mean cost of a restart."""
LOSSES = 16
"""Newest losses of a job that are kept, to estimate its loss rate."""


class AgentCore(SavedState):
    """The Agent of one app."""

    def handle(self, event: Event, now_s: float) -> list[Command]:
        """Handle one event; returns the commands to carry out, in order."""
        if isinstance(event, pb.ArbiterMessage):
            self._arbiter(event, now_s)
        elif isinstance(event, am.AmEvent):
            self._shell_event(event, now_s)
        elif isinstance(event, LinkLost):
            self.registered = False
        elif isinstance(event, CommandRefused):
            self._refused(event, now_s)
        elif isinstance(event, Published):
            self._publish_done(event)
        elif isinstance(event, HasToken):
            self.has_token(event.issued_s, event.ends_s)
        elif isinstance(event, HasBoard):
            self._board(event)
        self._tick(now_s)
        out, self.out = self.out, []
        return out

    def _board(self, event: HasBoard) -> None:
        self.board_port = event.port
        self.board_problem = "" if event.port else f"TensorBoard does not run beside the Agent: {event.problem}"
        self.report_due = True
        if event.port:
            self.shell(board=am.AmBoard(port=event.port, below=event.below))

    def register(self) -> pb.AgentMessage:
        """The Register message, the first of each stream."""
        grants = sorted({h.grant_id for h in self.held.values() if h.grant_id})
        return pb.AgentMessage(
            register=pb.Register(
                app_id=self.spec.app_id,
                attempt_id=self.attempt_id,
                app_scheduler=self.spec.app_scheduler,
                grant_ids=grants,
                demand=report.demand(self),
            )
        )

    # ---- the Arbiter

    def _arbiter(self, m: pb.ArbiterMessage, now_s: float) -> None:
        match m.WhichOneof("kind"):
            case "registered":
                app_leases.registered(self, m.registered, now_s)
            case "hosts":
                app_leases.machines(self, m.hosts.hosts)
            case "ask_rho":
                report.ask_rho(self, m.ask_rho)
            case "offer":
                report.offer(self, m.offer)
            case "grant":
                app_leases.granted(self, m.grant)
            case "revoke":
                app_leases.revoked(self, m.revoke, now_s)
            case "use_reply":
                gangs.use_reply(self, m.use_reply, now_s)
            case "from_worker":
                self._worker(m.from_worker, now_s)
            case "finish":
                self.killed = True
                self._end(False, m.finish.reason or "ended by the operator")
            case _:  # WorkerGone: only the end of a worker's container counts, not a broken stream
                pass

    def _worker(self, m: pb.WorkerMessage, now_s: float) -> None:
        found = next(((j, w) for j, w in self.workers() if w.worker_id == m.worker_id), None)
        kind = m.WhichOneof("kind")
        if found is None:
            if kind == "ready":
                self.stop_worker(m.worker_id, now_s + gangs.STOP_GRACE_S, "not a worker of a present launch", now_s)
            return
        job, worker = found
        worker.last_heard_s = now_s
        if kind == "ready":
            gangs.ready(self, job, worker, m.ready, now_s)
        elif kind == "progress" and (said := report.reading(m.progress)) is not None:
            report.stepped(job, worker, said.step, now_s)
            if worker is job.workers[0]:
                self._progressed(job, said, now_s)
        elif kind == "checkpoint" and worker is job.workers[0]:
            self._checkpoint(job, m.checkpoint)
        elif kind == "exit":
            gangs.reported_exit(self, job, worker, m.exit, now_s)

    def _progressed(self, job: Job, p: pb.WorkerProgress, now_s: float) -> None:
        """Handle a progress line of the chief."""
        if p.step < job.step and job.first_step_s:
            return  # resent on a new stream
        if not job.first_step_s and p.step < job.step:
            anew = self.spec.unsaved or (job.note == gangs.UNSAVED and not self.spec.keep_folder)
            results.lost(job, 0 if anew else p.step)
        job.step = max(job.step, p.step) if job.first_step_s else p.step
        job.loss, job.iter_time_s, job.said_step = p.loss, p.iter_time_s, p.until_step
        if p.accuracy:
            job.accuracy = p.accuracy
        metric = self._metric_of(p)
        job.metric = job.metric if metric is None else metric
        job.reports += 1
        warm = job.first_step_s > 0
        if warm and p.step > job.first_step:
            pace_s = (now_s - job.first_step_s) / (p.step - job.first_step)
            at_par = len(job.gpus) * self.speeds.of(self.types_of(job)) / self.profiler.slowdown(self.scope_of(job))
            job.step_gpu_s = pace_s * at_par
        if not warm:
            job.first_step_s, job.first_step = now_s, p.step
            took_s = min(gangs.GANG_TIMEOUT_S, max(0.0, now_s - job.since_s))
            self.restart_s += RESTART_WEIGHT * (took_s - self.restart_s)
            self.changed = True
        report.note_unseen(self, job, now_s)
        results.seen(self, job, job.step)
        self._measured(job, p, warm, now_s)
        if math.isfinite(p.loss):
            job.losses = [*job.losses, [p.step, p.loss]][-LOSSES:]
        self._judge(job, p, now_s)
        self.report_due = True

    def _checkpoint(self, job: Job, c: pb.WorkerCheckpoint) -> None:
        """Handle the result of a checkpoint; a failure is reported, because a revocation would then cost progress."""
        job.checkpoints_failed = job.checkpoints_failed + 1 if c.problem else 0
        job.checkpoint_problem = f"step {c.step}: {c.problem}" if c.problem else ""
        self.report_due = True

    def _measured(self, job: Job, p: pb.WorkerProgress, warm: bool, now_s: float) -> None:
        """Feed a line's iteration time to the profiles; stop the job if the trial of its GPU type has ended."""
        types, scope = self.types_of(job), self.scope_of(job)
        trial = self.speeds.trial()
        if len(types) == 1 and "" not in types:
            (gpu_type,) = types
            serial_s = p.iter_time_s * len(job.gpus) / self.profiler.slowdown(scope) * self.scaling.of(len(job.gpus))
            self.speeds.observe(job.use_id, gpu_type, p.step, serial_s, warm)
        at_par_s = p.iter_time_s * self.speeds.of(types)
        if self.spec.elastic and warm:
            self.scaling.add(job.job_id, len(job.gpus), at_par_s * len(job.gpus) / self.profiler.slowdown(scope))
        self.profiler.add(job.job_id, at_par_s * self.scaling.of(len(job.gpus)), len(job.gpus), scope)
        after = self.speeds.trial()
        if trial != after:
            self.changed = True
            if after and types == {trial}:
                gangs.stop(self, job, now_s + gangs.STOP_GRACE_S, f"tried on {trial}, next on {after}", now_s)

    def _keep_speeds(self) -> None:
        self.speeds.worth_keeping = False
        kept = {"slowdowns": self.profiler.kept(), "efficiency": self.scaling.kept()}
        known = {"job_type": self.spec.job_type, **self.speeds.dump(), **kept}
        self.out.append(KeepSpeeds(file_of(self.spec.job_type), known))

    def recall(self, known: Mapping[str, Any]) -> None:
        """Load what earlier apps of the job type measured; the user's declarations take precedence.

        Raises ValueError, KeyError, TypeError or AttributeError for malformed data.
        """
        self.speeds.restore(known)
        self.scaling.recall(known.get("efficiency") or {})
        if self.spec.slowdown == SLOWDOWN_PRIOR:
            self.profiler.recall(known.get("slowdowns") or {})

    def _try(self, now_s: float) -> None:
        """Give up the trial of a GPU type that has not been available for a lease's length."""
        trial, s = self.speeds.trial(), self.speeds
        if trial is None or not self.registered or any(self.types_of(j) == {trial} for j in self.jobs.values()):
            s.waits_since_s = None
        elif s.waits_since_s is None:
            s.waits_since_s = now_s
        elif now_s > s.waits_since_s + max(TRIAL_WAIT_S, self.contention.lease_s):
            s.given_up.add(trial)
            s.waits_since_s = None
            self.mark()

    def _judge(self, job: Job, p: pb.WorkerProgress, now_s: float) -> None:
        """Pass a line's metric to the app scheduler, which may stop the job; ignore lines without the metric."""
        if job.state != jobs.RUNNING or self._metric_of(p) is None:
            return
        known = job.job_id in self.scheduler.runnable()
        if known and self.scheduler.on_progress(job.job_id, p.step, job.value) is Verdict.STOP:
            gangs.stop(self, job, now_s + gangs.STOP_GRACE_S, "its app scheduler stopped it", now_s)

    def _metric_of(self, p: pb.WorkerProgress) -> float | None:
        """The app's metric in a report; None if it has none. A worker reports 0 for a loss or accuracy that it never
        saw."""
        if p.HasField("metric"):
            return p.metric
        return {"loss": p.loss, "accuracy": p.accuracy}.get(self.spec.metric) or None

    # ---- the AM shell

    def _shell_event(self, m: am.AmEvent, now_s: float) -> None:
        match m.WhichOneof("kind"):
            case "allocated":
                gangs.allocated(self, m.allocated, now_s)
            case "adopted":
                self._adopted(m.adopted, now_s)
            case "start_error":
                self._not_launched(m.start_error.container_id, m.start_error.message, now_s)
            case "completed":
                c = m.completed
                gangs.container_gone(self, c.container_id, c.exit_status, c.diagnostics, now_s)
            case "shutdown":  # this attempt has ended, perhaps not the app
                self.out.append(End(SHUTDOWN_CODE))
            case _:  # started: the worker will register; preempt: the Arbiter's Revoke says more
                pass

    def _adopted(self, m: am.AmContainer, now_s: float) -> None:
        """Handle a container of an earlier attempt: keep it if it is a known worker's, else stop it."""
        found = self.worker_in(m.container_id)
        if found is None:
            asked = (x for x in self.workers() if x[1].request_id == m.allocation_request_id)
            found = next((x for x in asked if not x[1].container_id and x[1].exit_code is None), None)
        if found is None:
            self.shell(stop=am.AmStop(container_id=m.container_id))
            return
        worker = found[1]
        if worker.asked and not worker.container_id:
            self.shell(withdraw=am.AmWithdraw(allocation_request_id=worker.request_id))
        worker.container_id, worker.asked, worker.last_heard_s = m.container_id, True, now_s
        self.adopted.add(m.container_id)
        self.mark()

    def _not_launched(self, container_id: str, why: str, now_s: float) -> None:
        gangs.container_gone(self, container_id, 1, why, now_s)
        self.shell(release=am.AmRelease(container_id=container_id))

    def _refused(self, e: CommandRefused, now_s: float) -> None:
        if e.command.WhichOneof("kind") == "launch":
            self._not_launched(e.command.launch.container_id, e.error, now_s)

    # ---- time, and the end of the app

    def _tick(self, now_s: float) -> None:
        gangs.lose_unadopted(self, now_s)
        for job in list(self.jobs.values()):
            gangs.watch(self, job, now_s)
            report.note_unseen(self, job, now_s)
            report.note_hang(self, job, now_s)
        self._try(now_s)
        if self.token_ends_s and now_s > self.token_warns_s and not self.token_told:
            self.token_told = self.report_due = True  # once, while its user can still act
        app_leases.assign(self, now_s)
        gangs.stop_waiting(self, now_s)
        self._tell_freed(now_s)
        if self.speeds.worth_keeping:
            self._keep_speeds()
        self._finish(now_s)
        report.tell(self, now_s)

    def _tell_freed(self, now_s: float) -> None:
        """Tell the demand, then what was given back: a round in between would grant again what nobody wants."""
        if self.freed:
            report.tell(self, now_s, at_once=True)
        for message in self.freed:
            self.send(released=message)
        self.freed = []

    def _end(self, succeeded: bool, why: str) -> None:
        if self.ending is None:
            self.succeeded, self.ending = succeeded, why
            self.mark()

    def _finish(self, now_s: float) -> None:
        """End the app in steps: stop all launches, publish the model, then send Done and finish."""
        if self.done_sent:
            return
        if self.scheduler.finished:
            self._end(*self._result())
        if self.ending is None:
            return
        for job in self.jobs.values():
            gangs.stop(self, job, now_s + gangs.STOP_GRACE_S, self.ending, now_s)
        if any(j.active for j in self.jobs.values()) or self.leaving:
            return
        self.give_back(list(self.held), self.ending)
        self._tell_freed(now_s)
        best = self.scheduler.best()
        whole = self.succeeded and best is not None
        if not self.published and (whole or any(j.reports for j in self.jobs.values())):
            if not self.publishing:
                self.publishing = True
                found = checkpoint_dir(self.spec, self.jobs[best]) if whole and best is not None else ""
                self.out.append(Publish(best or "", found, self.spec.saved_model, results.files(self, best or "")))
            return
        self._done(best, now_s)

    def _result(self) -> tuple[bool, str]:
        best = self.scheduler.best()
        if best is not None:
            told = f"{best} is the best of {len(self.jobs)} jobs" if len(self.jobs) > 1 else "done"
            return True, "; ".join(filter(None, [told, report.unseen(self, self.jobs[best])]))
        problems = [f"{j.job_id}: {j.problem}" for j in self.jobs.values() if j.state == jobs.FAILED]
        return False, "; ".join(problems[:3]) or "no job has a result"

    def _publish_done(self, e: Published) -> None:
        """Handle Published; a missing checkpoint is no failure, for the script may store its model elsewhere."""
        self.published, self.model_path = True, e.path
        if e.missing:
            unsaved = "the script has no session, and no --keep-folder is given" if self.spec.unsaved else e.problem
            self.ending = f"{self.ending}; no model was kept: {unsaved}"
        elif e.problem:
            self.succeeded = False
            self.ending = f"the model could not be copied to {self.spec.saved_model}: {e.problem}"

    def _done(self, best: str | None, now_s: float) -> None:
        self.done_sent = True
        self.mark()
        if (len(self.speeds.types) > 1 and self.speeds.profile.times) or self.profiler.kept() or self.scaling.kept():
            self._keep_speeds()
        winner = self.jobs[best] if best is not None else None
        self.send(progress=report.progress(self))
        done = pb.Done(
            succeeded=self.succeeded,
            message=self.ending or "",
            best_job_id=best or "",
            best_configuration=winner.configuration if winner else {},
            best_accuracy=winner.accuracy if winner else 0.0,
            work_done_gpu_s=report.done_gpu_s(self),
            model_path=self.model_path,
            metric=self.spec.metric,
            best_metric=report.finite(winner.value) if winner else None,
        )
        self.send(done=done)
        self.notify("ended" if self.succeeded else "failed", now_s, message=self.ending or "")
        self.shell(finish=am.AmFinish(succeeded=self.succeeded, killed=self.killed, message=self.ending or ""))
        self.out.append(End())
