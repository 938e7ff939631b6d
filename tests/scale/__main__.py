"""`python -m tests.scale`: a real ResourceManager with simulated NodeManagers and apps, beside a real `isonomy serve`.

The same nodes, apps and asks once under the plugin and once under plain CapacityScheduler, one after the other. Prints
JSON: placements, times, CPU and memory of both processes, sizes of the journal, latencies of each view.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import platform
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from pycontrol.runtime.journal_check import check_journal
from tests.daemon.conftest import free_ports
from tests.daemon.serving import COMMAND

ROOT = Path(__file__).parents[2]
MODULE = ROOT / "yarn-plugin" / "rm"
WIRE = ROOT / "yarn-plugin" / "wire"
VIEWS = ("status", "queue", "leases", "apps", "rounds", "metrics", "explain?app={app}", "audit", "yarn")
YARNS_OWN = "/ws/v1/cluster/metrics"
"""A view of YARN itself, `yarn`: what the ResourceManager's web server takes for one that it need not forward."""
HADOOP = os.environ.get("HADOOP", "3.5.0")
TICK = os.sysconf("SC_CLK_TCK")


def built(compile_first: bool) -> str:
    """The class path of the tests' ResourceManager."""
    listed = MODULE / "target" / "test.classpath"
    if compile_first:
        _compile(listed)
    own = [MODULE / "target" / "test-classes", MODULE / "target" / "classes", WIRE / "target" / "classes"]
    return os.pathsep.join([*map(str, own), listed.read_text(encoding="utf-8").strip()])


def _compile(listed: Path) -> None:
    """The tests alone, against the Hadoop that they run on; the plugin is as `make java` left it."""
    subprocess.run(
        [
            "mvn",
            "-B",
            "-q",
            "-pl",
            "yarn-plugin/rm",
            "-am",
            "test-compile",
            "dependency:build-classpath",
            "-Dmaven.main.skip=true",
            f"-Dhadoop.version={HADOOP}",
            f"-Dmdep.outputFile={Path('target') / listed.name}",
            "-Dmdep.includeScope=test",
        ],
        cwd=ROOT,
        check=True,
        stdout=sys.stderr,
    )


