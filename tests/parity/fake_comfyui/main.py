"""A stand-in for ComfyUI's server, started as its `main.py` is: every node `Say` outputs its text.

A prompt with a node `Unknown` is refused. One with a node `Fail` ends in an error, one with `Exit` ends the process.
"""

from __future__ import annotations

import argparse
import json
import os
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any


def history_of(prompt: dict[str, Any]) -> dict[str, Any]:
    """Return the entry of `/history` of a prompt that ran."""
    if any(node["class_type"] == "Fail" for node in prompt.values()):
        message = ("execution_error", {"exception_message": "it failed"})
        return {"status": {"status_str": "error", "messages": [message]}, "outputs": {}}
    outputs = {key: {"text": [node["inputs"]["text"]]} for key, node in prompt.items()}
    return {"status": {"status_str": "success"}, "outputs": outputs}


class Handler(BaseHTTPRequestHandler):
    """The routes that `tests.parity.server` calls."""

    prompts: dict[str, dict[str, Any]]

    def do_GET(self) -> None:
        found = self.path.removeprefix("/history/")
        self._answer(200, {found: history_of(self.prompts[found])} if found in self.prompts else {})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        if self.path != "/prompt":
            self._answer(200, {})
            return
        prompt = json.loads(body)["prompt"]
        kinds = {node["class_type"] for node in prompt.values()}
        if "Exit" in kinds:
            os._exit(1)
        if "Unknown" in kinds:
            self._answer(400, {"error": "unknown node"})
            return
        number = str(len(self.prompts))
        self.prompts[number] = prompt
        self._answer(200, {"prompt_id": number})

    def log_message(self, format: str, *args: object) -> None:
        """Write nothing."""

    def _answer(self, status: int, content: dict[str, Any]) -> None:
        self.send_response(status)
        self.end_headers()
        self.wfile.write(json.dumps(content).encode())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    port: int = parser.parse_known_args()[0].port
    handler = type("RunHandler", (Handler,), {"prompts": {}})
    HTTPServer(("127.0.0.1", port), handler).serve_forever()


if __name__ == "__main__":
    main()
