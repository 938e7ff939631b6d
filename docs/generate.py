"""Writes docs/cli.md from the commands and docs/config.md from the configuration's models. `--check`: only compares.

`--share FOLDER` writes the man page and the shells' completions of `isonomy` instead, as below /usr/local/share.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import click
from click.shell_completion import get_completion_class
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from pycontrol import config
from pycontrol.cli import main

DOCS = Path(__file__).parent
NAMES = {
    "str": "text",
    "int": "whole number",
    "float": "number",
    "bool": "true or false",
    "Path": "path",
    "Mapping": "mapping",
    "dict": "mapping",
    "tuple": "list",
}
CLI_IS = """\
Generated from the commands (`make docs`); `isonomy COMMAND --help` says the same. So does `man isonomy`, and TAB
completes commands and options, where [both are installed](running/commands.md#completion-and-man-page)."""
DEFAULTS = DOCS.parent / "confs/defaults.yaml"


def cli() -> str:
    """All commands: their help, as `isonomy COMMAND --help` prints it."""
    lines = ["# Commands", "", CLI_IS, ""]
    for path, command in _commands(main, ("isonomy",)):
        lines += [f"{'#' * min(4, len(path) + 1)} {' '.join(path)}", "", "```", _help(path, command, 100), "```", ""]
    return "\n".join(lines).rstrip() + "\n"


def _commands(group: click.Command, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    yield path, group
    if isinstance(group, click.Group):
        context = click.Context(group)
        for name in group.list_commands(context):
            command = group.get_command(context, name)
            if command is not None and not command.hidden:
                yield from _commands(command, (*path, name))


def _help(path: tuple[str, ...], command: click.Command, width: int) -> str:
    context = click.Context(command, info_name=" ".join(path), terminal_width=width, max_content_width=width)
    return command.get_help(context).rstrip()


def man() -> str:
    """The man page: the help of all commands, in roff."""
    lines = [
        ".TH ISONOMY 1",
        ".SH NAME",
        "isonomy \\- fair and safe sharing of a GPU cluster on Hadoop YARN",
        ".SH COMMANDS",
    ]
    for path, command in _commands(main, ("isonomy",)):
        text = _help(path, command, 78).replace("\\", "\\e").replace("-", "\\-")
        lines += [f".SS {' '.join(path)}", ".nf", *("\\&" + line for line in text.splitlines()), ".fi"]
    return "\n".join(lines) + "\n"


COMPLETIONS = {
    "bash": "bash-completion/completions/isonomy",
    "zsh": "zsh/site-functions/_isonomy",
    "fish": "fish/vendor_completions.d/isonomy.fish",
}
"""Shell -> where below /usr/local/share it looks for completions."""


def share(folder: Path) -> None:
    """Writes the man page and the completions."""
    files = {"man/man1/isonomy.1": man()}
    for shell, place in COMPLETIONS.items():
        complete = get_completion_class(shell)
        assert complete is not None
        files[place] = complete(main, {}, "isonomy", "_ISONOMY_COMPLETE").source()
    for place, text in files.items():
        (folder / place).parent.mkdir(parents=True, exist_ok=True)
        (folder / place).write_text(text, encoding="utf-8")


def configuration() -> str:
    """isonomy.yaml and the topology file from their models, and what the templates take from confs/defaults.yaml."""
    lines = [
        "# Configuration",
        "",
        "Generated from the configuration's models and `confs/defaults.yaml` (`make docs`).",
        "",
        "## isonomy.yaml",
        "",
        "What `isonomy serve --config` reads. An unknown key is an error.",
        "",
        "| key | type | default | |",
        "| --- | --- | --- | --- |",
        *_rows(config.Config, ""),
        "",
        "## The topology file",
        "",
        "What `topology` of isonomy.yaml names. Without it there are no slots.",
        "",
        "| key | type | default | |",
        "| --- | --- | --- | --- |",
        *_rows(config.TopologySpec, ""),
        "",
        "## Values of the templates",
        "",
        "What `isonomy config render --values FILE --set KEY=VALUE` takes.",
        "",
        "| value | default | |",
        "| --- | --- | --- |",
        *_values(),
        "",
    ]
    return "\n".join(lines)


def _rows(model: type[BaseModel], prefix: str, above: tuple[type[BaseModel], ...] = ()) -> Iterator[str]:
    """A row for each key; sections of a mapping are below its NAME, and those that contain themselves appear once."""
    said = _said(model)
    for name, field in model.model_fields.items():
        inner = [m for m in (field.annotation, *get_args(field.annotation)) if isinstance(m, type)]
        section = next((m for m in inner if issubclass(m, BaseModel)), None)
        if section is not None:
            by_name = get_origin(field.annotation) is Mapping
            text = (by_name and said.get(name)) or inspect.getdoc(section) or ""
            yield f"| `{prefix}{name}` | {'mapping of names, section' if by_name else 'section'} | | {_cell(text)} |"
            if section not in (*above, model):
                yield from _rows(section, f"{prefix}{name}.{'NAME.' if by_name else ''}", (*above, model))
        else:
            yield f"| `{prefix}{name}` | {_kind(field.annotation)} | {_default(field)} | {_cell(said.get(name, ''))} |"


def _said(model: type[BaseModel]) -> dict[str, str]:
    """The string after each field, its own or its base's."""
    base = model.__base__
    inherited = _said(base) if base is not None and base.__module__ == model.__module__ else {}
    body = ast.parse(textwrap.dedent(inspect.getsource(model))).body[0]
    assert isinstance(body, ast.ClassDef)
    found = dict(inherited)
    for field, text in zip(body.body, body.body[1:], strict=False):
        match field, text:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(said))):
                found[name] = inspect.cleandoc(said)
    return found


