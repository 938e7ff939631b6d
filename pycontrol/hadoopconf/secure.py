"""Checks that span the files of a cluster with Kerberos."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from pycontrol.config import Config, on_loopback
from pycontrol.hadoopconf import rules
from pycontrol.hadoopconf.findings import Finding, error, note
from pycontrol.hadoopconf.names import CORE, HDFS, ISONOMY, YARN

Sites = Mapping[str, Mapping[str, str]]


def is_secure(sites: Sites) -> bool:
    """Whether core-site.xml wants Kerberos."""
    return sites.get(CORE, {}).get("hadoop.security.authentication", "simple").lower() == "kerberos"


def together(sites: Sites, config: Config | None) -> Iterator[Finding]:
    """Findings for all files of a directory; none without Kerberos."""
    if not is_secure(sites):
        return
    core, hdfs, yarn = (sites.get(name) for name in (CORE, HDFS, YARN))
    assert core is not None
    problem = rules.auth_to_local(core.get("hadoop.security.auth_to_local", "DEFAULT"))
    if problem:
        yield error(CORE, "hadoop.security.auth_to_local", f"{problem}; every daemon would end at its start")
    yield from rules.broken(rules.SECURE_CORE, core)
    if hdfs is not None and not any("keytab" in key for key in hdfs):
        yield note(HDFS, "", "names no keytab: this is a client's file; the NameNode's and DataNodes' are not checked")
    elif hdfs is not None:
        yield from rules.broken(rules.SECURE_HDFS, hdfs)
    if yarn is not None and not any(key.endswith(".keytab") for key in yarn):
        yield note(YARN, "", "names no keytab: this is a client's file; check that of the ResourceManager as well")
    elif yarn is not None:
        yield from rules.broken(rules.SECURE_YARN, yarn)
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
