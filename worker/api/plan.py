"""POST /plan: what a workflow would need here; runs and fetches nothing."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Final

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from darkroom.contract.graph.cost import SamplerWork, operations_cost, sampler_works
from darkroom.contract.graph.work import PromptWork
from darkroom.contract.wire import PARTNER_KEYS
from darkroom.worker.api.body_sizes import takes_jobs
from darkroom.worker.api.declared import refusals
from darkroom.worker.api.job_making import GraphChecks
from darkroom.worker.api.planned_workflows import workflow_to_plan
from darkroom.worker.api.replies.plan import Plan
from darkroom.worker.api.services import EngineServices, FileServices, JobServices, Services
from darkroom.worker.api.workflow_bodies import ENGINE_WAIT_SECONDS, body_schema, reply_to
from darkroom.worker.concurrency.off_loop import needs_thread, off_loop
from darkroom.worker.engines.client.client import EngineClient
from darkroom.worker.engines.fallback.checks import FallbackChecks
from darkroom.worker.errors import EngineUnreachable, Problem, RequestRejected
from darkroom.worker.json.values import JsonObject
from darkroom.worker.prompts.cards import CARDS, GIB, card_bytes, card_named, seconds_on
from darkroom.worker.prompts.memory_request import ROUTE, memory_request
from darkroom.worker.prompts.missing_families import families_of_missing
from darkroom.worker.prompts.missing_words import MissingInput, missing_inputs, models_summary
from darkroom.worker.prompts.model_needs import ModelNeeds
from darkroom.worker.prompts.page_workflow import as_prompt
from darkroom.worker.prompts.workflow_plan import RunEstimate, WorkflowPlan, find_missing_nodes, other_problems
from darkroom.worker.prompts.workflows.node_uses import NodeUse, uses_in_prompt, uses_on_page
from darkroom.worker.prompts.workflows.page_graph import is_page_format

MEMORY_SECONDS: Final = 30.0
MAX_USES_ON_LOOP: Final = 100

router = APIRouter(tags=["generate"])


@router.post(
    "/plan",
    operation_id="plan",
    response_model=Plan,
    responses=refusals(401, 403, 413, 422, 429, 500, 502, 503),
    openapi_extra=body_schema("PlanRequest"),
)
@takes_jobs
async def plan(
    request: Request,
    card: Annotated[str, Query(max_length=60, description="A card, `RTX 4090` for instance; else the engine's.")] = "",
    vram_gb: Annotated[float | None, Query(gt=0, le=4096, description="Memory of a card in GiB.")] = None,
    price_per_hour: Annotated[float | None, Query(ge=0, le=1e6, description="Else `WORKER_PRICE_PER_HOUR`.")] = None,
) -> Response:
    """Return the node classes and models that a workflow lacks here, where they come from, and what a run costs.

    `input` with a `modifier` and its `modifications` stands for the workflow that these make.

    The memory of its stages is that on the engine's device, or on a card with a given name or memory.
    """

    async def planned(services: Services, body: JsonObject, size_bytes: int) -> JsonObject:
        terms = _terms(services.engines, card, vram_gb, price_per_hour)
        return (await _plan(services, body, size_bytes, terms)).as_json()

    return await reply_to(request, planned)


@dataclass(frozen=True, slots=True)
class _Terms:
    """Terms of a plan: memory of its card, None for the engine's own; price of an hour, None for an unknown one.

    `card` is the name in the request. The worker's own price is that of its engines, never of another card.
    """

    vram_bytes: int | None
    price_per_hour: float | None
    card: str = ""


def _terms(engines: EngineServices, card: str, vram_gb: float | None, price_per_hour: float | None) -> _Terms:
    """Return the terms of a request. Raises RequestRejected for a card that is not known."""
    vram_bytes = None if vram_gb is None else int(vram_gb * GIB)
    if card and vram_bytes is None:
        vram_bytes = card_bytes(card)
        if vram_bytes is None:
            message = f"card: unknown card; got {card!r}, expected one of {', '.join(CARDS)}, or vram_gb instead"
            raise RequestRejected([Problem(message, "card", type="unknown_card")])
    own = engines.price_per_hour or None if vram_bytes is None else None
    return _Terms(vram_bytes, own if price_per_hour is None else price_per_hour, card)


async def _plan(services: Services, body: JsonObject, size_bytes: int, terms: _Terms) -> WorkflowPlan:
    """Return the plan of a body's workflow. Raises RequestRejected for what is none, EngineUnreachable."""
    engine = await services.engines.pool.any_known_within(ENGINE_WAIT_SECONDS)
    try:
        workflow = await workflow_to_plan(services, engine, body, size_bytes)
    except EngineUnreachable:
        raise services.engines.pool.no_engine() from None
    own = await _plan_at(services, engine, engine, workflow, terms)
    fallback, choice = services.engines.fallback, own.needs_elsewhere()
    if fallback is None or choice is None:
        return own
    theirs = await _plan_at(services, engine, FallbackChecks(fallback, PARTNER_KEYS), workflow, terms)
    is_better = len(theirs.missing_nodes) < len(own.missing_nodes) or not theirs.problems
    return replace(theirs, choice=choice, memory=None) if is_better else own


