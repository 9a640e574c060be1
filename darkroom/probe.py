"""Ask the worker in this container whether it is healthy, or wait until it has no job left.

    python -m darkroom.probe health             exit code 0: /health answers 200
    python -m darkroom.probe idle --seconds N   exit code 0: no job was left within N seconds

The image's HEALTHCHECK and preStop hooks call it every few seconds, so it needs the standard library alone. It looks
where WORKER_HOST, WORKER_PORT and USE_SSL say, past any proxy that the environment names. The certificate is not
checked: the worker is on this machine, whatever name its certificate has.
"""

from __future__ import annotations

import argparse
import json
import os
import ssl
import sys
import time
import urllib.error
import urllib.request
from http.client import HTTPException

REQUEST_SECONDS = 4.0
POLL_SECONDS = 0.5
TRUE = ("true", "1", "yes", "on")
LOOPBACK = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - where a worker on all addresses answers


def ask(path: str) -> tuple[int, bytes]:
    """Return status and body of a GET. Raises OSError (HTTPError above 399) or HTTPException."""
    scheme = "https" if os.environ.get("USE_SSL", "").lower() in TRUE else "http"
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    tls.check_hostname = False
    tls.verify_mode = ssl.CERT_NONE
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=tls))
    listens = os.environ.get("WORKER_HOST", "")
    host = LOOPBACK.get(listens, listens)
    address = f"[{host}]" if ":" in host else host
    url = f"{scheme}://{address}:{os.environ.get('WORKER_PORT') or 8000}{path}"
    with opener.open(url, timeout=REQUEST_SECONDS) as response:
        return response.status, response.read()


def is_healthy() -> bool:
    """Return True where /health answers 200; the reason of another answer goes to stderr."""
    try:
        return ask("/health")[0] == 200
    except (OSError, HTTPException) as error:
        print(f"not healthy: {error}", file=sys.stderr)
        return False


def jobs_left() -> int:
    """Return the number of jobs that wait or run.

    Raises OSError, HTTPException, or ValueError where the reply is another program's.
    """
    sizes = json.loads(ask("/queue-info")[1])
    return sum(value for name, value in sizes.items() if name.endswith("_queue_size") and isinstance(value, int))


def becomes_idle(seconds: float) -> bool:
    """Poll until no job is left, and return True, or for `seconds`.

    Where nothing listens no job is left; a reply that does not come in time says nothing.
    """
    ends = time.monotonic() + seconds
    while True:
        try:
            if not jobs_left():
                return True
        except urllib.error.URLError as error:
            if isinstance(error.reason, ConnectionRefusedError):
                return True
        except (OSError, HTTPException, ValueError):
            pass
        if time.monotonic() >= ends:
            print(f"not idle after {seconds:g} s", file=sys.stderr)
            return False
        time.sleep(POLL_SECONDS)


def main() -> int:
    """Run the command; return its exit code."""
    parser = argparse.ArgumentParser(prog="probe", description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("health", help="exit code 0 when /health answers 200")
    idle = commands.add_parser("idle", help="wait until no job is left")
    idle.add_argument("--seconds", type=float, default=300.0, help="how long to wait (default: 300)")
    arguments = parser.parse_args()
    return 0 if (is_healthy() if arguments.command == "health" else becomes_idle(arguments.seconds)) else 1


if __name__ == "__main__":
    sys.exit(main())
