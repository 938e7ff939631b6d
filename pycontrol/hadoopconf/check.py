"""Checks a configuration directory, or one file of it; each finding names file, key and what to do."""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from pycontrol import secretfile
from pycontrol.config import Config, ConfigError, load_config, load_topology_spec, mapping, on_loopback
from pycontrol.hadoopconf import preflight, properties, rules
from pycontrol.hadoopconf.distribution import Distribution
from pycontrol.hadoopconf.findings import Finding, error, note
from pycontrol.hadoopconf.names import CORE, ISONOMY, NODE, SCHEDULER, SUBMARINE, TYPES, YARN
from pycontrol.hadoopconf.sitefile import included, read_site
from pycontrol.policies import registry

HERE = preflight.Machine()


@dataclass
class SiteFacts:
    """Values that several files must agree on."""

    config: Config | None = None
    sites: dict[str, dict[str, str]] = field(default_factory=dict)
    """Hadoop's files by name."""


def check(path: Path, hadoop: Distribution | None = None, machine: preflight.Machine = HERE) -> list[Finding]:
    """All findings for a directory, or for one file by its name; raises OSError if it cannot be read.

    Of the machine's own directory also whether the machine keeps containers from each other's GPUs.
    """
    seen = SiteFacts()
    hadoop = hadoop or Distribution()
    if not path.is_dir():
        findings = list(_check_file(path, seen))
        there = YARN not in seen.sites or properties.installed(seen.sites)
        return [*findings, *properties.findings(seen.sites, hadoop.version, there)]
    names = [name for name in CHECKS if (path / name).exists()]
    if not names:
        return [error(path.name, "", f"holds none of {', '.join(CHECKS)}; name the directory that does")]
    findings = [finding for name in names for finding in _check_file(path / name, seen)]
    there = ISONOMY in names or properties.installed(seen.sites)
    findings += [error(n, "", "is missing: every machine of Hadoop has one") for n in (CORE, YARN) if n not in names]
    if properties.RM in properties.classes_of(seen.sites):
        elsewhere = [n for n in (ISONOMY, SCHEDULER) if n not in names]
        findings += [
            note(n, "", "is not here; check it where it lies on the ResourceManagers' machines") for n in elsewhere
        ]
    seen.sites.setdefault(TYPES, {})  # yarn-site.xml may name them instead
    findings += properties.findings(seen.sites, hadoop.version, there)
    if seen.config and YARN in seen.sites:
        findings += rules.agreement(seen.sites[YARN], seen.config)
    findings += rules.secure(seen.sites, seen.config)
    findings += hadoop.findings(seen.sites)
    here = Path(os.environ.get("HADOOP_CONF_DIR") or "/etc/hadoop/conf")
    if machine.at("/dev/nvidia0").exists() and machine.at(here).resolve() == path.resolve():
        findings += preflight.isolation(machine, seen.sites.get(YARN, {}))
    return findings


def _check_file(file: Path, seen: SiteFacts) -> Iterator[Finding]:
    checker = CHECKS.get(file.name)
    if checker is None and file.suffix in (".yaml", ".yml"):
        checker = _topology_file if _has_racks(file) else _isonomy_yaml
    if checker is None:
        yield error(file.name, "", f"is not known; checked are {', '.join(CHECKS)} and topology files (YAML)")
        return
    try:
        yield from checker(file, seen)
    except ConfigError as problem:
        yield from _as_findings(problem)


def _as_findings(problem: ConfigError) -> Iterator[Finding]:
    for line in problem.lines:
        file, _, rest = line.partition(": ")
        key, colon, message = rest.partition(": ")
        yield error(Path(file).name, key, message) if colon and " " not in key else error(file, "", rest)


def _has_racks(file: Path) -> bool:
    try:
        return "racks" in mapping(file.read_text(encoding="utf-8"), file.name)
    except (OSError, UnicodeDecodeError, ConfigError):
        return False


