"""The history of each app, by its containers' logs: attempts, launches of jobs, steps that were trained twice."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from tests.chaos import logs
from tests.chaos.logs import WorkerLog

CONTAINER = re.compile(r"container_(?:e\d+_)?(\d+_\d+)_(\d+)_\d+")


@dataclass
class AppWork:
    """The work of one app."""

    attempts: int = 0
    launches: int = 0
    restarts: int = 0
    lost_steps: int = 0
    """Trained again, since they came after the checkpoint that the next launch began at."""
    lost_s: float = 0.0


def summed(launches: list[WorkerLog]) -> AppWork:
    """The sum of an app's launches, in any order: all trained steps, less those of a single run."""
    work = AppWork(launches=len(launches))
    by_job = defaultdict[str, list[WorkerLog]](list)
    for launch in launches:
        by_job[launch.job].append(launch)
    for mine in by_job.values():
        again = sum(x.last - x.first for x in mine) - max(x.last for x in mine)
        work.restarts += len(mine) - 1
        work.lost_steps += max(0, again)
        work.lost_s += max(0, again) * max(x.step_s for x in mine)
    return work


def read(data: Path) -> dict[str, AppWork]:
    """By application id, of the NodeManagers' log folders below `data`."""
    attempts, launches = defaultdict[str, set[int]](set), defaultdict[str, list[WorkerLog]](list)
    for file in data.glob("*/log/*/container_*/stderr"):
        name = CONTAINER.fullmatch(file.parent.name)
        if name is None:
            continue
        if file.parent.name.endswith("_000001"):
            attempts[name[1]].add(int(name[2]))
        if told := logs.read(file.read_text(errors="replace")):
            launches[name[1]] += told
    found = {f"application_{app}": summed(launches[app]) for app in attempts.keys() | launches.keys()}
    for app, each in attempts.items():
        found[f"application_{app}"].attempts = max(each)
    return found
