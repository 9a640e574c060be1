"""Counters for `/metrics` of external input and output: inputs fetched, outputs uploaded, webhooks sent."""

from __future__ import annotations

from collections.abc import Mapping

from prometheus_client import Counter, Gauge
from prometheus_client.registry import Collector

SOURCES = ("url", "s3", "data", "base64", "upload")
INPUT_OUTCOMES = ("fetched", "shared", "failed")
UPLOAD_OUTCOMES = ("uploaded", "failed")
TRY_OUTCOMES = ("delivered", "failed", "dead")
ROW_STATES = ("pending", "delivered", "dead")


class IoMetrics:
    """Counters of fetched inputs, uploads and webhooks. Created before its users; `collectors` go into the registry."""

    def __init__(self) -> None:
        self._inputs = Counter(
            "darkroom_inputs",
            "Files that jobs asked for; `shared`: another job was fetching the same",
            ["source", "outcome"],
            registry=None,
        )
        self._input_bytes = Counter("darkroom_input_bytes", "Bytes of the files fetched", ["source"], registry=None)
        self._uploads = Counter("darkroom_output_uploads", "Files sent to a store", ["outcome"], registry=None)
        self._upload_bytes = Counter("darkroom_output_upload_bytes", "Bytes of the files in the store", registry=None)
        self._webhooks = Counter("darkroom_webhook_tries", "Tries to deliver a webhook", ["outcome"], registry=None)
        about = "Webhooks on disk, by state; dead ones are not tried any more"
        self._kept = Gauge("darkroom_webhooks", about, ["state"], registry=None)
        for source in SOURCES:
            self._input_bytes.labels(source)
            for outcome in INPUT_OUTCOMES:
                self._inputs.labels(source, outcome)
        for outcome in UPLOAD_OUTCOMES:
            self._uploads.labels(outcome)
        for outcome in TRY_OUTCOMES:
            self._webhooks.labels(outcome)
        for state in ROW_STATES:
            self._kept.labels(state)

    @property
    def collectors(self) -> tuple[Collector, ...]:
        return self._inputs, self._input_bytes, self._uploads, self._upload_bytes, self._webhooks, self._kept

    def input_fetched(self, source: str, size_bytes: int) -> None:
        self._inputs.labels(source, "fetched").inc()
        self._input_bytes.labels(source).inc(size_bytes)

    def input_shared(self, source: str) -> None:
        self._inputs.labels(source, "shared").inc()

    def input_failed(self, source: str) -> None:
        self._inputs.labels(source, "failed").inc()

    def output_uploaded(self, size_bytes: int) -> None:
        self._uploads.labels("uploaded").inc()
        self._upload_bytes.inc(size_bytes)

    def upload_failed(self) -> None:
        self._uploads.labels("failed").inc()

    def webhook_tried(self, outcome: str) -> None:
        """Count a webhook attempt: `delivered`, `pending` (to be tried again) or `dead`."""
        self._webhooks.labels({"pending": "failed"}.get(outcome, outcome)).inc()

    def webhooks_kept(self, counts: Mapping[str, int]) -> None:
        """Set the number of webhooks on disk in each state."""
        for state, count in counts.items():
            self._kept.labels(state).set(count)
