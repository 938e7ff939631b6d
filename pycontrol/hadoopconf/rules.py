"""What is wrong in Hadoop's files, or surprising: one row a rule of a single property, and checks of several."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from pycontrol.config import Config, on_loopback
from pycontrol.hadoopconf.findings import Finding, error, note
from pycontrol.hadoopconf.names import (
    CORE,
    DOMINANT,
    GPU,
    HDFS,
    ISONOMY,
    LINUX_EXECUTOR,
    NODE,
    OUR_RUNTIME,
    SCHEDULER,
    SUBMARINE,
    YARN,
)
from pycontrol.hadoopconf.properties import STORE, Sites
from pycontrol.hadoopconf.queues import PREFIX
from pycontrol.hadoopconf.sitefile import names
from pycontrol.words import suggest

Site = Mapping[str, str]
Bad = Callable[[str, Site], bool]
"""(value, its file) -> whether the rule is broken."""
_RM, _NM = "yarn.resourcemanager.", "yarn.nodemanager."
_LINUX = f"{_NM}linux-container-executor."
_HTTP, _DFS = "hadoop.http.authentication.", "dfs.datanode."
_FILES, _PREEMPTION = "FileSystemRMStateStore", "ProportionalCapacityPreemptionPolicy"
FILTER = "org.apache.hadoop.security.AuthenticationFilterInitializer"
_FILTERS = (FILTER, "org.apache.hadoop.security.authentication.server.ProxyUserAuthenticationFilterInitializer")
PRIVILEGED_PORTS = 1024
AM_EXPIRY_MS = 60_000
"""A shorter expiry is risky: localizing a container's files can take many seconds on a loaded machine."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule of one property. `error`: it will not work; `note`: it works but may surprise."""

    level: str
    file: str
    key: str
    default: str
    """Its value where it is absent."""
    bad: Bad
    said: str
    """{} stands for the value."""


def broken(rules: Iterable[Rule], site: Site) -> Iterator[Finding]:
    """The findings for one file."""
    for r in rules:
        value = site.get(r.key, r.default)
        if r.bad(value, site):
            yield Finding(r.level, r.file, r.key, r.said.replace("{}", value or "nothing"))


def _is(*values: str) -> Bad:
    return lambda value, _: value.strip() in values


def _not(*values: str) -> Bad:
    return lambda value, _: value not in values


def _where(key: str, value: str, bad: Bad) -> Bad:
    """The rule holds only where another property has this value."""
    return lambda own, site: site.get(key) == value and bad(own, site)


def _below(least: int) -> Bad:
    return lambda value, _: value.isdecimal() and int(value) < least


def _not_within(least: int, most: int) -> Bad:
    return lambda value, _: bool(value) and not (value.isdecimal() and least <= int(value) <= most)


def _filtered(site: Site) -> bool:
    return any(f in site.get("hadoop.http.filter.initializers", "") for f in _FILTERS)


def _missing(level: str, file: str, keys: Iterable[str], why: str) -> list[Rule]:
    return [Rule(level, file, key, "", _is(""), f"is missing: {why}") for key in keys]


