"""`isonomy preview --cells`: an assignment that cannot be put into force is refused with one line."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from pycontrol.cli import main

FILE = """
levels: {{switch: 2, node: 2{levels}}}
hosts: [n1, n2]
virtual_clusters:
  root.a: {{node: 1{terms}}}{more}
"""
TREES = """
cell_types: {{node: {{child: gpu, count: {count}, node_level: true}}}}
physical_cells: [{{type: node, hosts: [n1]}}]
virtual_clusters: {{root.a: {{gpu: 1}}}}
"""


def said(tmp_path: Path, text: str) -> tuple[int, str]:
    path = tmp_path / "cells.yaml"
    path.write_text(text)
    found = CliRunner().invoke(
        main, ["preview", "--cells", str(path)], env={"ISONOMY_RM": None, "HADOOP_CONF_DIR": None}
    )
    assert found.exception is None or isinstance(found.exception, SystemExit)
    return found.exit_code, found.output


@pytest.mark.parametrize(
    ("terms", "problem"),
    [
        (", policy: themes", "virtual_clusters.root.a.policy: there is no policy themes"),
        (", policy: themis, policy_options: {leftover: 1}", "themis has no option leftover"),
        (", policy: tiresias, policy_options: {threshold_gpu_s: much}", "threshold_gpu_s"),
        (
            ", policy: slaq, private_schedule: true",
            "worst_first, oef, gavel, gandiva_fair, max_min (got slaq)",
        ),
        (", f: 2", "virtual_clusters.root.a.f: must be <= 1"),
    ],
)
def test_invalid_terms_are_refused(tmp_path: Path, terms: str, problem: str) -> None:
    status, output = said(tmp_path, FILE.format(levels="", terms=terms, more=""))
    assert status == 1
    assert problem in output


def test_a_queue_is_one_virtual_cluster(tmp_path: Path) -> None:
    """`a` and `root.a` are the same queue: its apps would be in only one of the two virtual clusters."""
    status, output = said(tmp_path, FILE.format(levels="", terms="", more="\n  a: {node: 1}"))
    assert status == 1
    assert "virtual_clusters.a: is the same queue as root.a" in output


def test_a_nameless_queue_and_a_host_that_is_there_twice_are_refused(tmp_path: Path) -> None:
    """The queue without a name would own its cells with all queues that have none."""
    status, output = said(tmp_path, FILE.format(levels="", terms="", more="\n  '': {node: 1}"))
    assert (status, "is no leaf queue" in output) == (1, True)
    status, output = said(tmp_path, "levels: {node: 2}\nhosts: [n1, n1]\nvirtual_clusters: {root.a: {node: 2}}")
    assert (status, "hosts: n1 is there twice" in output) == (1, True)


def test_a_host_with_a_million_gpus_is_refused(tmp_path: Path) -> None:
    for text in (FILE.replace("node: 2{levels}", "node: 1000000{levels}"), TREES.replace("{count}", "1000000")):
        status, output = said(tmp_path, text.format(levels="", terms="", more=""))
        assert status == 1
        assert "at most 4096 are possible" in output


def test_terms_left_to_isonomy_yaml_are_checked_there(tmp_path: Path) -> None:
    terms = ", private_schedule: true, policy_options: {restart_s: 20}"
    assert said(tmp_path, FILE.format(levels="", terms=terms, more=""))[0] == 0
