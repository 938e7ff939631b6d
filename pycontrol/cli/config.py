"""`isonomy config`: render the configuration from its templates, and check it."""

from __future__ import annotations

import sys
from dataclasses import asdict, replace
from pathlib import Path

import click

from pycontrol.cli.client import Failure
from pycontrol.cli.tables import emit_json
from pycontrol.config import ConfigError, mapping
from pycontrol.hadoopconf import check as checks
from pycontrol.hadoopconf import render as rendering
from pycontrol.hadoopconf.distribution import Distribution
from pycontrol.words import count


@click.group("config")
def config_group() -> None:
    """Render and check the configuration of Hadoop and Isonomy."""


@config_group.command("render")
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="SECTION.KEY=VALUE",
    help="A value of confs/defaults.yaml; may be repeated.",
)
@click.option("--values", type=click.Path(path_type=Path, dir_okay=False), help="A YAML file of such values.")
@click.option("--out", required=True, type=click.Path(path_type=Path, file_okay=False), help="Directory for the files.")
@click.option("--force", is_flag=True, help="Overwrite files that differ.")
@click.option("-o", "output", type=click.Choice(["text", "json"]), default="text")
def render_command(settings: tuple[str, ...], values: Path | None, out: Path, force: bool, output: str) -> None:
    """Write all configuration files into a directory. Files there that differ are left alone unless --force."""
    try:
        over = rendering.parse_set(settings)
        if values:
            over = rendering.merge(rendering.merge(rendering.defaults(), _values(values)), over)
        files = rendering.render(over)
        others = [] if force else rendering.different(files, out)
        if others:
            raise ConfigError(
                [f"--out {out}: has {', '.join(others)} with other contents; name an empty directory, or give --force"]
            )
        written = rendering.write(files, out)
    except ConfigError as error:
        for line in error.lines:
            click.echo(f"error: {line}", err=True)
        sys.exit(1)
    except OSError as error:
        click.echo(f"error: --out {out}: cannot be written: {error.strerror}", err=True)
        sys.exit(1)
    names = [str(file) for file in written]
    if output == "json":
        emit_json({"files": names})
    else:
        click.echo("\n".join(names))


def _values(file: Path) -> rendering.Values:
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError([f"--values {file}: cannot be read as YAML: {error}"]) from error
    return mapping(text, f"--values {file}")


@config_group.command("check")
@click.argument("path", type=click.Path(path_type=Path, exists=True))
@click.option("--hadoop", metavar="VERSION", help="Hadoop's, 3.3 to 3.5  [default: that of HADOOP_HOME].")
@click.option("-o", "output", type=click.Choice(["text", "json"]), default="text")
def check_command(path: Path, hadoop: str | None, output: str) -> None:
    """Check a configuration directory or one file. Exit 1 if there are errors."""
    here = Distribution.here()
    try:
        findings = checks.check(path, replace(here, version=".".join(hadoop.split(".")[:2])) if hadoop else here)
    except OSError as e:
        raise Failure(f"{e.filename or path}: {e.strerror}; give this user the right to it") from e
    errors = sum(finding.level == "error" for finding in findings)
    if output == "json":
        emit_json({"errors": errors, "findings": [asdict(f) for f in findings]})
    else:
        for finding in findings:
            click.echo(str(finding))
        click.echo(f"{path}: {count(errors, 'error')}, {count(len(findings) - errors, 'note')}")
    sys.exit(1 if errors else 0)
