"""isonomy.yaml and topology files: defaults, and one clear line for each mistake."""

from pathlib import Path

import pytest

from pycontrol.config import Config, ConfigError, load_config, load_topology, mismatches, parse
from pycontrol.model.topology import Machine, Scope, Topology

TOPOLOGY = """
virtual_gpus: true
racks:
  - name: rack-a
    machines:
      - {host: 127.0.10.1, gpus: 4, type: virtual, memory_mb: 16384, vcores: 16}
      - {host: 127.0.10.2, gpus: 2}
  - {name: rack-b, machines: [{host: 127.0.20.1, gpus: 4}]}
"""


def test_defaults_and_paths_relative_to_the_file(tmp_path: Path) -> None:
    file = tmp_path / "isonomy.yaml"
    file.write_text("topology: machines.yaml\nlease_s: 50\n")
    config = load_config(file)
    assert config.topology == tmp_path / "machines.yaml"
    assert config.bridge.token_file == tmp_path / "state" / "bridge.token"
    assert (config.f, config.grant_timeout_s, config.lead_s) == (0.8, 60, 10)
    file.write_text("")
    assert load_config(file).lead_s == 60


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("lease_s: -1", "isonomy.yaml: lease_s: must be > 0 (got -1)"),
        ("f: 1.5", "isonomy.yaml: f: must be <= 1 (got 1.5)"),
        ("f: -0.1", "isonomy.yaml: f: must be >= 0 (got -0.1)"),
        ("f: .nan", "isonomy.yaml: f: must be a finite number (got nan)"),
        ("leas_s: 5", "isonomy.yaml: leas_s: unknown key, did you mean lease_s?"),
        ("bridge: {prot: 5}", "isonomy.yaml: bridge.prot: unknown key, did you mean port?"),
        ("bridge: {port: '80'}", "isonomy.yaml: bridge.port: must be a whole number (got 80)"),
        ("agents: {tls: {cert: a, key: b}}", "isonomy.yaml: agents.tls.ca: is missing; add it"),
        ("agents: {advertise: here}", "isonomy.yaml: agents.advertise: must look like host:port (got here)"),
        ("lease_s: 10\nlead_s: 3", "isonomy.yaml: lead_s: must be at most a fifth of lease_s, 2 (got 3)"),
        (
            "exchange: {policy: credit}",
            "isonomy.yaml: exchange.policy: is gone: who has lent most is served first (docs/cells.md); leave it out",
        ),
        ("exchange: {idle_s: 5}", "isonomy.yaml: exchange.idle_s: is gone with `mode: auto`; leave it out"),
        ("lease_timing: spread", "isonomy.yaml: lease_timing: is gone: leases end together everywhere; leave it out"),
        ("- a", "isonomy.yaml: must be a mapping of keys to values (got list)"),
        ("a: {b", "isonomy.yaml: line 1, column 6 is not YAML: expected ',' or '}', but got '<stream end>'"),
    ],
)
def test_each_mistake_is_one_line(text: str, line: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(text, Config, "isonomy.yaml")
    assert list(caught.value.lines) == [line]


def test_a_former_key_that_changes_nothing_is_still_read() -> None:
    text = "{lease_timing: aligned, unsaved_last: false, exchange: {policy: balanced, mode: manual}}"
    assert parse(text, Config, "isonomy.yaml") == Config()


def test_topology_file(tmp_path: Path) -> None:
    file = tmp_path / "topology.yaml"
    file.write_text(TOPOLOGY)
    topology = load_topology(file)
    assert topology.gpus == 10
    assert topology.machines["127.0.10.2"] == Machine("127.0.10.2", "rack-a", 2, "gpu", virtual=True)
    assert topology.scope_of(["127.0.10.1", "127.0.10.2"]) is Scope.RACK
    file.write_text(TOPOLOGY.replace("127.0.20.1", "127.0.10.1"))
    with pytest.raises(ConfigError, match=r"racks: host 127\.0\.10\.1 is there twice"):
        load_topology(file)
    with pytest.raises(ConfigError, match="cannot be read"):
        load_topology(tmp_path / "none.yaml")


def test_mismatches_name_node_and_counts() -> None:
    topology = Topology.of([Machine("a", "r", 4), Machine("b", "r", 2), Machine("c", "r", 1)])
    assert mismatches(topology, {"a": 4, "b": 2, "c": 1}) == []
    assert mismatches(topology, {"a": 3, "b": 2, "d": 8}) == [
        "a: the topology says 4 GPUs, its NodeManager registered 3",
        "c: the topology says 1 GPUs, but no NodeManager registered",
        "d: its NodeManager registered 8 GPUs, but the topology does not name it",
    ]
