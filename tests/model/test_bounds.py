"""Every number that comes from outside has a row in the table of bounds, and its edge obeys it."""

from __future__ import annotations

import importlib
import math
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import click
import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor

import pycontrol
from pycontrol.arbiter import tags
from pycontrol.cli import main
from pycontrol.config import ConfigError, parse
from pycontrol.config.reading import Section
from pycontrol.config.settings import Config
from pycontrol.model.bounds import BOUNDS, LAST_S, OutOfBounds, bound, within
from pycontrol.model.cluster import YarnApp
from pycontrol.web.router import Router
from pycontrol.wire.v1 import agent_pb2, am_pb2, bridge_pb2

ROOT = Path(__file__).parents[2]
NUMBERS = {
    FieldDescriptor.CPPTYPE_INT32, FieldDescriptor.CPPTYPE_INT64, FieldDescriptor.CPPTYPE_UINT32,
    FieldDescriptor.CPPTYPE_UINT64, FieldDescriptor.CPPTYPE_DOUBLE, FieldDescriptor.CPPTYPE_FLOAT,
}  # fmt: skip
TEXTS = frozenset({"app", "file", "node", "vc", "cells", "in_return", "id"})
"""REST parameters that are no numbers."""


def fields() -> Iterator[tuple[str, str]]:
    """(message, numeric field) of all protocols."""

    def walk(message: Descriptor) -> Iterator[tuple[str, str]]:
        for field in message.fields:
            if field.cpp_type in NUMBERS:
                name = "speedups" if message.name == "SpeedupsEntry" else field.name
                yield message.name, name
        for inner in message.nested_types:
            yield from walk(inner)

    for module in (agent_pb2, bridge_pb2, am_pb2):
        for message in module.DESCRIPTOR.message_types_by_name.values():
            yield from walk(message)


def keys() -> Iterator[tuple[str, str]]:
    """(section, key) of every number in YAML files."""
    for module in pkgutil.walk_packages(pycontrol.__path__, "pycontrol."):
        if module.name.startswith(("pycontrol.config", "pycontrol.cells", "pycontrol.hadoopconf")):
            importlib.import_module(module.name)

    def kinds(annotation: Any) -> Iterator[Any]:
        yield annotation
        for inner in get_args(annotation):
            yield from kinds(inner)

    for section in _all(Section):
        for name, field in section.model_fields.items():
            if {int, float} & {k for k in kinds(field.annotation) if isinstance(k, type)}:
                yield section.__name__, name


def _all(kind: type[Section]) -> Iterator[type[Section]]:
    for each in kind.__subclasses__():
        yield each
        yield from _all(each)


def options() -> Iterator[tuple[str, click.Parameter]]:
    """(command, numeric option or argument)."""

    def walk(command: click.Command, path: str) -> Iterator[tuple[str, click.Parameter]]:
        if isinstance(command, click.Group):
            context = click.Context(command)
            for name in command.list_commands(context):
                inner = command.get_command(context, name)
                assert inner is not None
                yield from walk(inner, f"{path} {name}".strip())
        for param in command.params:
            if isinstance(param.type, click.types.IntParamType | click.types.FloatParamType):
                yield path, param

    return walk(main, "")


def columns() -> Iterator[str]:
    """The numeric columns that importers name."""
    for file in sorted((ROOT / "pycontrol/simulation/workloads").glob("*.py")):
        yield from re.findall(r"\.(?:numbers|counts)\(\"(\w+)\"", file.read_text())


@pytest.mark.parametrize(("owner", "name"), sorted(set(fields())))
def test_each_number_of_a_protocol_has_a_row(owner: str, name: str) -> None:
    assert bound(name, owner).low <= bound(name, owner).high


@pytest.mark.parametrize(("owner", "name"), sorted(set(keys())))
def test_each_number_of_a_yaml_file_has_a_row(owner: str, name: str) -> None:
    assert math.isfinite(bound(name, owner).high)


@pytest.mark.parametrize(("command", "param"), list(options()), ids=lambda x: x if isinstance(x, str) else x.name)
def test_each_number_of_a_command_has_a_row_that_it_obeys(command: str, param: click.Parameter) -> None:
    assert isinstance(param.type, click.IntRange | click.FloatRange)
    assert param.type.max is not None
    assert param.type.max <= bound(str(param.name), command.split()[-1]).high
    assert param.type.min is not None
    assert param.type.min >= 0


def test_each_number_of_rest_has_a_row() -> None:
    driver: Any = None
    router = Router(driver, issue=lambda app_id, user: "", arbiter_address="")
    names = {name for route in router.routes.values() for name in route.params}
    assert not [name for name in sorted(names - TEXTS) if name not in BOUNDS]


def test_each_column_of_a_trace_has_a_row() -> None:
    found = set(columns())
    assert len(found) > 10
    assert not found - BOUNDS.keys()


def test_each_tag_with_a_number_has_a_row() -> None:
    named = {value for name, value in vars(tags).items() if name.isupper() and value.startswith("isonomy.")}
    assert named - BOUNDS.keys() == {tags.INTERACTIVE}


@pytest.mark.parametrize("hours", ["1e10", "1e308", "inf", "nan", "-1", "0", "1e-9", "two"])
def test_a_tag_out_of_bounds_is_ignored(hours: str) -> None:
    app = YarnApp("a", "u", "q", "n", "YARN", 0.0, frozenset({f"isonomy.max_hours={hours}"}))
    assert tags.max_s(app) is None
    assert "is ignored: it must be from 0.001 to 100000" in tags.declared(app)


@pytest.mark.parametrize(("text", "key"), [
    ("lease_s: 1e300", "lease_s"), ("deadlines: {rho_s: .inf}", "deadlines.rho_s"), ("seed: 9999999999", "seed"),
    ("journal: {retention_days: 1e12}", "journal.retention_days"),
])  # fmt: skip
def test_a_key_out_of_bounds_is_refused_with_its_name(text: str, key: str) -> None:
    with pytest.raises(ConfigError, match=f"^f.yaml: {re.escape(key)}: must be"):
        parse(text, Config, "f.yaml")


@pytest.mark.parametrize("number", [math.nan, math.inf, -1.0, LAST_S + 1, 1.7e12])
def test_a_number_out_of_bounds_is_refused_with_its_bounds(number: float) -> None:
    with pytest.raises(OutOfBounds, match=r"^until_s: must be from 0 to 4294967296 \(got "):
        within(number, "until_s")
