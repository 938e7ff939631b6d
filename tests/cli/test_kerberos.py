"""SPNEGO: a ticket when the server asks, its cookie afterwards, and one line if there is no ticket."""

from __future__ import annotations

import base64
import ctypes
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from pycontrol import negotiate
from pycontrol.cli import main
from pycontrol.config import ConfigError, Standby, parse
from pycontrol.daemon.standby_store import StandbyStore, StandbyStoreError
from tests.httpd import Asked, Reply, serving


class Secure:
    """A web app behind Hadoop's AuthenticationFilter: a ticket gives a cookie, which suffices from then on."""

    def __init__(self) -> None:
        self.tickets: list[str] = []
        self.cookies = 0
        self.trusting = True
        self.url = ""

    def answer(self, asked: Asked) -> Reply:
        ticket = asked.headers.get("Authorization", "").removeprefix("Negotiate ")
        known = "hadoop.auth=alice" in asked.headers.get("Cookie", "")
        self.cookies += known
        if ticket:
            self.tickets.append(base64.b64decode(ticket).decode())
        body = {"FileStatus": {"type": "DIRECTORY"}, "FileStatuses": {"FileStatus": []}, "apps": []}
        if not (known or (self.trusting and ticket)):
            return Reply(body, 401, {"WWW-Authenticate": "Negotiate"})
        return Reply(body, 200, {} if known else {"Set-Cookie": "hadoop.auth=alice; Path=/; HttpOnly"})


@pytest.fixture
def secure() -> Iterator[Secure]:
    """A server that requires SPNEGO."""
    made = Secure()
    with serving(made.answer) as made.url:
        yield made


@pytest.fixture
def tickets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tickets without a KDC."""
    monkeypatch.setattr(
        negotiate, "token", lambda host, principal, keytab: f"{principal or 'cache'} to {host}".encode()
    )


@pytest.mark.usefixtures("tickets")
def test_a_ticket_is_sent_once_then_the_cookie(secure: Secure) -> None:
    kept = StandbyStore(Standby(webhdfs=secure.url, principal="isonomy/m1@R", keytab=Path("/k")))
    assert kept.newest() is None
    assert secure.tickets == ["isonomy/m1@R to 127.0.0.1"]
    assert secure.cookies == 1  # the second call's


@pytest.mark.usefixtures("tickets")
def test_the_command_line_sends_its_ticket(secure: Secure) -> None:
    result = CliRunner().invoke(main, ["rounds", "--rm", secure.url, "-o", "json"])
    assert secure.tickets == ["cache to 127.0.0.1"], result.output
    secure.trusting = False
    result = CliRunner().invoke(main, ["rounds", "--rm", secure.url])
    assert result.exit_code == 1
    assert result.output == f"error: {secure.url} refused the Kerberos ticket; run kinit\n"


def _has_gssapi() -> bool:
    try:
        ctypes.CDLL(negotiate.LIBRARY)
    except OSError:
        return False
    return True


@pytest.fixture
def no_ticket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The real library with an empty ticket cache."""
    if not _has_gssapi():
        pytest.skip(f"{negotiate.LIBRARY} is not installed")
    (tmp_path / "krb5.conf").write_text("[libdefaults]\n default_realm = R\n dns_lookup_kdc = false\n")
    monkeypatch.setenv("KRB5_CONFIG", str(tmp_path / "krb5.conf"))
    monkeypatch.setenv("KRB5CCNAME", f"FILE:{tmp_path}/none")
    monkeypatch.delenv("KRB5_CLIENT_KTNAME", raising=False)


@pytest.mark.usefixtures("no_ticket")
def test_without_a_ticket_one_line_says_kinit(secure: Secure) -> None:
    result = CliRunner().invoke(main, ["rounds", "--rm", secure.url])
    assert result.exit_code == 1
    assert result.output.startswith(f"error: {secure.url} wants Kerberos: no Kerberos ticket: run kinit (")
    assert result.output.count("\n") == 1


@pytest.mark.usefixtures("no_ticket")
def test_a_keytab_that_cannot_be_read_is_named(secure: Secure, tmp_path: Path) -> None:
    kept = StandbyStore(Standby(webhdfs=secure.url, principal="isonomy@R", keytab=tmp_path / "no.keytab"))
    with pytest.raises(StandbyStoreError, match=r"no Kerberos ticket for isonomy@R: .*no\.keytab cannot be read"):
        kept.newest()


def test_without_the_library_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    negotiate.library.cache_clear()
    monkeypatch.setattr(negotiate, "LIBRARY", "libnone.so.2")
    with pytest.raises(negotiate.NegotiateError, match="install libgssapi-krb5-2"):
        negotiate.token("localhost")
    negotiate.library.cache_clear()


@pytest.mark.parametrize(
    ("extra", "why"),
    [
        ("principal: a@R", "principal and keytab: give both"),
        ("principal: a@R\nkeytab: /k\nuser: u", "is the principal's"),
        ("principal: no realm\nkeytab: /k", "principal"),
    ],
)
def test_the_identity_of_the_standby_must_be_unambiguous(extra: str, why: str) -> None:
    text = "webhdfs: http://nn:9870\n" + extra + "\n"
    with pytest.raises(ConfigError, match=why):
        parse(text, Standby, "isonomy.yaml")
