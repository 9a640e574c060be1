"""Settings of earlier versions that are no more, with what to do in their place."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_UNSET: Final = "unset it; the value is fixed"

REMOVED_NAMES: Final[Mapping[str, str]] = {
    "SPLIT_GUIDANCE": "one image is computed by one engine; unset it, and send several images in one request with "
    '"split": true, which spreads them over the engines',
    "SPLIT_REQUESTS": 'unset it; requests ask for it with "split": true',
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
    "HSTS_SECONDS": f"{_UNSET}: browsers keep to https for a day; a proxy in front may send another header",
    "MAX_CONNECTIONS_PER_ADDRESS": "unset it; one address may have a quarter of MAX_CONNECTIONS",
    "MAX_JSON_ELEMENTS": f"{_UNSET}: 250000 values in a body",
    "MODIFIERS_DIRECTORY": "unset it, and link or mount the folder as BASE_DIRECTORY/modifiers",
    "ENGINE_MAX_PROCESSES": f"{_UNSET}: 2048 processes and threads of a sandboxed engine",
    "ENGINE_MAX_FILE_BYTES": f"{_UNSET}: 16 GiB for a file that a sandboxed engine writes",
    "ENGINE_MAX_MEMORY_BYTES": "unset it, and limit the memory of the container or the service; without a GPU a "
    "process of a sandboxed engine has the machine's memory at most",
    "HEARTBEAT_TIMEOUT": f"{_UNSET}: an engine that answers nothing for 120 s is replaced",
    "CANCEL_GRACE_SECONDS": f"{_UNSET}: 15 s, or three times a prompt's longest gap between two reports",
    "ENGINE_MAX_RESTARTS": f"{_UNSET}: 10 restarts of an engine within 600 s",
    "WEBHOOK_DEAD_TTL": f"{_UNSET}: a webhook that could not be delivered is kept for a week",
    "CALLER_LIMITS_FOR_ADMINS": "unset it; operators' keys have no limits, so give callers keys with submit+read",
    "INPUT_TIMEOUT": f"{_UNSET}: 60 s for a download, and more in proportion where INPUT_MAX_BYTES is above 100 MiB",
    "INPUT_MAX_VIDEO_PIXELS": "unset it; the engine refuses a video that its memory does not hold, and "
    "INPUT_MAX_BYTES and INPUT_MAX_SECONDS limit its file",
    "MODEL_LOAD_EARLY": f"{_UNSET}: a job goes to its engine 20 s before the end of its downloads",
    "MODEL_MAX_BYTES": "unset it; a model file that a job names by its address has 64 GiB at most, and never more than "
    "MODEL_DISK_BYTES",
    "MODEL_EVICTION": "unset it; the model files that were unused for longest are removed first",
    "MODEL_TTL": "unset it, and set MODEL_DISK_BYTES, above which the longest unused model files are removed",
    "S3_PROFILE": "set S3_CREDENTIALS=chain and AWS_PROFILE",
    "S3_ROLE_ARN": "set S3_CREDENTIALS=chain and AWS_PROFILE to a profile of AWS's configuration file with role_arn",
    "S3_ROLE_EXTERNAL_ID": "set it as external_id of the profile that AWS_PROFILE names, with S3_CREDENTIALS=chain",
    "S3_UPLOAD_TIMEOUT": f"{_UNSET}: an hour for all uploads of a job",
    "OUTPUT_LINK_SECONDS": f"{_UNSET}: links to outputs are valid for a day",
    "BENCHMARK_CHECKPOINT": "set BENCHMARK_WORKFLOW to the file of a workflow that loads it",
    "BENCHMARK_MODIFIER": "set BENCHMARK_WORKFLOW to a file with the request: "
    '{"input": {"modifier": "...", "modifications": {...}}}',
    "BENCHMARK_MODIFICATIONS": "write them into the file of BENCHMARK_WORKFLOW, beside the modifier",
    "BENCHMARK_MIN_ITS": "set BENCHMARK_MAX_SECONDS, the seconds an image may take: the steps divided by these",
    "TUNING_SECONDS": f"{_UNSET}: 30 s of a start measure strategies; POST /api/v1/tuning may take longer",
    "ASSUMED_SPEED": f"{_UNSET}: a load of 20 a second until a benchmark has measured it",
    "VAST_CHECK_URL": "unset it; envelopes signed for another worker's URL are refused where Vast has named this one's",
    "VAST_TCP_PORT": "unset it; VAST_TCP_PORT_<WORKER_PORT> is read, which Vast sets",
    "MAX_SESSIONS": f"{_UNSET}: 10 Vast sessions at a time",
    "BROKER_MAX_HELD": "unset it; a worker holds as many jobs of the broker as its engines run, and one more for each",
    "BROKER_MAX_DELIVERIES": f"{_UNSET}: a job whose workers were lost three times becomes a dead letter",
    "BROKER_RESULT_TTL": f"{_UNSET}: results and ids of jobs are kept at the broker for a day",
}
"""Advice for each removed variable that is still set."""
