"""Checks for settings of production clusters that conflict with Isonomy or behave unexpectedly with it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from pycontrol.hadoopconf.findings import Finding, error, note
from pycontrol.hadoopconf.names import DOMINANT, LINUX_EXECUTOR, SCHEDULER, YARN
from pycontrol.hadoopconf.properties import STORE, mutable

Site = Mapping[str, str]
_RM, _NM = "yarn.resourcemanager.", "yarn.nodemanager."
_LINUX = f"{_NM}linux-container-executor."
AM_EXPIRY_MS = 60_000
"""A shorter expiry is risky: localizing a container's files can take many seconds on a loaded machine."""


def yarn_site(site: Site) -> Iterator[Finding]:
    """Checks yarn-site.xml for YARN's features that affect Isonomy."""
    yield from _ways_past(site)
    yield from _preemption(site)
    yield from _executor(site)
    yield from _kept(site)
    if site.get("yarn.cluster.max-application-priority", "0").strip() == "0":
        yield note(
            YARN,
            "yarn.cluster.max-application-priority",
            "is 0: YARN makes every application's priority 0; set it for priorities among a queue's apps",
        )
    if site.get("yarn.node-attribute.fs-store.root-dir", "/tmp").startswith("/tmp"):
        yield note(
            YARN,
            "yarn.node-attribute.fs-store.root-dir",
            "is in /tmp, the default: which GPUs operators marked bad is lost when it is cleared; name another folder",
        )
    if mutable(site):
        yield note(
            YARN,
            STORE,
            f"is {mutable(site)}: YARN keeps the queues there and does not read {SCHEDULER}, so they are not checked"
            f" here; `yarn schedulerconf -global"
            f" yarn.scheduler.capacity.resource-calculator={DOMINANT}` lets YARN count GPUs",
        )


def _kept(site: Site) -> Iterator[Finding]:
    """Checks where daemons keep what they recover from: by default below hadoop.tmp.dir, which is in /tmp."""
    store = site.get(f"{_RM}store.class", "FileSystemRMStateStore").rpartition(".")[2]
    folders = {"FileSystemRMStateStore": (f"{_RM}fs.state-store.uri", "yarn/system/rmstore")}
    for enabled, (key, folder) in (
        (f"{_RM}recovery.enabled", folders.get(store, ("", ""))),
        (f"{_NM}recovery.enabled", (f"{_NM}recovery.dir", "yarn-nm-recovery")),
    ):
        if key and site.get(enabled) == "true" and not site.get(key):
            yield note(YARN, key, f"is not set: what is recovered lies in ${{hadoop.tmp.dir}}/{folder}; is that kept?")


def _preemption(site: Site) -> Iterator[Finding]:
    key, policy = f"{_RM}scheduler.monitor.policies", "ProportionalCapacityPreemptionPolicy"
    if site.get(f"{_RM}scheduler.monitor.enable") == "true" and policy in site.get(key, policy):
        yield note(
            YARN,
            key,
            f"names {policy}, which may take leased GPUs back: set disable_preemption of the queues with GPUs to true"
            f" in {SCHEDULER}; its other policies, and preemption in other queues, may stay",
        )


def _ways_past(site: Site) -> Iterator[Finding]:
    """Checks for features that allocate containers without the scheduler plugin."""
    key = "yarn.resourcemanager.opportunistic-container-allocation.enabled"
    if site.get(key) == "true":
        yield note(
            YARN, key, "is true: opportunistic containers are refused where they ask for GPUs, else left to YARN"
        )
    if site.get("yarn.federation.enabled") == "true":
        yield error(
            YARN,
            "yarn.federation.enabled",
            "is true: not supported; a control plane knows the apps and GPUs of one ResourceManager",
        )
    for key in site:
        if key.startswith("yarn.scheduler.fair."):
            yield error(
                YARN,
                key,
                "is FairScheduler's, Isonomy needs CapacityScheduler: convert the queues (`yarn fs2cs`), remove it",
            )
            return


def _executor(site: Site) -> Iterator[Finding]:
    if site.get(f"{_NM}container-executor.class") == LINUX_EXECUTOR:
        if not site.get(f"{_LINUX}group"):
            yield error(YARN, f"{_LINUX}group", "is missing: the group of the setuid binary container-executor")
        limited = site.get(f"{_LINUX}nonsecure-mode.limit-users", "true") == "true"
        if limited and not site.get("yarn.resourcemanager.principal"):
            yield note(
                YARN,
                f"{_LINUX}nonsecure-mode.limit-users",
                "is not false: without Kerberos all containers run as one user (nobody), who must be able to read"
                " isonomy.python",
            )
    if "docker" in site.get(f"{_NM}runtime.linux.allowed-runtimes", ""):
        yield note(
            YARN,
            f"{_NM}runtime.linux.allowed-runtimes",
            "allows docker: Isonomy's jobs do not use it; CUDA_VISIBLE_DEVICES alone tells other images their GPUs",
        )
    methods = site.get(f"{_RM}webapp.methods-allowed", "ALL")
    if methods != "ALL" and "POST" not in methods:
        yield note(
            YARN,
            f"{_RM}webapp.methods-allowed",
            f"is {methods}: `isonomy` only reads; kill, pause, drain and cells apply need POST as well",
        )
    expiry = site.get("yarn.am.liveness-monitor.expiry-interval-ms", "")
    if expiry.isdecimal() and int(expiry) < AM_EXPIRY_MS:
        yield note(
            YARN,
            "yarn.am.liveness-monitor.expiry-interval-ms",
            f"is {expiry}: an AM whose machine is busy is lost sooner than it starts; {AM_EXPIRY_MS} is safe",
        )


def capacity_scheduler(site: Site) -> Iterator[Finding]:
    """capacity-scheduler.xml."""
    for key, value in site.items():
        if key.endswith(".user-limit-factor") and value == "-1":
            yield note(
                SCHEDULER, key, "is -1 (no limit): Hadoop 3.3 then refuses every application; 100 has the same effect"
            )
            return


_RULE = re.compile(r"\s*(DEFAULT|RULE:\[\d*:[^\]]*\](\(([^)]*)\))?(s/[^/]*/[^/]*/g?)?(/?L)?)")
"""org.apache.hadoop.security.authentication.util.KerberosName: a filter ends at its first )."""


def auth_to_local(rules: str) -> str:
    """The problem with hadoop.security.auth_to_local; empty: none."""
    at = 0
    while rules[at:].strip():
        found = _RULE.match(rules, at)
        if found is None:
            return f"cannot be understood from {rules[at : at + 40].strip()!r} on; a filter may hold no )"
        try:
            re.compile(found[3] or "")
        except re.error as problem:
            return f"has a filter ({found[3]} that is no expression ({problem}); a filter may hold no )"
        at = found.end()
    return ""
