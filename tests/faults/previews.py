"""`python -m tests.faults.previews [FIRST] [SEEDS]`: what a preview says of a change, against what then happens.

A world runs without faults until its apps hold GPUs. Then queues, isonomy.yaml or the cells file change at random:
first in a preview of the Arbiter's scene, then in the world itself.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from pycontrol.arbiter.ledger.facts import OF_LEASE, LeaseEnded, LeaseRevoking, from_json
from pycontrol.arbiter.ledger.lease import REVOKING, LeaseTable
from pycontrol.model.accounts import Account, Accounts, Limits
from pycontrol.model.topology import Gpu
from pycontrol.simulation.preview import preview
from pycontrol.simulation.scene import Scene, scene_of
from submarine_patch.agent import gangs
from tests.faults.plane import restore_process
from tests.faults.schedule import Schedule, draw
from tests.faults.world import GONE_S, OWNERS, World

KINDS = ("queues", "config", "cells")
LATE_S = 8.0
"""How much later than said GPUs may go: Agents and YARN answer later here."""
Lost = dict[Gpu, tuple[str, float]]
"""GPU -> the app that lost it, and when it had to be free."""


def schedule_of(seed: int, kind: str) -> Schedule:
    """A seed's schedule without faults and with apps that go on."""
    found = draw(seed)
    rng = random.Random(f"preview {seed}")
    cells = kind == "cells"
    apps = [
        {
            **a,
            "at": 2.0 * k,
            "steps": 4000,
            "seconds": 4000.0,
            "checkpoint_s": 0.0,
            "scheduler": "single",
            "queue": rng.choice(("root.a", "root.b")) if cells else a["queue"],
            "gang": min(4, a.get("gang", 1)),
        }
        for k, a in enumerate(found["apps"])
    ]
    settings = {**found["settings"], "lease_s": 20.0, "open_leases": False}
    never = dict.fromkeys(("exchange", "sqlite", "old_journal", "standby"), False)
    return {
        **found,
        **never,
        "apps": apps,
        "faults": [],
        "cells": cells,
        "queue_max": {},
        "queue_capacity": 10_000,
        "settings": settings,
        "until": 40.0,
    }


@dataclass
class Outcome:
    """What was said and what happened."""

    kind: str
    said: Lost
    anyway: set[Gpu]
    happened: Lost

    def problems(self) -> list[str]:
        """Where they differ; empty where they do not."""
        found = [
            f"{gpu} of {app_id}: lost, but that was not said"
            for gpu, (app_id, _) in self.happened.items()
            if gpu not in self.said
        ]
        for gpu, (app_id, at_s) in self.said.items():
            if gpu not in self.happened:
                found.append(f"{gpu} of {app_id}: was said to be lost at {at_s:.0f}, and was not")
            elif abs(self.happened[gpu][1] - at_s) > LATE_S:
                found.append(
                    f"{gpu} of {app_id}: was said to be lost at {at_s:.0f}, was at {self.happened[gpu][1]:.0f}"
                )
        return found


