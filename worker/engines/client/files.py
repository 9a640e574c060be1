"""EngineFiles: the files of one engine, on a disk of this machine or over HTTP."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO
from urllib.parse import urlencode

from darkroom.worker.engines.answers import invalid
from darkroom.worker.engines.client.calls import SMALL_ANSWER_BYTES, EngineCalls
from darkroom.worker.engines.client.prompt_calls import REFUSALS
from darkroom.worker.errors import DeliveryFailed, EngineUnreachable, InputRejected

UPLOAD_FOLDER = "darkroom"


@dataclass(frozen=True, slots=True)
class LocalFolders:
    """Folders of an engine whose disk is on this machine."""

    input: Path
    output: Path
    temp: Path

    def of(self, kind: str) -> Path | None:
        """Return the folder of a kind of files, None for an unknown kind."""
        return {"input": self.input, "output": self.output, "temp": self.temp}.get(kind)


class EngineFiles:
    """Files of one engine. `uploaded` are uploaded files, and the engine's names of them."""

    def __init__(self, calls: EngineCalls) -> None:
        self.uploaded: dict[str, str] = {}
        self._calls = calls

    async def view(self, filename: str, subfolder: str, kind: str, target: Path, max_bytes: int | None = None) -> None:
        """Copy one of the engine's files to `target`, up to `max_bytes`.

        Raises DeliveryFailed when it cannot be written there.
        """
        query = urlencode({"filename": filename, "subfolder": subfolder, "type": kind})
        with _opened(target) as file:
            async with self._calls.stream(f"/view?{query}") as (status, pieces):
                if 400 <= status < 500:
                    raise DeliveryFailed(f"The engine does not have {filename} ({status})")
                if status != 200:
                    raise EngineUnreachable(f"The engine did not return {filename} ({status})")
                num_bytes = 0
                async for piece in pieces:
                    await asyncio.to_thread(_append, file, piece)
                    num_bytes += len(piece)
                    if max_bytes is not None and num_bytes > max_bytes:
                        break

    async def upload_image(self, path: Path, name: str) -> str:
        """Upload a file to the engine's input folder. Return the name that a prompt uses for it."""
        content = await asyncio.to_thread(path.read_bytes)
        body, content_type = multipart({"subfolder": UPLOAD_FOLDER, "overwrite": "true"}, "image", name, content)
        with self._calls.judging("upload"):
            response = await self._calls.request(
                "POST", "/upload/image", body, content_type, max_bytes=SMALL_ANSWER_BYTES
            )
            if response.status in (*REFUSALS, 415):
                raise InputRejected(f"The engine rejected {name} ({response.status})", size_bytes=len(content))
            if response.status != 200:
                raise EngineUnreachable(f"The engine rejected {name} ({response.status})")
            answer = await response.json_object()
            subfolder, stored = answer.get("subfolder") or "", answer.get("name", name)
            if not isinstance(subfolder, str) or not isinstance(stored, str) or not stored:
                raise invalid(response.route, "expected `name` and `subfolder` to be texts")
            return f"{subfolder}/{stored}" if subfolder else stored


def multipart(fields: Mapping[str, str], file_field: str, file_name: str, content: bytes) -> tuple[bytes, str]:
    """Return a multipart/form-data body and its content type."""
    boundary = uuid.uuid4().hex
    parts = [
        f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'
        for name, value in fields.items()
    ]
    plain_name = file_name.replace('"', "_").replace("\r", "_").replace("\n", "_")
    parts.append(
        f'--{boundary}\r\nContent-Disposition: form-data; name="{file_field}"; filename="{plain_name}"\r\n'
        "Content-Type: application/octet-stream\r\n\r\n"
    )
    body = "".join(parts).encode() + content + f"\r\n--{boundary}--\r\n".encode()
    return body, f"multipart/form-data; boundary={boundary}"


def _opened(target: Path) -> BinaryIO:
    try:
        return target.open("wb")
    except OSError as error:
        raise DeliveryFailed(f"An output cannot be stored: {error.strerror or error}") from None


def _append(file: BinaryIO, piece: bytes) -> None:
    """Append a piece to a file. Raises DeliveryFailed: a full disk is no fault of the engine's connection."""
    try:
        file.write(piece)
        file.flush()
    except OSError as error:
        raise DeliveryFailed(f"An output cannot be stored: {error.strerror or error}") from None