_NUMBERS = {
    "isonomy.bridge.port": (1, 65535),
    "isonomy.bridge.queue-size": (1, 10**9),
    "isonomy.nm.gpu-wait-ms": (0, 10**9),
}
YARN_RULES = (
    Rule("error", YARN, "isonomy.scheduler.require-executor", "true", _not("true", "false"),
         "must be true or false (got {})"),
    Rule("note", YARN, "isonomy.scheduler.require-executor", "true", _is("false"),
         "is false: containers also go to nodes whose executor shows them all GPUs"),
    *(Rule("error", YARN, key, "", _not_within(low, high), f"must be a whole number from {low} to {high} (got {{}})")
      for key, (low, high) in _NUMBERS.items()),
    Rule("note", YARN, "yarn.admin.acl", "*", _is("*"),
         "is *: anyone may kill apps and drain nodes; name the administrators"),
    Rule("note", YARN, f"{_RM}am.max-attempts", "2", _below(2), "is below 2: an app ends with its first AM"),
    Rule("note", YARN, "yarn.webapp.enable-rest-app-submissions", "", _is("true"),
         "is true: apps may be submitted over REST"),
    # features that allocate containers without the scheduler plugin, or take GPUs back
    Rule("note", YARN, f"{_RM}opportunistic-container-allocation.enabled", "", _is("true"),
         "is true: opportunistic containers are refused where they ask for GPUs, else left to YARN"),
    Rule("error", YARN, "yarn.federation.enabled", "", _is("true"),
         "is true: not supported; a control plane knows the apps and GPUs of one ResourceManager"),
    Rule("note", YARN, f"{_RM}scheduler.monitor.policies", _PREEMPTION,
         _where(f"{_RM}scheduler.monitor.enable", "true", lambda value, _: _PREEMPTION in value),
         f"names {_PREEMPTION}, which may take leased GPUs back: set disable_preemption of the queues with GPUs to true"
         f" in {SCHEDULER}; its other policies, and preemption in other queues, may stay"),
    # executors
    Rule("error", YARN, f"{_LINUX}group", "", _where(f"{_NM}container-executor.class", LINUX_EXECUTOR, _is("")),
         "is missing: the group of the setuid binary container-executor"),
    Rule("note", YARN, f"{_LINUX}nonsecure-mode.limit-users", "true",
         _where(f"{_NM}container-executor.class", LINUX_EXECUTOR,
                lambda value, site: value == "true" and not site.get(f"{_RM}principal")),
         "is not false: without Kerberos all containers run as one user (nobody), who must be able to read"
         " isonomy.python"),
    Rule("note", YARN, f"{_NM}runtime.linux.allowed-runtimes", "", lambda value, _: "docker" in value,
         "allows docker: Isonomy's jobs do not use it; CUDA_VISIBLE_DEVICES alone tells other images their GPUs"),
    Rule("note", YARN, f"{_RM}webapp.methods-allowed", "ALL", lambda value, _: value != "ALL" and "POST" not in value,
         "is {}: `isonomy` only reads; kill, pause, drain and cells apply need POST as well"),
    Rule("note", YARN, "yarn.am.liveness-monitor.expiry-interval-ms", "", _below(AM_EXPIRY_MS),
         f"is {{}}: an AM whose machine is busy is lost sooner than it starts; {AM_EXPIRY_MS} is safe"),
    # what daemons recover from: by default below hadoop.tmp.dir, which is in /tmp
    Rule("note", YARN, f"{_RM}fs.state-store.uri", "",
         _where(f"{_RM}recovery.enabled", "true",
                lambda value, site: not value and site.get(f"{_RM}store.class", _FILES).endswith(_FILES)),
         "is not set: what is recovered lies in ${hadoop.tmp.dir}/yarn/system/rmstore; is that kept?"),
    Rule("note", YARN, f"{_NM}recovery.dir", "", _where(f"{_NM}recovery.enabled", "true", _is("")),
         "is not set: what is recovered lies in ${hadoop.tmp.dir}/yarn-nm-recovery; is that kept?"),
    Rule("note", YARN, "yarn.cluster.max-application-priority", "0", _is("0"),
         "is 0: YARN makes every application's priority 0; set it for priorities among a queue's apps"),
    Rule("note", YARN, "yarn.node-attribute.fs-store.root-dir", "/tmp", lambda value, _: value.startswith("/tmp"),
         "is in /tmp, the default: which GPUs operators marked bad is lost when it is cleared; name another folder"),
    Rule("note", YARN, STORE, "file", _not("", "file"),
         f"is {{}}: YARN keeps the queues there and does not read {SCHEDULER}, so they are not checked here;"
         f" `yarn schedulerconf -global yarn.scheduler.capacity.resource-calculator={DOMINANT}` lets YARN count GPUs"),
)  # fmt: skip
OTHER_RULES = {
    CORE: (Rule("error", CORE, "fs.defaultFS", "", lambda value, _: "://" not in value,
                "must look like hdfs://host:port (got {})"),),
    NODE: (Rule("error", NODE, f"{_NM}resource-type.{GPU}", "", lambda value, _: not value.isdecimal(),
                "must be this machine's number of GPUs (got {})"),),
    SUBMARINE: (Rule("error", SUBMARINE, "submarine.runtime.class", "", _not(OUR_RUNTIME),
                     f"must be {OUR_RUNTIME} (got {{}})"),),
}  # fmt: skip

# ---- clusters with Kerberos