def usage(pid: int) -> tuple[float, int]:
    """(CPU seconds, resident MB) of a process so far."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0, 0
    return (int(fields[11]) + int(fields[12])) / TICK, int(fields[21]) * os.sysconf("SC_PAGE_SIZE") >> 20


def percentiles(values: list[float]) -> dict[str, float]:
    """Of latencies in seconds."""
    ordered = sorted(values)
    if not ordered:
        return {"n": 0}
    at = {"p50_s": 0.5, "p99_s": 0.99}
    return {"n": len(ordered), "max_s": round(ordered[-1], 4)} | {
        name: round(ordered[min(len(ordered) - 1, int(q * len(ordered)))], 4) for name, q in at.items()
    }


class Viewer:
    """Asks for each view in turn, as people and monitors do, and notes how long it takes and what fails.

    Not before the ResourceManager has its nodes, nor once `quiet` is set: what the control plane takes then is its own.
    """

    BASE = "/ws/v1/cluster/isonomy/"

    def __init__(self, port: int, pause_s: float) -> None:
        self.rm, self.pause_s = f"http://127.0.0.1:{port}", pause_s
        self.taken_s: dict[str, list[float]] = {}
        self.failed: dict[str, list[str]] = {}
        self.bytes: dict[str, int] = {}
        self.app = ""
        self.begun, self.quiet = threading.Event(), threading.Event()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Viewer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self.begun.set()
        self._thread.join(30)

    def _run(self) -> None:
        self.begun.wait()
        while not self._stop.wait(self.pause_s):
            for view in VIEWS:
                if self.quiet.is_set() or ("{app}" in view and not self.app):
                    continue
                self._ask(view)
                if self._stop.wait(self.pause_s):
                    return

    def _ask(self, view: str) -> None:
        name, begin_s = view.partition("?")[0], time.monotonic()
        path = YARNS_OWN if name == "yarn" else self.BASE + view.format(app=self.app)
        try:
            with urllib.request.urlopen(self.rm + path, timeout=30) as answer:
                body = answer.read()
        except OSError as e:
            text = e.read(200).decode() if isinstance(e, urllib.error.HTTPError) else ""
            self.failed.setdefault(name, []).append(f"{e} {text}".strip())
            return
        self.taken_s.setdefault(name, []).append(time.monotonic() - begin_s)
        self.bytes[name] = len(body)
        if name == "queue":
            apps = json.loads(body)["apps"]
            self.app = apps[0]["app_id"] if apps else ""

    def report(self) -> dict[str, Any]:
        """By view, and of all of them."""
        found = {
            name: percentiles(taken) | {"bytes": self.bytes.get(name, 0), "failed": self.failed.get(name, [])}
            for name in sorted(self.taken_s.keys() | self.failed.keys())
            for taken in [self.taken_s.get(name, [])]
        }
        ours = [s for name, taken in self.taken_s.items() if name != "yarn" for s in taken]
        return {"all": percentiles(ours), **found}


@contextlib.contextmanager
def control_plane(folder: Path) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """(a serving control plane, its port for the plugin)."""
    bridge, agents = free_ports(2)
    config = folder / "isonomy.yaml"
    config.write_text(
        yaml.safe_dump(
            {
                "state_dir": "state",
                "bridge": {"port": bridge},
                "agents": {"host": "127.0.0.1", "port": agents, "advertise": f"127.0.0.1:{agents}"},
            }
        )
    )
    log = (folder / "serve.log").open("w")
    process = subprocess.Popen([*COMMAND, str(config)], stdout=subprocess.PIPE, stderr=log, text=True, cwd=ROOT)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line.startswith("ready: "):
            raise SystemExit(f"the control plane did not start; see {folder / 'serve.log'}")
        yield process, bridge
    finally:
        process.terminate()
        process.wait(30)
        log.close()


def run_rm(
    args: argparse.Namespace,
    classpath: str,
    scheduler: str,
    folder: Path,
    plane: subprocess.Popen[str] | None,
    options: list[str],
    web: int,
    viewer: Viewer | None = None,
) -> dict[str, Any]:
    """One life of a ResourceManager, until all asks are served and some time of rest after, half of it unwatched."""
    command = [
        "java",
        f"-Xmx{args.heap}",
        "-XX:+UseSerialGC",
        "-XX:-UsePerfData",
        "-cp",
        classpath,
        f"-Dscale.scheduler={scheduler}",
        f"-Dscale.nodes={args.nodes}",
        f"-Dscale.apps={args.apps}",
        f"-Dscale.gpus={args.gpus}",
        f"-Dscale.idle_s={args.idle}",
        f"-Dscale.limit_s={args.limit}",
        f"-Dscale.web={web}",
        *options,
        "isonomy.yarn.scale.ScaleRun",
    ]
    samples: list[dict[str, Any]] = []
    with (folder / f"{scheduler}.log").open("w") as log:
        rm = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, cwd=folder)
        try:
            assert rm.stdout is not None
            for line in rm.stdout:
                if not line.startswith('{"at_s"'):
                    log.write(line)
                    continue
                sample = json.loads(line)
                if plane is not None:
                    sample["plane_cpu_s"], sample["plane_mb"] = usage(plane.pid)
                sample["rm_mb"] = usage(rm.pid)[1]
                samples.append(sample)
                if viewer is not None:
                    viewer.begun.set()
                    served_s = next(s["at_s"] for s in samples if s is sample or s["allocated"] >= s["wanted"])
                    if sample["at_s"] > served_s + args.idle / 2:
                        viewer.quiet.set()
                        sample["quiet"] = True
                if len(samples) % 10 == 1:
                    print(f"{scheduler}: {line.strip()}", file=sys.stderr)
        finally:
            rm.kill()
            rm.wait(30)
    if not samples or not samples[-1].get("end"):
        raise SystemExit(f"the ResourceManager ended early; see {folder / f'{scheduler}.log'}")
    return summary(samples)


def at(samples: list[dict[str, Any]], at_s: float | None) -> dict[str, Any]:
    """The first sample at or after a time; the last without one."""
    return next((s for s in samples if at_s is not None and s["at_s"] >= at_s), samples[-1])


def summary(samples: list[dict[str, Any]]) -> dict[str, Any]:
    """What a life of the ResourceManager came to."""
    end = samples[-1]
    asked, served = at(samples, end["asked_s"]), at(samples, end["served_s"])
    steps = [
        (b["allocated"] - a["allocated"]) / (b["at_s"] - a["at_s"])
        for a, b in itertools.pairwise(samples)
        if b["at_s"] > a["at_s"]
    ]
    took_s = (end["served_s"] or end["at_s"]) - end["asked_s"]
    found = {
        "wanted": end["wanted"],
        "allocated": end["allocated"],
        "running": end["running"],
        "served": end["served_s"] is not None,
        "registered_s": round(at(samples, 0.0)["at_s"], 2),
        "all_served_after_s": round(took_s, 2),
        "placements_per_s": round(end["allocated"] / took_s, 1),
        "best_second": round(max(steps, default=0.0), 1),
        "rm_cpu_s": {"placing": round(served["cpu_s"] - asked["cpu_s"], 2), "in_all": end["cpu_s"]},
        "rm_mb": max(s["rm_mb"] for s in samples),
        "heap_mb": end["heap_mb"],
        **{k: end[k] for k in ("heartbeat_placing", "heartbeat_idle", "node_added", "other_events")},
    }
    if "plane_cpu_s" in end:
        quiet = next((s for s in samples if s.get("quiet")), served)
        rest_s = max(1e-9, end["at_s"] - quiet["at_s"])
        found["control_plane"] = {
            "cpu_s": {"placing": round(served["plane_cpu_s"] - asked["plane_cpu_s"], 2), "in_all": end["plane_cpu_s"]},
            "idle_share_of_a_core": round((end["plane_cpu_s"] - quiet["plane_cpu_s"]) / rest_s, 4),
            "mb": max(s["plane_mb"] for s in samples),
        }
    return found


def measured(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Both lives."""
    classpath = built(not args.built)
    result: dict[str, Any] = {
        "machine": {"cores": os.cpu_count(), "load": os.getloadavg(), "python": platform.python_version()},
        "nodes": args.nodes,
        "gpus": args.nodes * args.gpus,
        "apps": args.apps,
    }
    with control_plane(folder) as (plane, bridge):
        [web] = free_ports(1)
        options = [f"-Disonomy.bridge.port={bridge}", f"-Disonomy.bridge.token-file={folder / 'state/bridge.token'}"]
        with Viewer(web, args.pause) as viewer:
            result["isonomy"] = run_rm(args, classpath, "isonomy", folder, plane, options, web, viewer)
        result["views"] = viewer.report()
        journal = folder / "state" / "journal.sqlite"
        result["journal"] = {k: v for k, v in check_journal(journal).items() if k != "file"}
    begin_s = time.monotonic()
    with control_plane(folder) as (plane, _):
        result["restart_to_ready"] = {"wall_s": round(time.monotonic() - begin_s, 2), "cpu_s": usage(plane.pid)[0]}
    log = (folder / "serve.log").read_text(encoding="utf-8")
    result["log"] = {level: log.count(f"[{level:<9}]") for level in ("warning", "error")}
    [web] = free_ports(1)
    result["capacity"] = run_rm(args, classpath, "capacity", folder, None, [], web)
    ratios = {
        "all_served_after": (result["isonomy"]["all_served_after_s"], result["capacity"]["all_served_after_s"]),
        "heartbeat_idle_median": tuple(result[k]["heartbeat_idle"]["median_us"] for k in ("isonomy", "capacity")),
        "rm_cpu_placing": tuple(result[k]["rm_cpu_s"]["placing"] for k in ("isonomy", "capacity")),
    }
    result["ratios_to_capacity"] = {k: round(a / b, 3) if b else None for k, (a, b) in ratios.items()}
    return result


