"""POST /generate/batch: several jobs in one body, each accepted or refused for itself."""

from __future__ import annotations

from typing import Any, Final

import structlog
from fastapi import APIRouter, Request
from fastapi.responses import Response

from darkroom.worker.api.body_sizes import takes_jobs
from darkroom.worker.api.callers import sender_of
from darkroom.worker.api.declared import refusals
from darkroom.worker.api.direct_submission import submit_input
from darkroom.worker.api.replies.results import BatchReply
from darkroom.worker.api.results import caller_of_jobs, check_caller, public_outputs, refuse, services_of
from darkroom.worker.errors import Problem, RequestRejected, WorkerError, http_status
from darkroom.worker.guard.identity.caller import Identity
from darkroom.worker.guard.json_body import nested_too_deeply
from darkroom.worker.guard.json_scan import FoundJson
from darkroom.worker.jobs.envelope import refusal, result_of
from darkroom.worker.json.finite import FiniteJSONResponse

router = APIRouter(tags=["generate"])

log = structlog.get_logger("api")

MAX_INPUTS: Final = 1000
_BODY: Final[dict[str, Any]] = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": {
                    "type": "object",
                    "required": ["inputs"],
                    "properties": {
                        "inputs": {
                            "type": "array",
                            "maxItems": MAX_INPUTS,
                            "items": {"$ref": "#/components/schemas/GenerateInput"},
                        }
                    },
                }
            }
        },
    }
}


@router.post(
    "/generate/batch",
    operation_id="generate_batch",
    status_code=202,
    response_model=BatchReply,
    responses=refusals(401, 403, 413, 422, 429, 500, 503),
    openapi_extra=_BODY,
)
@takes_jobs
async def generate_batch(request: Request) -> Response:
    """Submit several jobs and reply at once with the state of each, in their order; a wrong one stops no other."""
    try:
        caller, services = check_caller(request), services_of(request)
        with services.requests.bodies.memory.lease(sender_of(request)) as lease:
            body = await services.requests.bodies.parse(await services.requests.bodies.read(request, lease))
        inputs = body.get("inputs")
        if not isinstance(inputs, list) or not 1 <= len(inputs) <= MAX_INPUTS:
            message = f"inputs: expected a list of 1 to {MAX_INPUTS} `input` objects"
            raise RequestRejected([Problem(message, "inputs", allowed={"minimum": 1, "maximum": MAX_INPUTS})])
        found_json = FoundJson(services.requests.bodies.structure)
        results = [await _submitted(request, caller, given, index, found_json) for index, given in enumerate(inputs)]
    except RecursionError:
        return refuse(nested_too_deeply())
    except WorkerError as error:
        return refuse(error)
    return FiniteJSONResponse({"results": results}, status_code=202)


async def _submitted(
    request: Request, caller: Identity, given: object, index: int, found_json: FoundJson
) -> dict[str, object]:
    """Return the state of one job, or its refusal with the status that it would have alone."""
    asked_id = str(given.get("request_id") or "") if isinstance(given, dict) else ""
    try:
        if index:  # the body itself has counted as the first
            services_of(request).requests.caller_rates.count_request(caller_of_jobs(request, caller))
        if not isinstance(given, dict):
            raise RequestRejected([Problem(f"inputs.{index}: expected an object", f"inputs.{index}")])
        job = (await submit_input(request, caller, given, asked_id, found_json=found_json)).job
        await services_of(request).jobs.store.settle(job)
        return result_of(job, await public_outputs(job, request))
    except RecursionError:
        return _refused(asked_id, nested_too_deeply())
    except WorkerError as error:
        return _refused(asked_id, error)
    except Exception:  # noqa: BLE001 - one request of the batch: the others have their results
        log.exception("request of a batch failed", index=index)
        message = "The worker failed; its log has the reason"
        return refusal(asked_id, message, {"status": 500, "code": "internal_error", "message": message})


def _refused(asked_id: str, error: WorkerError) -> dict[str, object]:
    return refusal(asked_id, error.message, {"status": http_status(type(error)), **error.as_json()})
