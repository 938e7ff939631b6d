"""`isonomy policies`: which policies there are, and their options."""

from __future__ import annotations

from typing import Any

import click
from rich.console import RenderableType

from pycontrol.cli.tables import Data, emit, table
from pycontrol.policies import registry


@click.command("policies")
@click.option("-o", "output", type=click.Choice(["text", "json"]), default="text")
def policies_command(output: str) -> None:
    """List the policies: what each does, its options with their defaults.

    The policy of the rounds is `policy` (with `policy_options`) in isonomy.yaml or `isonomy serve --policy NAME`.
    """
    emit({"policies": [_described(name) for name in registry.names()]}, output, _draw)


def _described(name: str) -> dict[str, Any]:
    try:
        options = {option: registry.default(name, option) for option in registry.options(name)}
        return {"name": name, "summary": registry.summary(name), "options": options}
    except registry.UnknownPolicy as e:  # another distribution's, broken: the others are listed all the same
        return {"name": name, "summary": str(e), "options": {}}


def _draw(data: Data) -> RenderableType:
    rows = ((p["name"], p["summary"], " ".join(f"{k}={v}" for k, v in p["options"].items())) for p in data["policies"])
    return table(("policy", "what it does", "options"), rows)