def _kind(annotation: Any) -> str:
    """A type as a reader writes it in YAML."""
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _kind(args[0])
    if origin is Literal:
        return " or ".join(f"`{x}`" for x in args)
    if origin in (Union, UnionType):
        return " or ".join("none" if x is NoneType else _kind(x) for x in args)
    if args:
        return f"{NAMES.get(origin.__name__, origin.__name__)} of {', '.join(_kind(x) for x in args)}"
    return NAMES.get(annotation.__name__, annotation.__name__) if isinstance(annotation, type) else "any"


def _default(field: FieldInfo) -> str:
    if field.default_factory_takes_validated_data:
        return ""  # of other keys: the text says how
    value: Any = field.get_default(call_default_factory=True)
    return "required" if value is PydanticUndefined else f"`{value}`" if value is not None else ""


def _values() -> Iterator[str]:
    """From the file's own comments, section by section."""
    section = ""
    for line in DEFAULTS.read_text(encoding="utf-8").splitlines():
        found = re.fullmatch(r"( *)([a-z_0-9]+):(?: +([^# ].*?))?(?: +# +(.*))?", line)
        if not found:
            continue
        indent, key, value, text = found.groups()
        if not indent:
            section = key
        if value or text:
            name = f"{section}.{key}" if indent else key
            yield f"| `{name}` | {f'`{value}`' if value else ''} | {_cell(text or '')} |"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


PAGES = {"cli.md": cli, "config.md": configuration}


def run(check: bool) -> int:
    """Writes the pages, or says which are not up to date; the exit status."""
    stale = 0
    for name, make in PAGES.items():
        page, text = DOCS / name, make()
        if page.exists() and page.read_text(encoding="utf-8") == text:
            continue
        stale += 1
        if not check:
            page.write_text(text, encoding="utf-8")
        print(f"docs/{name} {'is not up to date: run `make docs`' if check else 'written'}")
    return stale if check else 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--share"]:
        share(Path(sys.argv[2]))
    else:
        sys.exit(run("--check" in sys.argv[1:]))