async def _plan_at(
    services: Services, engine: EngineClient, checks: GraphChecks, workflow: JsonObject, terms: _Terms
) -> WorkflowPlan:
    """Return the plan of a workflow for the engine of `checks`, priced by ours. Raises EngineUnreachable, NotReady."""
    try:
        object_info = await checks.known_object_info()
        is_page = is_page_format(workflow)
        most = services.requests.prompt_rules.max_nodes
        uses = await off_loop(
            is_page or needs_thread(workflow),
            lambda: uses_on_page(workflow, object_info, most) if is_page else uses_in_prompt(workflow),
        )
        needs = await off_loop(True, services.files.models.needs, uses, object_info, workflow if is_page else {})
        return await _checked(services, engine, checks, workflow, object_info, uses, needs, terms)
    except EngineUnreachable:
        if checks is not engine:
            raise
        raise services.engines.pool.no_engine() from None


async def _checked(
    services: Services,
    engine: EngineClient,
    checks: GraphChecks,
    workflow: JsonObject,
    object_info: JsonObject,
    uses: list[NodeUse],
    needs: ModelNeeds,
    terms: _Terms,
) -> WorkflowPlan:
    """Return the plan with the problems that remain. Raises EngineUnreachable."""
    problems: list[Problem] = []
    limits: list[Problem] = []
    inputs: Mapping[tuple[str, str], MissingInput] = {}
    estimate, memory = RunEstimate(), None
    try:
        prompt = await as_prompt(workflow, object_info, services.requests.prompt_rules)
    except RequestRejected as rejected:
        problems += rejected.problems
    else:
        work = await off_loop(needs_thread(prompt), PromptWork, prompt, await checks.known_object_info())
        left_out = work.graph.left_out
        needs, uses = needs.without(left_out), [use for use in uses if use.id not in left_out]
        planned = await off_loop(needs_thread(prompt), services.files.inputs.plan, work.graph)
        names = [item.model.name for item in needs.missing]
        with _noting(problems):
            await checks.check(planned.prompt, (*planned.pending_files, *names))
        with _noting(limits):
            await services.requests.prompt_rules.check(work)
        inputs = missing_inputs(problems, work.graph)
        problems = [item for item in problems if (item.node_id or "", item.field or "") not in inputs]
        estimate = await _estimate(services, work, engine, needs, terms)
        memory = await _memory(engine, work, needs, terms)
    models = services.files.models
    fetched = {item.entry.place for item in needs.missing if item.entry is not None and models.may_fetch(item)}
    return WorkflowPlan(
        needs=needs,
        inputs=tuple(inputs.values()),
        missing_nodes=await off_loop(len(uses) > MAX_USES_ON_LOOP, find_missing_nodes, uses, object_info),
        problems=other_problems(problems, needs, object_info),
        limits=tuple(limits),
        estimate=estimate,
        fetched=frozenset(fetched),
        free_bytes=_free_bytes(services.files),
        memory=memory,
        summary=models_summary(needs.missing, models.library.manifest, {item.name for item in needs.named}),
    )


async def _memory(engine: EngineClient, work: PromptWork, needs: ModelNeeds, terms: _Terms) -> JsonObject | None:
    """Return the memory timeline of a prompt; None from an engine that is not ours, or is being restarted."""
    if not engine.has_check or engine.is_away:
        return None
    is_large = needs_thread(work.graph.prompt)
    body = await off_loop(is_large, memory_request, work, needs, terms.vram_bytes)
    try:
        status, answer = await engine.calls.ask("POST", ROUTE, body, timeout_seconds=MEMORY_SECONDS)
    except EngineUnreachable:
        return None
    return answer if status == 200 else None


