"""`python -m tests.chaos` (make chaos): processes of a real cluster are killed, frozen, cut off and starved by a seed.

First the apps run undisturbed, for their losses; then again and again for some minutes while faults come and go. In the
end every app must have succeeded, each job must have the loss that it had undisturbed at the same step, the audit must
be clean, and nothing may be left running.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from tests.chaos.faults import End, Faults
from tests.chaos.losses import Losses
from tests.chaos.plan import AppPlan, Plan, draw
from tests.chaos.rig import ChaosRig
from tests.cluster.rig import REPO

CALM_S, DRAIN_S = 600.0, 900.0
"""For the apps undisturbed, and for their end when all faults are over."""
RESUBMIT_BEFORE = 0.6
"""Part of the time after which no app is submitted any more."""
SEARCH = ["--gpus-per-job", "2", "--jobs", "4", "--min-iterations", "25", "--eta", "2"]


class Chaos:
    """One run of a plan."""

    def __init__(self, plan: Plan, folder: Path) -> None:
        self.plan, self.folder = plan, folder
        self.began_s = time.monotonic()
        self.problems: list[str] = []
        self.losses = Losses()
        self.tries: dict[str, int] = {}

    def say(self, text: str) -> None:
        """A line of progress."""
        print(f"[{time.monotonic() - self.began_s:5.0f} s] {text}", flush=True)

    def run(self) -> dict[str, Any]:
        """Plays it; the report."""
        self.say(f"seed {self.plan.seed}: {self.plan.minutes:g} minutes, {len(self.plan.faults)} faults, "
                 f"{'with' if self.plan.cells else 'without'} cells")  # fmt: skip
        rig = self.rig = ChaosRig(self.folder, self.plan.cells)
        faults = self.faults = Faults(rig, self.say)
        states: dict[str, str] = {}
        try:
            self._calmly()
            self._disturbed()
            states = self._drained()
            self._judged(states)
        except BaseException:
            self.say(rig.tail())
            raise
        finally:
            rig.down()
        self.problems += faults.problems + [f"left running: {line}" for line in rig.left()]
        return {
            "seed": self.plan.seed, "minutes": self.plan.minutes, "cells": self.plan.cells, "faults": faults.done,
            "apps": states, "control_plane_starts": rig.starts, "losses_compared": self.losses.compared,
            "largest_difference": self.losses.largest, "seconds": time.monotonic() - self.began_s,
            "problems": self.problems,
        }  # fmt: skip

    # ---- apps

    def _submit(self, app: AppPlan, prefix: str) -> None:
        """One more of an app; a client that gives up tries again under another name."""
        number = self.tries[app.name] = self.tries.get(app.name, 0) + 1
        name = f"{prefix}-{app.name}-{number}"
        more = ["--queue", app.queue, "--seed", str(app.seed), "--max-retries", "100"]
        if app.scheduler != "single":
            space = str(self.rig.folder / "space.yaml")
            more += ["--app-scheduler", app.scheduler, "--search-space", space, *SEARCH]
        try:
            self.rig.submit(name, app.seconds, *more)
            self.say(f"submitted {name}")
        except (AssertionError, subprocess.TimeoutExpired) as e:
            self.say(f"{name} could not be submitted: {str(e).strip()[-160:]}")

    def _alive(self, name: str) -> bool:
        """Whether one of them has not ended; also where YARN does not say."""
        apps = self.rig.yarn_apps()
        return not apps or any(name in a["name"] and a["state"] not in ("FINISHED", "FAILED", "KILLED") for a in apps)

    # ---- the run

    def _calmly(self) -> None:
        for app in self.plan.apps:
            self._submit(app, "calm")
        if not self.rig.settle(lambda: not self._alive("calm-"), CALM_S):
            raise SystemExit("the apps do not even end undisturbed")
        self.say("the apps have run undisturbed")

    def _disturbed(self) -> None:
        """Faults come and go, and apps come again."""
        begun, length_s = time.monotonic(), self.plan.minutes * 60
        submitter = threading.Thread(target=self._keep_submitting, args=(begun, length_s), daemon=True)
        submitter.start()
        waiting, ends = list(self.plan.faults), list[tuple[float, End]]()
        while (now_s := time.monotonic() - begun) < length_s:
            for at_s, end in [e for e in ends if e[0] <= now_s]:
                ends.remove((at_s, end))
                end()
            if waiting and waiting[0].at_s <= now_s:
                fault = waiting.pop(0)
                ends.append((now_s + fault.for_s, self.faults.begin(fault)))
            time.sleep(0.2)
        for _, end in ends:
            end()
        submitter.join()
        for link in self.rig.links.values():
            link.open()
        for role in self.rig.cluster["roles"]:
            self.faults.revive(role)
        self.say("all faults are over")

    def _keep_submitting(self, begun: float, length_s: float) -> None:
        while time.monotonic() - begun < RESUBMIT_BEFORE * length_s:
            for app in self.plan.apps:
                if self.tries[app.name] == 1 or not self._alive(f"chaos-{app.name}"):
                    self._submit(app, "chaos")
            time.sleep(5.0)

    def _drained(self) -> dict[str, str]:
        """How each app ended."""
        if not self.rig.settle(lambda: not self._alive("-"), DRAIN_S):
            self.problems.append(f"after {DRAIN_S:.0f} s not all apps have ended")
        return {a["name"]: a["finalStatus"] if a["state"] == "FINISHED" else a["state"] for a in self.rig.yarn_apps()}

    def _judged(self, states: dict[str, str]) -> None:
        """What must hold in the end."""
        apps = {a["name"]: a for a in self.rig.yarn_apps()}
        self.problems += [f"{n}: {s}: {apps[n].get('diagnostics', '')[:300]}"
                          for n, s in states.items() if s != "SUCCEEDED"]  # fmt: skip
        self.losses.read(self.folder / "data")
        self.problems += self.losses.different()
        if not self.losses.compared:
            self.problems.append("no loss could be compared")
        if not self.rig.settle(lambda: self.rig.get("leases").get("leases") == [], 90):
            self.problems.append(f"leases are left: {str(self.rig.get('leases'))[:300]}")
        if not self.rig.settle(lambda: not any(self.rig.of_program(p) for p in ("am", "agent", "worker")), 60):
            self.problems.append("containers are left")
        try:
            self.rig.audit()
        except AssertionError as e:
            self.problems.append(f"audit: {str(e)[:1500]}")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--out", type=Path, default=REPO / "build" / "chaos")
    parser.add_argument("--plan", action="store_true", help="print the plan and do nothing")
    args = parser.parse_args()
    plan = draw(args.seed, args.minutes)
    if args.plan:
        print("\n".join([*map(str, plan.apps), *(f"{f.at_s:6.0f} s  {f}" for f in plan.faults)]))
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the cluster is taken down in any case
    report = Chaos(plan, args.out / f"seed-{args.seed}" / "cluster").run()
    file = args.out / f"report-{args.seed}.json"
    file.write_text(json.dumps(report, indent=1) + "\n")
    for problem in report["problems"]:
        print(f"PROBLEM {problem}")
    print(f"{'FAILED' if report['problems'] else 'clean'}: seed {args.seed}, {sum(report['faults'].values())} faults, "
          f"{len(report['apps'])} apps, {report['losses_compared']} losses compared; {file}")  # fmt: skip
    return bool(report["problems"])


if __name__ == "__main__":
    sys.exit(main())