_PAIR = [f"{_HTTP}kerberos.principal", f"{_HTTP}kerberos.keytab"]
_ANY_NAME = "else the web apps trust any name that a caller gives"
_NO_LOGIN = "with Kerberos the daemon cannot log in"
SECURE_CORE = (
    Rule("note", CORE, "hadoop.security.authorization", "false", _not("true"),
         "is not true: who may call which daemon is not checked"),
    Rule("error", CORE, "hadoop.http.filter.initializers", "", lambda _, site: not _filtered(site),
         f"must name {' or '.join(_FILTERS)}, {_ANY_NAME}, our REST too"),
    Rule("error", CORE, f"{_HTTP}type", "simple", lambda value, site: _filtered(site) and value == "simple",
         f"must be kerberos, {_ANY_NAME}"),
    Rule("note", CORE, f"{_HTTP}simple.anonymous.allowed", "true",
         lambda value, site: _filtered(site) and site.get(f"{_HTTP}type", "simple") != "simple" and value == "true",
         "is not false; set it, so that anonymous callers are refused"),
    Rule("note", CORE, _PAIR[0], "", lambda _, site: not any(map(site.get, _PAIR)),
         "is not set: this is a client's file; check that of the ResourceManager as well"),
    *(Rule("error", CORE, key, "", lambda value, site: not value and any(map(site.get, _PAIR)),
           "is missing: the web apps need it to know who calls (HTTP/_HOST@REALM)") for key in _PAIR),
    Rule("note", CORE, f"{_HTTP}signature.secret.file", "",
         lambda value, site: not value and any(map(site.get, _PAIR)),
         "is not set: each daemon makes its own, and asks for tickets again"),
)  # fmt: skip


def _insecure(site: Site) -> bool:
    """Whether DataNodes would not start: neither privileged ports, nor SASL with HTTPS."""
    port = site.get(f"{_DFS}address", "0.0.0.0:9866").rpartition(":")[2]
    low = port.isdecimal() and 0 < int(port) < PRIVILEGED_PORTS
    tls = site.get("dfs.http.policy") == "HTTPS_ONLY" and bool(site.get("dfs.data.transfer.protection"))
    return not low and not tls and site.get("ignore.secure.ports.for.testing") != "true"


_NO_DATANODE = (
    "DataNodes do not start: set dfs.data.transfer.protection and dfs.http.policy=HTTPS_ONLY, or give them"
    " privileged ports"
)
SECURE_HDFS = (
    Rule("error", HDFS, "dfs.block.access.token.enable", "false", _not("true"),
         "must be true with Kerberos: else DataNodes give blocks to anyone, and refuse to start with SASL"),
    Rule("note", HDFS, "ignore.secure.ports.for.testing", "", _is("true"), "is true: for tests only"),
    Rule("error", HDFS, "dfs.data.transfer.protection", "", lambda value, site: not value and _insecure(site),
         _NO_DATANODE),
    Rule("error", HDFS, "dfs.http.policy", "",
         lambda _, site: bool(site.get("dfs.data.transfer.protection")) and _insecure(site), _NO_DATANODE),
    *_missing("error", HDFS, (f"dfs.{daemon}.{end}" for daemon in ("namenode", "datanode")
                              for end in ("kerberos.principal", "keytab.file")), _NO_LOGIN),
    *_missing("error", HDFS, ["dfs.web.authentication.kerberos.principal"], "Agents and workers use WebHDFS"),
)  # fmt: skip
SECURE_YARN = _missing("error", YARN, (f"{d}{end}" for d in (_RM, _NM) for end in ("principal", "keytab")), _NO_LOGIN)

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


# ---- what takes more than a row

