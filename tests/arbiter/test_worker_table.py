"""The states of a planned worker: the table, the code and the diagram agree, and each event has its case."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pycontrol.arbiter.views.workers import (
    LEADS,
    PlannedWorker,
    WorkerChange,
    WorkerPlans,
    WorkerState,
)
from pycontrol.model import events as ev
from pycontrol.model.cluster import Ask, Container
from pycontrol.model.topology import Gpu
from tests.arbiter.diagrams import transitions_drawn
from tests.arbiter.mini import Mini

GPU = Gpu("n1", 0)
ASK = ("a", 1, 1, 1)
DO: dict[WorkerChange, Callable[[WorkerPlans, PlannedWorker], None]] = {
    WorkerChange.ADD: lambda plans, w: plans.add(w),
    WorkerChange.SENT: lambda plans, w: plans.sent(w, "d1", 1.0, 61.0),
    WorkerChange.ACKNOWLEDGED: lambda plans, w: plans.acknowledged(w, "c1"),
    WorkerChange.CARRIED: lambda plans, w: plans.carried(w, "c1"),
    WorkerChange.BACK: lambda plans, w: plans.back(w),
    WorkerChange.DROP: lambda plans, w: plans.drop(w),
}
INTO: dict[WorkerState | None, tuple[WorkerChange, ...]] = {
    None: (),
    WorkerState.WAITING: (WorkerChange.ADD,),
    WorkerState.PLACING: (WorkerChange.ADD, WorkerChange.SENT),
    WorkerState.PLACED: (WorkerChange.ADD, WorkerChange.SENT, WorkerChange.ACKNOWLEDGED),
    WorkerState.REPORTED: (WorkerChange.ADD, WorkerChange.SENT, WorkerChange.CARRIED),
}


@pytest.mark.parametrize(("state", "change"), [(x, c) for c, (states, _) in LEADS.items() for x in states], ids=str)
def test_each_transition_of_the_table_is_what_the_plans_do(state: WorkerState | None, change: WorkerChange) -> None:
    plans, worker = WorkerPlans(), PlannedWorker("a", "u1", ev.WorkerPlan("w1", "j", (GPU,), 1), ask_key=ASK)
    for step in (*INTO[state], change):
        DO[step](plans, worker)
    assert worker.state is LEADS[change][1]
    assert not list(plans.validate())
    assert bool(plans.pending) == (worker.state is WorkerState.WAITING)
    assert (GPU in plans.placing) == (worker.state in (WorkerState.PLACING, WorkerState.PLACED))
    assert plans.coming("a", ASK) == (worker.state is not None and not worker.container_id)
    assert plans.of("a") == ([worker] if worker.state is not None else [])
    assert (plans.at.get(GPU) is worker) == (worker.state is not None)


def test_the_diagram_in_the_docs_has_the_transitions_of_the_table() -> None:
    each = [(old, change, new) for change, (states, new) in LEADS.items() for old in states]
    table = {(str(old or "[*]"), str(change), str(new or "[*]")) for old, change, new in each}
    assert transitions_drawn("pycontrol/arbiter/views/workers.py") == table


# ---- from events to states


class Workers(Mini):
    """App a holds the two GPUs of n1, and its Agent plans one gang of a worker on each."""

    def __init__(self) -> None:
        super().__init__(nodes=(("n1", 2),))
        self.app("a", gang=2)
        self.send(ev.OperatorCommand("pause"))  # no further round
        self.send(ev.OperatorCommand("resume"))
        gpus = sorted(self.held("a"))
        self.plans = tuple(ev.WorkerPlan(f"w{i}", "j", (gpu,), i + 1) for i, gpu in enumerate(gpus))
        self.send(ev.UsePlanned("a", "u1", self.plans))

    def ask(self, *ids: int) -> None:
        """The asks for the workers with these request ids reach YARN."""
        for i in ids:
            self.send(ev.AskChanged(Ask("a_1", "a", i, 1, 1)))

    def placed(self) -> ev.Place:
        """Both are asked for, and so placed; the first one's placement."""
        self.ask(1, 2)
        return self.of(ev.Place)[0]

    def answered(self) -> Container:
        """The first one's placement succeeded; its container, which was not reported."""
        place = self.placed()
        self.send(ev.DirectiveDone(place.directive_id, True, "c1"))
        return Container("c1", "a", place.node_id, place.gpus, place.lease_id, 1)

    def running(self) -> Container:
        container = self.answered()
        self.send(ev.ContainerUp(container, True))
        return container

    @property
    def states(self) -> dict[str, str]:
        return {w.plan.worker_id: str(w.state) for w in self.a.workers}


def nothing(m: Workers) -> None:
    """Its plan alone."""


def half(m: Workers) -> None:
    m.ask(1)


