"""Checks of Hadoop's files for the settings that Isonomy needs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pycontrol.config import Config
from pycontrol.hadoopconf import production
from pycontrol.hadoopconf.findings import Finding, error, note
from pycontrol.hadoopconf.names import (
    DOMINANT,
    GPU,
    OLD_WEB,
    OLD_WEB_KEY,
    OUR_EXECUTORS,
    OUR_RUNTIME,
    OUR_SCHEDULER,
    OUR_WEB,
    SCHEDULER,
    YARN,
)
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
_STORE = "yarn.resourcemanager.store.class"


def keeps_mode(site: Mapping[str, str]) -> bool:
    """Whether the ResourceManager's own store is one that the mode can lie beside."""
    return site.get(_STORE, "FileSystemRMStateStore").rpartition(".")[2] in ("ZKRMStateStore", "FileSystemRMStateStore")


def core_site(site: dict[str, str]) -> Iterator[Finding]:
    """core-site.xml."""
    if "://" not in site.get("fs.defaultFS", ""):
        got = site.get("fs.defaultFS", "nothing")
        yield error("core-site.xml", "fs.defaultFS", f"must look like hdfs://host:port (got {got})")


def yarn_site(site: dict[str, str]) -> Iterator[Finding]:
    """yarn-site.xml."""
    yield from _our_classes(site)
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
    if "CUDA_VISIBLE_DEVICES" in site.get("yarn.nodemanager.env-whitelist", ""):
        yield error(YARN, "yarn.nodemanager.env-whitelist", "must not name CUDA_VISIBLE_DEVICES; remove it there")
    yield from _yarn_notes(site)
    yield from production.yarn_site(site)


def _mode(site: dict[str, str]) -> Iterator[Finding]:
    """Checks that the mode has a place, and which nodes get leases in mode on."""
    recovery = site.get("yarn.resourcemanager.recovery.enabled", "false") == "true"
    if not (recovery and keeps_mode(site)) and not site.get("isonomy.scheduler.mode-dir"):
        yield error(
            YARN,
            "isonomy.scheduler.mode-dir",
            "is missing: the ResourceManager keeps no state in ZooKeeper or a file system, beside which the mode would"
            " lie; enable recovery or name a local folder",
        )
    executor = site.get("isonomy.scheduler.require-executor", "true")
    if executor not in ("true", "false"):
        yield error(YARN, "isonomy.scheduler.require-executor", f"must be true or false (got {executor})")
    elif executor == "false":
        yield note(
            YARN,
            "isonomy.scheduler.require-executor",
            "is false: containers also go to nodes whose executor shows them all GPUs",
        )


def _our_classes(site: dict[str, str]) -> Iterator[Finding]:
    for key, wanted, lost in (
        ("yarn.resourcemanager.scheduler.class", (OUR_SCHEDULER,), "GPUs would not be shared by Isonomy"),
        ("yarn.webapp.custom.webservice.class", (OUR_WEB,), "the isonomy command would find no REST"),
        (
            "yarn.nodemanager.container-executor.class",
            OUR_EXECUTORS,
            "containers would not get the GPUs they were granted",
        ),
    ):
        plugins = map(str.strip, site.get("yarn.nodemanager.resource-plugins", "").split(","))
        if wanted == OUR_EXECUTORS and GPU in plugins:
            continue  # before `isonomy mode on` YARN's own GPU plugin assigns GPUs
        if wanted == (OUR_WEB,) and OLD_WEB in site.get(OLD_WEB_KEY, "").split(","):
            continue
        if site.get(key) not in wanted:
            got = site.get(key, "nothing")
            yield error(YARN, key, f"must be {' or '.join(wanted)} (got {got}), else {lost}")


