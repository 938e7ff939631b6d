"""Checks of Hadoop's files for the settings that Isonomy needs."""

from __future__ import annotations

import re
from collections.abc import Iterator

from pycontrol.config import Config
from pycontrol.hadoopconf import production
from pycontrol.hadoopconf.findings import Finding, error, note
from pycontrol.hadoopconf.names import GPU, OUR_RUNTIME, SCHEDULER, YARN
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


def core_site(site: dict[str, str]) -> Iterator[Finding]:
    """core-site.xml."""
    if "://" not in site.get("fs.defaultFS", ""):
        got = site.get("fs.defaultFS", "nothing")
        yield error("core-site.xml", "fs.defaultFS", f"must look like hdfs://host:port (got {got})")


def yarn_site(site: dict[str, str]) -> Iterator[Finding]:
    """yarn-site.xml."""
    for key in site:
        if key in OBSOLETE:
            yield note(YARN, key, "is obsolete: an upgrade reads it once, then `isonomy mode` switches; remove it then")
        elif key.startswith("isonomy.") and key not in OUR_KEYS:
            yield error(YARN, key, f"unknown key, {suggest(key, OUR_KEYS)}")
    yield from _mode(site)
    for key, least, most in (
        ("isonomy.bridge.port", 1, 65535),
        ("isonomy.bridge.queue-size", 1, 10**9),
        ("isonomy.nm.gpu-wait-ms", 0, 10**9),
    ):
        if key in site and not (site[key].isdecimal() and least <= int(site[key]) <= most):
            yield error(YARN, key, f"must be a whole number from {least} to {most} (got {site[key]})")
    yield from _yarn_notes(site)
    yield from production.yarn_site(site)


def _mode(site: dict[str, str]) -> Iterator[Finding]:
    """Checks which nodes get leases in mode on."""
    executor = site.get("isonomy.scheduler.require-executor", "true")
    if executor not in ("true", "false"):
        yield error(YARN, "isonomy.scheduler.require-executor", f"must be true or false (got {executor})")
    elif executor == "false":
        yield note(
            YARN,
            "isonomy.scheduler.require-executor",
            "is false: containers also go to nodes whose executor shows them all GPUs",
        )


def _yarn_notes(site: dict[str, str]) -> Iterator[Finding]:
    if site.get("yarn.admin.acl", "*").strip() == "*":
        yield note(YARN, "yarn.admin.acl", "is *: anyone may kill apps and drain nodes; name the administrators")
    attempts = site.get("yarn.resourcemanager.am.max-attempts", "2")
    if attempts.isdecimal() and int(attempts) < 2:
        yield note(YARN, "yarn.resourcemanager.am.max-attempts", "is below 2: an app ends with its first AM")
    if site.get("yarn.webapp.enable-rest-app-submissions") == "true":
        yield note(YARN, "yarn.webapp.enable-rest-app-submissions", "is true: apps may be submitted over REST")


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


def node_resources(site: dict[str, str]) -> Iterator[Finding]:
    """node-resources.xml."""
    key = f"yarn.nodemanager.resource-type.{GPU}"
    if not site.get(key, "").isdecimal():
        got = site.get(key) or "nothing"
        yield error("node-resources.xml", key, f"must be this machine's number of GPUs (got {got})")


def submarine_site(site: dict[str, str]) -> Iterator[Finding]:
    """submarine-site.xml."""
    if site.get("submarine.runtime.class") != OUR_RUNTIME:
        got = site.get("submarine.runtime.class", "nothing")
        yield error("submarine-site.xml", "submarine.runtime.class", f"must be {OUR_RUNTIME} (got {got})")


def capacity_scheduler(site: dict[str, str]) -> Iterator[Finding]:
    """capacity-scheduler.xml."""
    if not site.get(f"{PREFIX}root.queues"):
        yield error(SCHEDULER, f"{PREFIX}root.queues", "is missing; name the queues below root")
        return
    yield from _queues(site, f"{PREFIX}root")
    yield from production.capacity_scheduler(site)


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
