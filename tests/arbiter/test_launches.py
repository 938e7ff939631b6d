"""The cost of an Agent's reports: facts only for changes, and bounded memory for each app."""

from __future__ import annotations

from dataclasses import replace

from pycontrol.arbiter.apps import JOBS_KEPT, TOLD_AT_ONCE
from pycontrol.arbiter.core import Arbiter
from pycontrol.arbiter.ledger.durable import Durable
from pycontrol.arbiter.ledger.facts import AllocationChanged, AppChanged
from pycontrol.arbiter.views.settings import Settings
from pycontrol.model import events as ev
from pycontrol.model.auction import Demand
from pycontrol.model.cluster import Node, YarnApp
from pycontrol.policies.themis import Themis
from pycontrol.runtime.journal import NoJournal
from pycontrol.web.feed import Feed
from tests.arbiter.world import World

APP = "application_1_0001"
DEMAND = Demand(1, 1, 1, 10.0, 10.0)


def _arbiter() -> Arbiter:
    arbiter = Arbiter(Settings(), Themis())
    app = YarnApp(APP, "ann", "root.q", "a", "SUBMARINE", 90.0, frozenset({"isonomy"}), "attempt_1")
    arbiter.handle(ev.ClusterSnapshot(True, (Node("n1:1", "n1", "r", 4),), (app,), (), (), ()), 100.0)
    arbiter.handle(ev.AgentUp(APP, "attempt_1", "hyperband", DEMAND, user="ann"), 101.0)
    arbiter.take_facts()
    return arbiter


def _report(arbiter: Arbiter, jobs: dict[str, int], now_s: float) -> list[AppChanged]:
    told = tuple(ev.JobProgress(job, "running", 1, launches=n) for job, n in jobs.items())
    arbiter.handle(ev.ProgressReported(APP, DEMAND, told, 2.0), now_s)
    return [f for f in arbiter.take_facts() if isinstance(f, AppChanged) and "launched" in f.changes]


def test_only_changed_counts_are_journaled_and_they_fold_to_the_same() -> None:
    arbiter, replayed = _arbiter(), Durable.load(_arbiter().durable.dump())
    facts = _report(arbiter, {"j0": 1, "j1": 1}, 110.0)
    facts += _report(arbiter, {"j0": 1, "j1": 2}, 111.0)
    facts += _report(arbiter, {"j0": 1, "j1": 2}, 112.0)
    assert [f.changes for f in facts] == [{"launched": {"j0": 1, "j1": 1}}, {"launched": {"j1": 2}}]
    for fact in facts:
        replayed.apply(fact)
    assert replayed.apps[APP].launches == arbiter.durable.apps[APP].launches == {"j0": 1, "j1": 2}
    assert arbiter.durable.apps[APP].restarts == 1


def test_the_first_note_of_a_job_is_a_fact_and_in_the_feed() -> None:
    arbiter, feed = _arbiter(), Feed(NoJournal(), first_seq=0)
    for step in (1, 2):
        job = ev.JobProgress("j0", "running", step, note=f"no checkpoint at {step}")
        arbiter.handle(ev.ProgressReported(APP, DEMAND, (ev.JobProgress("j1", "running", 1), job), 2.0), 110.0 + step)
    facts = arbiter.take_facts()
    feed.append(facts, 112.0)
    assert [f.changes for f in facts if isinstance(f, AppChanged)] == [{"message": "j0: no checkpoint at 1"}]
    assert [e["text"] for e in feed.since(0, 0.0, 9)["events"]] == [f"{APP}: j0: no checkpoint at 1"]


def test_a_flood_of_invented_jobs_fills_neither_journal_nor_memory() -> None:
    arbiter = _arbiter()
    for k in range(400):
        jobs = {f"{k % 7}-{i}": k + 1 for i in range(2048)}
        facts = _report(arbiter, jobs, 110.0 + k)
        assert sum(len(f.changes["launched"]) for f in facts) <= TOLD_AT_ONCE
    assert len(arbiter.durable.apps[APP].launches) <= JOBS_KEPT
    assert sum(map(len, arbiter.agent_events.launches.seen.values())) <= JOBS_KEPT
    arbiter.handle(ev.AppRemoved(APP, "KILLED"), 999.0)
    assert not arbiter.agent_events.launches.seen


def test_what_a_launch_on_a_grant_takes_here_is_known_once_it_was_measured_and_counts_once_a_grant() -> None:
    def launching_gpu_s() -> float:
        record, leases = w.arbiter.durable.apps["a"], w.arbiter.durable.leases.of("a")
        return record.launching_gpu_s + sum(w.arbiter.durable.launching_gpu_s(x, w.now) for x in leases)

    w = World("isonomy", machines=[("n1", "r", 2)], lease_s=600)
    w.add_app("a", 2, 1, 5_000.0)
    w.run(60)
    assert launching_gpu_s() == 0, "nothing was measured"
    for seconds in (20.0, 30.0, 30.0, 31.0, 400.0):
        w.arbiter.clerk.record(AllocationChanged("b", "j0", w.now, seconds))
    assert launching_gpu_s() == 2 * 30.0
    for lease in w.arbiter.durable.leases.of("a"):  # its worker crashed in the lease and was launched again
        w.arbiter.durable.leases.put(replace(lease, container_id="second"))
    assert launching_gpu_s() == 0
