"""Configuration files: isonomy.yaml, the topology, and strict reading of YAML. Imports nothing that it configures."""

from pycontrol.config.reading import Section, mapping, parse
from pycontrol.config.settings import (
    AgentsService,
    Bridge,
    CellExchange,
    Config,
    HdfsTokenSettings,
    MetricsListener,
    NotifySettings,
    Standby,
    Tls,
    WebHdfs,
    load_config,
    on_loopback,
)
from pycontrol.config.topology import (
    MachineSpec,
    RackSpec,
    TopologySpec,
    load_topology,
    load_topology_spec,
    mismatches,
)
from pycontrol.configerror import ConfigError

__all__ = [
    "AgentsService",
    "Bridge",
    "CellExchange",
    "Config",
    "ConfigError",
    "HdfsTokenSettings",
    "MachineSpec",
    "MetricsListener",
    "NotifySettings",
    "RackSpec",
    "Section",
    "Standby",
    "Tls",
    "TopologySpec",
    "WebHdfs",
    "load_config",
    "load_topology",
    "load_topology_spec",
    "mapping",
    "mismatches",
    "on_loopback",
    "parse",
]
