"""Policies of other distributions: the one of docs/extending.md, installed as a package would be."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from pycontrol.cli.config import policies_command
from pycontrol.lab.clusters import uniform
from pycontrol.lab.runs import simulate
from pycontrol.policies import registry
from pycontrol.simulation.trace_apps import TraceApp, Workload
from tests.documented import check_documented_suite, installed_package


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The document's code and entry point, on the path."""
    more = "gone = fewest.nowhere:Gone\nisonomy = fewest.policy:Fewest\n"
    forget = registry.others.cache_clear
    with installed_package(tmp_path, monkeypatch, "fewest/policy.py", "isonomy.policies", more, forget):
        yield tmp_path


@pytest.mark.usefixtures("installed")
def test_an_installed_package_brings_its_policy() -> None:
    assert "fewest" in registry.names()
    assert registry.options("fewest")[-1] == "head_start"
    assert registry.summary("fewest") == "Fewest: the app that holds the fewest GPUs goes first."
    apps = tuple(TraceApp(f"a{i}", 0.0, 1, ((100.0,) * 4,)) for i in range(3))
    result = simulate(Workload("three", apps), uniform(1, 3), registry.make("fewest", head_start=1))
    assert all(a.finished_s is not None for a in result.apps)


def test_the_documents_policy_passes_the_conformance_suite(installed: Path) -> None:
    check_documented_suite(installed, "test_fewest.py")


@pytest.mark.usefixtures("installed")
def test_an_entry_point_cannot_replace_a_built_in_policy() -> None:
    assert type(registry.make("isonomy")).__module__ == "pycontrol.policies.isonomy"


@pytest.mark.usefixtures("installed")
def test_a_policy_that_cannot_be_loaded_is_named() -> None:
    with pytest.raises(registry.UnknownPolicy, match=r"policy gone: fewest\.nowhere:Gone cannot be loaded"):
        registry.make("gone")
    with pytest.raises(registry.UnknownPolicy, match="fewest has no option headstart; did you mean head_start"):
        registry.make("fewest", headstart=1)


@pytest.mark.usefixtures("installed")
def test_a_broken_one_does_not_keep_the_others_from_being_listed() -> None:
    done = CliRunner().invoke(policies_command, ["-o", "json"])
    listed = {p["name"]: p for p in json.loads(done.output)["policies"]}
    assert "cannot be loaded" in listed["gone"]["summary"]
    assert listed["fewest"]["options"]["head_start"] == 0
