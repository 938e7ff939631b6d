"""`isonomy install`: what of a cluster's own configuration changes, the changed copies, and the way back."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from textwrap import indent

import click

from pycontrol.cli.client import Misused, failing, output_option
from pycontrol.cli.config import distribution, end_with, hadoop_option
from pycontrol.config import ConfigError
from pycontrol.hadoopconf import check, properties, render
from pycontrol.hadoopconf.findings import Finding
from pycontrol.hadoopconf.names import CORE, HDFS, ISONOMY, NODE, SCHEDULER, SUBMARINE, TYPES, YARN
from pycontrol.hadoopconf.preflight import PYTHON
from pycontrol.hadoopconf.properties import ALL, EXECUTOR, NM, RECORD, RM, Choices, PropertyChange, Stage
from pycontrol.hadoopconf.runbook import FORMATS, Format, Step, removal, steps
from pycontrol.hadoopconf.sitefile import included, parse_site, read_site, rm_web_url

OWN = {RM: (ISONOMY,), ALL: (SUBMARINE,)}
"""Isonomy's own files by class of host; of all machines only the gateways need theirs."""


@click.command("install")
@click.option(
    "--hadoop-conf",
    "conf",
    required=True,
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    metavar="DIR",
    help="The cluster's configuration; it is only read.",
)
@click.option(
    "--apply",
    "out",
    type=click.Path(path_type=Path),
    metavar="OUT",
    help="Write changed copies into OUT, a folder a class of hosts.",
)
@click.option("--remove", is_flag=True, help="Plan the way back instead; with --apply, write its files.")
@click.option(
    "--format",
    "form",
    type=click.Choice(list(FORMATS)),
    default="files",
    show_default=True,
    help="As files, or as Cloudera Manager, Ambari, EMR or Dataproc takes them.",
)
@hadoop_option
@click.option(
    "--stage",
    type=click.Choice([s.name.lower() for s in Stage]),
    default="watch",
    show_default=True,
    help="How far to go: watch (the ResourceManagers alone), executors (GPU nodes), queue (--queues), all.",
)
@click.option("--queues", default="", metavar="A,B", help="Those of stage queue, with full paths as root.research.")
@click.option("--gpus", type=click.IntRange(min=0), help="GPUs of each machine, if all have the same number.")
@output_option
def install_command(
    conf: Path, out: Path | None, remove: bool, form: str, hadoop: str | None, stage: str, queues: str,
    gpus: int | None, output: str,
) -> None:  # fmt: skip
    """The run-book of Isonomy in a cluster: by stage and class of host what changes, what to do, how to undo it.

    Nothing is changed in place: --apply writes the changed files, and a record of what they had, into a new directory.

    \b
    isonomy install --hadoop-conf /etc/hadoop/conf --hadoop 3.4
    isonomy install --hadoop-conf /etc/hadoop/conf --hadoop 3.4 --stage executors --apply /tmp/conf-isonomy
    isonomy install --hadoop-conf /etc/hadoop/conf --remove --apply /tmp/conf-back
    """
    if (stage == "queue") != bool(queues):
        raise Misused("--queues names the queues of --stage queue: give both or none")
    with failing(ConfigError, OSError):
        texts = _texts(conf)
        sites = {name: parse_site(text.encode(), name) for name, text in texts.items()}
        left: list[PropertyChange] = []
        if remove:
            changes, left = properties.back(sites, _record(conf))
        else:
            choices = Choices(_version(hadoop), Stage[stage.upper()], queues or "root", gpus)
            changes = properties.plan(sites, choices)
            for file in (conf / c.file for c in changes if c.file in texts):
                if others := included(file):
                    said = "which is not read; move its properties into this file"
                    raise ConfigError([f"{file}: includes {others[0]}, {said}"])
        book = list(removal(changes, FORMATS[form]) if remove else steps(sites, choices, FORMATS[form]))
        own = {} if remove else {n: text for n, text in _own(conf).items() if not (conf / n).exists()}
        findings = [] if remove else _left_to_do(conf, properties.changed_texts(texts, changes) | own, choices.hadoop)
        if out is not None:
            _write(conf, out, texts, changes, own, None if remove else _record(conf) or [])
    if output != "json":
        _say(book, FORMATS[form], left)
        if gpus is None and any(c.key == EXECUTOR and not remove for c in changes):
            click.echo(f"{NODE}: say each machine's number of GPUs there by hand (or --gpus)")
        for name in (n for n in (ISONOMY, RECORD) if remove and (conf / n).exists()):
            click.echo(f"{name}: remove it from {conf} when that is done")
    written = sorted(str(f) for f in out.rglob("*") if f.is_file()) if out is not None else []
    rows = {name: [asdict(x) for x in found] for name, found in (("steps", book), ("changes", changes), ("left", left))}
    end_with(findings, output, conf, **rows, written=written)


