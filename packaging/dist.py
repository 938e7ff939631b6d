"""`make dist`: one archive of all that an installation needs; the same bytes from the same sources.

isonomy-VERSION-hadoop3.tar.gz: jars, the Submarine command line with them ($SUBMARINE_HOME), the wheel and the versions
that it was tested with (python/lock.txt), confs, files for systemd, the documents, licences, and SHA256SUMS. With
--wheelhouse also the wheels that it needs, for machines without a way to PyPI. --lock writes packaging/lock.txt from
what is installed here, and nothing else. `share` has the man page and the completions of bash, zsh and fish.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from collections.abc import Iterable, Mapping
from fnmatch import fnmatch
from importlib.metadata import distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

REPO = Path(__file__).resolve().parent.parent
LOCK = REPO / "packaging" / "lock.txt"
JARS = {
    "jars/isonomy-yarn-rm.jar": "yarn-plugin/rm/target",
    "jars/isonomy-yarn-nm.jar": "yarn-plugin/nm/target",
    "submarine/isonomy-am.jar": "submarine_patch/java/am/target",
    "submarine/lib/isonomy-submarine-runtime.jar": "submarine_patch/java/runtime/target",
}
"""Place in the archive -> folder of the checkout. $SUBMARINE_HOME is `submarine`."""
FILES = {
    "LICENSE": "LICENSE",
    "NOTICE": "packaging/NOTICE",
    "README.md": "README.md",
    "CHANGELOG.md": "CHANGELOG.md",
    "CONTRIBUTING.md": "CONTRIBUTING.md",
    "dev-cluster/topology.yaml": "dev-cluster/topology.yaml",
    "python/lock.txt": "packaging/lock.txt",
    **{f"systemd/isonomy.{k}": f"packaging/isonomy.{k}" for k in ("service", "sysusers", "tmpfiles", "logrotate")},
}
FOLDERS = {
    "confs": "confs",
    "docs": "docs",
    "licenses": "packaging/licenses",
    "submarine/lib": "build/submarine/lib",
    "submarine_patch/examples": "submarine_patch/examples",
}
EXECUTABLE = tuple(f"confs/nodemanager/isonomy-{name}" for name in ("bad-gpus", "bootstrap", "devices", "spark-gpus"))


def version() -> str:
    """Of pyproject.toml."""
    return str(tomllib.loads((REPO / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"])


def locked() -> str:
    """The installed versions of all that the control plane and the client need, as pip's constraints (`-c`)."""
    found: dict[str, str] = {}
    wanted = tomllib.loads((REPO / "pyproject.toml").read_text(encoding="utf-8"))["project"]["dependencies"]
    while wanted:
        requirement = Requirement(wanted.pop())
        name = canonicalize_name(requirement.name)
        if name not in found and (requirement.marker is None or requirement.marker.evaluate({"extra": ""})):
            installed = distribution(name)
            found[name] = installed.version
            wanted += installed.requires or []
    return "".join(f"{name}=={version}\n" for name, version in sorted(found.items()))


def share(folder: Path) -> None:
    """Writes the man page and the completions below `share`."""
    command = [sys.executable, str(REPO / "docs" / "generate.py"), "--share", str(folder / "share")]
    subprocess.run(command, check=True, env={**os.environ, "PYTHONPATH": str(REPO)})


def contents(built: Path) -> dict[str, Path]:
    """Place in the archive -> file; `built` has the wheels and `share`. A jar that is missing is an error."""
    found = {place: REPO / file for place, file in FILES.items()}
    for place, folder in FOLDERS.items():
        files = (f for f in (REPO / folder).rglob("*") if f.is_file() and "__pycache__" not in f.parts)
        found |= {f"{place}/{f.relative_to(REPO / folder)}": f for f in files if f != REPO / "docs" / "generate.py"}
    found |= {place: REPO / folder / Path(place).name for place, folder in JARS.items()}
    found |= {f"python/{w.relative_to(built)}": w for w in built.rglob("*.whl")}
    found |= {str(f.relative_to(built)): f for f in (built / "share").rglob("*") if f.is_file()}
    missing = [str(f) for f in found.values() if not f.exists()]
    if not any(place.startswith("submarine/lib/submarine-") for place in found):
        missing.append(FOLDERS["submarine/lib"])
    if missing:
        sys.exit(f"dist: {', '.join(missing)}: missing; `make java` builds the jars")
    return found


