"""GET /packs, GET /keys: node packs with their state, and callers' keys with their limits and use. For operators."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

from fastapi import APIRouter, Request

from darkroom.worker.api.declared import refusals
from darkroom.worker.api.replies.operating import Keys, PackList
from darkroom.worker.api.results import check_operator, services_of
from darkroom.worker.api.services import EngineServices
from darkroom.worker.errors import EngineUnreachable
from darkroom.worker.guard.identity.caller import Identity
from darkroom.worker.guard.rate_limits import caller_name
from darkroom.worker.jobs.caller_quota import BEGUN
from darkroom.worker.settings.api_keys import Scope

router = APIRouter(tags=["worker"])

ASK_SECONDS: Final = 5.0


@router.get(
    "/packs",
    operation_id="list_packs",
    response_model=None,
    responses={200: {"model": PackList}, **refusals(401, 403, 429)},
)
async def packs(request: Request) -> dict[str, Any]:
    """Return the packs of custom nodes of the first engine of ours, and the outcome of each at its start.

    `state` compares a pack with `packs.toml`; null for one that it does not ask for. `packs` is null while no engine
    of ours answers.
    """
    check_operator(request)
    answer = await _nodes_of(services_of(request).engines)
    return {"packs": None, "problem": None} if answer is None else pack_list(answer)


def pack_list(answer: Mapping[str, Any]) -> dict[str, Any]:
    """Return the packs that an engine reports, and those that `packs.toml` asks for and that are not there."""
    states = {str(item["name"]): str(item["state"]) for item in _tables(answer.get("versions"))}
    loaded = [_pack(item, states.pop(str(item["name"]), None)) for item in _tables(answer.get("packs"))]
    absent = [_pack({"name": name, "status": "absent"}, state) for name, state in states.items()]
    return {"packs": [*loaded, *absent], "problem": answer.get("manifest_problem")}


@router.get(
    "/keys",
    operation_id="list_keys",
    response_model=None,
    responses={200: {"model": Keys}, **refusals(401, 403, 429)},
)
async def keys(request: Request) -> dict[str, Any]:
    """Return the names and scopes of the API keys, the limits of each, and its jobs. No secret is in it."""
    check_operator(request)
    services = services_of(request)
    waiting, running = Counter[str](), Counter[str]()
    for job in services.jobs.store.jobs.values():
        if not job.state.is_terminal:
            (running if job.stage in BEGUN else waiting)[job.owner or ""] += 1
    quota = services.files.caller_quota
    entries = []
    for name, scopes in services.requests.guard.named_scopes():
        caller = caller_name(Identity(name, "", scopes))
        entries.append(
            {
                "name": name,
                "scopes": sorted(scope.value for scope in scopes),
                "has_limits": bool(caller),
                "jobs_waiting": waiting[name],
                "jobs_running": running[name],
                "stored_bytes": quota.used_bytes(caller) if caller and quota.counts_bytes else None,
            }
        )
    return {
        "limits": services.requests.caller_limits.model_dump(),
        "without_key": {"jobs_waiting": waiting[""], "jobs_running": running[""]},
        "keys": entries,
        "scopes": [scope.value for scope in Scope],
    }


async def _nodes_of(engines: EngineServices) -> Mapping[str, Any] | None:
    for engine in engines.pool.clients_serving:
        if engine.has_check:
            try:
                status, answer = await engine.calls.ask("GET", "/api/v1/nodes", timeout_seconds=ASK_SECONDS)
            except EngineUnreachable:
                continue
            if status == 200:
                return answer
    return None


def _pack(item: Mapping[str, Any], state: str | None) -> dict[str, Any]:
    nodes, failed = item.get("nodes"), item.get("failed_nodes")
    return {
        "name": str(item["name"]),
        "status": str(item.get("status")),
        "state": state,
        "num_nodes": len(nodes) if isinstance(nodes, list) else 0,
        "seconds": item.get("seconds"),
        "error": item.get("error"),
        "missing": item.get("missing") or [],
        "failed_nodes": dict(failed) if isinstance(failed, Mapping) else {},
    }


def _tables(items: object) -> list[Mapping[str, Any]]:
    listed = items if isinstance(items, list) else []
    return [item for item in listed if isinstance(item, Mapping) and "name" in item]