def checked(config: Config, file: str) -> Config:
    """The configuration, if its policy and options are valid; raises ConfigError, which names the file."""
    if config.policy not in registry.names():
        raise ConfigError([f"{file}: policy: {registry.unknown(config.policy)}"])
    try:
        registry.make(config.policy, **config.policy_options)
    except registry.UnknownPolicy as problem:
        raise ConfigError([f"{file}: policy_options: {problem}"]) from problem
    return config


def _isonomy_yaml(file: Path, seen: SiteFacts) -> Iterator[Finding]:
    config = seen.config = checked(load_config(file), file.name)
    name = file.name
    if not on_loopback(config.bridge.host):
        yield error(name, "bridge.host", f"must be a loopback address (got {config.bridge.host})")
    if config.bridge.port == config.agents.port:
        yield error(name, "agents.port", f"is that of the bridge too ({config.bridge.port}); choose another")
    yield from _secret(name, "bridge.token_file", config.bridge.token_file, token=True)
    if config.agents.tls:
        tls = config.agents.tls
        for key, pem in (("cert", tls.cert), ("key", tls.key), ("ca", tls.ca)):
            if not pem.is_file():
                yield error(name, f"agents.tls.{key}", f"{pem} does not exist; make it or remove agents.tls")
        yield from _secret(name, "agents.tls.key", tls.key)
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(tls.cert, tls.key, password="")
        except OSError as problem:
            if isinstance(problem, ssl.SSLError):  # others are said above
                yield error(name, "agents.tls.cert", f"{tls.cert} and {tls.key} must be a certificate and its PEM key")
    if config.state_dir.exists() and not config.state_dir.is_dir():
        yield error(name, "state_dir", f"{config.state_dir} is not a directory")
    if config.topology:
        try:
            load_topology_spec(config.topology)
        except ConfigError as problem:
            yield from _as_findings(problem)
    else:
        yield note(name, "topology", "is not set: whatever the NodeManagers register is accepted")


def _secret(name: str, key: str, file: Path, token: bool = False) -> Iterator[Finding]:
    """Whether only its owner may read a secret's file, and it holds a token if it should; it may not exist yet."""
    try:
        held = secretfile.read(file) if file.exists() else b""
        if token and file.exists():
            secretfile.token_in(file, held)
    except (secretfile.SecretFileError, OSError) as problem:
        yield error(name, key, str(problem))


def _topology_file(file: Path, _seen: SiteFacts) -> Iterator[Finding]:
    if not any(m.gpus for m in load_topology_spec(file).machines):
        yield note(file.name, "racks", "no machine has a GPU")


def _site(checker: Callable[[dict[str, str]], Iterator[Finding]]) -> Callable[[Path, SiteFacts], Iterator[Finding]]:
    def check_site(file: Path, seen: SiteFacts) -> Iterator[Finding]:
        site = seen.sites[file.name] = read_site(file)
        for other in included(file):
            yield note(file.name, "", f"includes {other} (xi:include), which is not read here; check that file, too")
        if file.name == SCHEDULER and properties.mutable(seen.sites.get(YARN, {})):
            return  # YARN does not read it (a note says so)
        yield from checker(site)

    return check_site


def _ruled(name: str) -> Callable[[Path, SiteFacts], Iterator[Finding]]:
    return _site(lambda site: rules.broken(rules.OTHER_RULES[name], site))


CHECKS: dict[str, Callable[[Path, SiteFacts], Iterator[Finding]]] = {
    "isonomy.yaml": _isonomy_yaml,
    "core-site.xml": _ruled(CORE),
    "hdfs-site.xml": _site(lambda _site: iter(())),  # what it says counts together with the others
    "yarn-site.xml": _site(rules.yarn_site),
    "capacity-scheduler.xml": _site(rules.capacity_scheduler),
    "resource-types.xml": _site(lambda _site: iter(())),
    "node-resources.xml": _ruled(NODE),
    "submarine-site.xml": _ruled(SUBMARINE),
}
