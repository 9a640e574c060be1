"""An engine's process as the supervisor sees it, told by files in its working directory what to answer.

`beat.json` is its heartbeat, `queue.json` its queue, an existing `silent` makes it answer nothing, an existing `broken`
ends it at its start. It writes to `freed` what it was asked for last.
"""

from __future__ import annotations

import http.server
import json
import os
import socket
import sys
import threading
import time
from pathlib import Path

IDLE = {"engine_ready": True, "running": None, "node": None, "events": 0, "seconds_since_event": None, "waiting": 0}
EMPTY_QUEUE: dict[str, list[object]] = {"queue_running": [], "queue_pending": []}


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        while Path("silent").exists():
            time.sleep(0.02)
        beat = Path("beat.json")
        queue = Path("queue.json")
        known: dict[str, object] = {
            "/api/v1/heartbeat": json.loads(beat.read_text()) if beat.exists() else IDLE,
            "/queue": json.loads(queue.read_text()) if queue.exists() else EMPTY_QUEUE,
            "/object_info": {"Draw": {"input": {}, "output": []}},
        }
        content = json.dumps(known.get(self.path, {})).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def do_POST(self) -> None:
        Path("freed").write_text(self.path)
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def address_string(self) -> str:
        return "unix"  # the socket's client has no address

    def log_message(self, *_: object) -> None:
        pass


def main(arguments: list[str]) -> None:
    if Path("broken").exists():
        sys.exit("no such device")
    listening = int(arguments[arguments.index("--listen-fd") + 1])
    pipe = int(arguments[arguments.index("--liveness-fd") + 1])
    threading.Thread(target=lambda: (os.read(pipe, 1), os._exit(3)), daemon=True).start()
    server = http.server.ThreadingHTTPServer(("", 0), Handler, bind_and_activate=False)
    server.socket = socket.socket(fileno=listening)
    server.serve_forever()


if __name__ == "__main__":
    main(sys.argv[1:])
