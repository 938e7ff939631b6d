"""The audit: a clean run passes, and each rule finds the run that breaks it."""

import dataclasses
import gzip
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from pycontrol.arbiter.ledger import facts as f
from pycontrol.audit.audit import GANG_DEADLINE_S, LEAD_S, audit
from pycontrol.audit.evidence import Evidence, EvidenceError, YarnRecords, add_event, read_evidence, read_rm_log
from pycontrol.audit.history import History
from pycontrol.lab.clusters import uniform
from pycontrol.model.reasons import EndReason
from pycontrol.model.receipt import Receipt
from pycontrol.model.topology import Gpu
from pycontrol.policies.registry import make
from pycontrol.simulation.engine import Simulator
from pycontrol.simulation.simulation_settings import ARBITER, SimulationSettings
from pycontrol.simulation.trace_apps import TraceApp, Workload
from tests.web.scene import Scene

APP, OTHER = "application_17_0001", "application_17_0002"
T0 = 1_000_000.0


def container(n: int, app: str = APP) -> str:
    return f"container_e01_{app.removeprefix('application_')}_01_{n:06d}"


@dataclass
class Run:
    """A small hand-written run: one gang of 4 GPUs on two machines."""

    facts: list[tuple[float, f.Fact]] = field(default_factory=list)
    evidence: list[dict[str, Any]] = field(default_factory=list)
    yarn: YarnRecords = field(default_factory=lambda: YarnRecords(["rm.log"], T0 - 1))
    now_s: float = T0 + 1000

    def fact(self, at_s: float, *facts: f.Fact) -> None:
        self.facts += [(T0 + at_s, x) for x in facts]

    def grant(self, at_s: float, app: str, gpus: list[Gpu], grant: str, after: bool = False) -> None:
        coming = tuple(gpus) if after else ()
        self.fact(at_s, f.LeaseGranted(tuple(gpus), app, grant, T0 + at_s, T0 + at_s + 60, after=coming))

    def start(self, at_s: float, name: str, gpus: list[Gpu], job: str = "j1", seen: bool = True) -> None:
        self.fact(at_s, f.LeaseStarted(tuple(gpus), name, job, T0 + at_s, T0 + at_s + 60))
        if seen:
            self.record("start", at_s - 0.1, name, gpus)

    def stop(self, at_s: float, name: str, gpus: list[Gpu], reason: str = "released") -> None:
        self.record("end", at_s - 0.1, name, gpus)
        self.fact(at_s, f.LeaseEnded(tuple(gpus), T0 + at_s, reason))

    def record(self, event: str, at_s: float, name: str, gpus: list[Gpu]) -> None:
        self.evidence.append(
            {
                "event": event,
                "container": name,
                "node": f"{gpus[0].host}:45454",
                "gpu_ids": [g.index for g in gpus],
                "lease": "r1.0",
                "time_ms": int((T0 + at_s) * 1000),
            }
        )
        if event == "start":
            self.yarn.allocated.setdefault(name, len(gpus))

    def audit(self) -> dict[str, Any]:
        evidence = Evidence(["e.jsonl"] if self.evidence else [])
        for line in sorted(self.evidence, key=lambda x: x["time_ms"]):
            add_event(evidence, line)
        facts = [(t, f.from_json(type(x).__name__, f.to_json(x))) for t, x in self.facts]  # as a journal yields them
        history = History.of((i, t, x) for i, (t, x) in enumerate(sorted(facts, key=lambda x: x[0])))
        return audit(history, evidence, self.yarn, self.now_s, GANG_DEADLINE_S, LEAD_S)

    def kinds(self) -> list[str]:
        return [v["kind"] for v in self.audit()["violations"]]


A = [Gpu("n1", 0), Gpu("n1", 1)]
B = [Gpu("n2", 0), Gpu("n2", 1)]


def clean() -> Run:
    run = Run()
    for at_s, app in ((0, APP), (1, OTHER)):
        run.fact(at_s, f.AppArrived(app, app[-4:], "root.q", "u", "hyperband", T0, T0 + at_s))
    receipt = {"awards": [{"app_id": a, "gangs": [[["n1", 2], ["n2", 2]]]} for a in (APP, OTHER)]}
    run.fact(1.5, f.RoundHeld("r1", T0 + 1.5, Receipt.load(receipt)))
    run.grant(2, APP, A + B, "r1.0")
    run.start(5, container(2), A)
    run.start(6, container(3), B)
    run.grant(50, OTHER, A + B, "r2.0", after=True)
    run.stop(62, container(2), A)
    run.stop(63, container(3), B)
    run.start(66, container(2, OTHER), A)
    run.start(67, container(3, OTHER), B)
    run.fact(100, f.AppEnded(APP, "FINISHED", T0 + 100), f.AppEnded(OTHER, "FINISHED", T0 + 100))
    run.stop(101, container(2, OTHER), A, "app ended")
    run.stop(101, container(3, OTHER), B, "app ended")
    return run


