"""The queues of a capacity-scheduler.xml as the plugin reports them, for replays of a cluster that is not at hand."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping
from pathlib import Path

from pycontrol.configerror import ConfigError
from pycontrol.hadoopconf.names import GPU, SCHEDULER
from pycontrol.hadoopconf.sitefile import names, read_site
from pycontrol.model.cluster import PartitionCapacity, Queue
from pycontrol.words import count

PREFIX = "yarn.scheduler.capacity."
LABELS, DEFAULT_LABEL = "accessible-node-labels", "default-node-label-expression"
_WEIGHT = re.compile(r"(\d+(?:\.\d+)?)w")


def read_queues(file: Path, gpus: Mapping[str, int]) -> tuple[Queue, ...]:
    """All queues of the file, root first, on a cluster with so many GPUs by node label ("": without one); ConfigError.

    Capacities are percent, weights or absolute resources, of which the GPUs count.
    """
    site = read_site(file)
    if not site.get(f"{PREFIX}root.queues"):
        raise ConfigError([f"{file}: {PREFIX}root.queues is missing; is it a {SCHEDULER}?"])
    whole = {label: PartitionCapacity() for label in ("", *gpus)}
    root = Queue("root", leaf=False, partitions=whole, user_limit_factor=-1.0)
    try:
        return root, *_below(site, root, gpus)
    except ValueError as e:
        raise ConfigError([f"{file}: {e}"]) from e


def homes(
    queues: Iterable[Queue], used: Iterable[tuple[str, str | None]], where: str, labels: Container[str] | None = None
) -> dict[str, str]:
    """Queue as an app names it -> the path of that leaf queue; without queues, the same.

    `used`: the queue of each app, perhaps without its parents, and its node label; None: its queue's. ConfigError says
    which leaf queue is missing in `where`, or which label no machine or queue has. `labels`: of machines, "" for none.
    """
    leaves, found = {q.path: q for q in queues if q.leaf}, dict[str, str]()
    for (name, label), n in Counter(used).items():
        paths = [p for p in leaves if p == name] or [p for p in leaves if p.endswith(f".{name}")]
        if leaves and len(paths) != 1:
            cure = (
                f"add it to its parent's key (as {PREFIX}root.queues), or replay some queues only: WORKLOAD,queues=a+b"
            )
            raise ConfigError([f"{where}: has no leaf queue {name}, that of {count(n, 'app')}; {cure}"])
        found[name] = path = paths[0] if leaves else name
        queue = leaves.get(path, Queue(path))
        here = queue.default_partition if label is None else label
        said = f"the node label {here or '(none)'} of {count(n, 'app')}"
        if labels is not None and here not in labels:
            key = f" ({PREFIX}{path}.{DEFAULT_LABEL})" if label is None and here else ""
            cure = "a snapshot of your cluster knows them: isonomy snapshot --out s.zip, then --cluster s.zip"
            raise ConfigError([f"{where}: no machine has {said}{key}; {cure}"])
        if queue.partitions and here not in queue.partitions:
            raise ConfigError([f"{where}: {PREFIX}{path}.{LABELS} lacks {said}; add it there"])
    return found


def _below(site: Mapping[str, str], parent: Queue, gpus: Mapping[str, int]) -> Iterator[Queue]:
    paths = [f"{parent.path}.{name}" for name in names(site.get(f"{PREFIX}{parent.path}.queues", ""))]
    own: dict[str, dict[str, PartitionCapacity]] = {path: {} for path in paths}
    for label, whole in parent.partitions.items():
        keys = {path: f"{PREFIX}{path}.{LABELS}.{label}" if label else f"{PREFIX}{path}" for path in paths}
        texts = {path: _of_gpus(site.get(f"{key}.capacity", "0" if label else "")) for path, key in keys.items()}
        weights = sum(float(found[1]) for text in texts.values() if (found := _WEIGHT.fullmatch(text)))
        for path, key in keys.items():
            may = site.get(f"{PREFIX}{path}.{LABELS}", "*")
            if not label or "*" in may or label in names(may):
                own[path][label] = _share(site, key, texts[path], whole, weights or 1.0, gpus.get(label, 0))
        if site.get(f"{PREFIX}legacy-queue-mode.enabled") != "false":
            _check(parent.path, label, texts.values())
    for path, partitions in own.items():
        queue = _queue(site, path, parent, partitions)
        yield queue
        yield from _below(site, queue, gpus)


def _queue(site: Mapping[str, str], path: str, parent: Queue, partitions: Mapping[str, PartitionCapacity]) -> Queue:
    least = site.get(f"{PREFIX}minimum-user-limit-percent", "100")
    return Queue(
        path,
        partitions[""].capacity,
        partitions[""].max_capacity,
        not names(site.get(f"{PREFIX}{path}.queues", "")),
        user_limit=_number(site, f"{PREFIX}{path}.minimum-user-limit-percent", least) / 100.0,
        user_limit_factor=_number(site, f"{PREFIX}{path}.user-limit-factor", "1"),
        partitions=partitions,
        default_partition=site.get(f"{PREFIX}{path}.{DEFAULT_LABEL}", parent.default_partition),
        stopped=parent.stopped or site.get(f"{PREFIX}{path}.state", "RUNNING") != "RUNNING",
    )


def _share(
    site: Mapping[str, str], key: str, text: str, whole: PartitionCapacity, weights: float, gpus: int
) -> PartitionCapacity:
    """What a queue has of its parent's; with weights their sum."""
    most = _of_gpus(site.get(f"{key}.maximum-capacity", "100"))
    least, least_gpus = _part(f"{key}.capacity", text, whole.capacity / weights, gpus)
    end, end_gpus = _part(f"{key}.maximum-capacity", "100" if most == "-1" else most, whole.max_capacity, gpus)
    return PartitionCapacity(least, min(end, whole.max_capacity), least_gpus, end_gpus)


