"""`isonomy preflight`: what this machine lacks for its part."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict
from email.utils import parsedate_to_datetime
from pathlib import Path

import click
import requests

from pycontrol.cli.client import ca_bundle
from pycontrol.cli.tables import emit_json
from pycontrol.config import Config, ConfigError, load_config
from pycontrol.hadoopconf import preflight
from pycontrol.hadoopconf.check import CHECKS
from pycontrol.hadoopconf.distribution import Distribution
from pycontrol.hadoopconf.findings import Finding, error
from pycontrol.hadoopconf.names import ISONOMY
from pycontrol.hadoopconf.sitefile import read_site, rm_web_url
from pycontrol.words import count


@click.command("preflight")
@click.argument(
    "conf",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    envvar="HADOOP_CONF_DIR",
    default=Path("/etc/hadoop/conf"),
)
@click.option("-o", "output", type=click.Choice(["text", "json"]), default="text")
def preflight_command(conf: Path, output: str) -> None:
    """Check this machine, before its daemon restarts: jars, folders, ports, clock, GPUs and their isolation.

    Exit 1 if there are errors. Run it as the user of the daemon: the ResourceManager's, or on a GPU node the
    NodeManager's. CONF is the folder of yarn-site.xml; isonomy.yaml is there or in /etc/isonomy.
    """
    found = _findings(conf)
    errors = sum(f.level == "error" for f in found)
    if output == "json":
        emit_json({"errors": errors, "findings": [asdict(f) for f in found]})
    else:
        for finding in found:
            click.echo(str(finding))
        click.echo(f"{count(errors, 'error')}, {count(len(found) - errors, 'note')}")
    sys.exit(1 if errors else 0)


def _findings(conf: Path) -> Sequence[Finding]:
    try:
        sites = {n: read_site(conf / n) for n in CHECKS if n.endswith(".xml") and (conf / n).exists()}
        config = _config(conf)
        found = preflight.findings(preflight.Machine(), sites, config, Distribution.here(), _rm_time_s(conf))
        return list(found)
    except ConfigError as problem:
        return [error(line.partition(": ")[0], "", line.partition(": ")[2]) for line in problem.lines]


def _config(conf: Path) -> Config | None:
    file = next((f for f in (conf / ISONOMY, Path("/etc/isonomy", ISONOMY)) if f.exists()), None)
    return load_config(file) if file else None


def _rm_time_s(conf: Path) -> float | None:
    """The time of the first ResourceManager that answers (Unix, s), by the header of its web app."""
    for url in rm_web_url(None, conf).split(","):
        try:
            reply = requests.head(f"{url}/ws/v1/cluster/info", timeout=5, verify=ca_bundle(), allow_redirects=False)
            return parsedate_to_datetime(reply.headers["Date"]).timestamp()
        except (requests.RequestException, KeyError, ValueError):
            continue
    return None