def test_a_clean_run_is_clean_and_says_what_it_checked() -> None:
    found = clean().audit()
    assert found["violations"] == []
    assert found["unchecked"] == []
    assert found["complete"]
    checked = found["checked"]
    assert checked["leases"] == 8
    assert checked["gangs"] == 2
    assert checked["gpu_intervals"] == 8
    assert checked["gpu_ids_compared"] == checked["yarn_allocations_compared"] == 4


def test_evidence_of_a_node_manager_that_did_not_know_its_host_is_of_the_journals() -> None:
    run = clean()
    for line in run.evidence:
        line["node"] = "0.0.0.0"
    assert run.audit()["violations"] == []
    del run.evidence[0], run.evidence[1]
    assert "container_without_evidence" in run.kinds()


def test_a_clock_that_was_ahead_causes_no_violation() -> None:
    """The container's token names this lease, and by the journal it ran under it."""
    run = clean()
    early = (f.LeaseGranted, f.LeaseStarted)
    run.facts = [
        (t + 20, dataclasses.replace(x, at_s=x.at_s + 20)) if isinstance(x, early) and t < T0 + 10 else (t, x)
        for t, x in run.facts
    ]
    assert run.kinds() == []
    for line in run.evidence:
        line["lease"] = "r7.0"
    assert set(run.kinds()) == {"container_without_lease"}


def test_a_clock_that_was_ahead_while_an_app_had_the_same_gpus_twice_causes_no_violation() -> None:
    """By the journal's clock, the second container began under the first lease."""
    run = Run()
    run.grant(2, APP, A, "r1.0")
    run.start(3, container(2), A, job="j1")
    run.stop(30, container(2), A)
    run.grant(40, APP, A, "r2.0")
    run.start(41, container(3), A, job="j2")
    run.stop(80, container(3), A)
    for line in run.evidence:
        line["lease"] = "r1.0" if line["container"] == container(2) else "r2.0"
        line["time_ms"] -= 20_000
    assert run.kinds() == []


def test_a_clock_that_is_known_to_be_behind_causes_no_violation() -> None:
    run = clean()
    run.facts = [
        (t, dataclasses.replace(x, at_s=x.at_s - 9) if isinstance(x, f.LeaseEnded) else x) for t, x in run.facts
    ]
    assert set(run.kinds()) == {"container_without_lease"}
    run.fact(61, f.ClockBehind(9.0))
    assert run.kinds() == []
    run.facts[-1] = (T0 + 61, f.ClockBehind(5.0))
    assert set(run.kinds()) == {"container_without_lease"}, "no further than it is proved"


def taken_over(*, by_s: float = 60.0) -> dict[str, Any]:
    """A run whose control plane was replaced while two gangs trained; one container ended unseen before that."""
    before, after = Run(), Run()
    receipt = {"awards": [{"app_id": a, "gangs": [[["n1", 2]], [["n2", 2]]]} for a in (APP, OTHER)]}
    before.fact(1.5, f.RoundHeld("r1", T0 + 1.5, Receipt.load(receipt)))
    before.grant(2, APP, A + B, "r1.0")
    before.start(5, container(2), A, job="j1")
    before.start(6, container(3), B, job="j2")
    before.record("end", 55, container(3), B)
    after.grant(by_s, APP, A, "r1.0")
    after.start(by_s, container(2), A, job="", seen=False)
    after.fact(70, f.RoundHeld("r2", T0 + 70, Receipt.load(receipt)))
    after.grant(71, OTHER, B, "r3.0")
    after.start(72, container(4, OTHER), B, job="j1")
    after.stop(90, container(2), A)
    after.stop(91, container(4, OTHER), B)
    after.fact(100, f.AppEnded(APP, "FINISHED", T0 + 100), f.AppEnded(OTHER, "FINISHED", T0 + 100))
    evidence = Evidence(["e.jsonl"])
    for line in sorted(before.evidence + after.evidence, key=lambda x: x["time_ms"]):
        add_event(evidence, line)
    journals = (sorted(run.facts, key=lambda x: x[0]) for run in (before, after))
    history = History.of(*([(i, t, x) for i, (t, x) in enumerate(facts)] for facts in journals))
    return audit(history, evidence, YarnRecords(), T0 + 1000, GANG_DEADLINE_S, LEAD_S)


