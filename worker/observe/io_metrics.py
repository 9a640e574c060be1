"""Counters for `/metrics` of external input and output: inputs fetched, outputs uploaded, webhooks sent."""

from __future__ import annotations

from prometheus_client import Counter


class IoMetrics:
    """Counters of fetched inputs, uploads and webhooks. Created before its users; `counters` go into the registry."""

    def __init__(self) -> None:
        self._inputs = Counter(
            "darkroom_inputs",
            "Files that jobs asked for; `shared`: another job was fetching the same",
            ["source", "outcome"],
            registry=None,
        )
        self._input_bytes = Counter("darkroom_input_bytes", "Of the files fetched", ["source"], registry=None)
        self._uploads = Counter("darkroom_output_uploads", "Files sent to a store", ["outcome"], registry=None)
        self._webhooks = Counter("darkroom_webhook_tries", "Tries to deliver a webhook", ["outcome"], registry=None)

    @property
    def counters(self) -> tuple[Counter, ...]:
        return self._inputs, self._input_bytes, self._uploads, self._webhooks

    def input_fetched(self, source: str, size_bytes: int) -> None:
        self._inputs.labels(source, "fetched").inc()
        self._input_bytes.labels(source).inc(size_bytes)

    def input_shared(self, source: str) -> None:
        self._inputs.labels(source, "shared").inc()

    def input_failed(self, source: str) -> None:
        self._inputs.labels(source, "failed").inc()

    def output_uploaded(self, *, is_good: bool) -> None:
        self._uploads.labels("uploaded" if is_good else "failed").inc()

    def webhook_tried(self, outcome: str) -> None:
        """Count a webhook attempt: `delivered`, `pending` (to be tried again) or `dead`."""
        self._webhooks.labels({"pending": "failed"}.get(outcome, outcome)).inc()
