"""`isonomy config`, `preflight` and `policies`: the files, what is wrong with them or with a machine, and what policies
there are."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, NoReturn

import click
import requests
from rich.console import RenderableType

from pycontrol.cli.client import FILE, FOLDER, Failure, ca_bundle, failing, output_option
from pycontrol.cli.tables import Data, emit, emit_json, table
from pycontrol.config import ConfigError, load_config, mapping
from pycontrol.hadoopconf import check as checks
from pycontrol.hadoopconf import preflight
from pycontrol.hadoopconf import render as rendering
from pycontrol.hadoopconf.distribution import Distribution
from pycontrol.hadoopconf.findings import Finding, error
from pycontrol.hadoopconf.names import ISONOMY, YARN
from pycontrol.hadoopconf.sitefile import read_site, rm_web_url
from pycontrol.negotiate import session
from pycontrol.policies import registry
from pycontrol.words import count

hadoop_option = click.option(
    "--hadoop", metavar="VERSION", help="Hadoop's, 3.3 to 3.5  [default: that of HADOOP_HOME]."
)


def distribution(hadoop: str | None) -> Distribution:
    """What is installed here, or its like of the version given, of which two parts count."""
    here = Distribution.here()
    return replace(here, version=".".join(hadoop.split(".")[:2])) if hadoop else here


def end_with(findings: Sequence[Finding], output: str, where: Path, **more: Any) -> NoReturn:
    """Prints findings and their numbers, or with `more` as JSON; exit status 1 if one is an error."""
    errors = sum(f.level == "error" for f in findings)
    if output == "json":
        emit_json({**more, "errors": errors, "findings": [asdict(f) for f in findings]})
    else:
        for finding in findings:
            click.echo(str(finding))
        click.echo(f"{where}: {count(errors, 'error')}, {count(len(findings) - errors, 'note')}")
    sys.exit(1 if errors else 0)


@click.group("config")
def config_group() -> None:
    """Render and check the configuration of Hadoop and Isonomy."""


@config_group.command("render")
@click.option(
    "--set", "settings", multiple=True, metavar="SECTION.KEY=VALUE", help="A value of confs/defaults.yaml; repeat."
)
@click.option("--values", type=FILE, help="A YAML file of such values.")
@click.option("--out", required=True, type=FOLDER, help="Directory for the files.")
@click.option("--force", is_flag=True, help="Overwrite files that differ.")
@output_option
def render_command(settings: tuple[str, ...], values: Path | None, out: Path, force: bool, output: str) -> None:
    """Write all configuration files into a directory. Files there that differ are left alone unless --force."""
    with failing(ConfigError):
        over = rendering.parse_set(settings)
        if values:
            over = rendering.merge(rendering.merge(rendering.defaults(), _values(values)), over)
        files = rendering.render(over)
    others = [] if force else rendering.different(files, out)
    if others:
        said = f"has {', '.join(others)} with other contents; name an empty directory, or give --force"
        raise Failure(f"--out {out}: {said}")
    with failing(OSError, what=f"--out {out}: cannot be written"):
        written = rendering.write(files, out)
    emit({"files": [str(file) for file in written]}, output, lambda d: "\n".join(d["files"]))


def _values(file: Path) -> rendering.Values:
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError([f"--values {file}: cannot be read as YAML: {error}"]) from error
    return mapping(text, f"--values {file}")


@config_group.command("check")
@click.argument("path", type=click.Path(path_type=Path, exists=True))
@hadoop_option
@output_option
def check_command(path: Path, hadoop: str | None, output: str) -> None:
    """Check a configuration directory or one file. Exit 1 if there are errors."""
    with failing(OSError):
        findings = checks.check(path, distribution(hadoop))
    end_with(findings, output, path)


# ---- preflight


@click.command("preflight")
@click.argument(
    "conf",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    envvar="HADOOP_CONF_DIR",
    default=Path("/etc/hadoop/conf"),
)
@output_option
def preflight_command(conf: Path, output: str) -> None:
    """Check this machine before its daemon restarts: user, jars, Python, folders, ports, clock, GPUs, their isolation.

    Exit 1 if there are errors. Run it as the user of the daemon: the ResourceManager's, or on a GPU node the
    NodeManager's. CONF is the folder of yarn-site.xml; isonomy.yaml is there or in /etc/isonomy.
    """
    end_with(_findings(conf), output, conf)


def _findings(conf: Path) -> Sequence[Finding]:
    try:
        sites = {n: read_site(conf / n) for n in checks.CHECKS if n == YARN or (".xml" in n and (conf / n).exists())}
        file = next((f for f in (conf / ISONOMY, Path("/etc/isonomy", ISONOMY)) if f.exists()), None)
        config = load_config(file) if file else None
        found = preflight.findings(preflight.Machine(), sites, config, Distribution.here(), _rm_time_s(conf))
        return list(found)
    except ConfigError as problem:
        return [error(line.partition(": ")[0], "", line.partition(": ")[2]) for line in problem.lines]


def _rm_time_s(conf: Path) -> float | None:
    """The time of the first ResourceManager that answers (Unix, s), by the header of its web app."""
    try:
        urls = rm_web_url(None, conf).split(",")
    except ConfigError:  # on one machine yarn-site.xml need not say it
        return None
    http = session()
    http.verify, http.auth = ca_bundle(), None  # a refusal has the time, too
    for url in urls:
        try:
            reply = http.head(f"{url}/ws/v1/cluster/info", timeout=5, allow_redirects=False)
            return parsedate_to_datetime(reply.headers["Date"]).timestamp()
        except (requests.RequestException, KeyError, ValueError):
            continue
    return None


# ---- policies


@click.command("policies")
@output_option
def policies_command(output: str) -> None:
    """List the policies: what each does, its options with their defaults.

    The policy of the rounds is `policy` (with `policy_options`) in isonomy.yaml or `isonomy serve --policy NAME`.
    """
    emit({"policies": [_described(name) for name in registry.names()]}, output, _policies)


def _described(name: str) -> dict[str, Any]:
    try:
        options = {option: registry.default(name, option) for option in registry.options(name)}
        return {"name": name, "summary": registry.summary(name), "options": options}
    except registry.UnknownPolicy as e:  # another distribution's, broken: the others are listed all the same
        return {"name": name, "summary": str(e), "options": {}}


def _policies(data: Data) -> RenderableType:
    rows = ((p["name"], p["summary"], " ".join(f"{k}={v}" for k, v in p["options"].items())) for p in data["policies"])
    return table(("policy", "what it does", "options"), rows)
