"""A run's report: a value for a file, and the same for people."""

from __future__ import annotations

import subprocess
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.chaos.faults import Begun
from tests.chaos.work import AppWork
from tests.cluster.rig import REPO

GOOD = "SUCCEEDED"


def commit() -> str:
    """The running commit, with `+` if files differ from it."""
    words = ["git", "-C", str(REPO), "describe", "--always", "--dirty=+", "--abbrev=10", "--exclude=*"]
    return subprocess.run(words, capture_output=True, text=True, check=False).stdout.strip()


def refusal(e: BaseException) -> str:
    """The reason why a client did not submit its job: the line that it prints."""
    if isinstance(e, subprocess.TimeoutExpired):
        return f"the client said nothing for {e.timeout:.0f} s"
    lines = str(e).strip().splitlines() or [type(e).__name__]
    return next((line for line in reversed(lines) if line.startswith("submarine:")), lines[-1])[:300]


def outcome(app: Mapping[str, Any]) -> str:
    """How a YARN application ended."""
    return str(app["finalStatus"] if app["state"] == "FINISHED" else app["state"])


def app_rows(apps: Sequence[Mapping[str, Any]], work: Mapping[str, AppWork]) -> list[dict[str, Any]]:
    """The history of each app, in the order of submission."""
    rows = []
    for app in sorted(apps, key=lambda a: int(a["startedTime"])):
        mine = work.get(app["id"], AppWork())
        rows.append(
            {
                "name": app["name"],
                "id": app["id"],
                "outcome": outcome(app),
                "submitted_s": app["startedTime"] / 1000,
                "seconds": app["elapsedTime"] / 1000,
                "attempts": mine.attempts,
                "launches": mine.launches,
                "restarts": mine.restarts,
                "lost_steps": mine.lost_steps,
                "lost_s": mine.lost_s,
            }
        )
    return rows


def fault_rows(begun: Sequence[Begun]) -> list[dict[str, Any]]:
    """The faults that hit a target."""
    return [asdict(f) for f in begun]


def again(seed: int, minutes: float, folder: Path) -> str:
    """How to repeat a failed run."""
    return (
        f"to play it again: make chaos SEED={seed} MINUTES={minutes:g}\n"
        f"what it left: logs in {folder}/log and {folder}/data/nodemanager-*/log, the journal in {folder}/isonomy"
        f" (isonomy audit --cluster-dir {folder})"
    )


def table(report: Mapping[str, Any], folder: Path) -> str:
    """For people: the verdict last, where a terminal shows it; `folder` is the cluster's."""
    lines = ["", f"{'AT':8}  FAULT"]
    lines += [f"{_clock(f['at_s'])}  {f['text']}" for f in report["faults"]]
    lines += [
        "",
        f"{'SUBMITTED':9}  {'APP':18} {'OUTCOME':10} {'SECONDS':>7} {'ATTEMPTS':>8} {'LAUNCHES':>8} "
        f"{'RESTARTS':>8} {'STEPS LOST':>10} {'LOST S':>7}",
    ]
    lines += [
        f"{_clock(a['submitted_s']):9}  {a['name']:18} {a['outcome']:10} {a['seconds']:7.0f} {a['attempts']:8} "
        f"{a['launches']:8} {a['restarts']:8} {a['lost_steps']:10} {a['lost_s']:7.1f}"
        for a in report["apps"]
    ]
    kinds = Counter(f["name"] for f in report["faults"])
    audit = report["audit"]
    lines += ["", f"{'PROGRAM':16} {'':>9} {'MIB':>7} {'THREADS':>7} {'FILES':>7}   (the largest process)"]
    lines += [
        f"{name:16} {phase.replace('_', ' '):>9} {size['mib']:7.1f} {size['threads']:7} {size['files']:7}"
        for name, phases in report["sizes"].items()
        for phase, size in phases.items()
        if size
    ]
    lines += [
        "",
        f"faults by kind: {', '.join(f'{n} {name}' for name, n in sorted(kinds.items()))}",
        f"apps: {sum(a['outcome'] == GOOD for a in report['apps'])} of {len(report['apps'])} succeeded; "
        f"{report['submissions_refused']} submissions were refused; "
        f"the control plane was started {report['control_plane_starts']} times",
        f"wrong clocks: the journal says {report['clocks_behind']} times that the control plane's was behind",
        f"losses: {report['losses_compared']} compared, the largest difference {report['largest_difference']:.1e}",
        f"audit: {len(audit.get('violations', []))} violations; checked {audit.get('checked', 'nothing')}",
        f"processes: looked at {report['looks']} times",
        f"half-written on HDFS: {len(report['half_written'])}",
        *(f"PROBLEM {p}" for p in report["problems"]),
        *([again(report["seed"], report["minutes"], folder)] if report["problems"] else []),
        f"{'FAILED' if report['problems'] else 'clean'}: seed {report['seed']}, {report['minutes']:g} minutes, "
        f"{report['world']}, commit {report['commit']}",
    ]
    return "\n".join(lines)


def _clock(unix_s: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(unix_s))
