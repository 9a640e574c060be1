"""A receiver of webhooks: checks the signature and logs a line for each; 401 where the signature is wrong."""

import hashlib
import hmac
import json
import os
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Receiver(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        digest = hmac.new(os.environ["WEBHOOK_SECRET"].encode(), body, hashlib.sha256).hexdigest()
        is_right = hmac.compare_digest(self.headers.get("X-Webhook-Signature", ""), f"sha256={digest}")
        if is_right:
            done = json.loads(body)
            print(done["id"], done["status"], len(done.get("output") or []), "outputs", flush=True)
        self.send_response(204 if is_right else 401)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Leave out the server's own line for each request."""


if __name__ == "__main__":
    ThreadingHTTPServer(("", int(os.environ.get("PORT", "9000"))), Receiver).serve_forever()
