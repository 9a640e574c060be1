"""The receiver of webhooks takes what the worker signs, and nothing else."""

from __future__ import annotations

import hashlib
import hmac
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request

from tests.deploy.recipes import DEPLOY
from tests.s3_server import free_ports


def post(url: str, body: bytes, signature: str) -> int:
    headers = {"X-Webhook-Signature": signature, "Content-Type": "application/json"}
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(urllib.request.Request(url, body, headers), timeout=10) as response:
            status: int = response.status
            return status
    except urllib.error.HTTPError as error:
        return error.code


def test_the_receiver_logs_what_is_signed_and_refuses_the_rest() -> None:
    (port,) = free_ports(1)
    environment = {**os.environ, "WEBHOOK_SECRET": "key", "PORT": str(port)}
    command = [sys.executable, str(DEPLOY / "compose" / "receiver.py")]
    body = b'{"id": "apple-1", "status": "completed", "output": [{}]}'
    right = "sha256=" + hmac.new(b"key", body, hashlib.sha256).hexdigest()
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as receiver:
        try:
            for _ in range(200):
                try:
                    statuses = [post(f"http://127.0.0.1:{port}/done", body, given) for given in (right, "sha256=0")]
                    break
                except urllib.error.URLError:
                    time.sleep(0.05)
        finally:
            receiver.kill()
        assert receiver.stdout is not None
        said = receiver.stdout.read()
    assert statuses == [204, 401]
    assert said.splitlines() == ["apple-1 completed 1 outputs"]
