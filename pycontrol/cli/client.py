"""The command line's way to the control plane: the ResourceManager's REST resource."""

from __future__ import annotations

import getpass
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime, tzinfo
from pathlib import Path
from typing import Any, TypeVar

import click
import requests
from urllib3.exceptions import LocationParseError  # of a name that cannot be one, which requests lets through

from pycontrol.configerror import ConfigError
from pycontrol.hadoopconf.sitefile import rm_web_url
from pycontrol.negotiate import Negotiate, NegotiateError, asks, session

CONNECT_S, READ_S = 3.0, 20.0
RESOURCE = "/ws/v1/cluster/isonomy"
WEB_ADDRESS = re.compile(r"https?://[^\s/?#]+(/[^\s?#]*)?")
F = TypeVar("F", bound=Callable[..., Any])


class Failure(click.ClickException):
    """Refused or failed: one line on standard error, exit status 1."""

    exit_code = 1

    def show(self, file: Any = None) -> None:
        """Without click's usage lines."""
        click.echo(f"error: {self.message}", err=True)


class Conflict(Failure):
    """Refused in the present state (HTTP 409): the app is not known yet, or has ended."""


class Misused(Failure):
    """Wrong usage: exit status 2."""

    exit_code = 2


class Unreachable(Failure):
    """Neither ResourceManager nor control plane answers: exit status 3."""

    exit_code = 3


def rm_address(option: str | None = None) -> str:
    """The ResourceManager's web address: --rm or ISONOMY_RM, else yarn-site.xml in HADOOP_CONF_DIR.

    Of a pair both, joined by a comma.
    """
    context = click.get_current_context(silent=True)
    option = option or (context.find_root().params.get("rm") if context else None) or os.environ.get("ISONOMY_RM")
    if option:
        found = [(a if "://" in a else f"http://{a}").rstrip("/") for a in option.split(",")]
        for address in found:
            if not WEB_ADDRESS.fullmatch(address):
                raise Misused(f"--rm {without_password(address)}: must be http://HOST:PORT or https://HOST:PORT")
        return ",".join(found)
    try:
        return rm_web_url()
    except ConfigError as e:
        conf = os.environ.get("HADOOP_CONF_DIR")
        where = f" (HADOOP_CONF_DIR={conf})" if conf else ""
        raise Misused(f"{e.lines[0]}{where}; or give --rm URL or set ISONOMY_RM") from e


def ca_bundle() -> str | bool:
    """The certificates by which web apps are known: --ca or ISONOMY_CA; True: those that Python trusts."""
    context = click.get_current_context(silent=True)
    given = (context.find_root().params.get("ca") if context else None) or os.environ.get("ISONOMY_CA")
    if given and not Path(given).is_file():
        raise Misused(f"--ca {given}: is no file; name the CA's certificate (PEM)")
    return given or os.environ.get("REQUESTS_CA_BUNDLE") or True


def without_password(address: str) -> str:
    """The address as it may be shown."""
    scheme, separator, rest = address.partition("://")
    return f"{scheme}{separator}{rest.rpartition('@')[2]}" if separator else address.rpartition("@")[2]


