"""Causes of failed connections, in words: what TLS, DNS, TCP and HTTP reported below the errors of the libraries.

httpx reports a refused connection, an expired certificate and an unknown host as the same ConnectError, with the cause
below it; others report them as an OSError. No cause repeats an address, a header or a body, which may hold secrets.
"""

from __future__ import annotations

import asyncio
import errno
import re
import socket
import ssl
from collections.abc import Iterator
from typing import Final

import httpx

CERTIFICATE: Final = {
    9: "the certificate is not valid yet",
    10: "the certificate has expired",
    18: "the certificate is self-signed, and not trusted",
    19: "the certificate is signed by an authority that is not trusted (self-signed in its chain)",
    20: "the certificate is signed by an authority that is not trusted",
    21: "the certificate's chain is incomplete, or its authority is not trusted",
    23: "the certificate is revoked",
    62: "the certificate is for another host",
    63: "the certificate is for another host",
    64: "the certificate is for another address",
}
"""Causes by OpenSSL's verify codes (x509_vfy.h)."""

TLS: Final = {
    "WRONG_VERSION_NUMBER": "the other side does not speak TLS; expected an http:// address, or TLS there",
    "HTTP_REQUEST": "the other side does not speak TLS; expected an http:// address, or TLS there",
    "UNSUPPORTED_PROTOCOL": "the other side speaks no version of TLS that is allowed",
    "TLSV1_ALERT_PROTOCOL_VERSION": "the other side speaks no version of TLS that is allowed",
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": "the other side asks for a client certificate",
    "SSLV3_ALERT_HANDSHAKE_FAILURE": "the other side refused the TLS handshake (no certificate, or no cipher)",
    "TLSV1_ALERT_INTERNAL_ERROR": "the other side refused the TLS handshake",
    "TLSV1_UNRECOGNIZED_NAME": "the other side has no certificate for this host",
    "UNEXPECTED_EOF_WHILE_READING": "the connection was closed in the middle of TLS",
}
"""Causes by OpenSSL's reasons."""

NUMBERS: Final = {
    errno.ECONNREFUSED: "the connection was refused: nothing listens there, or a firewall refuses it",
    errno.EHOSTUNREACH: "no route to the host",
    errno.ENETUNREACH: "the network is unreachable",
    errno.ECONNRESET: "the connection was reset by the other side",
    errno.ECONNABORTED: "the connection was aborted",
    errno.EPIPE: "the other side closed the connection while it was sent to",
    errno.ETIMEDOUT: "no connection in time",
    errno.ENOENT: "nothing is there (no such socket or file)",
    errno.EADDRNOTAVAIL: "no local address or port is left for a connection",
    errno.EMFILE: "too many open files",
    errno.ENOSPC: "the disk is full",
    errno.EACCES: "the permission is missing",
}
"""Causes by the system's error numbers."""

BY_CLASS: Final[tuple[tuple[type[BaseException], str], ...]] = (
    (httpx.ConnectTimeout, "no connection in time"),
    (httpx.ReadTimeout, "no answer in time"),
    (httpx.WriteTimeout, "the other side did not take the body in time"),
    (httpx.PoolTimeout, "no free connection in time"),
    (httpx.TimeoutException, "it took too long"),
    (httpx.TooManyRedirects, "too many redirects"),
    (httpx.UnsupportedProtocol, "an address that does not begin with http:// or https://"),
    (httpx.InvalidURL, "the address is not valid"),
    (httpx.LocalProtocolError, "the request has a header or an address that HTTP does not allow"),
    (httpx.DecodingError, "the answer does not unpack as its Content-Encoding says"),
    (httpx.ProxyError, "the proxy refused the connection"),
    (httpx.ReadError, "the connection broke off before the answer was whole"),
    (httpx.WriteError, "the connection broke off while the request was sent"),
    (httpx.CloseError, "the connection broke off"),
    (httpx.ConnectError, "no connection"),
    (ConnectionRefusedError, NUMBERS[errno.ECONNREFUSED]),
    (ConnectionResetError, NUMBERS[errno.ECONNRESET]),
    (BrokenPipeError, NUMBERS[errno.EPIPE]),
    (asyncio.IncompleteReadError, "the connection was closed before the answer was whole"),
    (asyncio.LimitOverrunError, "the head of the answer is too long"),
    (EOFError, "the connection was closed before the answer was whole"),
    (TimeoutError, "it took too long"),
    (UnicodeError, "the name of the host is not valid"),
)
NO_ANSWER: Final = "the connection was closed without an answer"
CUT_ANSWER: Final = "the connection was closed in the middle of the answer"
NO_HTTP: Final = "the answer is no HTTP"

_CAUSES: Final = 12
_WORDS: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


def cause_of(error: BaseException) -> str:
    """Return the cause of a failed connection or transfer, without addresses and secrets."""
    chain = list(_chain(error))
    for find in (_certificate, _host, _number):
        for item in chain:
            cause = find(item)
            if cause:
                return cause
    for item in chain:
        cause = _protocol(item) or next((words for kind, words in BY_CLASS if isinstance(item, kind)), "")
        if cause:
            return cause
    named = _WORDS.sub(" ", type(error).__name__).lower().removesuffix(" error")
    return f"it failed ({named})"


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an error, what caused it, and the errors of a group among them, the first ones first."""
    waiting, seen = [error], set[int]()
    while waiting and len(seen) < _CAUSES:
        item = waiting.pop(0)
        if id(item) in seen:
            continue
        seen.add(id(item))
        yield item
        if isinstance(item, BaseExceptionGroup):
            waiting += item.exceptions
        waiting += [cause for cause in (item.__cause__, item.__context__) if cause is not None]


def _certificate(error: BaseException) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return CERTIFICATE.get(error.verify_code, f"the certificate is not valid (code {error.verify_code})")
    if isinstance(error, ssl.SSLError):
        reason = str(error.reason or "unknown")
        return TLS.get(reason, f"TLS failed ({reason.lower().replace('_', ' ')})")
    return ""


def _host(error: BaseException) -> str:
    return "the host does not resolve" if isinstance(error, socket.gaierror) else ""


def _number(error: BaseException) -> str:
    return NUMBERS.get(error.errno or 0, "") if isinstance(error, OSError) else ""


def _protocol(error: BaseException) -> str:
    """Return the cause of a protocol error; httpx has its kinds in the message alone, whose words are h11's."""
    if not isinstance(error, httpx.RemoteProtocolError) or type(error) is not httpx.RemoteProtocolError:
        return ""
    text = str(error)
    if "without sending a response" in text:
        return NO_ANSWER
    return CUT_ANSWER if "closed connection" in text or "incomplete" in text else NO_HTTP
