"""The cost of `why not?` at 10,000 GPUs and 2,000 apps, of which half wait; what the asking thread takes."""

from __future__ import annotations

import dataclasses
import random
import resource
import statistics
import time
from contextlib import suppress
from typing import Any

from pycontrol.arbiter.core import Arbiter
from pycontrol.lab.clusters import uniform
from pycontrol.model.topology import Scope
from pycontrol.policies.registry import make
from pycontrol.simulation.engine import Simulator
from pycontrol.simulation.questions import Questions
from pycontrol.simulation.simulation_settings import ARBITER, SimulationSettings
from pycontrol.simulation.trace_apps import TraceApp, Workload

GANGS = (8, 8, 10, 12, 12, 16)
UNTIL_S = 1000.0


class Full(Exception):
    """The GPUs are given away."""


def crowded(policy: str, machines: int, apps: int) -> tuple[Arbiter, float]:
    """An Arbiter in which about half of the apps wait for one gang, and its time."""
    rng = random.Random(7)

    def app(k: int) -> TraceApp:
        gang, come_s = rng.choice(GANGS), 0.0 if k % 20 else rng.uniform(0, 0.9 * UNTIL_S)
        scope = Scope.MACHINE if gang <= 8 else Scope.CLUSTER
        work = (rng.expovariate(1 / 36_000) * gang,)
        return TraceApp(f"j{k}", come_s, gang, (work,), "root.q", f"u{k % 40}", scope=scope)

    load = Workload("crowded", tuple(app(k) for k in range(apps)))
    settings = SimulationSettings(arbiter=dataclasses.replace(ARBITER, lease_s=1200.0))
    sim = Simulator(load, uniform(machines, 8), make(policy), settings)

    def watch(_: object) -> None:
        if sim.now > UNTIL_S:
            raise Full

    sim.watchers.append(watch)
    with suppress(Full):
        sim.run()
    return sim.arbiter, sim.now


def run(policy: str, questions: int, machines: int = 1250, apps: int = 2000) -> dict[str, Any]:
    """Questions for apps from the first to the last that wait, each by another user. Wall-clock seconds."""
    a, now_s = crowded(policy, machines, apps)
    waiting = sorted(a.agents.unmet, key=lambda x: a.durable.apps[x].submitted_s)
    asked, answers, wall_s, cpu_s = Questions({}), list[dict[str, Any]](), list[float](), list[float]()
    for k in range(questions + 1):  # the first one starts the process
        app_id = waiting[max(0, k - 1) * (len(waiting) - 1) // max(1, questions - 1)]
        begin_s, begin_cpu_s = time.monotonic(), time.thread_time()
        answers.append(asked.answer(a, now_s, {"app": app_id}, f"asker{k}", str))
        wall_s.append(time.monotonic() - begin_s)
        cpu_s.append(time.thread_time() - begin_cpu_s)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    asked.stop()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    process_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    played = [x["played"] for x in answers[1:]]
    return {
        "gpus": 8 * machines,
        "apps": len(a.durable.live),
        "waiting": len(waiting),
        "answer_s": statistics.median(wall_s[1:]),
        "worst_answer_s": max(wall_s[1:]),
        "first_answer_s": wall_s[0],
        "asking_cpu_s": statistics.median(cpu_s[1:]),
        "process_cpu_s": process_s / (questions + 1),
        "played": [min(played), statistics.median(played), max(played)],
        "helped": sum(bool(x["gets"] or x["changes"]) for x in answers[1:]),
        "n": questions,
    }
