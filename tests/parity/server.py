"""A client of any server that speaks ComfyUI's HTTP API: uploads inputs, runs a prompt, fetches its outputs."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx

POLL_SECONDS = 0.05


class RunFailed(Exception):
    """The server refused a prompt, or its run ended badly or not at all. The message says why."""


class ComfyServer:
    """One server at `url`."""

    def __init__(self, url: str) -> None:
        self._http = httpx.Client(base_url=url.rstrip("/"), timeout=60, trust_env=False)

    def upload(self, path: Path) -> None:
        """Put a file into the server's input directory, over one of that name."""
        sent = {"image": (path.name, path.read_bytes())}
        self._http.post("/upload/image", files=sent, data={"type": "input", "overwrite": "true"}).raise_for_status()

    def wait_until_up(self, seconds: float, is_running: Callable[[], bool] = lambda: True) -> None:
        """Wait for the first answer while the server's process runs. Raises RunFailed."""
        until = time.monotonic() + seconds
        while True:
            try:
                self._http.get("/system_stats").raise_for_status()
                return
            except httpx.HTTPError as error:
                if time.monotonic() > until or not is_running():
                    raise RunFailed(f"no answer within {seconds:g} s: {error}") from None
            time.sleep(POLL_SECONDS)

    def object_info(self) -> dict[str, Any]:
        """Return the server's description of every node."""
        answer: dict[str, Any] = self._http.get("/object_info", timeout=300).raise_for_status().json()
        return answer

    def run(self, prompt: dict[str, Any], timeout_seconds: float) -> dict[str, bytes]:
        """Run a prompt and return its outputs by NODE_INDEX.ENDING. Raises RunFailed."""
        queued = self._http.post("/prompt", json={"prompt": prompt, "client_id": uuid.uuid4().hex})
        if queued.status_code != 200:
            raise RunFailed(f"HTTP {queued.status_code}: {queued.text[:400]}")
        entry = self._finished(queued.json()["prompt_id"], timeout_seconds)
        status = entry.get("status", {})
        if status.get("status_str") != "success":
            raise RunFailed("execution failed: " + "; ".join(_errors(status))[:400])
        return dict(self._outputs(entry["outputs"]))

    def _finished(self, prompt_id: str, timeout_seconds: float) -> dict[str, Any]:
        until = time.monotonic() + timeout_seconds
        while True:
            entry: dict[str, Any] | None = self._http.get(f"/history/{prompt_id}").json().get(prompt_id)
            if entry:
                return entry
            if time.monotonic() > until:
                raise RunFailed(f"no result after {timeout_seconds:g} s")
            time.sleep(POLL_SECONDS)

    def _outputs(self, outputs: dict[str, Any]) -> Iterator[tuple[str, bytes]]:
        for node, output in sorted(outputs.items()):
            for kind in ("images", "latents", "audio", "3d"):
                for index, item in enumerate(output.get(kind) or ()):
                    suffix = ".latent" if kind == "latents" else Path(item["filename"]).suffix
                    named = {key: item[key] for key in ("filename", "subfolder", "type")}
                    yield f"{node}_{index}{suffix}", self._http.get("/view", params=named).raise_for_status().content
            for index, text in enumerate(output.get("text") or ()):
                yield f"{node}_{index}.txt", str(text).encode()


def _errors(status: dict[str, Any]) -> Iterator[str]:
    for kind, message in status.get("messages", ()):
        if kind == "execution_error":
            yield str(message.get("exception_message", "")).strip()
