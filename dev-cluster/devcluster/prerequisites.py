"""JDK, Maven and the jars: found, downloaded, or one line that says what to install."""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from devcluster import REPO
from devcluster.errors import DevClusterError
from devcluster.layout import BUILD

JAVA_MIN = 17
DOWNLOAD_DEADLINE_S = 1800
POM = REPO / "dev-cluster" / "pom.xml"
KDC_POM = REPO / "dev-cluster" / "kdc-pom.xml"
PLUGIN_JARS = {
    "resourcemanager": REPO / "yarn-plugin" / "rm" / "target" / "isonomy-yarn-rm.jar",
    "nodemanager": REPO / "yarn-plugin" / "nm" / "target" / "isonomy-yarn-nm.jar",
}
_INSTALL_JDK = "install a JDK 17 (Debian: apt install openjdk-17-jdk-headless) or set JAVA_HOME"


def java_home() -> Path:
    """The directory of a Java 17 or newer."""
    home = os.environ.get("JAVA_HOME")
    found = shutil.which("java", path=f"{home}/bin" if home else None)
    if not found:
        raise DevClusterError(f"java is missing{f' in JAVA_HOME={home}' if home else ''}: {_INSTALL_JDK}")
    java = Path(found).resolve()
    answer = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=False)
    version = re.search(r'version "(\d+)', answer.stderr)
    if not version or int(version[1]) < JAVA_MIN:
        raise DevClusterError(f"{java} is Java {version[1] if version else 'unknown'}: {_INSTALL_JDK}")
    return java.parent.parent


def hadoop_jars(say: Callable[[str], None]) -> Path:
    """build/hadoop with lib and client-extra."""
    return _jars("hadoop", POM, say)


def kdc_jars(say: Callable[[str], None]) -> Path:
    """build/kdc with lib."""
    return _jars("kdc", KDC_POM, say)


def _jars(name: str, pom: Path, say: Callable[[str], None]) -> Path:
    """The folder below build; fetched by Maven when the file has changed since."""
    target = BUILD / name
    wanted = hashlib.sha256(pom.read_bytes()).hexdigest()
    BUILD.mkdir(exist_ok=True)
    with (BUILD / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        stamp = target / "pom.sha256"
        if stamp.exists() and stamp.read_text() == wanted:
            return target
        if not shutil.which("mvn"):
            raise DevClusterError("mvn is missing: install Maven 3.8 or newer (Debian: apt install maven)")
        fresh = BUILD / f"{name}.part"
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir()
        _copy_dependencies(fresh, pom, say)
        (fresh / "pom.sha256").write_text(wanted)
        shutil.rmtree(target, ignore_errors=True)
        fresh.rename(target)
    return target


def _copy_dependencies(fresh: Path, pom: Path, say: Callable[[str], None]) -> None:
    """Runs Maven with a count of what it has downloaded."""
    command = ["mvn", "-B", "-f", str(pom), "generate-resources", f"-Disonomy.hadoop.dir={fresh}"]
    begin, jars, lines = time.monotonic(), 0, []
    whose = "the KDC's jars (5 MB)" if pom == KDC_POM else "Hadoop's jars (about 100 MB)"
    say(f"fetching {whose} with Maven, once")
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    watchdog = threading.Timer(DOWNLOAD_DEADLINE_S, process.kill)
    watchdog.start()
    try:
        assert process.stdout
        for line in process.stdout:
            lines.append(line.rstrip())
            if "Downloaded from" in line and ".jar" in line:
                jars += 1
                _count(jars)
        code = process.wait()
    finally:
        watchdog.cancel()
        process.kill()
        process.wait()
    if sys.stderr.isatty() and jars:
        sys.stderr.write("\n")
    if code:
        (BUILD / "hadoop-maven.log").write_text("\n".join(lines) + "\n", encoding="utf-8")
        reason = next((li for li in lines if li.startswith("[ERROR]")), f"exit {code}")
        raise DevClusterError(f"mvn failed: {reason} (all of it: {BUILD / 'hadoop-maven.log'})")
    say(f"the jars are in {fresh.with_suffix('')} ({time.monotonic() - begin:.0f} s)")


def _count(jars: int) -> None:
    if sys.stderr.isatty():
        sys.stderr.write(f"\r  {jars} jars downloaded")
    elif jars % 25 == 0:
        sys.stderr.write(f"  {jars} jars downloaded\n")
    sys.stderr.flush()


def plugin_jar(role: str) -> Path | None:
    """Our jar on the role's class path; None for HDFS."""
    jar = PLUGIN_JARS.get(role.split("-")[0])
    if jar and not jar.exists():
        raise DevClusterError(f"{jar.relative_to(REPO)} is missing: `make java` builds it (or use --plain)")
    return jar
