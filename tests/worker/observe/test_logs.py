"""No secret passes into a log line."""

from __future__ import annotations

import time

from worker.observe.logs import Redaction


def test_secrets_are_hidden_by_name_by_value_and_in_query_strings() -> None:
    redact = Redaction(["known-secret"])
    record = redact(
        None,
        "info",
        {
            "event": "asked https://x/y?api_key=abc&a=1 with known-secret",
            "webhook_secret": "x",
            "body": {"s3": {"secret_access_key": "y", "bucket": "b"}, "list": ["known-secret"]},
        },
    )
    assert record["event"] == "asked https://x/y?api_key=[hidden]&a=1 with [hidden]"
    assert record["webhook_secret"] == "[hidden]"
    assert record["body"] == {"s3": {"secret_access_key": "[hidden]", "bucket": "b"}, "list": ["[hidden]"]}


def test_a_long_line_full_of_what_looks_like_a_name_of_a_secret_costs_no_time() -> None:
    """The engine's lines are logged on the event loop, and a prompt decides what is in them."""
    began = time.process_time()
    Redaction([])(None, "info", {"event": "x-amz-" * 150_000})
    assert time.process_time() - began < 20  # 2 hours when each place is read to the end of the line