class Changed(World):
    """A world in which the configuration changes."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(f"change {seed}")
        self.kind = KINDS[seed % len(KINDS)]
        super().__init__(schedule_of(seed, self.kind))

    def play(self) -> Outcome | None:
        """Runs it; None where nobody holds anything."""
        before, gangs.GONE_S = gangs.GONE_S, GONE_S
        try:
            self.plane.start()
            self.start_rm()
            for nm in self.nms.values():
                nm.start()
            for a in self.schedule["apps"]:
                self.sim.at(a["at"], lambda a=a: self.submit(a))
            self._until(self.sim.start_s + self.schedule["until"])
            a = self.plane.arbiter
            for _ in range(20):  # between rounds, as all that Agents and YARN are about to say is unknown to a scene
                if a.rounds.current is None and not any(not w.container_id for w in a.workers):
                    break
                self._until(self.sim.now + 0.5)
            now_s = self.plane.driver.clock.now_s()
            scene = scene_of(a, now_s)
            if not any(x.container_id for x in a.durable.leases.each()):
                return None
            table, seen = LeaseTable(), len(self.plane.disk.rows)
            for x in a.durable.claims():
                table.load(x)
            running = {g for x in a.durable.leases.each() if x.container_id and x.state is not REVOKING for g in x.gpus}
            after, restart = getattr(self, f"do_{self.kind}")(scene)
            found = preview(scene, after, restart)
            self._until(self.sim.now + found["until_s"] - now_s + LATE_S)
            facts = [from_json(kind, json.loads(row)) for _, _, kind, row in self.plane.disk.rows[seen:]]
            happened: Lost = {}
            for fact in facts:
                if not isinstance(fact, OF_LEASE):
                    continue
                step = table.take(fact)
                for x in step.before if isinstance(fact, LeaseRevoking | LeaseEnded) else ():
                    for gpu in running.intersection(x.gpus):
                        running.discard(gpu)
                        if isinstance(fact, LeaseRevoking) and fact.end_s <= found["until_s"]:
                            happened[gpu] = x.app_id, fact.end_s
            return Outcome(self.kind, *_said(found), happened)
        finally:
            gangs.GONE_S = before
            for plane in self.planes:
                plane.close()
                plane.disk.clean()
            restore_process()

    # ---- the changes: the scene with each, and the world with it

    def do_queues(self, scene: Scene) -> tuple[Scene, bool]:
        """Queues have other maxima."""
        self.queue_max |= {q: self.rng.choice((0.25, 0.34, 0.5, 0.67)) for q in ("root.a", "root.b", "root.small")}
        queues = tuple(
            replace(q, max_capacity=self.queue_max.get(q.path, 1.0), partitions={}) for q in scene.cluster.queues
        )
        cluster = replace(scene.cluster, queues=queues)
        heard = replace(cluster, rm_life=self.plane.arbiter.cluster.rm_life)
        self.plane.act(lambda: self.plane.driver.submit(heard))
        return replace(scene, cluster=cluster), False

    def do_config(self, scene: Scene) -> tuple[Scene, bool]:
        """isonomy.yaml limits users, or shares by weights."""
        most = self.rng.choice((2.0, 4.0, 6.0))
        limited = Accounts(queue_users={self.rng.choice(("ann", "bob")): Account(limits=Limits(gpus=most))})
        shared = Accounts(
            groups={"x": Account(5.0, below={"ann": Account()}), "others": Account()}, users={"ann": ("x", "ann")}
        )
        accounts = self.rng.choice((limited, limited, shared))
        self.schedule["settings"] = {**self.schedule["settings"], "accounts": accounts}
        self.plane.die("isonomy.yaml was changed")
        return replace(scene, settings=replace(scene.settings, accounts=accounts)), True

    def do_cells(self, scene: Scene) -> tuple[Scene, bool]:
        """One virtual cluster owns less, or has gone."""
        self.owners = self.rng.choice(
            (
                [OWNERS[0].replace("small: 1, ", ""), OWNERS[1]],
                [OWNERS[0].replace("big: 1, ", ""), OWNERS[1]],
                [OWNERS[1].replace("root.b", "root.a"), OWNERS[0].replace("root.a", "root.b")],
                [OWNERS[0]],
            )
        )
        found, _ = self.read_cells()
        answer = self.plane.query("POST", "cells-apply", {}, "root", True)
        assert answer["status"] == 200, answer
        return replace(scene, layout=found), False


def _said(found: Mapping[str, Any]) -> tuple[Lost, set[Gpu]]:
    rows = [(Gpu.parse(name), x) for x in found["losses"] for name in x["gpu_ids"]]
    return {gpu: (x["app_id"], x["at_s"]) for gpu, x in rows}, {gpu for gpu, x in rows if x["anyway"]}


def main(first: int, seeds: int) -> int:
    """The exit status: 1 if a preview was wrong."""
    wrong = lost = played = by_change = 0
    for seed in range(first, first + seeds):
        world = Changed(seed)
        outcome = world.play()
        if outcome is None:
            continue
        played, lost = played + 1, lost + len(outcome.happened)
        by_change += len(outcome.said.keys() - outcome.anyway)
        problems = outcome.problems()
        wrong += bool(problems)
        for line in problems:
            print(f"seed {seed}, {world.policy_name}, {outcome.kind}: {line}")
    print(f"{played} of {seeds} seeds: {lost} GPUs were lost, {by_change} by the change; {wrong} previews were wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 1, int(sys.argv[2]) if len(sys.argv) > 2 else 50))
