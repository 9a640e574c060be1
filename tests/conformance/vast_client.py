"""Run by the Python that has the `vastai` package: its client sends requests, the answers are printed as JSON.

Standard input: {"autoscaler", "api_key", "requests": [{"route", "payload", "in_session"?}], "timeout"}.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from vastai import Serverless


def client_for(given: dict[str, Any]) -> Any:
    class Client(Serverless):  # type: ignore[misc]  # the package is not there when types are checked
        SSL_CERT_URL = f"{given['autoscaler']}/root.cer"

    return Client(api_key=given["api_key"], autoscaler_url=given["autoscaler"], webserver_url=given["autoscaler"])


async def run(given: dict[str, Any]) -> dict[str, Any]:
    async with client_for(given) as client:
        endpoint = await client.get_endpoint("pictures")
        asked = [
            endpoint.request(request["route"], request["payload"], timeout=given["timeout"])
            for request in given["requests"]
            if not request.get("in_session")
        ]
        answers = [shown(await request) for request in asked]
        within = [request for request in given["requests"] if request.get("in_session")]
        if within:
            answers += await run_in_session(endpoint, within)
        return {"answers": answers, "num_workers": len(await client.get_endpoint_workers(endpoint))}


async def run_in_session(endpoint: Any, requests: list[dict[str, Any]]) -> list[dict[str, Any]]:
    session = await endpoint.session(cost=100, lifetime=30)
    async with session:
        answers = [shown(await session.request(request["route"], request["payload"])) for request in requests]
        answers.append({"session_is_open": await session.is_open()})
    return answers


def shown(answer: dict[str, Any]) -> dict[str, Any]:
    return {name: answer.get(name) for name in ("status", "ok", "response", "url", "request_idx")}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(asyncio.run(run(json.load(sys.stdin)))))
