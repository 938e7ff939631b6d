"""The packages that docs/extending.md shows, installed as another distribution would be, and their tests."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

EXTENDING = Path(__file__).parents[1] / "docs/extending.md"


@contextmanager
def installed_package(
    folder: Path, patch: pytest.MonkeyPatch, module: str, group: str, more: str, forget: Callable[[], None]
) -> Iterator[None]:
    """Puts the document's module (`package/name.py`) on the path, with its entry points of the group and `more`.

    `forget` clears the cache of entry points.
    """
    text = EXTENDING.read_text(encoding="utf-8")
    code = re.search(rf"```python\n# {module}\n(.*?)```", text, re.DOTALL)
    points = re.search(rf'```toml\n\[project.entry-points."{group}"\]\n(.*?)```', text, re.DOTALL)
    assert code
    assert points
    package = module.partition("/")[0]
    (folder / package).mkdir()
    (folder / module).write_text(code.group(1), encoding="utf-8")
    info = folder / f"{package}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n", encoding="utf-8")
    lines = points.group(1).replace('"', "") + more
    (info / "entry_points.txt").write_text(f"[{group}]\n{lines}", encoding="utf-8")
    patch.syspath_prepend(str(folder))
    forget()
    yield
    forget()
    for name in [n for n in sys.modules if n.partition(".")[0] == package]:
        del sys.modules[name]


def check_documented_suite(package: Path, test: str) -> None:
    """Runs the document's test module with the package that is installed in this folder."""
    code = re.search(rf"```python\n# {test}\n(.*?)```", EXTENDING.read_text(encoding="utf-8"), re.DOTALL)
    assert code
    (package / test).write_text(code.group(1), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(package), test],
        cwd=package,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(package), *sys.path])},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert re.search(r"\d+ passed", done.stdout), done.stdout
