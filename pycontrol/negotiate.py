"""SPNEGO (RFC 4559) for requests, by ctypes on MIT's GSSAPI, without a compiled package.

The ticket is from the ticket cache (`kinit`), or acquired and renewed with a principal's keytab. The API is
RFC 2744's; gss_acquire_cred_from is MIT's (1.11 and later).
"""

from __future__ import annotations

import base64
import ctypes
import os
from ctypes import byref
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import requests
from requests.auth import AuthBase
from requests.cookies import extract_cookies_to_jar

LIBRARY = "libgssapi_krb5.so.2"
_NO_TICKET = {7, 11}
"""GSS_S_NO_CRED and GSS_S_CREDENTIALS_EXPIRED, the routine errors of RFC 2744."""
_GSS_CODE, _MECHANISM_CODE, _INITIATE = 1, 2, 1


class NegotiateError(requests.RequestException):
    """There is no ticket, or none for this server; the message is one line."""


class _Bytes(ctypes.Structure):
    _fields_ = [("length", ctypes.c_size_t), ("value", ctypes.c_char_p)]


class _Oid(ctypes.Structure):
    _fields_ = [("length", ctypes.c_uint32), ("elements", ctypes.c_char_p)]


class _Pair(ctypes.Structure):
    _fields_ = [("key", ctypes.c_char_p), ("value", ctypes.c_char_p)]


class _Store(ctypes.Structure):
    _fields_ = [("count", ctypes.c_uint32), ("elements", ctypes.POINTER(_Pair))]


def _oid(value: str) -> _Oid:
    encoded = bytes.fromhex(value)
    return _Oid(len(encoded), encoded)


_SPNEGO = _oid("2b0601050502")
_SERVICE = _oid("2a864886f71201020104")
"""Name type of HTTP@host."""
_PRINCIPAL = _oid("2a864886f71201020201")
"""Name type of isonomy/host@REALM."""


class Negotiate(AuthBase):
    """Answers `WWW-Authenticate: Negotiate` with a ticket; the server's cookie authenticates later requests."""

    def __init__(self, principal: str = "", keytab: str = "") -> None:
        """Without a principal and its keytab, uses the ticket cache."""
        self._principal, self._keytab = principal, keytab

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        request.register_hook("response", self._answer)  # type: ignore[no-untyped-call]
        return request

    def _answer(self, response: requests.Response, **options: Any) -> requests.Response:
        wanted = response.status_code == 401 and asks(response)
        if not wanted or "Authorization" in response.request.headers:
            return response
        _ = response.content  # the connection is free only when all was read
        response.close()
        again = response.request.copy()
        extract_cookies_to_jar(again._cookies, response.request, response.raw)  # type: ignore[attr-defined, no-untyped-call]
        host = urlsplit(again.url or "").hostname or ""
        ticket = token(str(host), self._principal, self._keytab)
        again.headers["Authorization"] = f"Negotiate {base64.b64encode(ticket).decode()}"
        reply: requests.Response = response.connection.send(again, **options)
        reply.history.append(response)
        reply.request = again
        return reply


def session(principal: str = "", keytab: str = "", ca: Path | None = None) -> requests.Session:
    """A session with Hadoop's web apps that answers Kerberos challenges; like Hadoop's clients it ignores proxies and
    .netrc."""
    made = requests.Session()
    made.trust_env = False
    made.verify = str(ca) if ca else os.environ.get("REQUESTS_CA_BUNDLE") or True
    made.auth = Negotiate(principal, keytab)
    return made


def asks(response: requests.Response) -> bool:
    """Whether the server wants SPNEGO."""
    return "negotiate" in response.headers.get("WWW-Authenticate", "").lower()


