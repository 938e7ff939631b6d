"""Configuration files: isonomy.yaml, the topology, how any such file is read. Knows of nothing that it configures."""

from pycontrol.config.reading import ConfigError, Section, parse
from pycontrol.config.settings import (
    Agents,
    Bridge,
    CellExchange,
    Config,
    MetricsListener,
    Notify,
    Standby,
    Tls,
    load_config,
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
    "MachineSpec",
    "MetricsListener",
    "Notify",
    "RackSpec",
    "Section",
    "Standby",
    "Tls",
    "TopologySpec",
    "load_config",
    "load_topology",
    "load_topology_spec",
    "mismatches",
    "parse",
]
