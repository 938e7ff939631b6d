"""What a user can name: `python -m tests.surface` prints the counts; tests/cli/test_surface.py limits them.

It also writes the table of options by which `isonomy` refuses a typo before it imports the command.

Counted are leaf commands of `isonomy` and their options, hidden ones too, each where it stands; what the extra `lab`
alone brings is not. Then the leaf keys of isonomy.yaml, the properties `isonomy.*` of Hadoop's files, and the
environment variables `ISONOMY_*` that the product reads or sets.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_origin

import click

from pycontrol.cli import COMMANDS, OPTIONS, main
from pycontrol.config import Config
from pycontrol.config.strict_yaml import Section, _section_of

ROOT = Path(__file__).parents[1]
GOALS = {"commands": 40, "options": 150, "keys": 56}
MOST = {"commands": 40, "options": 150, "keys": 56, "properties": 18, "variables": 28}
"""What there may be; it may only fall."""
LABS = {name for name, (at, _) in COMMANDS.items() if at.startswith(".lab.")} - {
    "report",
    "shadow",
    "solve",
    "whatif",
    "workload",
}
"""Commands that come with the laboratory; the others need nothing of its extra."""
PROPERTY = re.compile(r"\"(isonomy\.(?:am|bridge|nm|scheduler|standby|tls|tokens|webhdfs)\.[a-z-]+)\"")
VARIABLE = re.compile(r"\bISONOMY_[A-Z_]+\b")


def commands(command: click.Command = main, path: str = "isonomy") -> Iterator[tuple[str, click.Command]]:
    """Leaf commands by name, and groups with options of their own."""
    if not isinstance(command, click.Group):
        yield path, command
        return
    context = click.Context(command)
    for name in command.list_commands(context):
        inner = command.get_command(context, name)
        if inner is not None and not (command is main and name in LABS):
            yield from commands(inner, f"{path} {name}")


def options() -> list[str]:
    """Each option where it stands, those of `isonomy` itself too."""
    own = [("isonomy", main), *commands()]
    return [f"{path} {o.opts[0]}" for path, c in own for o in c.params if isinstance(o, click.Option)]


def table(command: click.Command = main) -> dict[str, Any]:
    """Of each command its options with the number of their values (0: a flag), and under "" its arguments."""
    context = click.Context(command)
    if isinstance(command, click.Group):
        inner = {name: command.get_command(context, name) for name in command.list_commands(context)}
        return {name: table(found) for name, found in inner.items() if found is not None}
    options = [p for p in command.params if isinstance(p, click.Option)]
    return {
        "": " ".join(command.collect_usage_pieces(context)[1:]),
        **{" ".join([*o.opts, *o.secondary_opts]): 0 if o.is_flag else o.nargs for o in options},
        "-h --help": 0,
    }


def written() -> str:
    """The text of the table, a line for each command."""
    rows = (f"{json.dumps(name)}: {json.dumps(of)}" for name, of in table().items())
    return "{\n" + ",\n".join(rows) + "\n}\n"


def keys(section: type[Section] = Config, path: str = "") -> list[str]:
    """Leaf keys of isonomy.yaml; what a mapping of names has below a name is one key."""
    found: list[str] = []
    for name, field in section.model_fields.items():
        inner = None if get_origin(field.annotation) is Mapping else _section_of(field.annotation)
        found += keys(inner, f"{path}{name}.") if inner is not None else [f"{path}{name}"]
    return found


def _named(pattern: re.Pattern[str], *folders: str) -> list[str]:
    files = (f for folder in folders for f in (ROOT / folder).rglob("*") if f.suffix in (".py", ".java", ".j2"))
    product = (f for f in files if not {"lab", "test"} & {*f.relative_to(ROOT).parts})
    return sorted({word for f in product for word in pattern.findall(f.read_text(encoding="utf-8"))})


def surface() -> dict[str, list[str]]:
    """All names by kind."""
    code = ("pycontrol", "submarine_patch", "yarn-plugin")
    return {
        "commands": [path for path, _ in commands()],
        "options": options(),
        "keys": keys(),
        "properties": _named(PROPERTY, *code, "confs"),
        "variables": _named(VARIABLE, *code, "confs"),
    }


def counts(found: dict[str, list[str]]) -> dict[str, Any]:
    """How many of each kind."""
    return {kind: len(names) for kind, names in found.items()}


if __name__ == "__main__":
    OPTIONS.write_text(written(), encoding="utf-8")
    for kind, names in surface().items():
        goal = f", goal at most {GOALS[kind]}" if kind in GOALS else ""
        print(f"{kind}: {len(names)}{goal}\n  {', '.join(names)}")
