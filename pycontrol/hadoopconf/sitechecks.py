"""Checks of Hadoop's files for the settings that Isonomy needs."""

from __future__ import annotations

import re
from collections.abc import Iterator

from pycontrol.config import Config
from pycontrol.hadoopconf import rules
from pycontrol.hadoopconf.findings import Finding, error, note
from pycontrol.hadoopconf.names import SCHEDULER, YARN
from pycontrol.hadoopconf.queues import PREFIX, child_names
from pycontrol.words import suggest

OUR_KEYS = (
    "isonomy.bridge.host",
    "isonomy.bridge.port",
    "isonomy.bridge.token-file",
    "isonomy.bridge.queue-size",
    "isonomy.scheduler.mode-dir",
    "isonomy.scheduler.require-executor",
    "isonomy.nm.evidence-file",
    "isonomy.nm.gpu-wait-ms",
    "isonomy.nm.gpu-minors",
)


OBSOLETE = ("isonomy.scheduler.mode", "isonomy.scheduler.queues", "isonomy.scheduler.bypass")
"""What an upgrade reads once; then the stored mode alone counts."""


def yarn_site(site: dict[str, str]) -> Iterator[Finding]:
    """yarn-site.xml."""
    for key in site:
        if key in OBSOLETE:
            yield note(YARN, key, "is obsolete: an upgrade reads it once, then `isonomy mode` switches; remove it then")
        elif key.startswith("isonomy.") and key not in OUR_KEYS:
            yield error(YARN, key, f"unknown key, {suggest(key, OUR_KEYS)}")
    for key in site:
        if key.startswith("yarn.scheduler.fair."):
            yield error(
                YARN,
                key,
                "is FairScheduler's, Isonomy needs CapacityScheduler: convert the queues (`yarn fs2cs`), remove it",
            )
            break
    yield from rules.broken(rules.YARN_RULES, site)


def agreement(site: dict[str, str], config: Config) -> Iterator[Finding]:
    """Checks that yarn-site.xml and isonomy.yaml agree."""
    for key, ours, default, name in (
        ("isonomy.bridge.host", config.bridge.host, "127.0.0.1", "bridge.host"),
        ("isonomy.bridge.port", str(config.bridge.port), "26500", "bridge.port"),
        ("isonomy.bridge.token-file", str(config.bridge.token_file), "", "bridge.token_file"),
    ):
        theirs = site.get(key, default)
        if theirs != ours:
            got = theirs or "not set"
            yield error(YARN, key, f"is {got}, but isonomy.yaml: {name} is {ours}; make them equal")
    if site.get("yarn.resourcemanager.ha.enabled") == "true":
        if "," not in (config.agents.advertise or ""):
            yield error(
                "isonomy.yaml",
                "agents.advertise",
                "must name the control planes of both ResourceManagers, else Agents do not find the other one",
            )
        if config.standby is None:
            yield error("isonomy.yaml", "standby", "is not set: a failover would lose apps and fairness clocks")


def capacity_scheduler(site: dict[str, str]) -> Iterator[Finding]:
    """capacity-scheduler.xml."""
    if not site.get(f"{PREFIX}root.queues"):
        yield error(SCHEDULER, f"{PREFIX}root.queues", "is missing; name the queues below root")
        return
    yield from _queues(site, f"{PREFIX}root")
    unlimited = next((k for k, value in site.items() if k.endswith(".user-limit-factor") and value == "-1"), None)
    if unlimited is not None:
        yield note(
            SCHEDULER, unlimited, "is -1 (no limit): Hadoop 3.3 then refuses every application; 100 has the same effect"
        )


def _queues(site: dict[str, str], parent: str) -> Iterator[Finding]:
    children = [f"{parent}.{name}" for name in child_names(site, parent)]
    capacities = [site.get(f"{child}.capacity", "") for child in children]
    numbers = [n for n in map(_number, capacities) if n is not None]
    for child, text in zip(children, capacities, strict=True):
        if not text:
            yield error(SCHEDULER, f"{child}.capacity", "is missing; give it in percent, as a weight (4w) or absolute")
        elif _number(text) is None and not _AMOUNT.fullmatch(text):
            yield error(SCHEDULER, f"{child}.capacity", f"must be percent, a weight or [resource=amount] (got {text})")
    zero = site.get(f"{parent}.allow-zero-capacity-sum") == "true" and not sum(numbers)
    if len(numbers) == len(children) and abs(sum(numbers) - 100) > 0.01 and not zero:
        yield error(SCHEDULER, f"{parent}.queues", f"their capacities must add up to 100 (got {sum(numbers):g})")
    for child in children:
        if site.get(f"{child}.queues"):
            yield from _queues(site, child)
        else:
            yield from _leaf(site, child)


_AMOUNT = re.compile(r"\d+(\.\d+)?w|\[\s*[^=\s,\]]+\s*=[^=,\]]+(,[^=,\]]+=[^=,\]]+)*\]")
"""A weight, or absolute resources as in [memory=4096,yarn.io/gpu=8]."""


def _leaf(site: dict[str, str], queue: str) -> Iterator[Finding]:
    """A queue's limits; they are its administrator's policy, so that none is an error if YARN accepts it."""
    keys = {end: f"{queue}.{end}" for end in ("capacity", "maximum-capacity", "user-limit-factor")}
    most = site.get(keys["maximum-capacity"], "100")
    capacity, maximum = _number(site.get(keys["capacity"], "")), _number(most)
    factor = _number(site.get(keys["user-limit-factor"], "1"))
    if not 0 <= (maximum or 0) <= 100 or (maximum is None and not _AMOUNT.fullmatch(most)):
        yield error(SCHEDULER, keys["maximum-capacity"], f"must be percent or [resource=amount] (got {most})")
        return
    if maximum is None or 0 <= maximum < 100:
        yield note(SCHEDULER, keys["maximum-capacity"], f"is {most}: offers to its apps end there (reason QueueLimit)")
    if factor is None or (factor != -1 and factor <= 0):
        got = site[keys["user-limit-factor"]]
        yield error(SCHEDULER, keys["user-limit-factor"], f"must be > 0, or -1 (got {got})")
    elif capacity == 0:
        yield note(SCHEDULER, keys["capacity"], "is 0: without one under a label the queue accepts no application")
    elif capacity is not None and maximum is not None and factor != -1 and capacity * factor < maximum:
        yield note(
            SCHEDULER,
            keys["user-limit-factor"],
            f"is {factor:g}: one user's GPUs end at {capacity * factor:g} % of the parent queue, though the queue may"
            f" have {maximum:g} % (reason QueueLimit)",
        )


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
