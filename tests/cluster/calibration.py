"""`python -m tests.cluster.calibration --minutes 120`: does a replay of a real cluster's own log give its real waits?

Three queues with capacities, maxima, limits of users and a node label, under CapacityScheduler (mode shadow): a seeded
mix of plain jobs with and without GPUs arrives for two thirds of the time, a third more than the GPUs can serve. Then
the ResourceManager's log of this run is replayed on a snapshot of this cluster. Prints JSON; exit status 1 where the
median wait of the replay is not within a fifth of the real one.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from pycontrol.lab.workloads.yarn_history import read_files
from tests.cluster.rig import BIN, REPO, SETTINGS
from tests.cluster.test_modes import Modes

LABEL, LABELLED = "fast", "127.0.20.1"
QUEUES = {
    "root.queues": "research,prod,default",
    "root.accessible-node-labels": LABEL,
    "root.research.capacity": "50",
    "root.research.maximum-capacity": "80",
    "root.prod.capacity": "40",
    "root.prod.maximum-capacity": "50",
    "root.prod.user-limit-factor": "100",
    "root.default.capacity": "10",
    "root.default.user-limit-factor": "2",
    f"root.research.accessible-node-labels.{LABEL}.capacity": "30",
    f"root.prod.accessible-node-labels.{LABEL}.capacity": "70",
}
"""root.research keeps the user limit that YARN has by default, its capacity."""
PART = 0.2
"""How far the replay's median wait may be from the real one."""
Job = tuple[float, str, str, str, str, int, int]
"""When it is submitted, seconds; name, user, queue, label (- for none), GPUs, seconds."""


def mix(seed: int, minutes: float) -> list[Job]:
    """Jobs for a cluster of twelve GPUs, four of them with the label."""
    rng, jobs = random.Random(seed), list[Job]()
    window_s, mean_s = 40.0 * minutes, min(180.0, 5.0 * minutes)
    for label, gpus in (("-", 8), (LABEL, 4)):
        asked = 0.0
        while asked < 1.3 * gpus * window_s:
            size, run_s = rng.choice((0, 1, 1, 2, 2, 4)), round(mean_s * rng.uniform(0.5, 1.5))
            queues = (
                ("research", "research", "prod", "prod", "default") if label == "-" else ("research", "prod", "prod")
            )
            user = rng.choice(("ann", "ann", "bob", "eve"))
            jobs.append((0.0, f"job{len(jobs)}", user, rng.choice(queues), label, size, run_s))
            asked += size * run_s
        for k in range(len(jobs)):
            if jobs[k][4] == label:
                jobs[k] = (round(rng.uniform(0, window_s), 1), *jobs[k][1:])
    return sorted(jobs)


