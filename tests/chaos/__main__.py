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

import requests

from pycontrol.audit.evidence import read_evidence
from tests.chaos import report as reports
from tests.chaos import work
from tests.chaos.faults import OF_APPS, End, Faults
from tests.chaos.losses import Losses
from tests.chaos.plan import AppPlan, Plan, draw
from tests.chaos.proxy import Proxy
from tests.chaos.rig import ChaosRig
from tests.cluster.rig import REPO

sys.path.insert(0, str(REPO / "dev-cluster" / "demo"))

import busy

CALM_S, DRAIN_S = 600.0, 900.0
"""For the apps undisturbed, and for their end when all faults are over; on a machine at rest, as all times here."""
LEASES_GONE_S, ENDED_S = 90.0, 60.0
"""For the last leases and containers, after that."""
RESUBMIT_BEFORE = 0.75
"""Part of the time after which no app is submitted any more."""
STEPS = 26
"""Of a job: each lasts longer than a second, so that the log tells each step's loss."""
SEARCH = ["--gpus-per-job", "2", "--jobs", "4", "--min-iterations", str(STEPS // 2), "--eta", "2"]
QUEUE_SMALL = 2
"""What may wait for the Arbiter at rest: a query of the page and a metrics' one."""


def wanted(app: AppPlan, space: Path) -> list[str]:
    """What a planned app adds to the options of a plain job."""
    words = ["--seed", str(app.seed), "--max-retries", "100"]
    search = ["--app-scheduler", app.scheduler, "--search-space", str(space), *SEARCH]
    return words if app.scheduler == "single" else words + search


class Chaos:
    """One run of a plan."""

    def __init__(self, plan: Plan, folder: Path) -> None:
        self.plan, self.folder = plan, folder
        self.began_s = time.monotonic()
        self.slower = busy.factor()
        self.problems: list[str] = []
        self.audit: dict[str, Any] = {}
        self.losses = Losses()
        self.tries: dict[str, int] = {}
        self.submitted: list[str] = []
        self.refused = 0
        self.half_written: list[str] = []

    def say(self, text: str) -> None:
        """Prints a line of progress."""
        print(f"[{time.monotonic() - self.began_s:5.0f} s] {text}", flush=True)

    def run(self) -> dict[str, Any]:
        """Runs the plan and returns the report."""
        self.say(
            f"seed {self.plan.seed}: {self.plan.minutes:g} minutes, {len(self.plan.faults)} faults, {self.plan.world}"
        )
        if self.slower > 1.0:
            self.say(f"this machine is busy: leases and deadlines are {self.slower:.1f} times as long")
        rig = self.rig = ChaosRig(self.folder, self.plan, self.slower)
        faults = self.faults = Faults(rig, self.say)
        apps: list[dict[str, Any]] = []
        try:
            self._calmly()
            self._disturbed()
            apps = self._drained()
            self._judged(apps)
        except BaseException:
            self.say(rig.tail())
            raise
        finally:
            rig.down()
        self.problems += faults.problems + [f"left running: {line}" for line in rig.left()]
        return {
            "seed": self.plan.seed,
            "minutes": self.plan.minutes,
            "world": self.plan.world,
            "commit": reports.commit(),
            "slower": self.slower,
            "faults": reports.fault_rows(faults.begun),
            "faults_planned": len(self.plan.faults),
            "apps": reports.app_rows(apps, work.read(self.folder / "data")),
            "submissions_refused": self.refused,
            "control_plane_starts": rig.starts,
            "looks": rig.watch.looks,
            "sizes": rig.watch.sizes(),
            "half_written": self.half_written,
            "clocks_behind": rig.facts("ClockBehind"),
            "losses_compared": self.losses.compared,
            "largest_difference": self.losses.largest,
            "audit": self.audit,
            "seconds": time.monotonic() - self.began_s,
            "problems": self.problems,
        }

    # ---- apps

    def _submit(self, app: AppPlan, prefix: str) -> bool:
        """One more of an app; a client that gives up tries again under another name. Whether it was submitted."""
        number = self.tries[app.name] = self.tries.get(app.name, 0) + 1
        name = f"{prefix}-{app.name}-{number}"
        more = wanted(app, self.rig.folder / "space.yaml")
        try:
            self.rig.submit(name, app.seconds, *more, queue=app.queue, steps=STEPS)
            self.submitted.append(name)
            self.say(f"submitted {name}")
        except (AssertionError, subprocess.TimeoutExpired) as e:
            self.refused += 1
            self.say(f"{name} could not be submitted: {reports.refusal(e)}")
            return False
        return True

    def _alive(self, name: str) -> bool:
        """Whether one of them has not ended; also where YARN does not say."""
        apps = self.rig.yarn_apps()
        return not apps or any(name in a["name"] and a["state"] not in ("FINISHED", "FAILED", "KILLED") for a in apps)

    # ---- the run

    def _calmly(self) -> None:
        for app in self.plan.apps:
            if not self._submit(app, "calm"):
                raise SystemExit("an app cannot even be submitted undisturbed")
        if not self.rig.settle(lambda: not self._alive("calm-"), CALM_S * self.slower):
            raise SystemExit("the apps do not even end undisturbed")
        self.say("the apps have run undisturbed; now faults come and go")

    def _disturbed(self) -> None:
        """Faults come and go, and apps come again."""
        self.rig.watch.phase = "disturbed"
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
        self.rig.errands_done()
        for link in [each for links in self.rig.links.values() for each in links]:
            link.each(Proxy.open)
        for role in self.rig.cluster["roles"]:
            self.rig.revive(role)
        self.say("all faults are over; the apps may end")

    def _keep_submitting(self, begun: float, length_s: float) -> None:
        while time.monotonic() - begun < RESUBMIT_BEFORE * length_s:
            for app in self.plan.apps:
                if self.tries[app.name] == 1 or not self._alive(f"chaos-{app.name}"):
                    self._submit(app, "chaos")
            time.sleep(5.0)

    def _drained(self) -> list[dict[str, Any]]:
        """YARN's word on all apps, when they have ended."""
        limit_s = DRAIN_S * max(self.slower, busy.factor())
        if not self.rig.settle(lambda: not self._alive("-"), limit_s):
            self.problems.append(f"after {limit_s:.0f} s not all apps have ended")
        self.rig.watch.phase = "at_end"
        self.say("the apps have ended")
        return self.rig.yarn_apps()

    def _judged(self, apps: list[dict[str, Any]]) -> None:
        """Checks the conditions at the end."""
        bad = [a for a in apps if reports.outcome(a) != reports.GOOD]
        self.problems += [f"{a['name']}: {reports.outcome(a)}: {a.get('diagnostics', '')[:300]}" for a in bad]
        names = {a["name"] for a in apps}
        self.problems += [
            f"{name}: submitted, and YARN knows nothing of it" for name in self.submitted if name not in names
        ]
        disturbed = sorted(n for n in {*self.submitted, *names} if n.startswith("chaos-"))
        self.problems += [
            f"{a.name}: it never ran disturbed"
            for a in self.plan.apps
            if not any(n.startswith(f"chaos-{a.name}-") for n in disturbed)
        ]
        self.losses.read(self.folder / "data")
        self.problems += self.losses.different() + self.losses.unfinished(disturbed)
        if not self.rig.settle(lambda: self.rig.get("leases").get("leases") == [], LEASES_GONE_S * self.slower):
            self.problems.append(f"leases are left: {str(self.rig.get('leases'))[:300]}")
        if not self.rig.settle(lambda: not any(map(self.rig.of_program, OF_APPS)), ENDED_S * self.slower):
            self.problems.append("containers are left")
        if not self.rig.settle(self._idle, ENDED_S * self.slower):
            self.problems.append(f"the control plane is not idle: {self._gauges()}")
        try:
            self.half_written = self.rig.half_written()
        except (requests.RequestException, ValueError, KeyError) as e:
            self.problems.append(f"HDFS cannot be listed: {e}")
        self.rig.watch.look()
        evidence = read_evidence([str(self.folder / "data" / "nodemanager-*" / "isonomy-evidence.jsonl")])
        self.problems += self.rig.watch.problems(evidence.stays)
        self.audit = self.rig.audited()
        self.problems += [f"audit: {v}" for v in self.audit["violations"]]

    def _gauges(self) -> dict[str, float]:
        """What waits in the control plane, and whom it still has; {} where it does not answer."""
        names = {
            "isonomy_arbiter_queue_depth": "events",
            "isonomy_agents_connected": "agents",
            'isonomy_apps{state="running"}': "running",
            'isonomy_apps{state="waiting"}': "waiting",
        }
        lines = [line.rsplit(" ", 1) for line in self.rig.metrics().splitlines() if line.startswith("isonomy_")]
        return {names[name]: float(value) for name, value in lines if name in names}

    def _idle(self) -> bool:
        found = self._gauges()
        return bool(found) and found["events"] <= QUEUE_SMALL and not sum(v for k, v in found.items() if k != "events")


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
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the cluster is stopped in any case
    folder, file = args.out / f"seed-{args.seed}" / "cluster", args.out / f"report-{args.seed}.json"
    try:
        report = Chaos(plan, folder).run()
    except BaseException:
        print(reports.again(plan.seed, plan.minutes, folder), file=sys.stderr)
        raise
    file.write_text(json.dumps(report, indent=1) + "\n")
    print(reports.table(report, folder), file, sep="; ")
    return bool(report["problems"])


if __name__ == "__main__":
    sys.exit(main())
