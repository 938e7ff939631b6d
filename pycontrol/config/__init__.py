"""Configuration files: isonomy.yaml, the topology, how any such file is read. Knows of nothing that it configures."""

from pycontrol.config.reading import ConfigError, Section, parse
from pycontrol.config.settings import (
    Agents,
    Bridge,
    CellExchange,
    Config,
    HdfsTokens,
    MetricsListener,
    Notify,
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

__all__ = [
    "Agents",
    "Bridge",
    "CellExchange",
    "Config",
    "ConfigError",
    "HdfsTokens",
    "MachineSpec",
    "MetricsListener",
    "Notify",
    "RackSpec",
    "Section",
    "Standby",
    "Tls",
    "TopologySpec",
    "WebHdfs",
    "load_config",
    "load_topology",
    "load_topology_spec",
    "mismatches",
    "on_loopback",
    "parse",
]
