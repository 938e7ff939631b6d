"""The command line against a ResourceManager whose certificate this machine does not trust, or that is not there."""

from __future__ import annotations

import ssl
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from pycontrol.cli import main
from tests.cli.conftest import Rm


def certificate(folder: Path, name: str, san: str) -> tuple[Path, Path]:
    key, pem = folder / f"{name}.key", folder / f"{name}.pem"
    subprocess.run(
        [
            "openssl",
            "req",
            "-x509",
            "-newkey",
            "rsa:2048",
            "-nodes",
            "-days",
            "2",
            "-subj",
            f"/CN={name}",
            "-addext",
            f"subjectAltName={san}",
            "-keyout",
            key,
            "-out",
            pem,
        ],
        check=True,
        capture_output=True,
    )
    return key, pem


def serve_tls(rm: Rm, key: Path, pem: Path) -> str:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem, key)
    rm.socket = context.wrap_socket(rm.socket, server_side=True)
    return f"https://{rm.address}"


def run(*words: str, **env: str) -> Result:
    return CliRunner().invoke(main, list(words), env={"HADOOP_CONF_DIR": None, "ISONOMY_RM": None, **env})


def test_an_untrusted_certificate_is_called_that_and_ca_mends_it(
    rm: Rm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("REQUESTS_CA_BUNDLE", raising=False)
    key, pem = certificate(tmp_path, "rm", "IP:127.0.0.1")
    url = serve_tls(rm, key, pem)
    lost = run("--rm", url, "status")
    assert lost.exit_code == 3
    assert "shows a certificate that is not trusted here (self" in lost.output
    assert "--ca FILE or ISONOMY_CA names its CA's (PEM)" in lost.output
    assert "is it up" not in lost.output
    assert run("--rm", url, "--ca", str(pem), "status").exit_code == 0
    assert run("--rm", url, "status", ISONOMY_CA=str(pem)).exit_code == 0
    none = run("--rm", url, "--ca", str(tmp_path / "none"), "status")
    assert (none.exit_code, none.output) == (
        2,
        f"error: --ca {tmp_path}/none: is no file; name the CA's certificate (PEM)\n",
    )


def test_a_certificate_of_another_name_is_called_that(rm: Rm, tmp_path: Path) -> None:
    key, pem = certificate(tmp_path, "other", "DNS:other.example.com")
    lost = run("--rm", serve_tls(rm, key, pem), "--ca", str(pem), "status")
    assert lost.exit_code == 3
    assert "shows a certificate of another name" in lost.output


def test_no_tls_and_no_such_name_are_called_that(rm: Rm) -> None:
    plain = run("--rm", f"https://{rm.address}", "status")
    assert (plain.exit_code, "is it http:// instead?" in plain.output) == (3, True), plain.output
    nobody = run("--rm", "http://no-such-host.invalid:8088", "status")
    assert (nobody.exit_code, "has a name that does not resolve" in nobody.output) == (3, True), nobody.output
