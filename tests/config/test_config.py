"""isonomy.yaml and topology files: defaults, and one clear line for each mistake."""

from pathlib import Path

import pytest

from pycontrol.config import Config, ConfigError, load_config, load_topology, mismatches, parse
from pycontrol.config.accounts_section import accounts_of
from pycontrol.model.accounts import Account, Limits
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
    file.write_text("topology: machines.yaml\ncells: cells.yaml\nlease_s: 50\n")
    config = load_config(file)
    assert (config.topology, config.cells) == (tmp_path / "machines.yaml", tmp_path / "cells.yaml")
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
        ("agents: {advertise: 'a,b:1'}", "isonomy.yaml: agents.advertise: must look like host:port (got a,b:1)"),
        ("lease_s: 10\nlead_s: 3", "isonomy.yaml: lead_s: must be at most a fifth of lease_s, 2 (got 3)"),
        (
            "exchange: {policy: credit}",
            "isonomy.yaml: exchange.policy: is gone: who has lent most is served first (docs/cells.md); leave it out",
        ),
        (
            "accounts: {a: {users: {ann: {}}, groups: {b: {users: {ann: {}}}}}}",
            "isonomy.yaml: accounts: ann is in two groups; leave one entry",
        ),
        (
            "accounts: {a: {users: {ann: {}}}, others: {users: {ann: {weight: 2.0}}}}",
            "isonomy.yaml: accounts: ann is in two groups; leave one entry",
        ),
        (
            "accounts: {a: {users: {b: {}}, groups: {b: {}}}}",
            "isonomy.yaml: accounts: b is a group and a user of the same group; rename the group",
        ),
        (
            "accounts: {a: {groups: {b: {queues: {root.q: {}}}}}}",
            "isonomy.yaml: accounts.a.groups.b.queues: only accounts.others has queues; a group's users count over all",
        ),
        (
            "accounts: {others: {groups: {b: {}}}}",
            "isonomy.yaml: accounts.others.groups: others has the users of no group; put groups beside it",
        ),
        ("accounts: {a: {weight: 0}}", "isonomy.yaml: accounts.a.weight: must be > 0 (got 0)"),
        ("accounts: {a: {wieght: 2}}", "isonomy.yaml: accounts.a.wieght: unknown key, did you mean weight?"),
        ("accounts: {a: {limits: {gpus: -1}}}", "isonomy.yaml: accounts.a.limits.gpus: must be >= 0 (got -1)"),
        ("exchange: {idle_s: 5}", "isonomy.yaml: exchange.idle_s: is gone with `mode: auto`; leave it out"),
        ("lease_timing: spread", "isonomy.yaml: lease_timing: is gone: leases end together everywhere; leave it out"),
        ("- a", "isonomy.yaml: must be a mapping of keys to values (got list)"),
        ("a: {b", "isonomy.yaml: line 1, column 6 is not YAML: expected ',' or '}', but got '<stream end>'"),
        (
            "accounts:\n  a: {weight: 2}\n  b: {}\n  a: {}",
            "isonomy.yaml: line 4, column 3 is not YAML: a is there twice; join them",
        ),
    ],
)
def test_each_mistake_is_one_line(text: str, line: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(text, Config, "isonomy.yaml")
    assert list(caught.value.lines) == [line]


def test_a_mapping_may_replace_what_a_merge_key_brings() -> None:
    text = "accounts: {a: &a {weight: 2, limits: {gpus: 1}}, b: &b {<<: *a, weight: 3}, c: {<<: [*b, *a], weight: 4}}"
    accounts = parse(text, Config, "isonomy.yaml").accounts
    assert [(x.weight, x.limits.gpus) for x in accounts.values()] == [(2, 1), (3, 1), (4, 1)]


TREE = """
accounts:
  research:
    weight: 3
    limits: {gpus: 40, gpu_hours_day: 200}
    groups: {vision: {weight: 2, users: {alice: {weight: 2}, bob: {}}}}
    users: {carol: {limits: {gpus: 8}}}
  others: {weight: 2, queues: {root.b: {weight: 4}, root.c: {limits: {gpus: 2}}}, users: {dave: {weight: 1.5}}}
"""


def test_accounts_are_a_tree_of_groups_beside_the_queues_of_all_others() -> None:
    accounts = accounts_of(parse(TREE, Config, "isonomy.yaml").accounts)
    assert accounts.path("root.a", "bob") == accounts.path("root.b", "bob") == ("research", "vision", "bob")
    assert accounts.path("root.a", "eve") == ("others", "root.a", "eve")
    root = accounts.tree({"root.a": Account(0.5), "root.b": Account(0.5)})
    assert {name: x.weight for name, x in root.below.items()} == {"research": 3, "others": 2}
    assert root.below["research"].below["vision"].below["alice"].weight == 2
    assert {q: x.weight for q, x in root.below["others"].below.items()} == {"root.a": 0.5, "root.b": 4}
    assert root.below["others"].below["root.a"].below["dave"].weight == 1.5


def test_a_limit_counts_for_each_app_below_it_the_widest_first() -> None:
    accounts = accounts_of(parse(TREE, Config, "isonomy.yaml").accounts)
    found = accounts.limited()
    assert found["group research"] == Limits(gpus=40, gpu_hours_day=200)
    assert found.keys() == {"group research", "user carol", "queue root.c"}
    assert accounts.names("root.c", "carol") == ("group research", "user carol", "queue root", "queue root.c")
    assert accounts.names("root.a", "bob")[:3] == ("group research", "group research/vision", "user bob")
    assert accounts.names("root.a", "dave")[:2] == ("group others", "user dave")
    assert {"group research/vision", "group others"} < accounts.groups_named()


def test_without_groups_the_queues_share_and_only_their_weights_change() -> None:
    accounts = accounts_of(parse("accounts: {others: {queues: {q: {weight: 2}}}}", Config, "isonomy.yaml").accounts)
    assert accounts.path("q", "ann") == ("q", "ann")
    assert accounts.tree({"q": Account(0.5), "r": Account(0.5)}).below["q"].weight == 2


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
