"""JDK, Maven and the jars: found, downloaded, or one line that says what to install."""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

from devcluster import REPO, maven
from devcluster.devcluster_error import DevClusterError
from devcluster.folder import BUILD, HADOOP, jars_of

JAVA_MIN = 17
"""Of clients, and of the daemons of Hadoop 3.5."""
JAVA_MIN_BEFORE_3_5 = 11
POM = REPO / "dev-cluster" / "pom.xml"
KDC_POM = REPO / "dev-cluster" / "kdc-pom.xml"
PLUGIN_JARS = {
    "resourcemanager": REPO / "yarn-plugin" / "rm" / "target" / "isonomy-yarn-rm.jar",
    "nodemanager": REPO / "yarn-plugin" / "nm" / "target" / "isonomy-yarn-nm.jar",
}
_INSTALL_JDK = "install a JDK 17 (Debian: apt install openjdk-17-jdk-headless) or set JAVA_HOME"


def java_home() -> Path:
    """The directory of a Java 17 or newer, for clients."""
    return _java(os.environ.get("JAVA_HOME", ""), JAVA_MIN)


def daemons_java(hadoop: str, java: str) -> Path:
    """The directory of the daemons' Java; `java` is the one that was asked for, or empty."""
    least = JAVA_MIN if _minor(hadoop) >= (3, 5) else JAVA_MIN_BEFORE_3_5
    return _java(java, least) if java else java_home()


def _java(home: str, least: int) -> Path:
    found = shutil.which("java", path=f"{home}/bin" if home else None)
    if not found:
        raise DevClusterError(f"java is missing{f' in JAVA_HOME={home}' if home else ''}: {_INSTALL_JDK}")
    java = Path(found).resolve()
    answer = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=False)
    version = re.search(r'version "(\d+)', answer.stderr)
    if not version or int(version[1]) < least:
        raise DevClusterError(f"{java} is Java {version[1] if version else 'unknown'}, not {least}: {_INSTALL_JDK}")
    return java.parent.parent


def _minor(hadoop: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in hadoop.split(".")[:2])
    except ValueError:
        raise DevClusterError(f"--hadoop {hadoop}: is no version such as 3.4.2") from None


def opens(hadoop: str) -> list[str]:
    """What daemons older than Hadoop 3.5 need to run on a JDK 17."""
    packages = ("java.lang", "java.util") if _minor(hadoop) < (3, 5) else ()
    return [f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in packages]


def hadoop_jars(hadoop: str, say: Callable[[str], None]) -> Path:
    """lib and client-extra of this version, below build."""
    return _jars(jars_of(hadoop).name, POM, say, [] if hadoop == HADOOP else [f"-Dhadoop.version={hadoop}"])


def kdc_jars(say: Callable[[str], None]) -> Path:
    """build/kdc with lib."""
    return _jars("kdc", KDC_POM, say, [])


def _jars(name: str, pom: Path, say: Callable[[str], None], properties: list[str]) -> Path:
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
        _copy_dependencies(fresh, pom, say, properties)
        (fresh / "pom.sha256").write_text(wanted)
        shutil.rmtree(target, ignore_errors=True)
        fresh.rename(target)
    return target


def _copy_dependencies(fresh: Path, pom: Path, say: Callable[[str], None], properties: list[str]) -> None:
    """Runs Maven."""
    whose = "the KDC's jars (5 MB)" if pom == KDC_POM else "Hadoop's jars (about 100 MB)"
    say(f"fetching {whose} with Maven, once")
    log = BUILD / "hadoop-maven.log"
    errors: list[str] = []
    arguments = ["-f", str(pom), "generate-resources", f"-Disonomy.hadoop.dir={fresh}", *properties]
    code = maven.run(arguments, log, errors.append)
    if code:
        raise DevClusterError(f"mvn failed: {errors[0] if errors else f'exit {code}'} (all of it: {log})")
    say(f"the jars are in {fresh.with_suffix('')}")


def plugin_jar(role: str) -> Path | None:
    """Our jar on the role's class path; None for HDFS."""
    jar = PLUGIN_JARS.get(role.split("-")[0])
    if jar and not jar.exists():
        raise DevClusterError(f"{jar.relative_to(REPO)} is missing: `make java` builds it (or use --plain)")
    return jar
