"""The control plane's own sessions with WebHDFS."""

from __future__ import annotations

import os

import requests

from pycontrol.config import WebHdfs
from pycontrol.negotiate import Negotiate

TIMEOUT_S = (3.0, 10.0)
"""To connect, and to wait for each answer."""


def session_of(at: WebHdfs) -> requests.Session:
    """Shows a ticket where a server wants one; like Hadoop's clients it knows no proxy and no .netrc."""
    session = requests.Session()
    session.trust_env = False
    session.verify = str(at.ca) if at.ca else os.environ.get("REQUESTS_CA_BUNDLE") or True
    session.auth = Negotiate(at.principal or "", str(at.keytab or ""))
    return session