def test_one_control_plane_after_the_other_is_clean() -> None:
    found = taken_over()
    assert found["violations"] == []
    assert found["checked"]["leases"] == 6, "those that were taken over are not counted twice"


def test_a_container_that_was_not_taken_over_has_no_lease() -> None:
    assert [v["kind"] for v in taken_over(by_s=75.0)["violations"]] == ["container_without_lease"] * 2


def two_containers(run: Run) -> None:
    next(e for e in run.evidence if e["event"] == "end" and e["container"] == container(2))["time_ms"] += 5000


def no_lease(run: Run) -> None:
    run.record("start", 200, container(9), [Gpu("n3", 0)])
    run.record("end", 210, container(9), [Gpu("n3", 0)])


def anothers_lease(run: Run) -> None:
    run.facts = [(t, x) for t, x in run.facts if not (isinstance(x, f.LeaseGranted) and x.app_id == OTHER)]
    run.grant(50, APP, A + B, "r2.0", after=True)


def outlives_its_lease(run: Run) -> None:
    ends = [e for e in run.evidence if e["event"] == "end" and e["container"] == container(3, OTHER)]
    ends[0]["time_ms"] += 30_000


def never_ends(run: Run) -> None:
    run.evidence = [e for e in run.evidence if not (e["event"] == "end" and e["container"] == container(3, OTHER))]


def lost_lease(run: Run) -> None:
    run.facts = [(t, x) for t, x in run.facts if not (isinstance(x, f.LeaseEnded) and t > T0 + 100)]


def leased_twice(run: Run) -> None:
    run.grant(10, OTHER, [A[0]], "r9.0")


def split_gang(run: Run) -> None:
    run.facts = [(t, x) for t, x in run.facts if not (isinstance(x, f.LeaseStarted) and x.container_id == container(3))]
    run.evidence = [e for e in run.evidence if e["container"] != container(3)]
    run.facts = [(t + 100 if t > T0 + 10 else t, x) for t, x in run.facts]
    for e in run.evidence:
        e["time_ms"] += 100_000 if e["time_ms"] > (T0 + 10) * 1000 else 0
    run.facts = [(t, _moved(x)) for t, x in run.facts]


def _moved(x: f.Fact) -> f.Fact:
    """The same fact 100 s later, if it was later than the gang's start."""
    at_s = getattr(x, "at_s", 0.0)
    if at_s > T0 + 10:
        return type(x)(**{**{k: getattr(x, k) for k in x.__dataclass_fields__}, "at_s": at_s + 100})  # type: ignore
    return x


def other_ids(run: Run) -> None:
    for e in run.evidence:
        if e["container"] == container(2, OTHER):
            e["gpu_ids"] = [1, 2]


def fewer_ids(run: Run) -> None:
    for e in run.evidence:
        if e["container"] == container(2, OTHER):
            e["gpu_ids"] = [0]


def no_record(run: Run) -> None:
    run.evidence = [e for e in run.evidence if e["container"] != container(3, OTHER)]


def unknown_to_yarn(run: Run) -> None:
    del run.yarn.allocated[container(2)]


def other_count(run: Run) -> None:
    run.yarn.allocated[container(2)] = 1


@pytest.mark.parametrize(
    ("breaks", "kinds"),
    [
        (two_containers, {"gpu_in_two_containers", "container_without_lease"}),
        (no_lease, {"container_without_lease"}),
        (anothers_lease, {"container_without_lease"}),
        (outlives_its_lease, {"container_without_lease"}),
        (never_ends, {"container_without_lease"}),
        (lost_lease, {"lease_lost"}),
        (leased_twice, {"gpu_leased_twice"}),
        (split_gang, {"gang_split"}),
        (other_ids, {"gpu_ids_differ", "container_without_lease"}),
        (fewer_ids, {"gpu_ids_differ", "gpu_count_differs"}),
        (no_record, {"container_without_evidence"}),
        (unknown_to_yarn, {"unknown_to_yarn"}),
        (other_count, {"gpu_count_differs"}),
    ],
)
def test_each_rule_finds_what_breaks_it(breaks: Callable[[Run], None], kinds: set[str]) -> None:
    run = clean()
    breaks(run)
    found = run.audit()["violations"]
    assert kinds <= {v["kind"] for v in found}, found
    assert all(v["what"] and v["when"] for v in found)


