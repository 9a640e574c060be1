"""Real S3 servers for tests: SeaweedFS (`weed server -s3`) and moto, each on ports of its own."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

KEY_ID, SECRET, BUCKET = "test-key", "test-secret", "pictures"
START_SECONDS = 60.0


def seaweed_program() -> str | None:
    """The `weed` of the environment that runs the tests, or of the PATH."""
    beside = Path(sys.executable).with_name("weed")
    return str(beside) if beside.is_file() else shutil.which("weed")


@contextmanager
def seaweed(program: str, folder: Path) -> Iterator[str]:
    """The endpoint of a SeaweedFS server that holds an empty bucket."""
    free = _free_ports(8)
    ports = dict(zip(("master", "volume", "filer", "s3"), free[:4], strict=True))
    grpc = dict(zip(ports, free[4:], strict=True))
    rights = {
        "identities": [
            {
                "name": "tests",
                "credentials": [{"accessKey": KEY_ID, "secretKey": SECRET}],
                "actions": ["Admin", "Read", "Write", "List", "Tagging"],
            }
        ]
    }
    (folder / "s3.json").write_text(json.dumps(rights))
    command = [program, "server", "-s3", f"-dir={folder}", f"-s3.config={folder / 's3.json'}", "-ip=127.0.0.1"]
    command += ["-ip.bind=127.0.0.1", "-volume.max=8", "-master.volumeSizeLimitMB=64", "-s3.port.iceberg=0"]
    command += [f"-{name}.port={port}" for name, port in ports.items()]
    command += [f"-{name}.port.grpc={port}" for name, port in grpc.items()]
    with (folder / "weed.log").open("w") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        endpoint = f"http://127.0.0.1:{ports['s3']}"
        try:
            _await_bucket(endpoint, process, folder / "weed.log")
            yield endpoint
        finally:
            process.kill()  # it takes ten seconds to stop by itself, and its files are thrown away


def plain_client(endpoint: str) -> Any:
    """A client of the tests' own, to look at what was stored."""
    return boto3.client(
        "s3",
        endpoint_url=endpoint,
        aws_access_key_id=KEY_ID,
        aws_secret_access_key=SECRET,
        region_name="us-east-1",
        config=Config(connect_timeout=2, read_timeout=10, retries={"total_max_attempts": 1}),
    )


def _await_bucket(endpoint: str, process: subprocess.Popen[Any], log: Path) -> None:
    client, deadline = plain_client(endpoint), time.monotonic() + START_SECONDS
    while True:
        try:
            client.create_bucket(Bucket=BUCKET)
            client.put_object(Bucket=BUCKET, Key="probe", Body=b"x")  # the volume server may come up last
            return
        except (BotoCoreError, ClientError) as error:
            if isinstance(error, ClientError) and "BucketAlready" in str(error):
                client.put_object(Bucket=BUCKET, Key="probe", Body=b"x")
                return
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"SeaweedFS did not start: {log.read_text()[-2000:]}") from error
            time.sleep(0.1)


def _free_ports(count: int) -> list[int]:
    held = [socket.socket() for _ in range(count)]
    try:
        for each in held:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in held]
    finally:
        for each in held:
            each.close()
