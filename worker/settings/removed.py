"""Settings of earlier versions that are no more, with what to do in their place."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_UNSET: Final = "unset it; the value is fixed"

REMOVED_NAMES: Final[Mapping[str, str]] = {
    "SPLIT_GUIDANCE": "one image is computed by one engine; unset it, and send several images in one request, which "
    "SPLIT_REQUESTS spreads over the engines",
    "HEAD_TIMEOUT": f"{_UNSET}: 30 s for the head of a request",
    "MAX_HEAD_BYTES": f"{_UNSET}: 65536 bytes for the head of a request",
    "BODY_TIMEOUT": f"{_UNSET}: a request's body may pause for 30 s",
    "BODY_MIN_RATE": f"{_UNSET}: a request's body comes at 1024 bytes a second at least",
    "MAX_UNKNOWN_REQUEST_BYTES": f"{_UNSET}: 1 MiB until a signature has been checked",
    "MAX_PENDING_BODY_BYTES": f"{_UNSET}: 512 MiB for all bodies together; MAX_REQUEST_BYTES limits each of them",
    "MAX_JSON_DEPTH": f"{_UNSET}: 100 levels of lists and objects",
    "MAX_JSON_STRING_BYTES": "unset it; a string may be as long as the body, whose limit is MAX_REQUEST_BYTES",
    "ENGINE_RESTART_WINDOW": f"{_UNSET}: ENGINE_MAX_RESTARTS counts the restarts within 600 s",
    "PRIORITY_STEP_SECONDS": f"{_UNSET}: a step of priority is worth 60 s of waiting",
    "INPUT_CACHE_MAX_BYTES": "unset it; unused inputs are kept up to a quarter of OUTPUT_MAX_BYTES, by default 5 GiB",
    "INPUT_MAX_REDIRECTS": f"{_UNSET}: a download follows 5 redirects at most",
    "MODEL_CONNECTIONS": f"{_UNSET}: 4 connections for the download of a model file; MODEL_BANDWIDTH limits their rate",
    "MODEL_DOWNLOADS": f"{_UNSET}: 2 model files are downloaded at once; MODEL_BANDWIDTH limits their rate",
    "MODEL_TIMEOUT": f"{_UNSET}: a model's download is tried again after 30 s without a byte",
    "MAX_SESSION_SECONDS": f"{_UNSET}: a Vast session lives for a day at most",
    "PYWORKER_UPDATE_FILE": f"{_UNSET}: /pyworker/update creates /.force_update",
    "GATEWAY_CANCEL_SECONDS": f"{_UNSET}: /cancel at a gateway waits for 5 s",
}
"""Advice for each removed variable that is still set."""
