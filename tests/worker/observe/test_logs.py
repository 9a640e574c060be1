"""No secret passes into a log line."""

from __future__ import annotations

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
