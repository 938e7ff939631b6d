"""A worker's settings, which the Agent passes through the container's environment."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from submarine_patch.worker.credentials import CredentialsError, read_secret

TOKEN_ALIAS = "isonomy.token"


class SettingsError(Exception):
    """A variable is missing or malformed; the message names it."""


@dataclass(frozen=True)
class WorkerSettings:
    """The settings of one worker."""

    arbiter: str
    """host:port of the Arbiter's gRPC service."""
    ca_pem: bytes | None
    """The certificate authority for TLS; None: no TLS."""
    token: str = field(repr=False)
    worker_id: str = ""
    host: str = ""
    container_id: str = ""
    gpu_ids: str = ""
    """CUDA_VISIBLE_DEVICES as the NodeManager's executor set it."""


def read_settings(env: Mapping[str, str] = os.environ) -> WorkerSettings:
    """Read the environment and the container's token file; raises SettingsError."""
    arbiter = _needed(env, "ISONOMY_ARBITER")
    if not re.fullmatch(r".+:\d+", arbiter):
        raise SettingsError(f"ISONOMY_ARBITER: {arbiter!r} is not host:port")
    try:
        token = read_secret(TOKEN_ALIAS, env.get("HADOOP_TOKEN_FILE_LOCATION") or None).decode("ascii")
    except CredentialsError as e:
        raise SettingsError(str(e)) from e
    except UnicodeDecodeError as e:
        raise SettingsError(f"the secret {TOKEN_ALIAS} is not ASCII") from e
    return WorkerSettings(
        arbiter=arbiter,
        ca_pem=ca_pem(env.get("ISONOMY_ARBITER_CA", "")),
        token=token.strip(),
        worker_id=_needed(env, "ISONOMY_WORKER_ID"),
        host=env.get("ISONOMY_HOST") or env.get("NM_HOST") or socket.getfqdn(),
        container_id=env.get("CONTAINER_ID", ""),
        gpu_ids=env.get("CUDA_VISIBLE_DEVICES", ""),
    )


def _needed(env: Mapping[str, str], name: str) -> str:
    if not env.get(name):
        raise SettingsError(f"{name} is not set: this must be started by an Isonomy app's Agent")
    return env[name]


def ca_pem(text: str) -> bytes | None:
    """The PEM bytes of a text that is PEM itself or the path of a PEM file; None if empty. Raises SettingsError."""
    if not text:
        return None
    if "-----BEGIN" in text:
        return text.encode()
    try:
        pem = Path(text).read_bytes()
    except OSError as e:
        raise SettingsError(f"ISONOMY_ARBITER_CA: {text} cannot be read: {e.strerror}") from e
    if b"-----BEGIN" not in pem:
        raise SettingsError(f"ISONOMY_ARBITER_CA: {text} is not a PEM file")
    return pem
