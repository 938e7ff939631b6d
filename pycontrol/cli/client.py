"""The command line's way to the control plane: the ResourceManager's REST."""

from __future__ import annotations

import getpass
import os
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any, NoReturn

import click
import requests

REFUSED, UNREACHABLE = 1, 3
TIMEOUT_S = (3.0, 15.0)


def fail(message: str, code: int = REFUSED) -> NoReturn:
    """One line on standard error, and out."""
    click.echo(f"error: {message}", err=True)
    sys.exit(code)


def rm_web(option: str | None) -> str:
    """The ResourceManager's web address: --rm, ISONOMY_RM, or yarn-site.xml in HADOOP_CONF_DIR."""
    address = option or os.environ.get("ISONOMY_RM")
    if not address:
        conf = os.environ.get("HADOOP_CONF_DIR")
        if not conf:
            fail("where is the ResourceManager? Give --rm URL, or set ISONOMY_RM or HADOOP_CONF_DIR", 2)
        address = _property(Path(conf) / "yarn-site.xml", "yarn.resourcemanager.webapp.address")
    return (address if "://" in address else f"http://{address}").rstrip("/")


def _property(file: Path, name: str) -> str:
    try:
        root = ET.parse(file).getroot()
    except (OSError, ET.ParseError) as e:
        fail(f"{file}: cannot be read ({e}); set HADOOP_CONF_DIR or give --rm URL", 2)
    for entry in root.iter("property"):
        if entry.findtext("name") == name:
            return (entry.findtext("value") or "").strip()
    fail(f"{file}: has no {name}; add it or give --rm URL", 2)


class Client:
    """Calls /ws/v1/cluster/isonomy/*."""

    def __init__(self, base: str) -> None:
        self.base = base
        self._http = requests.Session()

    def call(self, method: str, path: str, **params: str) -> dict[str, Any]:
        """The JSON answer; one clear line and an exit code for anything else."""
        url = f"{self.base}/ws/v1/cluster/isonomy/{path}"
        query = {**params, "user.name": getpass.getuser()}
        try:
            reply = self._http.request(method, url, params=query, timeout=TIMEOUT_S)
        except requests.RequestException as e:
            fail(
                f"the ResourceManager at {self.base} does not answer ({type(e).__name__}); is it up?", UNREACHABLE
            )
        try:
            answer: dict[str, Any] = reply.json()
        except ValueError:
            fail(
                f"{url}: HTTP {reply.status_code}, no JSON; is the Isonomy plugin in this ResourceManager?",
                UNREACHABLE,
            )
        if reply.status_code == 503:
            fail(str(answer.get("error", "the control plane is not reachable")), UNREACHABLE)
        if reply.status_code >= 400:
            fail(str(answer.get("error") or answer))
        return answer