def test_a_container_of_capacity_scheduler_needs_no_lease_but_gpus_of_its_own() -> None:
    run = clean()
    no_lease(run)
    for e in run.evidence:
        e["lease"] = "" if e["container"] == container(9) else e["lease"]
    assert not run.audit()["violations"]
    assert run.audit()["checked"]["containers_of_capacity_scheduler"] == 1
    run.record("start", 205, container(8), [Gpu("n3", 0)])
    assert "gpu_in_two_containers" in {v["kind"] for v in run.audit()["violations"]}


def test_a_job_whose_containers_go_on_with_another_job_may_run_elsewhere() -> None:
    run, elsewhere = clean(), [Gpu(f"n{n}", i) for n in (3, 4) for i in range(2)]
    run.grant(200, APP, A + B, "r3.0")
    run.grant(230, APP, elsewhere, "r4.0")
    for n, gpus in ((5, A), (6, B)):
        run.start(203, container(n), gpus, "j2")
        run.fact(220, f.LeaseIdle(tuple(gpus), T0 + 220))
        run.start(220, container(n), gpus, "j3", seen=False)
    for n, gpus in ((7, elsewhere[:2]), (8, elsewhere[2:])):
        run.start(233, container(n), gpus, "j2")
        run.stop(333, container(n), gpus)
    run.stop(333, container(5), A)
    run.stop(333, container(6), B)
    assert run.audit()["violations"] == []
    run.facts = [x for x in run.facts if x[0] != T0 + 220]
    assert run.kinds() == ["gang_split"]


def test_a_gang_that_stops_early_as_it_lost_a_machine_is_no_violation() -> None:
    run = clean()
    # a gang that loses a machine stops on the other one before the deadline
    run.grant(200, APP, A + B, "r3.0")
    run.start(203, container(5), A, "j2")
    run.start(203, container(6), B, "j2")
    run.fact(220, *(f.LeaseEnded((g,), T0 + 220, "node n2 lost", EndReason.NODE_LOST) for g in B))
    run.record("end", 290, container(6), B)  # it continued where it could not be reached
    run.stop(250, container(5), A)
    found = run.audit()
    assert found["violations"] == []
    assert found["checked"]["outlived_on_lost_nodes"] == 2


@pytest.mark.parametrize("policy", ["tiresias", "oef"])
def test_elastic_jobs_that_join_what_rounds_awarded_are_no_parts_of_gangs(policy: str) -> None:
    """Eight gangs of one GPU become a gang of eight, long before a renewal names it."""
    trace = TraceApp("elastic", 0.0, 1, ((8 * 150.0,),), job_gpus_max=8)
    control = SimulationSettings(arbiter=dataclasses.replace(ARBITER, lease_s=300.0))
    sim = Simulator(Workload("w", (trace,)), uniform(1, 8), make(policy), control)
    facts: list[tuple[int, float, f.Fact]] = []
    sim.watchers.append(lambda told: facts.extend((0, sim.now, x) for x in told))
    sim.run()
    history = History.of(facts)
    assert max(x.gpus for x in history.jobs["elastic", "p0j0"]) == 8
    found = audit(history, Evidence(), YarnRecords([], None), sim.now, GANG_DEADLINE_S, LEAD_S)
    assert [x["kind"] for x in found["violations"]] == []


def test_an_adopted_container_counts_for_its_gang() -> None:
    run = clean()
    run.grant(200, APP, A + B, "r3.0")
    run.start(203, container(5), A, "j2")
    run.start(204, container(6), B, "")  # the control plane was restarted in between
    run.stop(300, container(5), A)
    run.stop(301, container(6), B)
    assert run.kinds() == []


def test_a_container_ends_when_the_resource_manager_says_so() -> None:
    run = clean()
    run.evidence = [e for e in run.evidence if not (e["event"] == "end" and e["container"] == container(2))]
    assert "gpu_in_two_containers" in run.kinds()
    run.yarn.released_s[container(2)] = T0 + 62
    assert run.kinds() == []


def test_missing_evidence_is_named_never_passed() -> None:
    run = clean()
    run.evidence, run.yarn = [], YarnRecords()
    found = run.audit()
    assert not found["complete"]
    missing = {x["check"] for x in found["unchecked"]}
    assert missing == {
        "gpu_in_two_containers",
        "container_without_lease",
        "gpu_ids_differ",
        "lease_lost",
        "unknown_to_yarn",
    }
    run = clean()
    run.evidence = [e for e in run.evidence if e["node"].startswith("n1")]
    found = run.audit()
    assert not found["complete"]
    assert [x["check"] for x in found["unchecked"]] == ["evidence"]
    assert Run().audit()["complete"] is False


