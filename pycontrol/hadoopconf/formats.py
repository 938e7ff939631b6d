"""Changes of properties as an administrator's tools take them: files, Cloudera Manager, Ambari, EMR, Dataproc. Pure."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

from pycontrol.hadoopconf.install import PropertyChange
from pycontrol.hadoopconf.names import NODE, SCHEDULER, TYPES
from pycontrol.hadoopconf.properties import ALL, NM, RM

Changes = Sequence[PropertyChange]


@dataclass(frozen=True, slots=True)
class Format:
    """How one kind of distribution is administered."""

    library: str
    """The folder for jars on the class path of the daemons."""
    _restart: str
    text: Callable[[Changes], str]
    """The changes of one class of hosts as the tool takes them."""

    def restart(self, daemon: str) -> str:
        """The act that restarts resourcemanager or nodemanager on a machine."""
        return self._restart.format(daemon=daemon)


def _by_file(changes: Changes, moved: bool = False) -> dict[str, dict[str, str]]:
    """{file: {key: value}}; `moved`: types and node resources in yarn-site.xml, where YARN reads them as well."""
    found: dict[str, dict[str, str]] = {}
    for c in changes:
        file = "yarn-site.xml" if moved and c.file in (TYPES, NODE) else c.file
        found.setdefault(file.removesuffix(".xml"), {})[c.key] = c.new or ""
    return found


def _diff(changes: Changes) -> str:
    lines: list[str] = []
    for file in sorted({c.file for c in changes}):
        lines.append(f"{file} ({changes[0].who})")
        for c in (c for c in changes if c.file == file):
            lines += [f"  {sign} {c.key} = {v}" for sign, v in (("-", c.old), ("+", c.new)) if v is not None]
    return "\n".join(lines)


_VALVES = {
    RM: "resourcemanager_config_safety_valve",
    NM: "nodemanager_config_safety_valve",
    ALL: "yarn_service_config_safety_valve",
}


def _cloudera(changes: Changes) -> str:
    """Advanced configuration snippets as its API takes them, for a role group (GPU nodes: one of their own)."""
    items = []
    for file, site in _by_file(changes, moved=True).items():
        snippet = "".join(
            f"<property><name>{escape(k)}</name><value>{escape(v)}</value></property>" for k, v in site.items()
        )
        queues = f"{file}.xml" == SCHEDULER
        name = "resourcemanager_capacity_scheduler_configuration" if queues else _VALVES[changes[0].who]
        items.append({"name": name, "value": snippet})
    return json.dumps({"items": items}, indent=2)


def _ambari(changes: Changes) -> str:
    """What its API takes as desired_config, for a configuration group (GPU nodes: one of their own)."""
    wanted = [{"type": file, "properties": site} for file, site in _by_file(changes, moved=True).items()]
    return json.dumps({"desired_config": wanted}, indent=2)


def _emr(changes: Changes) -> str:
    """Classifications for an instance group: nodes that autoscaling adds to it have them, too."""
    wanted = [{"Classification": file, "Properties": site} for file, site in _by_file(changes, moved=True).items()]
    return json.dumps(wanted, indent=2)


def _dataproc(changes: Changes) -> str:
    """--properties of the cluster; for GPU nodes, which those do not single out, lines of an initialization action."""
    found = _by_file(changes, moved=True)
    if changes[0].who == NM:
        tool = "bdconfig set_property --clobber --configuration_file /etc/hadoop/conf"
        return "\n".join(
            f"{tool}/{file}.xml --name {shlex.quote(k)} --value {shlex.quote(v)}"
            for file, site in found.items()
            for k, v in site.items()
        )
    prefix = {"yarn-site": "yarn", "capacity-scheduler": "capacity-scheduler"}
    words = [f"{prefix[file]}:{k}={v}" for file, site in found.items() for k, v in site.items()]
    return f"--properties={shlex.quote('^#^' + '#'.join(words))}"


_SYSTEMD = "systemctl restart hadoop-yarn-{daemon}"
_BIGTOP = "/usr/lib/hadoop-yarn/lib"
FORMATS = {
    "files": Format("$HADOOP_HOME/share/hadoop/yarn/lib (EMR, Bigtop: /usr/lib/hadoop-yarn/lib)", _SYSTEMD, _diff),
    "cm": Format(
        "/opt/isonomy/jars, and YARN_USER_CLASSPATH=/opt/isonomy/jars/* into the role's environment snippet (a parcel"
        " loses foreign jars when it is upgraded)",
        "Cloudera Manager: deploy the client configuration, restart the role {daemon}",
        _cloudera,
    ),
    "ambari": Format("/usr/hdp/current/hadoop-yarn-client/lib", "Ambari: restart the component {daemon}", _ambari),
    "emr": Format(_BIGTOP, _SYSTEMD, _emr),
    "dataproc": Format(_BIGTOP, _SYSTEMD, _dataproc),
}
"""Name of --format -> how it is done there."""