def token(host: str, principal: str = "", keytab: str = "", tickets: str = "") -> bytes:
    """SPNEGO's first token (the only one with Kerberos) for HTTP@host; raises NegotiateError.

    `tickets`: the cache for the tickets of the keytab's principal; default: this process's memory.
    """
    gss = library()
    name, context, creds = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
    minor, out = ctypes.c_uint32(), _Output()
    try:
        _import_name(f"HTTP@{host}", _SERVICE, name)
        if principal:
            _acquire(principal, keytab, tickets or f"MEMORY:isonomy-{principal}-{keytab}", creds)
        major = gss.gss_init_sec_context(
            byref(minor), creds, byref(context), name, byref(_SPNEGO), 0, 0, None, None, None, byref(out), None, None
        )
        _check(major, minor.value, f"for HTTP@{host}", keytab)
        return ctypes.string_at(out.value, out.length)
    finally:
        gss.gss_release_buffer(byref(minor), byref(out))
        gss.gss_release_name(byref(minor), byref(name))
        gss.gss_release_cred(byref(minor), byref(creds))
        if context:
            gss.gss_delete_sec_context(byref(minor), byref(context), None)


class _Output(ctypes.Structure):
    """A buffer that the library fills; c_char_p would cut it at the first zero."""

    _fields_ = [("length", ctypes.c_size_t), ("value", ctypes.c_void_p)]


@cache
def library() -> ctypes.CDLL:
    try:
        gss = ctypes.CDLL(LIBRARY)
        gss.gss_acquire_cred_from  # noqa: B018
    except (OSError, AttributeError):
        where = "install libgssapi-krb5-2 (Debian, Ubuntu) or krb5-libs (Red Hat)"
        raise NegotiateError(f"Kerberos wants MIT's {LIBRARY} (1.11 or later): {where}") from None
    for function in ("import_name", "acquire_cred_from", "init_sec_context"):
        getattr(gss, f"gss_{function}").restype = ctypes.c_uint32
    return gss


def _import_name(text: str, kind: _Oid, name: ctypes.c_void_p) -> None:
    minor, encoded = ctypes.c_uint32(), text.encode()
    major = library().gss_import_name(byref(minor), byref(_Bytes(len(encoded), encoded)), byref(kind), byref(name))
    _check(major, minor.value, f"for {text}")


def _acquire(principal: str, keytab: str, tickets: str, credential: ctypes.c_void_p) -> None:
    """Acquire the keytab's credentials; the library renews expired tickets."""
    if not os.access(keytab, os.R_OK):
        raise NegotiateError(f"no Kerberos ticket for {principal}: {keytab} cannot be read")
    name, minor = ctypes.c_void_p(), ctypes.c_uint32()
    pairs = (_Pair * 2)(_Pair(b"client_keytab", f"FILE:{keytab}".encode()), _Pair(b"ccache", tickets.encode()))
    store = _Store(2, pairs)
    try:
        _import_name(principal, _PRINCIPAL, name)
        major = library().gss_acquire_cred_from(
            byref(minor), name, 0, None, _INITIATE, byref(store), byref(credential), None, None
        )
        _check(major, minor.value, f"for {principal}", keytab)
    finally:
        library().gss_release_name(byref(minor), byref(name))


def _check(major: int, minor: int, what: str, keytab: str = "") -> None:
    if not major >> 16:
        return
    why = "; ".join(filter(None, (_said(major, _GSS_CODE), _said(minor, _MECHANISM_CODE))))
    if keytab:
        raise NegotiateError(f"no Kerberos ticket {what} by {keytab}: {why}")
    if (major >> 16) & 0xFF in _NO_TICKET:
        raise NegotiateError(f"no Kerberos ticket: run kinit ({why})")
    raise NegotiateError(f"no Kerberos ticket {what}: {why}")


def _said(code: int, kind: int) -> str:
    minor, more, out = ctypes.c_uint32(), ctypes.c_uint32(0), _Output()
    texts = []
    while code:
        library().gss_display_status(
            byref(minor), ctypes.c_uint32(code), ctypes.c_int(kind), None, byref(more), byref(out)
        )
        texts.append(ctypes.string_at(out.value, out.length).decode(errors="replace") if out.value else "")
        library().gss_release_buffer(byref(minor), byref(out))
        if not more.value:
            break
    return "; ".join(texts)
