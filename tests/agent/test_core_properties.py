"""Under any sequence of events gangs are whole, no GPU is used outside its lease, none is idle, and the app ends."""

from __future__ import annotations

import random
from collections.abc import Callable

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pycontrol.model.topology import Gpu
from pycontrol.wire.v1 import am_pb2 as am
from submarine_patch.agent import gangs, jobs
from tests.agent.world import ALL, World, hyperband, spec_of


class AgentMachine(RuleBasedStateMachine):
    """The world sends random events to one Agent; the world's own assertions check each command."""

    @initialize(group=st.booleans(), gang=st.integers(1, 4), retries=st.integers(0, 3), waits=st.booleans())
    def begin(self, group: bool, gang: int, retries: int, waits: bool) -> None:
        """`waits`: at the end of a gang of one worker its process waits for another launch."""
        self.waits = waits
        make = hyperband if group else spec_of
        self.world = World(make(gang_gpus=gang, max_retries=retries))
        self.world.register()

    @property
    def alive(self) -> bool:
        return self.world.ended is None

    @precondition(lambda self: not self.alive)
    @rule()
    def over(self) -> None:
        """A step without an event."""

    def pick(self, which: int) -> str | None:
        running = self.world.running()
        return running[which % len(running)] if running else None

    @precondition(lambda self: self.alive and self.world.core.registered)
    @rule(gpus=st.sets(st.sampled_from(ALL), min_size=1, max_size=6))
    def grant(self, gpus: set[Gpu]) -> None:
        new = gpus - self.world.held
        if new:
            self.world.grant(*new)

    @precondition(lambda self: self.alive and self.world.core.registered and self.world.held)
    @rule(which=st.integers(0, 20), n=st.integers(1, 4), in_s=st.floats(0, 40))
    def revoke(self, which: int, n: int, in_s: float) -> None:
        held = sorted(self.world.held)
        self.world.revoke(*{held[(which + k) % len(held)] for k in range(n)}, in_s=in_s)

    @precondition(lambda self: self.alive)
    @rule(refuse=st.booleans())
    def answer_plans(self, refuse: bool) -> None:
        self.world.refuse_plans = int(refuse)
        self.world.answer_plans()

    @precondition(lambda self: self.alive)
    @rule()
    def allocate(self) -> None:
        self.world.allocate()

    @precondition(lambda self: self.alive and self.world.core.registered)
    @rule()
    def ready(self) -> None:
        self.world.ready()

    @precondition(lambda self: self.alive and self.world.core.registered)
    @rule(which=st.integers(0, 9), accuracy=st.floats(0, 1))
    def finish(self, which: int, accuracy: float) -> None:
        job_id = self.pick(which)
        if job_id is not None and len(self.whole(job_id)) == len(self.world.gang(job_id)):
            self.world.finish_gang(job_id, accuracy, self.waits and len(self.world.gang(job_id)) == 1)

    def whole(self, job_id: str) -> list[object]:
        job = self.world.core.jobs[job_id]
        return [w for w in job.workers if w.exit_code is None and w.container_id]

    @precondition(lambda self: self.alive and self.world.containers)
    @rule(which=st.integers(0, 20), code=st.sampled_from([1, 75, 137, -100, -102]), say=st.booleans())
    def end_one(self, which: int, code: int, say: bool) -> None:
        containers = sorted(self.world.containers.values(), key=lambda c: c.container_id)
        self.world.end(containers[which % len(containers)], code, say=say and self.world.core.registered)

    @precondition(lambda self: self.alive)
    @rule()
    def obey_stops(self) -> None:
        self.world.obey_stops()

    @precondition(lambda self: self.alive)
    @rule(seconds=st.sampled_from([1.0, 5.0, 70.0, 130.0]))
    def time_passes(self, seconds: float) -> None:
        self.world.pass_time(seconds)

    @precondition(lambda self: self.alive)
    @rule(back=st.booleans())
    def link(self, back: bool) -> None:
        if self.world.core.registered:
            self.world.lose_link()
        elif back:
            self.world.register()

    @precondition(lambda self: self.alive)
    @rule(adopt=st.floats(0, 1))
    def restart(self, adopt: float) -> None:
        """A new attempt; some containers did not survive, and the Arbiter forgets their workers."""
        world, rng = self.world, random.Random(adopt)
        world.restart()
        for c in list(world.containers.values()):
            if rng.random() <= adopt:
                world.tell(am.AmEvent(adopted=world.described(c)))
            else:
                del world.containers[c.container_id]
                world.plans.pop(c.plan.allocation_request_id, None)
        world.pass_time(11)
        world.register()

    @invariant()
    def no_gpu_is_idle(self) -> None:
        if not hasattr(self, "world") or not self.alive or not self.world.core.registered:
            return
        core = self.world.core
        used = {g for j in core.jobs.values() for g in j.gpus}
        idle = set(core.held) - used
        stopping = sum(j.state == jobs.STOPPING for j in core.jobs.values())
        idle -= {g for w, _ in core.leaving.values() for g in w.gpus}
        assert len(idle) <= stopping * core.spec.gang_gpus, "a GPU is neither used nor given back"
        for job in core.jobs.values():
            if job.state in (jobs.STARTING, jobs.RUNNING):
                assert set(job.gpus) <= set(core.held), "a gang continues outside its leases"

    def teardown(self) -> None:
        """From any state, a fault-free world brings the app to its end."""
        if not hasattr(self, "world"):
            return
        world = self.world
        world.refuse_plans = 0
        steps: list[Callable[[], None]] = [world.obey_stops, world.publish, world.rise]
        for _ in range(400):
            if world.ended is not None:
                break
            if not world.core.registered:
                world.register()
            for step in steps:
                if world.ended is None:
                    step()
            for job_id in world.running():
                if world.ended is None and len(self.whole(job_id)) == len(world.gang(job_id)) > 0:
                    world.finish_gang(job_id, waits=self.waits and len(world.gang(job_id)) == 1)
            if world.ended is None:
                world.pass_time(gangs.SETTLE_S)
            if world.ended is None and not world.held:
                world.grant(*ALL)
        assert world.ended is not None, "the app ends"
        assert world.done is not None
        assert not world.containers


AgentMachine.TestCase.settings = settings(
    max_examples=100,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    report_multiple_bugs=False,
    phases=(Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink),
)
TestAgent = AgentMachine.TestCase