def unlicensed(jars: Iterable[Path], notice: str) -> list[str]:
    """Jars of others that have no licence in them and that the notice does not name, there or as `name-*`."""
    named = re.findall(r"[\w.*-]+", notice)
    found = []
    for jar in jars:
        name = re.sub(r"(-\d[\w.-]*)?\.jar$", "", jar.name)
        inside = (Path(place).name.lower() for place in zipfile.ZipFile(jar).namelist())
        if not any(re.match("licen[cs]e|notice|about", place) for place in inside):
            found += [jar.name] * (not any(fnmatch(name, pattern) for pattern in named))
    return found


def archive(name: str, files: Mapping[str, Path], epoch_s: int) -> bytes:
    """A tar.gz below the folder `name`: sorted, nobody's, of one time; with the digests of all its files."""
    data = {place: file.read_bytes() for place, file in files.items()}
    sums = "".join(f"{hashlib.sha256(data[place]).hexdigest()}  {place}\n" for place in sorted(data))
    data["SHA256SUMS"] = sums.encode()
    tar_bytes, packed = io.BytesIO(), io.BytesIO()
    with tarfile.open(fileobj=tar_bytes, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for place in sorted(data):
            entry = tarfile.TarInfo(f"{name}/{place}")
            entry.size, entry.mtime = len(data[place]), epoch_s
            entry.mode = 0o755 if place in EXECUTABLE else 0o644
            tar.addfile(entry, io.BytesIO(data[place]))
    with gzip.GzipFile(fileobj=packed, mode="wb", filename="", mtime=epoch_s) as zipped:
        zipped.write(tar_bytes.getvalue())
    return packed.getvalue()


def epoch_s() -> int:
    """SOURCE_DATE_EPOCH, else that of the newest commit."""
    given = os.environ.get("SOURCE_DATE_EPOCH")
    if given:
        return int(given)
    found = subprocess.run(["git", "log", "-1", "--format=%ct"], cwd=REPO, capture_output=True, text=True, check=True)
    return int(found.stdout)


def main() -> None:
    """Builds the wheel, gathers and packs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=REPO / "build" / "dist")
    parser.add_argument(
        "--wheelhouse",
        nargs="?",
        const="",
        metavar="EXTRAS",
        help="with the wheels of all dependencies, of extras too (worker)",
    )
    parser.add_argument("--lock", action="store_true", help="write packaging/lock.txt, and nothing else")
    options = parser.parse_args()
    if options.lock:
        LOCK.write_text(locked(), encoding="utf-8")
        return
    name, when_s = f"isonomy-{version()}-hadoop3", epoch_s()
    with tempfile.TemporaryDirectory() as folder:
        pip = [sys.executable, "-m", "pip", "-q", "--disable-pip-version-check"]
        env = {**os.environ, "SOURCE_DATE_EPOCH": str(when_s)}
        subprocess.run([*pip, "wheel", "--no-deps", "-w", folder, str(REPO)], check=True, env=env)
        if options.wheelhouse is not None:
            (wheel,) = Path(folder).glob("isonomy-*.whl")
            house = Path(folder, "wheelhouse")
            # `wheel`, not `download`: some dependencies (docopt of hdfs) are published as sources alone
            wanted = f"{wheel}[{options.wheelhouse}]" if options.wheelhouse else str(wheel)
            fetch = ["wheel", "--prefer-binary", "-c", str(LOCK), "-w", str(house), wanted]
            subprocess.run([*pip, *fetch], check=True, env=env)
            (house / wheel.name).unlink(missing_ok=True)
        share(Path(folder))
        files = contents(Path(folder))
        others = (REPO / FOLDERS["submarine/lib"]).glob("*.jar")
        if bare := unlicensed(others, files["NOTICE"].read_text(encoding="utf-8")):
            sys.exit(f"dist: {', '.join(bare)}: no licence is in them; name them in packaging/NOTICE")
        data = archive(name, files, when_s)
    options.out.mkdir(parents=True, exist_ok=True)
    target = options.out / f"{name}.tar.gz"
    target.write_bytes(data)
    (options.out / f"{name}.tar.gz.sha256").write_text(f"{hashlib.sha256(data).hexdigest()}  {target.name}\n")
    print(f"{target} ({len(data) / 1e6:.1f} MB)")


if __name__ == "__main__":
    main()
