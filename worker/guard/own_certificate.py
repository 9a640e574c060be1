"""TLS to the worker on this machine, pinned to its certificate, which names a public address or no host."""

from __future__ import annotations

import ssl
from pathlib import Path


def trusting_context(certificate: Path) -> ssl.SSLContext:
    """Create an SSL context for a client that accepts exactly this certificate, whatever its names and issuer.

    Raises OSError if the file cannot be read or is not a certificate.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # the issuer need not be trusted
    context.load_verify_locations(cafile=certificate)
    return context