def other_ask(m: Workers) -> None:
    m.ask(1)
    m.send(ev.AskChanged(Ask("a_1", "a", 2, 2, 1)))


def whole(m: Workers) -> None:
    m.ask(1, 2)


def refused(m: Workers) -> None:
    m.send(ev.DirectiveDone(m.placed().directive_id, False, "", "no room"))


def refused_and_tried_again(m: Workers) -> None:
    refused(m)
    m.run(6.0)


def answer(m: Workers) -> None:
    m.answered()


def reported(m: Workers) -> None:
    m.send(ev.ContainerUp(m.answered()))


def reported_first(m: Workers) -> None:
    place = m.placed()
    m.send(ev.ContainerUp(Container("c1", "a", place.node_id, place.gpus, place.lease_id, 1), True))
    m.send(ev.DirectiveDone(place.directive_id, True, "c1"))


def ended(m: Workers) -> None:
    m.running()
    m.send(ev.ContainerGone("c1"))


def never_reported(m: Workers) -> None:
    m.answered()
    m.run(m.a.settings.grant_timeout_s + 1)


def released(m: Workers) -> None:
    m.send(ev.GpusReleased("a", frozenset(m.plans[0].gpus)))


def revoked_while_placing(m: Workers) -> None:
    m.placed()
    m.send(ev.GpusReleased("a", frozenset(m.plans[0].gpus)))


def app_ended(m: Workers) -> None:
    m.placed()
    m.send(ev.AppRemoved("a", "KILLED"))


def machine_down(m: Workers) -> None:
    m.running()
    m.send(ev.NodeDown("n1:1"))


def resource_manager_restarted(m: Workers, *containers: Container) -> None:
    app = m.a.cluster.apps["a"]
    m.send(ev.ClusterLost())
    m.send(m.snapshot([app], containers))


def lost_before_the_answer(m: Workers) -> None:
    m.placed()
    resource_manager_restarted(m)


def lost_before_the_report(m: Workers) -> None:
    m.answered()
    resource_manager_restarted(m)


def recovered(m: Workers) -> None:
    resource_manager_restarted(m, m.running())


def reported_after_all(m: Workers) -> None:
    container = m.answered()
    resource_manager_restarted(m)
    m.send(ev.ContainerUp(container, True))


def ended_meanwhile(m: Workers) -> None:
    m.running()
    resource_manager_restarted(m)


WAITING, PLACING, PLACED, REPORTED = "waiting", "placing", "placed", "reported"
CASES: dict[str, tuple[Callable[[Workers], None], dict[str, str]]] = {
    "a plan waits for its asks": (nothing, {"w0": WAITING, "w1": WAITING}),
    "a gang waits whole until its last ask arrives": (half, {"w0": WAITING, "w1": WAITING}),
    "an ask of another size is not its own": (other_ask, {"w0": WAITING, "w1": WAITING}),
    "a gang with all of its asks is placed": (whole, {"w0": PLACING, "w1": PLACING}),
    "a refused placement waits to be sent again": (refused, {"w0": WAITING, "w1": PLACING}),
    "a refused placement is sent again after the back-off": (refused_and_tried_again, {"w0": PLACING, "w1": PLACING}),
    "an answered placement waits for its container": (answer, {"w0": PLACED, "w1": PLACING}),
    "an allocated container is reported": (reported, {"w0": REPORTED, "w1": PLACING}),
    "a container may be reported before its placement is answered": (reported_first, {"w0": REPORTED, "w1": PLACING}),
    "a worker ends with its container": (ended, {"w1": PLACING}),
    "a placement without a container is given up after the grant timeout": (never_reported, {}),
    "an Agent that releases a GPU before its worker is placed loses the worker": (released, {"w1": WAITING}),
    "a worker that is being placed outlives its lease": (revoked_while_placing, {"w0": PLACING, "w1": PLACING}),
    "a placement in progress outlives its app": (app_ended, {"w0": PLACING, "w1": PLACING}),
    "a worker ends with its machine": (machine_down, {}),
    "placements wait for new asks after a ResourceManager restart": (
        lost_before_the_answer,
        {"w0": WAITING, "w1": WAITING},
    ),
    "so does a worker whose container was never reported": (lost_before_the_report, {"w0": WAITING, "w1": WAITING}),
    "a recovered container keeps its worker": (recovered, {"w0": REPORTED, "w1": WAITING}),
    "a container that is reported late finds its worker": (reported_after_all, {"w0": REPORTED, "w1": WAITING}),
    "a container that is lost in the restart takes its worker along": (ended_meanwhile, {"w1": WAITING}),
}


@pytest.mark.parametrize("case", CASES)
def test_each_event_leads_to_the_state_of_its_case(case: str) -> None:
    happens, expected = CASES[case]
    m = Workers()
    happens(m)
    assert m.states == expected