def _yarn_notes(site: dict[str, str]) -> Iterator[Finding]:
    for key, lost in (
        ("yarn.resourcemanager.recovery.enabled", "applications end when the ResourceManager restarts"),
        ("yarn.nodemanager.recovery.enabled", "containers end when their NodeManager restarts"),
    ):
        if site.get(key, "false") != "true":
            yield note(YARN, key, f"is not true: {lost}")
    if site.get("yarn.resourcemanager.scheduler.monitor.enable") == "true":
        yield note(
            YARN,
            "yarn.resourcemanager.scheduler.monitor.enable",
            "is true: CapacityScheduler's own preemption may take leased GPUs back; set it to false",
        )
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


def resource_types(site: dict[str, str]) -> Iterator[Finding]:
    """resource-types.xml."""
    kinds = [kind.strip() for kind in site.get("yarn.resource-types", "").split(",")]
    if GPU not in kinds:
        got = ", ".join(kinds) or "nothing"
        yield error("resource-types.xml", "yarn.resource-types", f"must name {GPU} (got {got})")


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
    prefix = "yarn.scheduler.capacity."
    calculator = site.get(f"{prefix}resource-calculator", "")
    if calculator != DOMINANT:
        yield error(
            SCHEDULER,
            f"{prefix}resource-calculator",
            f"must be {DOMINANT} (got {calculator or 'nothing'}), else GPUs are not counted",
        )
    if not site.get(f"{prefix}root.queues"):
        yield error(SCHEDULER, f"{prefix}root.queues", "is missing; name the queues below root")
        return
    yield from _queues(site, f"{prefix}root")
    yield from production.capacity_scheduler(site)


def _queues(site: dict[str, str], parent: str) -> Iterator[Finding]:
    children = [f"{parent}.{q.strip()}" for q in site.get(f"{parent}.queues", "").split(",") if q.strip()]
    capacities = [site.get(f"{child}.capacity", "") for child in children]
    numbers = [n for n in map(_number, capacities) if n is not None]
    for child, text in zip(children, capacities, strict=True):
        if not text:
            yield error(SCHEDULER, f"{child}.capacity", "is missing; give it in percent")
        elif _number(text) is None and text[-1] not in "w]":
            yield error(SCHEDULER, f"{child}.capacity", f"must be a percentage (got {text})")
    if len(numbers) == len(children) and abs(sum(numbers) - 100) > 0.01:
        yield error(SCHEDULER, f"{parent}.queues", f"their capacities must add up to 100 (got {sum(numbers):g})")
    for child in children:
        if site.get(f"{child}.queues"):
            yield from _queues(site, child)
        else:
            yield from _leaf(site, child)


def _leaf(site: dict[str, str], queue: str) -> Iterator[Finding]:
    capacity = _number(site.get(f"{queue}.capacity", ""))
    maximum = _number(site.get(f"{queue}.maximum-capacity", "100"))
    factor = _number(site.get(f"{queue}.user-limit-factor", "1"))
    if maximum is None or not 0 <= maximum <= 100:
        yield error(
            SCHEDULER, f"{queue}.maximum-capacity", f"must be a percentage (got {site[f'{queue}.maximum-capacity']})"
        )
        return
    if maximum < 100:
        yield note(
            SCHEDULER,
            f"{queue}.maximum-capacity",
            f"is {maximum:g}: offers to the queue's apps end there (reason QueueLimit)",
        )
    if capacity is None:
        return
    if capacity == 0:
        yield error(SCHEDULER, f"{queue}.capacity", "is 0: the queue accepts no application; give it more")
    if factor is None or (factor != -1 and factor <= 0):
        yield error(
            SCHEDULER, f"{queue}.user-limit-factor", f"must be > 0, or -1 (got {site[f'{queue}.user-limit-factor']})"
        )
    elif factor != -1 and capacity * factor < maximum:
        yield error(
            SCHEDULER,
            f"{queue}.user-limit-factor",
            f"is too small: one user is held to {capacity * factor:g} % of the cluster and placements"
            f" beyond are refused; set it to {maximum / max(capacity, 1e-9):g}, or to 100 (no limit)",
        )


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
