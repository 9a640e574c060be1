"""TLS to the worker on this machine, known by its certificate itself: that names a public address or nothing at all."""

from __future__ import annotations

import ssl
from pathlib import Path


def trusting(certificate: Path) -> ssl.SSLContext:
    """For a client of a server that shows this very certificate, whatever it is for and whoever signed it.

    Raises OSError where the file cannot be read or is none.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # who signed it need not be known
    context.load_verify_locations(cafile=certificate)
    return context