async def _estimate(
    services: Services, work: PromptWork, engine: EngineClient, needs: ModelNeeds, terms: _Terms
) -> RunEstimate:
    """Return the cost of a run, with its seconds where the pace of an engine is known. Raises EngineUnreachable.

    Files that are not here count as their families do. What is not known has no number: the work of a model of an
    unknown family, the pace of this worker before its first job or benchmark, another card than those of the table.
    """
    is_large = needs_thread(work.graph.prompt)
    files = await off_loop(is_large, lambda: work.graph.model_files)
    known, found = await engine.facts.known_families(), await engine.facts.known_families_of(files)
    families = {**families_of_missing(files, needs, known), **found}
    priced = await off_loop(is_large, services.platform.price_of, work, families)
    works = await off_loop(is_large, sampler_works, work, families)
    cost = priced.cost
    wait = services.jobs.queue_info.wait_of_a_new_job() if terms.vram_bytes is None else 0.0
    unknown = next((item for item in works if item.tflop is None), None) if known else None
    if unknown is not None:
        return RunEstimate(None, None, round(wait, 2), None, _no_family(unknown))
    if priced.samplers:
        return RunEstimate(None, None, round(wait, 2), None, _no_evaluations(priced.samplers[0]))
    if terms.vram_bytes is None:
        seconds, source = await _seconds_here(services.jobs, engine, cost, works)
    else:
        seconds, source = _seconds_elsewhere(works, terms, is_known=bool(known))
    hourly = None if seconds <= 0 else terms.price_per_hour
    price = None if hourly is None else round(hourly * seconds / 3600, 6)
    return RunEstimate(round(cost, 3), round(seconds, 2) if seconds > 0 else None, round(wait, 2), price, source)


def _no_family(work: SamplerWork) -> str:
    named = f"the family of {work.model}" if work.model else f"the model of node {work.node_id}"
    return f"{named} is not known, and so neither is its work"


def _no_evaluations(sampler: str) -> str:
    return f"the evaluations of sampler {sampler} a step are not known, and so neither is its work"


async def _seconds_here(
    jobs: JobServices, engine: EngineClient, cost: float, works: Sequence[SamplerWork]
) -> tuple[float, str]:
    """Return the seconds on this worker's engine and their source; 0 and the reason where no pace is known.

    A processor does not wait for the launch of kernels: before its first job its pace counts in operations.
    """
    clock = jobs.run_clock
    if works and not clock.has_runs and await _is_processor(engine):
        cost = max(cost, operations_cost(works))
    return clock.plan(cost)


async def _is_processor(engine: EngineClient) -> bool:
    devices = (await engine.calls.system_stats()).get("devices")
    first = devices[0] if isinstance(devices, list) and devices else {}
    return isinstance(first, Mapping) and first.get("type") == "cpu"


def _seconds_elsewhere(works: Sequence[SamplerWork], terms: _Terms, *, is_known: bool) -> tuple[float, str]:
    """Return the seconds on a named card and their source; 0 and the reason where they are not known."""
    if not terms.card:
        return 0.0, "a card is not known by its memory alone; name it with `card`"
    if not is_known:
        return 0.0, "the engine does not tell the families of its models"
    if not works:
        return 0.0, "no sampler is in it, and the time of other nodes is not known"
    card = card_named(terms.card)
    if card is None:
        return 0.0, f"no speed of {terms.card} is known here"
    rates = f"{card.tflop_per_second:g} TFLOP/s and {card.gb_per_second:g} GB/s of its data sheet"
    return seconds_on(card, works), f"sampling in 16 bits, by the model's operations and {rates}; within a factor of 2"


@contextlib.contextmanager
def _noting(problems: list[Problem]) -> Any:
    try:
        yield
    except RequestRejected as rejected:
        problems += rejected.problems


def _free_bytes(files: FileServices) -> int:
    """Return the free bytes of the disk with the model files, beyond those that stay free."""
    library = files.models.library
    folder = next(path for path in (library.directory, *library.directory.parents) if path.exists())
    return max(0, shutil.disk_usage(folder).free - library.limits.min_free_bytes)