class Rm:
    """A ResourceManager with Isonomy in it; of a pair, one that is there: who stands by names the active one."""

    def __init__(self, bases: str) -> None:
        self._bases = bases.split(",")
        with failing(KeyError, OSError, what="this user has no name here; set HADOOP_USER_NAME", instead=Misused):
            self.user = os.environ.get("HADOOP_USER_NAME") or getpass.getuser()
        self._http = session()
        self._http.verify, self._http.auth = ca_bundle(), None  # an address may have a name and a password

    @property
    def base(self) -> str:
        """The web address in use, as it may be shown: without a password."""
        return without_password(self._bases[0])

    def get(self, path: str, read_s: float = READ_S, **params: str | int) -> dict[str, Any]:
        """A view of the control plane."""
        return self._answer("GET", f"{RESOURCE}/{path}", read_s, params)

    def post(self, path: str, **params: str | int) -> dict[str, Any]:
        """A verb of the control plane."""
        return self._answer("POST", f"{RESOURCE}/{path}", READ_S, params)

    def yarn(self, path: str) -> dict[str, Any]:
        """A resource of YARN itself, below /ws/v1/cluster/."""
        return self._answer("GET", f"/ws/v1/cluster/{path}", READ_S, {})

    def page(self, url: str, accept: str = "*/*") -> tuple[int, str]:
        """The HTTP status of a page of any daemon, and its text; 0 where nobody answers."""
        try:
            reply = self._call("GET", url, READ_S, {}, accept)
        except NegotiateError as e:
            raise Failure(f"{url} wants Kerberos: {e}") from e
        except (requests.RequestException, LocationParseError):
            return 0, ""
        return reply.status_code, reply.text

    def _call(
        self, method: str, url: str, read_s: float, params: dict[str, str | int], accept: str = "application/json"
    ) -> requests.Response:
        query = {**params, "user.name": self.user}
        headers, timeout = {"Accept": accept, "X-Requested-By": "isonomy"}, (CONNECT_S, read_s)
        reply = self._http.request(method, url, params=query, headers=headers, timeout=timeout)
        if reply.status_code == 401 and asks(reply):
            if self._http.auth is None:
                self._http.auth = Negotiate()
                reply = self._http.request(method, url, params=query, headers=headers, timeout=timeout)
            if reply.status_code == 401:
                raise Failure(f"{self.base} refused the Kerberos ticket; run kinit")
        return reply

    def _reach(self, method: str, path: str, read_s: float, params: dict[str, str | int]) -> requests.Response:
        """The answer of the first ResourceManager to which there is a connection; it is asked first from then on."""
        for left in reversed(range(len(self._bases))):
            try:
                return self._call(method, self._bases[0] + path, read_s, params)
            except (requests.ConnectionError, LocationParseError):
                if not left:
                    raise
                self._bases.append(self._bases.pop(0))
        raise AssertionError("there is at least one")

    def _answer(self, method: str, path: str, read_s: float, params: dict[str, str | int]) -> dict[str, Any]:
        try:
            reply = self._reach(method, path, read_s, params)
        except NegotiateError as e:
            raise Failure(f"{self.base} wants Kerberos: {e}") from e
        except (requests.RequestException, LocationParseError) as e:
            raise Unreachable(f"the ResourceManager's web app {self.base} {_why(e)}") from e
        try:
            answer = reply.json()
        except ValueError:
            answer = None
        error = answer.get("error") if isinstance(answer, dict) else None
        if reply.status_code == 200 and isinstance(answer, dict):
            return answer
        if reply.status_code == 503:
            raise Unreachable(error or f"{self.base}: the control plane is not there (HTTP 503)")
        if error:
            raise {400: Misused, 409: Conflict}.get(reply.status_code, Failure)(str(error))
        if isinstance(answer, dict) and "RemoteException" in answer:
            raise Failure(str(answer["RemoteException"].get("message", answer)))
        raise Unreachable(
            f"{self.base}{path}: HTTP {reply.status_code}; is Isonomy's plugin in this ResourceManager"
            " (`isonomy config check DIR --hadoop VERSION` says what its yarn-site.xml lacks)?"
        )


def _why(e: Exception) -> str:
    """What keeps from an answer, and what to do."""
    if isinstance(e, requests.exceptions.SSLError):
        untrusted = re.search(r"certificate verify failed: ([^(']*)", str(e))
        if untrusted is None:
            return "speaks no TLS, or not with this client; is it http:// instead?"
        said = untrusted[1].strip()
        if "ostname mismatch" in said or "IP address mismatch" in said:
            return f"shows a certificate of another name ({said}); --rm URL with its own name reaches it"
        return f"shows a certificate that is not trusted here ({said}); --ca FILE or ISONOMY_CA names its CA's (PEM)"
    if isinstance(e, requests.Timeout):
        return "does not answer in time; is it up? (--rm URL names another)"
    if isinstance(e, LocationParseError) or "NameResolutionError" in str(e):
        return "has a name that does not resolve; --rm URL names another"
    return "cannot be reached; is it up? (--rm URL names another)"