def test_evidence_files(tmp_path: Path) -> None:
    line = {"event": "start", "container": container(2), "node": "n1", "gpu_ids": [0, 1], "lease": "r1", "time_ms": 5}
    file = tmp_path / "e.jsonl"
    file.write_text(
        json.dumps(line)
        + "\nnot json\n"
        + json.dumps({**line, "event": "end", "time_ms": 9})
        + "\n"
        + '{"event": "start", "conta'
    )
    read = read_evidence([str(tmp_path / "*.jsonl")])
    stay = read.stays[container(2)]
    assert (stay.host, stay.gpu_ids, stay.start_s, stay.end_s) == ("n1", (0, 1), 0.005, 0.009)
    assert read.bad_lines == [f"{file}, line 2"]
    found = audit(History(), read, YarnRecords(), 1.0, GANG_DEADLINE_S, LEAD_S)
    assert [v["kind"] for v in found["violations"]][-1] == "evidence_unreadable"


def test_rotated_evidence_is_read_with_what_follows_it(tmp_path: Path) -> None:
    line = {"event": "start", "container": container(2), "node": "n1", "gpu_ids": [0, 1], "lease": "r1", "time_ms": 5}
    rotated, packed = tmp_path / "e.jsonl-20261101.gz", gzip.compress(json.dumps(line).encode())
    rotated.write_bytes(packed)
    (tmp_path / "e.jsonl").write_text(json.dumps({**line, "event": "end", "time_ms": 9}))
    stay = read_evidence([str(tmp_path / "e.jsonl*")]).stays[container(2)]
    assert (stay.start_s, stay.end_s, stay.end_by) == (0.005, 0.009, "NodeManager")
    rotated.write_bytes(packed[:-9])
    with pytest.raises(EvidenceError, match="gz: cannot be read"):
        read_evidence([str(tmp_path / "e.jsonl*")])


def test_the_resource_managers_audit_log(tmp_path: Path) -> None:
    at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(T0))
    tail = (
        f"TARGET=SchedulerApp\tRESULT=SUCCESS\tAPPID={APP}\tCONTAINERID={container(2)}\tRESOURCE=<memory:1024, "
        "vCores:1, yarn.io/gpu: 2>\tQUEUENAME=default"
    )
    logger = "INFO  org.apache.hadoop.yarn.server.resourcemanager.RMAuditLogger:"
    (tmp_path / "rm.log").write_text(
        f"{at},500 INFO  x: hello\n"
        f"{at},750 {logger} USER=u\tOPERATION=AM Allocated Container\t{tail}\n"
        f"{at},900 {logger} USER=u\tOPERATION=AM Released Container\t{tail}\n"
        f"{at},950 {logger} USER=u\tOPERATION=Application Finished - Succeeded\tTARGET=RMAppManager\tRESULT=SUCCESS\t"
        f"APPID={APP}\n"
    )
    (tmp_path / "rm.log.1.gz").write_bytes(gzip.compress((tmp_path / "rm.log").read_bytes()))
    newer = (tmp_path / "rm.log").read_text().replace(at, time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(T0 + 60)))
    (tmp_path / "rm.log").write_text(newer.replace(container(2), container(3)))
    standby = f"{time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(T0 - 9e6))},000 INFO  x: no allocation since\n"
    (tmp_path / "rm.log-standby").write_text(standby)
    yarn = read_rm_log([str(tmp_path / "rm.log*")])
    assert yarn.from_s == pytest.approx(T0 + 0.75)
    assert yarn.allocated == {container(2): 2, container(3): 2}
    assert yarn.released_s == {container(2): pytest.approx(T0 + 0.9), container(3): pytest.approx(T0 + 60.9)}
    assert yarn.finished_s == {APP: pytest.approx(T0 + 0.95)}


