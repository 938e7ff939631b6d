"""Every command that prints JSON is documented, by its own schema or as the REST answer that it prints."""

from __future__ import annotations

import json
from collections.abc import Iterator

import click
import pytest

from pycontrol.cli import main
from tests import contract
from tests.cli.conftest import Rm, run


def commands(group: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[str, click.Command]]:
    if not isinstance(group, click.Group) or group.invoke_without_command:
        yield " ".join(path), group
    if not isinstance(group, click.Group):
        return
    for name in group.list_commands(click.Context(group)):
        inner = group.get_command(click.Context(group), name)
        assert inner is not None
        yield from commands(inner, (*path, name))


def test_every_command_with_json_is_documented() -> None:
    with_json = {name for name, c in commands(main) if any(p.name == "output" for p in c.params)}
    documented = set(json.loads(contract.FILE.read_text(encoding="utf-8"))) | set(contract.AS_REST)
    assert with_json == documented
    rest = json.loads((contract.DOCS / "rest.json").read_text(encoding="utf-8"))
    assert set(contract.AS_REST.values()) <= set(rest)


def test_the_page_is_that_of_the_schemas() -> None:
    schemas = json.loads(contract.FILE.read_text(encoding="utf-8"))
    assert contract.PAGE.read_text(encoding="utf-8") == contract.page(schemas)


def test_output_that_is_not_documented_fails_the_test_that_printed_it(rm: Rm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(contract.AS_REST, "status")
    assert "status: is not documented" in str(run(rm, "status", "-o", "json").exception)
