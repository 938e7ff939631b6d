"""The control plane's HTTP sessions with WebHDFS."""

from __future__ import annotations

import os

import requests

from pycontrol.config import WebHdfs
from pycontrol.negotiate import Negotiate

TIMEOUT_S = (3.0, 10.0)
"""Timeouts for connecting, and for each answer."""


def session_of(at: WebHdfs) -> requests.Session:
    """A session that answers Kerberos challenges; like Hadoop's clients it ignores proxies and .netrc."""
    session = requests.Session()
    session.trust_env = False
    session.verify = str(at.ca) if at.ca else os.environ.get("REQUESTS_CA_BUNDLE") or True
    session.auth = Negotiate(at.principal or "", str(at.keytab or ""))
    return session
