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
from pycontrol.cli import main
from pycontrol.config import Config, ConfigError, parse
from pycontrol.config.strict_yaml import Section
from pycontrol.model import tags
from pycontrol.model.bounds import BOUNDS, GPUS_MAX, LAST_S, OutOfBounds, bound, clip, within
from pycontrol.model.cluster import YarnApp
from pycontrol.policies import registry
from pycontrol.web.router import Router
from pycontrol.wire.v1 import agent_pb2, am_pb2, bridge_pb2

ROOT = Path(__file__).parents[2]
NUMBERS = {
    FieldDescriptor.CPPTYPE_INT32,
    FieldDescriptor.CPPTYPE_INT64,
    FieldDescriptor.CPPTYPE_UINT32,
    FieldDescriptor.CPPTYPE_UINT64,
    FieldDescriptor.CPPTYPE_DOUBLE,
    FieldDescriptor.CPPTYPE_FLOAT,
}
TEXTS = frozenset(
    {
        "account",
        "app",
        "target",
        "file",
        "node",
        "vc",
        "cells",
        "in_return",
        "id",
        "queue",
        "scope",
        "type",
        "within",
        "by",
        "segment",
        "pinned",
        "opportunistic",
    }
)
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
    for file in sorted((ROOT / "pycontrol").glob("*/workloads/*.py")):
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
    for number in ("nan", "inf"):
        with pytest.raises(click.BadParameter):
            param.type.convert(number, param, None)


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


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("lease_s: 1e300", "lease_s"),
        ("deadlines: {rho_s: .inf}", "deadlines.rho_s"),
        ("seed: 9999999999", "seed"),
        ("journal: {retention_days: 1e12}", "journal.retention_days"),
    ],
)
def test_a_key_out_of_bounds_is_refused_with_its_name(text: str, key: str) -> None:
    with pytest.raises(ConfigError, match=f"^f.yaml: {re.escape(key)}: must be"):
        parse(text, Config, "f.yaml")


EXTREMES = {
    FieldDescriptor.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.CPPTYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, 2**64 - 1),
    FieldDescriptor.CPPTYPE_DOUBLE: (math.nan, math.inf, -math.inf, 1e300),
    FieldDescriptor.CPPTYPE_FLOAT: (math.nan, math.inf, -math.inf, 1e30),
}


@pytest.mark.parametrize("module", [bridge_pb2, am_pb2], ids=["bridge", "am"])
def test_each_number_that_arrives_over_a_bridge_is_clipped_by_its_row(module: Any) -> None:
    seen = 0
    for name, descriptor in module.DESCRIPTOR.message_types_by_name.items():
        for field in descriptor.fields:
            for value in EXTREMES.get(field.cpp_type, ()):
                repeated = not isinstance(getattr(message := getattr(module, name)(), field.name), int | float)
                message = getattr(module, name)(**{field.name: [value] if repeated else value})
                said, row = clip(message), bound(field.name, name)
                left = getattr(message, field.name)
                assert row.holds(left[0] if repeated else left)
                assert said == ([] if row.holds(value) else [f"{name}.{field.name}: must be {row} (got {value:g})"])
                seen += 1
    assert seen > 10


def test_numbers_deep_within_a_message_are_clipped() -> None:
    odd = bridge_pb2.PartitionCapacity(absolute_capacity=math.nan, gpus=2**32 - 1)
    snapshot = bridge_pb2.Snapshot(
        queues=[bridge_pb2.Queue(path="root.q", partitions={"x": odd}, user_limit_factor=-1.0)],
        containers=[bridge_pb2.GpuContainer(gpu_ids=[0, 5000])],
    )
    request = bridge_pb2.Request(hello=bridge_pb2.Hello(snapshot=snapshot), time_ms=-5)
    assert len(clip(request)) == 4
    found = request.hello.snapshot
    assert found.queues[0].partitions["x"] == bridge_pb2.PartitionCapacity(absolute_capacity=0.0, gpus=GPUS_MAX)
    assert not found.queues[0].HasField("user_limit")
    assert (list(found.containers[0].gpu_ids), request.time_ms) == ([0, 1023], 0)
    assert clip(request) == []


def test_each_option_of_a_policy_has_a_row_that_it_obeys() -> None:
    seen = 0
    for policy in registry.POLICIES:
        for option in registry.options(policy):
            usual = registry.default(policy, option)
            mapping = isinstance(usual, dict)
            if isinstance(usual, bool) or not (mapping or isinstance(usual, int | float)):
                continue
            seen += 1
            beyond = 2 * BOUNDS[option].high
            with pytest.raises(registry.UnknownPolicy, match=rf"{option}: must be from .* to .* \(got"):
                registry.make(policy, **{option: {"a": beyond} if mapping else beyond})
    assert seen > 10


@pytest.mark.parametrize("number", [math.nan, math.inf, -1.0, LAST_S + 1, 1.7e12])
def test_a_number_out_of_bounds_is_refused_with_its_bounds(number: float) -> None:
    with pytest.raises(OutOfBounds, match=r"^until_s: must be from 0 to 4294967296 \(got "):
        within(number, "until_s")