def _texts(conf: Path) -> dict[str, str]:
    names = [n for n in (YARN, SCHEDULER, TYPES, NODE) if (conf / n).exists()]
    if YARN not in names:
        raise ConfigError([f"{conf}: has no {YARN}; name the cluster's configuration"])
    try:
        return {n: (conf / n).read_text(encoding="utf-8") for n in names}
    except UnicodeDecodeError as e:
        raise ConfigError([f"{conf}: has a file that is not UTF-8 ({e}); convert it (iconv) in a copy"]) from e


def _version(given: str | None) -> str:
    found = distribution(given).version
    if not found:
        raise Misused("--hadoop is absent: give Hadoop's version, 3.3, 3.4 or 3.5 (HADOOP_HOME does not say it)")
    return found


def _own(conf: Path) -> dict[str, str]:
    """Isonomy's own files, rendered from the cluster's: isonomy.yaml is for the machines of both ResourceManagers."""
    sites = {name: read_site(conf / name) for name in (CORE, HDFS, YARN) if (conf / name).exists()}
    try:
        web = rm_web_url(None, conf)
    except ConfigError:  # on one machine yarn-site.xml need not say it
        web = "http://localhost:8088"
    own = properties.control_plane(sites, web)
    files = render.render({"isonomy": own, "submarine": {"python": PYTHON}})
    return {ISONOMY: files[ISONOMY], SUBMARINE: files[SUBMARINE]}


def _left_to_do(conf: Path, files: Mapping[str, str], hadoop: str) -> list[Finding]:
    """What `config check` says of the configuration as it would be."""
    with tempfile.TemporaryDirectory() as folder:
        for name in check.CHECKS:
            if (conf / name).exists():
                Path(folder, name).write_bytes((conf / name).read_bytes())
        render.write(files, Path(folder))
        return check.check(Path(folder), distribution(hadoop))


def _record(conf: Path) -> list[PropertyChange] | None:
    file = conf / RECORD
    if not file.exists():
        return None
    try:
        return [PropertyChange(**c) for c in json.loads(file.read_text(encoding="utf-8"))["changes"]]
    except (OSError, ValueError, LookupError, TypeError) as e:
        raise ConfigError([f"{file}: is not a record of an installation: {e}"]) from e


def _write(
    conf: Path,
    out: Path,
    texts: Mapping[str, str],
    changes: list[PropertyChange],
    own: Mapping[str, str],
    former: list[PropertyChange] | None,
) -> None:
    """Into a new directory, a folder a class of hosts; each with the record by which --remove knows the way back."""
    if out.resolve() == conf.resolve() or conf.resolve() in out.resolve().parents:
        raise ConfigError([f"--apply {out}: is in the cluster's own configuration; name a new directory"])
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError([f"--apply {out}: is not empty; name a new directory"])
    for who in (RM, NM, ALL):
        folder, mine = out / who.replace(" ", "-").lower(), [c for c in changes if c.who in (who, ALL)]
        files = properties.changed_texts(texts, mine) | {n: own[n] for n in OWN.get(who, ()) if n in own}
        if former is not None:
            record = properties.recorded(former, mine)
            files[RECORD] = json.dumps({"changes": [asdict(c) for c in record]}, indent=2) + "\n"
        if not mine and set(files) <= {RECORD}:
            continue
        render.write(files, folder)
        for name in files:
            if (conf / name).exists():  # others may not read in the copy what they may not read in the original
                shutil.copymode(conf / name, folder / name)


def _say(book: list[Step], how: Format, left: list[PropertyChange]) -> None:
    stage = ""
    for number, step in enumerate(book, 1):
        if step.stage != stage:
            stage = step.stage
            click.echo(f"Stage {stage}")
        click.echo(f"{number}. {step.hosts}")
        kept = [c for c in step.changes if c.new is not None or how is FORMATS["files"]]
        if kept:
            click.echo(indent(how.text(kept), "   "))
        if gone := [c.key for c in step.changes if c not in kept]:  # to a tool an empty value is not an absent one
            click.echo(f"   remove these keys: {', '.join(gone)}")
        for act in step.do:
            click.echo(f"   * {act}")
        click.echo(f"   running containers {step.containers}\n   undo: {step.undo}")
    if not book:
        click.echo("nothing changes")
    for c in left:
        click.echo(f"left as it is, because it was changed since: {c.file}: {c.key} = {c.old}")