def problems(result: dict[str, Any]) -> list[str]:
    """What must hold at every size."""
    found = []
    for scheduler in ("isonomy", "capacity"):
        life = result[scheduler]
        if not life["served"]:
            found.append(f"{scheduler}: {life['allocated']} of {life['wanted']} asks were served in time")
        if life["running"] > life["wanted"]:
            found.append(f"{scheduler}: {life['running']} containers run, {life['wanted']} were asked for")
    missing = [name for name, view in result["views"].items() if not view["n"]]
    if missing:
        found.append(f"views that never answered: {', '.join(missing)}")
    if not result["journal"]["readable"]:
        found.append("a control plane would refuse the journal")
    return found


def main() -> int:
    """Prints the JSON; exit status 1 if something that must hold did not."""
    parser = argparse.ArgumentParser(prog="python -m tests.scale", description=__doc__)
    parser.add_argument("--nodes", type=int, default=250)
    parser.add_argument("--gpus", type=int, default=8, help="of each node")
    parser.add_argument("--apps", type=int, default=200)
    parser.add_argument("--idle", type=float, default=20.0, help="seconds of rest after all is served")
    parser.add_argument("--limit", type=float, default=600.0, help="seconds for all of one ResourceManager's life")
    parser.add_argument("--pause", type=float, default=0.2, help="seconds between two views")
    parser.add_argument("--heap", default="3g", help="of the ResourceManager")
    parser.add_argument("--built", action="store_true", help="the Java part is compiled already")
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "scale", help="logs, state and result.json")
    args = parser.parse_args()
    folder = args.folder.resolve() / f"{args.nodes}x{args.gpus}-{time.strftime('%Y%m%dT%H%M%S')}"
    folder.mkdir(parents=True)
    result = measured(args, folder)
    result["problems"] = problems(result)
    text = json.dumps(result, indent=2)
    (folder / "result.json").write_text(text + "\n", encoding="utf-8")
    print(text)
    return 1 if result["problems"] else 0


if __name__ == "__main__":
    sys.exit(main())
