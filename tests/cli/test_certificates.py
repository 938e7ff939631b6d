"""The command line against a ResourceManager whose certificate this machine does not trust, or that is not there."""

from __future__ import annotations

import ssl
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from pycontrol.cli import main
from tests.cli.conftest import Rm
from tests.httpd import serving


def certificate(folder: Path, name: str, san: str) -> tuple[Path, Path]:
    key, pem = folder / f"{name}.key", folder / f"{name}.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", f"/CN={name}"]
    command += ["-addext", f"subjectAltName={san}", "-keyout", str(key), "-out", str(pem)]
    subprocess.run(command, check=True, capture_output=True)
    return key, pem


@contextmanager
def with_tls(rm: Rm, folder: Path, name: str) -> Iterator[tuple[Path, str]]:
    """(its certificate, of that name; its URL)."""
    key, pem = certificate(folder, "rm", name)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(pem, key)
    with serving(rm.serve, tls) as url:
        yield pem, url


def run(*words: str, **env: str) -> Result:
    return CliRunner().invoke(main, list(words), env={"HADOOP_CONF_DIR": None, "ISONOMY_RM": None, **env})


def test_an_untrusted_certificate_is_called_that_and_ca_mends_it(
    rm: Rm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("REQUESTS_CA_BUNDLE", raising=False)
    with with_tls(rm, tmp_path, "IP:127.0.0.1") as (pem, url):
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
    with with_tls(rm, tmp_path, "DNS:other.example.com") as (pem, url):
        lost = run("--rm", url, "--ca", str(pem), "status")
    assert lost.exit_code == 3
    assert "shows a certificate of another name" in lost.output


def test_no_tls_and_no_such_name_are_called_that(rm: Rm) -> None:
    plain = run("--rm", f"https://{rm.address}", "status")
    assert (plain.exit_code, "is it http:// instead?" in plain.output) == (3, True), plain.output
    nobody = run("--rm", "http://no-such-host.invalid:8088", "status")
    assert (nobody.exit_code, "has a name that does not resolve" in nobody.output) == (3, True), nobody.output
