"""Finds the stock command line and runs it as a process."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from pycontrol.configerror import ConfigError
from pycontrol.hadoopconf.names import OUR_RUNTIME
from pycontrol.hadoopconf.sitefile import included, read_site, rm_web_url
from submarine_patch.cli.errors import ClusterUnreachable, UsageError

MAIN_CLASS = "isonomy.submarine.Launcher"
RUNTIME_JAR = "isonomy-submarine-runtime.jar"
AM_JAR = "isonomy-am.jar"
REPO = Path(__file__).resolve().parents[2]
CONNECT_S = 5.0
APPLICATION_ID = re.compile(r"\bapplication_\d+_\d+\b")


@dataclass(frozen=True, slots=True)
class Installation:
    """The paths that are needed to run the stock command line."""

    java: str
    lib: Path
    conf: Path
    am_jar: Path | None

    def run(self, words: Sequence[str], *, verbose: bool = False, quiet: bool = False, keep: bool = False) -> Ended:
        """`job run` with these words, to its end: `quiet` and `keep` as in `run`, logging little unless `verbose`.

        Half of a JVM's time goes into loading classes, so each user's first submission leaves them in an archive.
        """
        archive, jar = self._archive(), self.lib / RUNTIME_JAR
        made = archive.with_suffix(f".{os.getpid()}")
        known = archive.is_file() and archive.stat().st_mtime > jar.stat().st_mtime
        classes = f"-XX:SharedArchiveFile={archive}" if known else f"-XX:ArchiveClassesAtExit={made}"
        command = [self.java, "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xlog:disable", classes]
        command.append(f"-Disonomy.conf={self.conf}")
        if not verbose:
            command.append("-Dlog4j.configuration=isonomy-submarine-log4j.properties")
        if self.am_jar is not None:
            command.append(f"-Disonomy.am.jar={self.am_jar}")
        ended = run([*command, "-cp", f"{self.lib}/*", MAIN_CLASS, "job", "run", *words], quiet=quiet, keep=keep)
        if made.is_file():
            made.replace(archive)
        return ended

    def _archive(self) -> Path:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "isonomy")
        with contextlib.suppress(OSError):  # then none is written
            cache.mkdir(parents=True, exist_ok=True)
        name = hashlib.sha256(f"{os.path.realpath(self.java)} {self.lib}".encode()).hexdigest()[:16]
        return cache / f"submarine-{name}.jsa"


def reach_rm(conf: Path) -> None:
    """Raise Unreachable if the ResourceManager's web app, which the submission needs, accepts no connection.

    The stock command line would retry silently for a minute or more. Of a pair one must accept. If yarn-site.xml has no
    such address, the check is left to the stock command line.
    """
    try:
        urls = rm_web_url(conf_dir=conf)
    except ConfigError:
        return
    why = ""
    for url in urls.split(","):
        place = urlsplit(url)
        try:
            socket.create_connection((place.hostname, place.port), CONNECT_S).close()
            return
        except OSError as error:
            why = error.strerror or str(error)
    raise ClusterUnreachable(
        f"the ResourceManager at {urls} cannot be reached ({why}). Is it running, and is"
        f" {conf}/yarn-site.xml the right one?"
    )


def find(env: Mapping[str, str]) -> Installation:
    """Find Java, the class path and the configuration; raises UsageError that says what to do."""
    home = Path(env["SUBMARINE_HOME"]) if env.get("SUBMARINE_HOME") else REPO / "build" / "submarine"
    lib = home / "lib"
    if not (lib / RUNTIME_JAR).is_file():
        raise UsageError(f"{lib}: no {RUNTIME_JAR}; set SUBMARINE_HOME, or build with `mvn package`")
    am_jars = [home / AM_JAR, REPO / "submarine_patch" / "java" / "am" / "target" / AM_JAR]
    am_jar = next((jar for jar in am_jars if jar.is_file()), None)
    return Installation(_java(env), lib, _conf(env), am_jar)


def _java(env: Mapping[str, str]) -> str:
    if env.get("JAVA_HOME"):
        java = Path(env["JAVA_HOME"]) / "bin" / "java"
        if not java.is_file():
            raise UsageError(f"JAVA_HOME={env['JAVA_HOME']}: no bin/java there; set it to a JDK 17")
        return str(java)
    found = shutil.which("java", path=env.get("PATH"))
    if found is None:
        raise UsageError("no java: install a JDK 17 and set JAVA_HOME")
    return found


def _conf(env: Mapping[str, str]) -> Path:
    place = env.get("HADOOP_CONF_DIR")
    if not place:
        raise UsageError("HADOOP_CONF_DIR is not set: the folder with yarn-site.xml and submarine-site.xml")
    for name in ("core-site.xml", "yarn-site.xml", "submarine-site.xml"):
        if not (Path(place) / name).is_file():
            raise UsageError(f"HADOOP_CONF_DIR={place}: no {name} there")
    site = Path(place) / "submarine-site.xml"
    try:
        runtime = read_site(site).get("submarine.runtime.class", "")
        if runtime != OUR_RUNTIME and not included(site):
            raise UsageError(f"{site}: submarine.runtime.class: must be {OUR_RUNTIME} (got {runtime or 'nothing'})")
    except ConfigError as e:
        raise UsageError(f"HADOOP_CONF_DIR={place}: {e}") from e
    return Path(place).resolve()


@dataclass(frozen=True, slots=True)
class Ended:
    """How a run ended: exit status, and the application that was submitted, if any."""

    status: int
    application_id: str | None
    errors: str = ""
    """Its standard error, if that was kept."""


def run(command: Sequence[str], *, quiet: bool = False, keep: bool = False) -> Ended:
    """Run it to its end; its standard output is passed on (to standard error if `quiet`), or with its errors
    kept if `keep`. Its banner, before the first words at a line's beginning, and its 155 lines of help are left out."""
    application_id: str | None = None
    target = sys.stderr if quiet else sys.stdout
    begun = helps = False
    with (
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors if keep else None, text=True) as process,
    ):
        assert process.stdout is not None
        try:
            for line in process.stdout:
                submitted = APPLICATION_ID.search(line) if line.startswith("Submitted ") else None
                application_id = submitted.group() if submitted else application_id
                helps = helps or line.startswith("usage:")
                begun = begun or re.match(r"[A-Za-z0-9]", line) is not None
                if begun and not helps and not keep and (not quiet or submitted):
                    print(line, end="", file=target, flush=True)
            status = process.wait()
            errors.seek(0)
            return Ended(status, application_id, errors.read().strip().removeprefix("submarine: "))
        except KeyboardInterrupt:
            process.wait()
            return Ended(130, application_id)