LENGTH = re.compile(r"(?:\d+(?:\.\d+)?[smhdw])+")
UNITS_S = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 7 * 86400.0}


def duration_s(text: str, option: str) -> float:
    """`30d`, `12h`, `90m` or `1h30m` in seconds."""
    if not LENGTH.fullmatch(text):
        raise Misused(f"{option} {text}: must be as 30d, 12h, 90m")
    seconds = sum(float(n) * UNITS_S[unit] for n, unit in re.findall(r"([\d.]+)(\w)", text))
    if seconds <= 0:
        raise Misused(f"{option} {text}: must be more than 0")
    return seconds


def moment_s(text: str, now_s: float, option: str, date_in: tzinfo | None = None) -> float:
    """`30d`, `12h`, `90m` before now, a local time as 2026-11-20T14:00, or a date, local or in a zone; Unix seconds."""
    if LENGTH.fullmatch(text):
        return now_s - duration_s(text, option)
    try:
        at = datetime.fromisoformat(text)
        return (at if date_in is None or len(text) > len("2026-11-20") else at.replace(tzinfo=date_in)).timestamp()
    except ValueError:
        raise Misused(f"{option} {text}: must be as 30d, 12h, 90m, or a time as 2026-11-20T14:00") from None


def pairs(given: Iterable[str]) -> Iterator[tuple[str, str]]:
    """The OPTION=VALUE of --set."""
    for text in given:
        option, equals, value = text.partition("=")
        if not equals:
            raise Misused(f"--set {text}: must be OPTION=VALUE")
        yield option, value


@contextmanager
def failing(*kinds: type[Exception], what: str = "", instead: type[Failure] = Failure) -> Iterator[None]:
    """Exceptions of these kinds as one of the command; `what`: the option that they are about."""
    try:
        yield
    except kinds as e:
        lines = e.lines if isinstance(e, ConfigError) else [str(e)]
        if isinstance(e, OSError) and e.filename:
            right = "; give this user the right to it" if isinstance(e, PermissionError) else ""
            lines = [f"{e.filename}: {e.strerror}{right}"]
        raise instead("\nerror: ".join(f"{what}: {line}" if what else line for line in lines)) from e


output_option = click.option(
    "-o", "--output", type=click.Choice(["table", "json"]), default="table", help="A table for people, or JSON."
)


def dev_cluster() -> Path:
    """The folder of the dev-cluster whose configuration HADOOP_CONF_DIR names, else build/dev-cluster."""
    above = Path(os.environ.get("HADOOP_CONF_DIR", "")).resolve().parent
    return above if (above / "cluster.json").is_file() else Path("build/dev-cluster")


class _FloatRange(click.FloatRange):
    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Without NaN, which click takes for a number in any range."""
        found = super().convert(value, param, ctx)
        return self.fail(f"{value} is not a number.", param, ctx) if math.isnan(found) else found


ABOVE_0 = _FloatRange(0, min_open=True)
FILE, FOLDER = click.Path(path_type=Path, dir_okay=False), click.Path(path_type=Path, file_okay=False)
cluster_dir_option = click.option(
    "--cluster-dir",
    type=FOLDER,
    default=dev_cluster,
    show_default="of HADOOP_CONF_DIR, else build/dev-cluster",
    help="A dev-cluster, with its cluster.json.",
)


def file_option(*names: str, help: str, **more: Any) -> Callable[[F], F]:
    """An option that names a file."""
    return click.option(*names, type=FILE, metavar="FILE", help=help, **more)


queues_option = file_option(
    "--queues", help="A capacity-scheduler.xml: capacities, maxima and user limits of the apps' queues."
)
