"""One real request against a worker that is starting: waits until it is ready, sends it, saves and names the image.

`run.sh` calls it; only the standard library is needed. The worker's process is watched meanwhile, so a worker that dies
ends the wait at once, and one that is slow (a model on a network disk) is waited for as long as it lives.

Exit code: 0 when the image lies on the disk, 1 otherwise.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import ssl
import sys
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Any

POLL_SECONDS = 0.1
SECONDS_BETWEEN_NOTES = 10.0


class WorkerGone(Exception):
    """The worker's process ended before it was ready."""


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    body: dict[str, Any]


def ask(
    url: str,
    body: dict[str, Any] | None = None,
    *,
    key: str = "",
    tls: ssl.SSLContext | None = None,
    timeout_seconds: float = 10.0,
) -> Answer:
    """GET, or POST of a JSON body. Raises OSError or HTTPException when nobody answers."""
    data = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
    request = urllib.request.Request(url, data, headers)
    # The worker is on this machine, whatever proxy the environment names.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=tls))
    try:
        with opener.open(request, timeout=timeout_seconds) as response:
            return Answer(response.status, parse(response.read()))
    except urllib.error.HTTPError as error:
        return Answer(error.code, parse(error.read()))


def trusting(certificate: str) -> ssl.SSLContext:
    """Takes the server that shows this very certificate, whatever name that is for. Raises OSError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.load_verify_locations(cafile=certificate)
    return context


def key_of(file: Path | None) -> str:
    """Return the key in a file, empty where there is none: the worker may need none."""
    try:
        return "" if file is None else file.read_text().strip()
    except OSError:
        return ""


def parse(text: bytes) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def is_alive(process_id: int) -> bool:
    try:
        os.kill(process_id, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    try:
        state = Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return True  # no /proc here: the signal above is all there is to know
    return state != "Z"


def wait_until_ready(url: str, process_id: int, tls: ssl.SSLContext | None) -> float:
    """Seconds until `/ready` said 200. Raises WorkerGone."""
    started = time.monotonic()
    next_note = started + SECONDS_BETWEEN_NOTES
    reason = "nothing answers yet"
    while is_alive(process_id):
        try:
            answer = ask(f"{url}/ready", tls=tls)
        except (OSError, HTTPException):
            answer = Answer(0, {})
        if answer.status == 200:
            return time.monotonic() - started
        if answer.body:
            reason = str(answer.body.get("message") or answer.body.get("reason") or answer.body.get("status") or reason)
        if time.monotonic() >= next_note:
            print(f"  still starting after {time.monotonic() - started:.0f} s: {reason}", flush=True)
            next_note += SECONDS_BETWEEN_NOTES
        time.sleep(POLL_SECONDS)
    raise WorkerGone(f"the worker ended before it was ready ({reason})")


def image_of(result: dict[str, Any]) -> bytes:
    """The first image of a result. Raises ValueError when it has none."""
    for output in result.get("output", []):
        if output.get("data"):
            text: str = output["data"]
            return base64.b64decode(text.rpartition(",")[2])
    raise ValueError("the result holds no image")


def without_data(result: dict[str, Any]) -> dict[str, Any]:
    """The result as a person wants to read it: the base64 text cut short."""
    outputs = [
        {
            key: f"({len(value)} characters of base64)" if key == "data" and value else value
            for key, value in item.items()
        }
        for item in result.get("output", [])
    ]
    return {**result, "output": outputs}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", required=True)
    parser.add_argument("--certificate", default="", help="what an https worker shows")
    parser.add_argument("--key-file", type=Path, help="holds the key that the worker makes at its start")
    parser.add_argument("--process-id", type=int, required=True, help="the worker, to stop waiting when it has died")
    parser.add_argument("--checkpoint", required=True)
    parser.add_argument("--prompt", required=True)
    parser.add_argument("--size", type=int, default=512)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--output", type=Path, required=True)
    arguments = parser.parse_args()

    modifications = {
        "prompt": arguments.prompt,
        "ckpt_name": arguments.checkpoint,
        "width": arguments.size,
        "height": arguments.size,
        "steps": arguments.steps,
    }
    body = {"input": {"modifier": "Text2Image", "modifications": modifications, "return_outputs_as_base64": True}}
    try:
        tls = trusting(arguments.certificate) if arguments.certificate else None
        print(f"Ready after {wait_until_ready(arguments.url, arguments.process_id, tls):.1f} s at {arguments.url}")
        print(f"POST /generate/sync {json.dumps(body)}", flush=True)
        started = time.monotonic()
        key = key_of(arguments.key_file)
        answer = ask(f"{arguments.url}/generate/sync", body, key=key, tls=tls, timeout_seconds=3600.0)
    except (WorkerGone, OSError, HTTPException) as error:
        print(f"No image: {error}", file=sys.stderr)
        return 1
    print(json.dumps(without_data(answer.body), indent=2))
    try:
        image = image_of(answer.body)
    except ValueError as error:
        print(f"No image: HTTP {answer.status}, {error}", file=sys.stderr)
        return 1
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_bytes(image)
    print(f"Image after {time.monotonic() - started:.1f} s: {arguments.output} ({len(image)} bytes)", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
