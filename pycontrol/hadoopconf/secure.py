"""Checks that span the files of a cluster with Kerberos."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from pycontrol.config import Config, on_loopback
from pycontrol.hadoopconf.findings import Finding, error, note
from pycontrol.hadoopconf.names import CORE, HDFS, ISONOMY, YARN
from pycontrol.hadoopconf.production import auth_to_local

Sites = Mapping[str, Mapping[str, str]]
_HTTP = "hadoop.http.authentication."
FILTER = "org.apache.hadoop.security.AuthenticationFilterInitializer"
_FILTERS = (FILTER, "org.apache.hadoop.security.authentication.server.ProxyUserAuthenticationFilterInitializer")
PRIVILEGED_PORTS = 1024


def is_secure(sites: Sites) -> bool:
    """Whether core-site.xml wants Kerberos."""
    return sites.get(CORE, {}).get("hadoop.security.authentication", "simple").lower() == "kerberos"


def together(sites: Sites, config: Config | None) -> Iterator[Finding]:
    """Findings for all files of a directory; none without Kerberos."""
    if not is_secure(sites):
        return
    yield from _core(sites[CORE])
    if HDFS in sites:
        yield from _hdfs(sites[HDFS])
    if YARN in sites:
        yield from _yarn(sites[YARN])
    if config is not None:
        yield from _isonomy(config, sites[CORE])


def _core(site: Mapping[str, str]) -> Iterator[Finding]:
    if site.get("hadoop.security.authorization", "false") != "true":
        yield note(CORE, "hadoop.security.authorization", "is not true: who may call which daemon is not checked")
    problem = auth_to_local(site.get("hadoop.security.auth_to_local", "DEFAULT"))
    if problem:
        yield error(CORE, "hadoop.security.auth_to_local", f"{problem}; every daemon would end at its start")
    pair = [f"{_HTTP}{key}" for key in ("kerberos.principal", "kerberos.keytab")]
    if not any(f in site.get("hadoop.http.filter.initializers", "") for f in _FILTERS):
        yield error(
            CORE,
            "hadoop.http.filter.initializers",
            f"must name {' or '.join(_FILTERS)}, else the web apps trust any name that a caller gives, our REST too",
        )
    elif site.get(f"{_HTTP}type", "simple") == "simple":
        yield error(CORE, f"{_HTTP}type", "must be kerberos, else the web apps trust any name that a caller gives")
    elif site.get(f"{_HTTP}simple.anonymous.allowed", "true") == "true":
        yield note(
            CORE, f"{_HTTP}simple.anonymous.allowed", "is not false; set it, so that anonymous callers are refused"
        )
    if not any(map(site.get, pair)):
        yield note(CORE, pair[0], "is not set: this is a client's file; check that of the ResourceManager as well")
        return
    for key in pair:
        if not site.get(key):
            yield error(CORE, key, "is missing: the web apps need it to know who calls (HTTP/_HOST@REALM)")
    if not site.get(f"{_HTTP}signature.secret.file"):
        yield note(
            CORE, f"{_HTTP}signature.secret.file", "is not set: each daemon makes its own, and asks for tickets again"
        )


def _hdfs(site: Mapping[str, str]) -> Iterator[Finding]:
    if not any("keytab" in key for key in site):
        yield note(HDFS, "", "names no keytab: this is a client's file; the NameNode's and DataNodes' are not checked")
        return
    if site.get("dfs.block.access.token.enable", "false") != "true":
        yield error(
            HDFS,
            "dfs.block.access.token.enable",
            "must be true with Kerberos: else DataNodes give blocks to anyone, and refuse to start with SASL",
        )
    port = site.get("dfs.datanode.address", "0.0.0.0:9866").rpartition(":")[2]
    low = port.isdecimal() and 0 < int(port) < PRIVILEGED_PORTS
    tls, protected = site.get("dfs.http.policy") == "HTTPS_ONLY", bool(site.get("dfs.data.transfer.protection"))
    if site.get("ignore.secure.ports.for.testing") == "true":
        yield note(HDFS, "ignore.secure.ports.for.testing", "is true: for tests only")
    elif not low and not (tls and protected):
        yield error(
            HDFS,
            "dfs.http.policy" if protected else "dfs.data.transfer.protection",
            "DataNodes do not start: set dfs.data.transfer.protection and dfs.http.policy=HTTPS_ONLY, or give them"
            " privileged ports",
        )
    for daemon in ("namenode", "datanode"):
        for key in (f"dfs.{daemon}.kerberos.principal", f"dfs.{daemon}.keytab.file"):
            if not site.get(key):
                yield error(HDFS, key, "is missing: with Kerberos the daemon cannot log in")
    if not site.get("dfs.web.authentication.kerberos.principal"):
        yield error(HDFS, "dfs.web.authentication.kerberos.principal", "is missing: Agents and workers use WebHDFS")


def _yarn(site: Mapping[str, str]) -> Iterator[Finding]:
    if not any(key.endswith(".keytab") for key in site):
        yield note(YARN, "", "names no keytab: this is a client's file; check that of the ResourceManager as well")
        return
    for daemon in ("resourcemanager", "nodemanager"):
        for key in (f"yarn.{daemon}.principal", f"yarn.{daemon}.keytab"):
            if not site.get(key):
                yield error(YARN, key, "is missing: with Kerberos the daemon cannot log in")


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
