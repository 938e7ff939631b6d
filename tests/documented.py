"""The tests that docs/extending.md shows, run as another package's own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

EXTENDING = Path(__file__).parents[1] / "docs/extending.md"


def check_documented_suite(package: Path, test: str) -> None:
    """Runs the document's test module beside the package that is installed in this folder."""
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
