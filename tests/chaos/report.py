"""A run's report: a value for a file, and the same for people."""

from __future__ import annotations

import subprocess
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from tests.chaos.faults import Begun
from tests.chaos.work import AppWork
from tests.cluster.rig import REPO

GOOD = "SUCCEEDED"


def commit() -> str:
    """What runs: the commit, `+` where files differ from it."""
    words = ["git", "-C", str(REPO), "describe", "--always", "--dirty=+", "--abbrev=10", "--exclude=*"]
    return subprocess.run(words, capture_output=True, text=True, check=False).stdout.strip()


def outcome(app: Mapping[str, Any]) -> str:
    """How an app of YARN's ended."""
    return str(app["finalStatus"] if app["state"] == "FINISHED" else app["state"])


def app_rows(apps: Sequence[Mapping[str, Any]], work: Mapping[str, AppWork]) -> list[dict[str, Any]]:
    """What happened to each app, the first submitted first."""
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
    """The faults that found somebody."""
    return [asdict(f) for f in begun]


def table(report: Mapping[str, Any]) -> str:
    """For people: the verdict last, where a terminal shows it."""
    lines = ["", f"{'AT':8}  FAULT"]
    lines += [f"{_clock(f['at_s'])}  {f['text']}" for f in report["faults"]]
    lines += ["", f"{'SUBMITTED':9}  {'APP':18} {'OUTCOME':10} {'SECONDS':>7} {'ATTEMPTS':>8} {'LAUNCHES':>8} "
                  f"{'RESTARTS':>8} {'STEPS LOST':>10} {'LOST S':>7}"]  # fmt: skip
    lines += [f"{_clock(a['submitted_s']):9}  {a['name']:18} {a['outcome']:10} {a['seconds']:7.0f} {a['attempts']:8} "
              f"{a['launches']:8} {a['restarts']:8} {a['lost_steps']:10} {a['lost_s']:7.1f}"
              for a in report["apps"]]  # fmt: skip
    kinds = Counter(f["name"] for f in report["faults"])
    audit = report["audit"]
    lines += [
        "",
        f"faults by kind: {', '.join(f'{n} {name}' for name, n in sorted(kinds.items()))}",
        f"apps: {sum(a['outcome'] == GOOD for a in report['apps'])} of {len(report['apps'])} succeeded; "
        f"the control plane was started {report['control_plane_starts']} times",
        f"losses: {report['losses_compared']} compared, the largest difference {report['largest_difference']:.1e}",
        f"audit: {len(audit.get('violations', []))} violations; checked {audit.get('checked', 'nothing')}",
        *(f"PROBLEM {p}" for p in report["problems"]),
        f"{'FAILED' if report['problems'] else 'clean'}: seed {report['seed']}, {report['minutes']:g} minutes, "
        f"{'with' if report['cells'] else 'without'} cells, commit {report['commit']}",
    ]
    return "\n".join(lines)


def _clock(unix_s: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(unix_s))