OUR_KEYS = (
    *_NUMBERS,
    "isonomy.bridge.host",
    "isonomy.bridge.token-file",
    "isonomy.scheduler.mode-dir",
    "isonomy.scheduler.require-executor",
    "isonomy.nm.evidence-file",
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
    fair = next((key for key in site if key.startswith("yarn.scheduler.fair.")), None)
    if fair is not None:
        said = "is FairScheduler's, Isonomy needs CapacityScheduler: convert the queues (`yarn fs2cs`), remove it"
        yield error(YARN, fair, said)
    yield from broken(YARN_RULES, site)


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
            said = "must name the control planes of both ResourceManagers, else Agents do not find the other one"
            yield error(ISONOMY, "agents.advertise", said)
        if config.standby is None:
            yield error(ISONOMY, "standby", "is not set: a failover would lose apps and fairness clocks")


def capacity_scheduler(site: dict[str, str]) -> Iterator[Finding]:
    """capacity-scheduler.xml."""
    if not site.get(f"{PREFIX}root.queues"):
        yield error(SCHEDULER, f"{PREFIX}root.queues", "is missing; name the queues below root")
        return
    yield from _queues(site, f"{PREFIX}root")
    unlimited = next((k for k, value in site.items() if k.endswith(".user-limit-factor") and value == "-1"), None)
    if unlimited is not None:
        said = "is -1 (no limit): Hadoop 3.3 then refuses every application; 100 has the same effect"
        yield note(SCHEDULER, unlimited, said)


def _queues(site: dict[str, str], parent: str) -> Iterator[Finding]:
    children = [f"{parent}.{name}" for name in names(site.get(f"{parent}.queues", ""))]
    capacities = [site.get(f"{child}.capacity", "") for child in children]
    numbers = [n for n in map(_number, capacities) if n is not None]
    for child, text in zip(children, capacities, strict=True):
        if not text:
            yield error(SCHEDULER, f"{child}.capacity", "is missing; give it in percent, as a weight (4w) or absolute")
        elif _number(text) is None and not _AMOUNT.fullmatch(text):
            yield error(SCHEDULER, f"{child}.capacity", f"must be percent, a weight or [resource=amount] (got {text})")
    zero = site.get(f"{parent}.allow-zero-capacity-sum") == "true" and not sum(numbers)
    strict = len(numbers) == len(children) and site.get(f"{PREFIX}legacy-queue-mode.enabled") != "false"
    if strict and abs(sum(numbers) - 100) > 0.05 and not zero:  # as in queues.py
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
    most = site.get(keys["maximum-capacity"], "-1")
    capacity, maximum = _number(site.get(keys["capacity"], "")), 100.0 if most == "-1" else _number(most)
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
        said = f"is {factor:g}: one user's GPUs end at {capacity * factor:g} % of the parent queue, though the queue"
        yield note(SCHEDULER, keys["user-limit-factor"], f"{said} may have {maximum:g} % (reason QueueLimit)")


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


# ---- clusters with Kerberos


def is_secure(sites: Sites) -> bool:
    """Whether core-site.xml wants Kerberos."""
    return sites.get(CORE, {}).get("hadoop.security.authentication", "simple").lower() == "kerberos"


def secure(sites: Sites, config: Config | None) -> Iterator[Finding]:
    """Findings for all files of a directory; none without Kerberos."""
    if not is_secure(sites):
        return
    core = sites[CORE]
    problem = auth_to_local(core.get("hadoop.security.auth_to_local", "DEFAULT"))
    if problem:
        yield error(CORE, "hadoop.security.auth_to_local", f"{problem}; every daemon would end at its start")
    yield from broken(SECURE_CORE, core)
    for file, rows, rest in (
        (HDFS, SECURE_HDFS, "the NameNode's and DataNodes' are not checked"),
        (YARN, SECURE_YARN, "check that of the ResourceManager as well"),
    ):
        if file in sites and not any(".keytab" in key for key in sites[file]):
            yield note(file, "", f"names no keytab: this is a client's file; {rest}")
        elif file in sites:
            yield from broken(rows, sites[file])
    if config is not None:
        yield from _isonomy(config, core)


def _isonomy(config: Config, core: Mapping[str, str]) -> Iterator[Finding]:
    if config.agents.tls is None and not on_loopback(config.agents.host):
        yield error(
            ISONOMY, "agents.tls", "is missing: in a secure cluster apps' tokens would cross the network in the clear"
        )
    if config.standby is not None and config.standby.user is not None:
        yield error(ISONOMY, "standby.user", "means nothing with Kerberos; set standby.principal and standby.keytab")
    elif config.standby is not None and config.standby.principal is None:
        yield note(ISONOMY, "standby.principal", "is not set: a ticket cache must be kept for the control plane")
    tokens = config.hdfs_tokens
    if tokens is None:
        yield note(ISONOMY, "hdfs_tokens", "is not set: apps write no checkpoints past their HDFS token's seven days")
    elif tokens.principal is None:
        yield note(ISONOMY, "hdfs_tokens.principal", "is not set: a ticket cache must be kept for the control plane")
    else:
        yield from _proxy_user(core, tokens.principal)


def _proxy_user(core: Mapping[str, str], principal: str) -> Iterator[Finding]:
    """Checks the NameNode's proxy user keys; by default auth_to_local maps a principal to its first part."""
    name = re.split("[/@]", principal)[0]
    keys = {end: f"hadoop.proxyuser.{name}.{end}" for end in ("hosts", "users", "groups")}
    who = core.get(keys["users"]) or core.get(keys["groups"])
    if not core.get(keys["hosts"]) or not who:
        missing = keys["hosts"] if who else keys["groups"]
        yield error(CORE, missing, f"is missing: the NameNode gives {name} no tokens of users (hdfs_tokens)")
    for end, key in keys.items():
        if core.get(key) == "*":
            yield note(CORE, key, f"is *: whoever has {name}'s keytab may act for anybody; name the {end}")
