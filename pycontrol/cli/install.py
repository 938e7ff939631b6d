"""`isonomy install`: what of a cluster's own configuration changes, the changed copies, and the way back."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

import click

from pycontrol.cli.client import Failure, Misused
from pycontrol.cli.tables import emit_json
from pycontrol.config import ConfigError
from pycontrol.hadoopconf import check, render
from pycontrol.hadoopconf.distribution import Distribution
from pycontrol.hadoopconf.findings import Finding
from pycontrol.hadoopconf.install import EXECUTOR, RECORD, Choices, PropertyChange, back, changed_texts, plan, recorded
from pycontrol.hadoopconf.names import ISONOMY, NODE, SCHEDULER, TYPES, YARN
from pycontrol.hadoopconf.sitefile import parse_site, rm_web_url


@click.command("install")
@click.option(
    "--hadoop-conf",
    "conf",
    required=True,
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    metavar="DIR",
    help="The cluster's configuration; it is only read.",
)
@click.option("--plan", "only_plan", is_flag=True, help="Print which keys of which files would change (the default).")
@click.option("--apply", "out", type=click.Path(path_type=Path), metavar="OUT", help="Write changed copies into OUT.")
@click.option("--remove", is_flag=True, help="Plan the way back instead; with --apply, write its files.")
@click.option("--hadoop", metavar="VERSION", help="Hadoop's, 3.3 to 3.5  [default: that of HADOOP_HOME].")
@click.option(
    "--mode",
    type=click.Choice(["off", "shadow", "on"]),
    default="off",
    show_default=True,
    help="To which `isonomy mode` will switch; for off and shadow (only watch) no NodeManager changes.",
)
@click.option("--gpus", type=click.IntRange(min=0), help="GPUs of each machine, if all have the same number.")
@click.option("--state-dir", default="/var/lib/isonomy", show_default=True, help="The control plane's.")
@click.option("-o", "output", type=click.Choice(["text", "json"]), default="text")
def install_command(
    conf: Path, only_plan: bool, out: Path | None, remove: bool, hadoop: str | None, mode: str,
    gpus: int | None, state_dir: str, output: str,
) -> None:  # fmt: skip
    """Isonomy in a cluster that has its configuration: a diff by keys, whether versions, queues and executors fit.

    Nothing is changed in place: --apply writes the changed files, and a record of what they had, into a new directory.

    \b
    isonomy install --hadoop-conf /etc/hadoop/conf --hadoop 3.4
    isonomy install --hadoop-conf /etc/hadoop/conf --hadoop 3.4 --apply /tmp/conf-isonomy
    isonomy install --hadoop-conf /etc/hadoop/conf --remove --apply /tmp/conf-back
    """
    if only_plan and out is not None:
        raise Misused("--plan writes nothing and --apply writes: give one of them")
    try:
        texts = _texts(conf)
        sites = {name: parse_site(text.encode(), name) for name, text in texts.items()}
        left: list[PropertyChange] = []
        if remove:
            changes, left = back(sites, _record(conf))
        else:
            choices = Choices(_version(hadoop), mode, gpus, state_dir)
            changes = plan(sites, choices)
        files = changed_texts(texts, changes)
        if not remove and not (conf / ISONOMY).exists():
            files[ISONOMY] = _isonomy_yaml(conf, state_dir)
        findings = [] if remove else _left_to_do(conf, files, choices)
        if out is not None:
            _write(conf, out, files, None if remove else recorded(_record(conf), changes))
    except ConfigError as e:
        raise Failure("; ".join(e.lines)) from e
    except OSError as e:
        raise Failure(f"{e.filename or conf}: {e.strerror}; give this user the right to it") from e
    errors = sum(f.level == "error" for f in findings)
    if output == "json":
        data = {"changes": [asdict(c) for c in changes], "left": [asdict(c) for c in left],
                "findings": [asdict(f) for f in findings], "errors": errors,
                "written": sorted(map(str, out.iterdir())) if out is not None else []}  # fmt: skip
        emit_json(data)
    else:
        _say(changes, left, findings, set(files), gpus is None and not remove and mode == "on")
        if not remove:
            click.echo("Isonomy is off until you switch it: isonomy mode" + (f" {mode}" if mode != "off" else ""))
        for name in (n for n in (ISONOMY, RECORD) if remove and (conf / n).exists()):
            click.echo(f"{name}: remove it from {conf} when that is done")
    sys.exit(1 if errors else 0)


def _texts(conf: Path) -> dict[str, str]:
    names = [n for n in (YARN, SCHEDULER, TYPES, NODE) if (conf / n).exists()]
    if YARN not in names:
        raise ConfigError([f"{conf}: has no {YARN}; name the cluster's configuration"])
    try:
        return {n: (conf / n).read_text(encoding="utf-8") for n in names}
    except UnicodeDecodeError as e:
        raise ConfigError([f"{conf}: has a file that is not UTF-8 ({e}); convert it (iconv) in a copy"]) from e


def _version(given: str | None) -> str:
    """The first two parts of what is given, or of what is installed here."""
    if given is not None:
        return ".".join(given.split(".")[:2])
    found = Distribution.here().version
    if not found:
        raise Misused("--hadoop is absent: give Hadoop's version, 3.3, 3.4 or 3.5 (HADOOP_HOME does not say it)")
    return found


def _isonomy_yaml(conf: Path, state_dir: str) -> str:
    try:
        web = rm_web_url(None, conf)
    except ConfigError:
        web = "http://localhost:8088"
    own = {"state_dir": state_dir, "bridge_token_file": f"{state_dir}/bridge.token", "rm_web": web}
    return render.render({"isonomy": own})[ISONOMY]


def _left_to_do(conf: Path, files: Mapping[str, str], choices: Choices) -> list[Finding]:
    """What `config check` says of the configuration as it would be; of executors only where they are to change."""
    with tempfile.TemporaryDirectory() as folder:
        for name in check.CHECKS:
            if (conf / name).exists():
                Path(folder, name).write_bytes((conf / name).read_bytes())
        render.write(files, Path(folder))
        found = check.check(Path(folder), Distribution(choices.hadoop))
    return [f for f in found if choices.mode == "on" or f.key != EXECUTOR]


def _record(conf: Path) -> list[PropertyChange] | None:
    file = conf / RECORD
    if not file.exists():
        return None
    try:
        return [PropertyChange(**c) for c in json.loads(file.read_text(encoding="utf-8"))["changes"]]
    except (OSError, ValueError, LookupError, TypeError) as e:
        raise ConfigError([f"{file}: is not a record of an installation: {e}"]) from e


def _write(conf: Path, out: Path, files: Mapping[str, str], changes: list[PropertyChange] | None) -> None:
    """Into a new directory; with the changes, so that --remove knows the way back."""
    if out.resolve() == conf.resolve() or conf.resolve() in out.resolve().parents:
        raise ConfigError([f"--apply {out}: is in the cluster's own configuration; name a new directory"])
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError([f"--apply {out}: is not empty; name a new directory"])
    render.write(files, out)
    for name in files:
        if (conf / name).exists():  # others may not read in the copy what they may not read in the original
            shutil.copymode(conf / name, out / name)
    if changes is not None:
        text = json.dumps({"changes": [asdict(c) for c in changes]}, indent=2) + "\n"
        (out / RECORD).write_text(text, encoding="utf-8")


def _say(
    changes: list[PropertyChange], left: list[PropertyChange], findings: list[Finding], files: set[str], ask_gpus: bool
) -> None:  # fmt: skip
    for file in sorted({c.file for c in changes}):
        for who in sorted({c.who for c in changes if c.file == file}):
            click.echo(f"{file} ({who})")
            for c in (c for c in changes if (c.file, c.who) == (file, who)):
                for sign, value in (("-", c.old), ("+", c.new)):
                    if value is not None:
                        click.echo(f"  {sign} {c.key} = {value}")
    for name in sorted(files - {c.file for c in changes}):
        click.echo(f"{name} (new, on the ResourceManager's machine)")
    if not changes:
        click.echo("nothing changes")
    if ask_gpus:
        click.echo(f"{NODE}: say each machine's number of GPUs there by hand (or --gpus)")
    for c in left:
        click.echo(f"left as it is, because it was changed since: {c.file}: {c.key} = {c.old}")
    for f in findings:
        click.echo(str(f))