def _check(parent: str, label: str, texts: Iterable[str]) -> None:
    """Raises ValueError where YARN would refuse the capacities of a queue's children."""
    given = [text for text in texts if text.strip("0.")]
    kinds = {"resources" if x[0] == "[" else "weights" if x[-1] == "w" else "percent" for x in given}
    of = f"the capacities of the queues below {parent}" + f" for label {label}" * bool(label)
    if len(kinds) > 1:
        raise ValueError(f"{of}: YARN takes one kind for all (got {' and '.join(sorted(kinds))})")
    if kinds == {"percent"} and abs(100 - (total := sum(map(float, given)))) > 0.05:  # YARN's PRECISION
        raise ValueError(f"{of}: YARN takes 100 percent in all (got {total:g})")


def _of_gpus(text: str) -> str:
    """What a capacity says of GPUs: `[8` for 8 of them, 50 for percent, 4w for a weight."""
    if not text.startswith("["):
        return text
    amount = dict(part.strip().split("=", 1) for part in text.strip("[] ").split(",") if "=" in part).get(GPU, "0")
    return amount.removesuffix("%") if amount.endswith(("%", "w")) else f"[{amount}"


def _number(site: Mapping[str, str], key: str, usual: str) -> float:
    text = site.get(key, usual)
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{key}: must be a number (got {text})") from None


def _part(key: str, text: str, whole: float, gpus: int) -> tuple[float, int | None]:
    """(fraction of the partition, GPUs if given as resources); `whole`: what 100 percent, or a weight of 1, are."""
    weight = _WEIGHT.fullmatch(text)
    try:
        if text.startswith("-"):
            raise ValueError
        if text.startswith("["):
            return int(text[1:]) / max(1, gpus), int(text[1:])
        return whole * (float(weight[1]) if weight else float(text) / 100.0), None
    except ValueError:
        wanted = f"must be percent, a weight (4w) or resources ([{GPU}=8])"
        raise ValueError(f"{key}: {wanted} (got {text.strip('[') or 'nothing'})") from None
