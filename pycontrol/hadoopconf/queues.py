"""The queues of a capacity-scheduler.xml as the plugin reports them, for replays of a cluster that is not at hand."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from pycontrol.configerror import ConfigError
from pycontrol.hadoopconf.names import GPU, SCHEDULER
from pycontrol.hadoopconf.sitefile import names, read_site
from pycontrol.model.cluster import PartitionCapacity, Queue
from pycontrol.words import count

PREFIX = "yarn.scheduler.capacity."
_WEIGHT = re.compile(r"(\d+(?:\.\d+)?)w")


def read_queues(file: Path, gpus: int, used: Iterable[str] = ()) -> tuple[Queue, ...]:
    """All queues of the file, root first, on a cluster with so many GPUs; raises ConfigError, also if it lacks the leaf
    queue of an app (`used`).

    Capacities are percent, weights or absolute resources, of which the GPUs count. Node labels are left out.
    """
    site = read_site(file)
    if not site.get(f"{PREFIX}root.queues"):
        raise ConfigError([f"{file}: {PREFIX}root.queues is missing; is it a {SCHEDULER}?"])
    try:
        root = Queue("root", leaf=False, partitions={"": PartitionCapacity()}, user_limit_factor=-1.0)
        found = root, *_below(site, root, gpus)
    except ValueError as e:
        raise ConfigError([f"{file}: {e}"]) from e
    apps = Counter(used)
    lost = sorted(apps.keys() - {queue.path for queue in found if queue.leaf})
    if lost:
        raise ConfigError([f"{file}: has no leaf queue {lost[0]}, that of {count(apps[lost[0]], 'app')}"])
    return found


def _below(site: Mapping[str, str], parent: Queue, gpus: int) -> Iterator[Queue]:
    paths = [f"{parent.path}.{name}" for name in names(site.get(f"{PREFIX}{parent.path}.queues", ""))]
    given = {path: site.get(f"{PREFIX}{path}.capacity", "") for path in paths}
    weights = sum(float(found[1]) for text in given.values() if (found := _WEIGHT.fullmatch(text)))
    for path, text in given.items():
        queue = _queue(
            site, path, parent, _share(path, "capacity", text, parent.capacity / (weights or 1.0), gpus), gpus
        )
        yield queue
        yield from _below(site, queue, gpus)


def _queue(site: Mapping[str, str], path: str, parent: Queue, least: tuple[float, int | None], gpus: int) -> Queue:
    text = site.get(f"{PREFIX}{path}.maximum-capacity", "100")
    most, most_gpus = _share(path, "maximum-capacity", "100" if text == "-1" else text, parent.max_capacity, gpus)
    most = min(most, parent.max_capacity)
    limit = site.get(
        f"{PREFIX}{path}.minimum-user-limit-percent", site.get(f"{PREFIX}minimum-user-limit-percent", "100")
    )
    return Queue(
        path,
        least[0],
        most,
        not names(site.get(f"{PREFIX}{path}.queues", "")),
        user_limit=float(limit) / 100.0,
        user_limit_factor=float(site.get(f"{PREFIX}{path}.user-limit-factor", "1")),
        partitions={"": PartitionCapacity(least[0], most, least[1], most_gpus)},
        stopped=parent.stopped or site.get(f"{PREFIX}{path}.state", "RUNNING") != "RUNNING",
    )


def _share(path: str, end: str, text: str, whole: float, gpus: int) -> tuple[float, int | None]:
    """(fraction of the cluster, GPUs if it is given as resources); `whole`: what 100 percent, or a weight of 1, are."""
    if text.startswith("["):
        amounts = dict(part.strip().split("=", 1) for part in text.strip("[] ").split(",") if "=" in part)
        amount = int(amounts.get(GPU, "0"))
        return amount / max(1, gpus), amount
    weight = _WEIGHT.fullmatch(text)
    try:
        return whole * (float(weight[1]) if weight else float(text) / 100.0), None
    except ValueError:
        wanted = f"must be percent, a weight (4w) or resources ([{GPU}=8])"
        raise ValueError(f"{PREFIX}{path}.{end}: {wanted} (got {text or 'nothing'})") from None
