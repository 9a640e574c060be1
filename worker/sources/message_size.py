"""Results that fit a broker's largest message. Pure."""

from __future__ import annotations

import json


def fitted_result(result: bytes, max_bytes: int) -> bytes:
    """Return a result without its files' data if it is larger than a broker's message may be.

    Each file then has an `error`. A result without files that is still too large keeps its id, status and error alone.
    """
    if len(result) <= max_bytes:
        return result
    whole = json.loads(result)
    for record in whole.get("output", ()):
        if record.pop("data", None) is not None:
            record["error"] = f"too large for the broker ({max_bytes} bytes); configure S3 or PUBLIC_URL"
    fitted = json.dumps(whole, separators=(",", ":")).encode()
    if len(fitted) <= max_bytes:
        return fitted
    kept = {name: whole.get(name) for name in ("id", "status", "timings")}
    error = whole.get("error") or {}
    kept |= {"message": f"too large for the broker ({max_bytes} bytes)", "output": [], "comfyui_response": {}}
    if error:
        kept["error"] = {name: error.get(name) for name in ("status", "code")}
        kept["error"]["message"] = str(error.get("message"))[:1000]
    return json.dumps(kept, separators=(",", ":")).encode()