class Labelled(Modes):
    """Such a cluster, in mode shadow, with these queues and a label."""

    settings = (*SETTINGS, "queues.am_percent=10")

    def serve(self, policy: str = "isonomy") -> None:
        """Gives the cluster its label and its queues first."""
        conf = Path(self.cluster["conf"])
        self.dev("kill", "resourcemanager")
        store = f"file://{self.folder}/data/labels"
        _put(conf / "yarn-site.xml", {"yarn.node-labels.enabled": "true", "yarn.node-labels.fs-store.root-dir": store})
        self.dev("start", "resourcemanager")
        self.admin("-addToClusterNodeLabels", f"{LABEL}(exclusive=true)")
        self.admin("-replaceLabelsOnNode", f"{LABELLED}={LABEL}")
        _put(conf / "capacity-scheduler.xml", {f"yarn.scheduler.capacity.{k}": x for k, x in QUEUES.items()})
        self.admin("-refreshQueues")
        super().serve(policy)

    def admin(self, *words: str) -> None:
        """`yarn rmadmin`, again until the ResourceManager serves."""

        def done() -> bool:
            found = subprocess.run(self.hadoop("rmadmin", *words), capture_output=True, text=True, timeout=300)
            self.said = found.stderr[-2000:]
            return found.returncode == 0

        self.wait(done, 120, f"rmadmin {' '.join(words)}")

    def isonomy(self, *words: str) -> str:
        """The output of a command."""
        done = subprocess.run([BIN / "isonomy", *words], env=self.env, capture_output=True, text=True, timeout=900)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def load(self, jobs: list[Job], limit_s: float) -> dict[str, float]:
        """Runs the jobs; application -> its wait by the job's own clock, seconds."""
        classes = self.folder / "classes"
        path = self.cluster["client_classpath"]
        source = Path(__file__).with_name("Load.java")
        subprocess.run(["javac", "-d", str(classes), "-cp", path, str(source)], check=True, timeout=300)
        words = ["java", "-Xmx1g", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", f"{classes}:{path}", "Load"]
        rows = "".join(" ".join(map(str, job)) + "\n" for job in jobs)
        with (self.folder / "log" / "load.log").open("wb") as log:
            done = subprocess.run(
                words, input=rows.encode(), env=self.env, stdout=subprocess.PIPE, stderr=log, timeout=limit_s
            )
        told = (line.split() for line in done.stdout.decode().splitlines())
        return {app_id: int(wait_ms) / 1e3 for _, app_id, wait_ms in told}


def _put(site: Path, values: dict[str, str]) -> None:
    """Sets properties of a Hadoop file; the last one of a name counts."""
    rows = "".join(f"<property><name>{k}</name><value>{x}</value></property>\n" for k, x in values.items())
    site.write_text(site.read_text().replace("</configuration>", f"{rows}</configuration>"))


def measured(folder: Path, seed: int, minutes: float) -> dict[str, Any]:
    """One run, its replay, and for comparison a replay that knows nothing of queues and labels."""
    jobs, rig = mix(seed, minutes), Labelled(folder, "isonomy", "--off")
    try:
        own = rig.load(jobs, 60 * minutes * 3 + 900)
        log, snapshot, bare = folder / "log" / "resourcemanager.log", folder / "s.zip", folder / "bare.log"
        rig.isonomy("snapshot", "--out", str(snapshot))
        bare.write_text(log.read_text().replace(f"applicationNodeLabel={LABEL}", "applicationNodeLabel="))
        both = ("--policy", "yarn_cs,isonomy", "-o", "json")
        found = json.loads(rig.isonomy("whatif", str(log), "--cluster", str(snapshot), *both))
        machines = str(REPO / "dev-cluster" / "topology.yaml")
        without = json.loads(rig.isonomy("whatif", str(bare), "--cluster", machines, *both))
    finally:
        rig.down()
    past = read_files([log])
    asked_s = {app.app_id: app.submitted_s for app in past.apps.values()}
    off_s = [abs(past.apps[x].began_s - at_s - own[x]) for x, at_s in asked_s.items() if x in own]
    return {
        "seed": seed,
        "minutes": minutes,
        "jobs": len(jobs),
        "with_gpus": sum(job[5] > 0 for job in jobs),
        "ended": len(own),
        "calibration": found["calibration"],
        "ratio": found["calibration"]["replayed_median_s"] / found["calibration"]["real_median_s"],
        "without_queues": without["calibration"],
        "log_against_the_jobs_clock_s": max(off_s, default=None),
        "assumed": found["assumed"],
        "waits": found["waits"]["queue"],
    }


def main() -> int:
    """Measures, prints and judges."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--minutes", type=float, default=120.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", type=Path, help="A folder to keep the cluster's files in.")
    given = parser.parse_args()
    folder = given.keep or Path(tempfile.mkdtemp())
    found = measured(folder, given.seed, given.minutes)
    print(json.dumps(found, indent=1))
    if given.keep is None:
        shutil.rmtree(folder)
    return int(abs(found["ratio"] - 1) > PART or found["ended"] < found["jobs"])


if __name__ == "__main__":
    sys.exit(main())
