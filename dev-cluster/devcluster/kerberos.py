"""A secure cluster's KDC (hadoop-minikdc), its principals, and who is who."""

from __future__ import annotations

import getpass
import os
from pathlib import Path
from typing import Any

from devcluster.folder import KDC, LOCALHOST, Cluster
from pycontrol.negotiate import Negotiate, NegotiateError, token

REALM = "ISONOMY.DEV"
SERVICES = ("nn", "dn", "rm", "nm")
USERS = ("alice", "bob")
PROXY = "isonomy"
"""Whom the NameNode lets ask for tokens of users: the control plane."""
"""Beside who runs the cluster, its superuser; each has a ticket cache of its own."""
MAIN = "org.apache.hadoop.minikdc.MiniKdc"


def folder(cluster: Cluster) -> Path:
    """What the KDC, daemons and clients share."""
    return cluster.layout.root / "kdc"


def keytab(cluster: Cluster) -> Path:
    """With the keys of all principals: good for trying, and for nothing else."""
    return folder(cluster) / "all.keytab"


def ticket_cache(cluster: Cluster, user: str) -> Path:
    """As kinit would make it."""
    return folder(cluster) / f"{user}.ticket"


def principal(user: str) -> str:
    """Of a user, or of a service with its host."""
    return f"{user}@{REALM}"


def prepare(cluster: Cluster) -> None:
    """The KDC's properties, and krb5.conf: its own names localhost, and looks names up."""
    at = folder(cluster)
    at.mkdir(mode=0o700, exist_ok=True)
    name, domain = REALM.split(".")
    (at / "kdc.properties").write_text(
        f"org.name={name}\norg.domain={domain}\nkdc.bind.address={LOCALHOST}\nkdc.port={cluster.ports[KDC]}\n"
        "instance=DefaultKrbServer\ntransport=TCP\ndebug=false\n"
        "max.ticket.lifetime=86400000\nmax.renewable.lifetime=604800000\n",
        encoding="utf-8",
    )
    (at / "krb5.conf").write_text(
        f"[libdefaults]\n default_realm = {REALM}\n dns_lookup_kdc = false\n dns_lookup_realm = false\n"
        " dns_canonicalize_hostname = false\n rdns = false\n udp_preference_limit = 1\n"
        f"[realms]\n {REALM} = {{\n  kdc = {cluster.address(KDC)}\n }}\n",
        encoding="utf-8",
    )
    secret = at / "http.secret"
    secret.touch(mode=0o600)
    secret.write_text("of a cluster for trying\n", encoding="utf-8")


def arguments(cluster: Cluster) -> list[str]:
    """MiniKdc's: its folder, properties, the keytab it makes, the principals."""
    work = cluster.layout.data / KDC
    hosts = sorted({"localhost", *cluster.hosts.values()})
    names = [getpass.getuser(), *USERS, PROXY, *(f"{s}/localhost" for s in SERVICES), *(f"HTTP/{h}" for h in hosts)]
    return [str(work), str(folder(cluster) / "kdc.properties"), str(keytab(cluster)), *names]


def environment(cluster: Cluster) -> dict[str, str]:
    """Of daemons: who the KDC is."""
    krb5 = folder(cluster) / "krb5.conf"
    return {"KRB5_CONFIG": str(krb5), "JDK_JAVA_OPTIONS": f"-Djava.security.krb5.conf={krb5}"}


def clients_environment(cluster: Cluster) -> dict[str, str]:
    """Of clients: the same, and the ticket of who runs the cluster."""
    return {**environment(cluster), "KRB5CCNAME": str(ticket_cache(cluster, getpass.getuser()))}


def settings(cluster: Cluster) -> dict[str, Any]:
    """The section `security` of the configuration."""
    user, at = getpass.getuser(), folder(cluster)
    found: dict[str, Any] = {
        "kerberos": True,
        "auth_to_local": f"RULE:[2:$1@$0]([ndr][nm]@{REALM})s/.*/{user}/ DEFAULT",
        "http_principal": "*",  # of the keytab whichever HTTP/ entry a client asks for
        "http_keytab": str(keytab(cluster)),
        "http_secret_file": str(at / "http.secret"),
        "https": False,
        "unsafe_ports": True,
        "proxy_users": {name: {"hosts": "*", "users": "*"} for name in (PROXY, user)},
        "rm_proxy": True,
        "container_java_options": environment(cluster)["JDK_JAVA_OPTIONS"],
    }
    for role, service in zip(("namenode", "datanode", "rm", "nm"), SERVICES, strict=True):
        found |= {f"{role}_principal": principal(f"{service}/localhost"), f"{role}_keytab": str(keytab(cluster))}
    return found


def login(cluster: Cluster) -> Negotiate:
    """Who runs the cluster, to its web apps."""
    _ask_this_kdc(cluster)
    return Negotiate(principal(getpass.getuser()), str(keytab(cluster)))


def make_tickets(cluster: Cluster) -> None:
    """A ticket cache for each user."""
    _ask_this_kdc(cluster)
    for user in (getpass.getuser(), *USERS):
        token(LOCALHOST, principal(user), str(keytab(cluster)), f"FILE:{ticket_cache(cluster, user)}")


def _ask_this_kdc(cluster: Cluster) -> None:
    """libkrb5 reads the environment of the process."""
    os.environ["KRB5_CONFIG"] = environment(cluster)["KRB5_CONFIG"]


def forget(cluster: Cluster) -> None:
    """Keys and tickets of a KDC that is gone."""
    for file in (keytab(cluster), *folder(cluster).glob("*.ticket")):
        file.unlink(missing_ok=True)


def serves(cluster: Cluster) -> bool:
    """Whether the KDC gives tickets; those of all users are made with it."""
    if "<CTRL-C>" not in cluster.layout.log(KDC).read_text(errors="replace"):
        return False
    try:
        make_tickets(cluster)
    except NegotiateError:
        return False
    return True