def test_a_whole_world_is_clean() -> None:
    """The Arbiter's own journal and the nodes' evidence: a fight over GPUs, a lost node, apps that end."""
    scene = Scene(run_s=100)
    scene.world.lose_node("n2")
    scene.world.run(160)
    scene.world.node_back("n2")
    scene.world.run(5000)
    assert all(x.finished for x in scene.world.agents.values())
    evidence = Evidence(["e.jsonl"])
    for line in scene.world.evidence:
        add_event(evidence, line)
    found = audit(History.of(scene.yarn_facts()), evidence, YarnRecords(), scene.world.now, GANG_DEADLINE_S, LEAD_S)
    assert found["violations"] == []
    assert found["complete"]
    assert found["checked"]["gangs"] >= 6
    assert found["checked"]["leases"] > 30
    assert found["checked"]["gpu_ids_compared"] == len(evidence.stays) > 10


def owned(ask_s: float, *, granted_s: float = 100.0, gone_s: float = 110.0, moves: tuple[f.Fact, ...] = ()) -> Run:
    """An app of a virtual cluster has reserved GPUs that a stranger borrows; the stranger is gone at a given time."""
    run = Run()
    run.fact(0, f.AppArrived(OTHER, "x", "root.x", "u", "job", T0, T0))
    run.grant(2, OTHER, A, "r1.0")
    run.start(5, container(2, OTHER), A)
    run.fact(6, f.AppArrived(APP, "a", "root.a", "u", "job", T0, T0, "root.a"))
    run.fact(7, *moves)
    run.fact(granted_s, f.LeaseRevoking(tuple(A), T0 + gone_s - 1, "the cells of root.a need it", "guarantee"))
    run.grant(granted_s, APP, A, "r2.0", after=True)
    receipt = {
        "awards": [{"app_id": APP, "gangs": [[["n1", 2]]]}],
        "vc": "root.a",
        "at_s": T0 + granted_s,
        "granted": [{"gpu": str(g), "app_id": APP} for g in A],
        "asked_s": {APP: T0 + ask_s},
    }
    run.fact(granted_s, f.RoundHeld("r2", T0 + granted_s, Receipt.load(receipt)))
    run.stop(gone_s, container(2, OTHER), A, "revoked")
    run.start(gone_s + 1, container(2), A)
    run.fact(500, f.AppEnded(APP, "FINISHED", T0 + 500), f.AppEnded(OTHER, "FINISHED", T0 + 500))
    run.stop(501, container(2), A, "app ended")
    return run


def test_a_guarantee_served_within_one_revocation_is_no_violation() -> None:
    found = owned(ask_s=99.0, gone_s=170.0).audit()
    assert found["violations"] == []
    assert found["checked"]["guaranteed_gpus_claimed"] == 2


def test_a_stranger_that_stays_on_a_guaranteed_gpu_for_longer_than_a_revocation_is_found() -> None:
    found = owned(ask_s=99.0, gone_s=300.0).audit()["violations"]
    assert [v["kind"] for v in found] == ["guarantee_late"] * 2
    assert f"{APP} could claim it for root.a, and {container(2, OTHER)} had it" in found[0]["what"]
    assert found[0]["when"] == T0 + 99 + 90


def test_a_reservation_made_long_after_its_owner_asked_is_found() -> None:
    assert owned(ask_s=8.0, granted_s=200.0, gone_s=210.0).kinds() == ["guarantee_late"] * 2


def test_a_claim_begins_when_cells_became_free_and_not_while_leases_were_suspended() -> None:
    late = owned(ask_s=8.0, granted_s=200.0, gone_s=210.0)
    late.fact(190, f.Switched("paused", False, "root", T0 + 190))
    assert late.kinds() == []
    mate = "application_17_0003"
    late = owned(ask_s=8.0, granted_s=200.0, gone_s=210.0)
    late.fact(9, f.AppArrived(mate, "b", "root.a", "u", "job", T0, T0, "root.a"))
    late.grant(10, mate, B, "r1.1")
    late.stop(195, container(2, mate), B)
    assert "guarantee_late" not in late.kinds(), "its cells were its queue's own app's until then"
    frozen = owned(ask_s=99.0, gone_s=300.0)
    frozen.fact(220, *(f.LeaseExtended((g,), T0 + 250, counted=False) for g in A))
    assert frozen.kinds() == [], "the control plane was away, and gave everybody two leads more"


def test_a_borrower_of_the_same_virtual_cluster_or_a_dropped_reservation_breaks_no_guarantee() -> None:
    own = owned(ask_s=99.0, gone_s=300.0, moves=(f.AppMoved(OTHER, "root.a", T0 + 7, "root.a"),))
    assert own.kinds() == []
    dropped = owned(ask_s=99.0, gone_s=300.0)
    dropped.fact(150, *(f.NextDropped((g,), "app ended") for g in A))
    assert "guarantee_late" not in dropped.kinds()
