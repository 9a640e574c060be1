"""Creation of a job from a valid request: modifier, random values, policy, graph check, files."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol

import structlog

from darkroom.contract.graph.cost import Price
from darkroom.contract.graph.prompt_graph import PromptGraph
from darkroom.contract.graph.work import PromptWork
from darkroom.contract.quality import DEFAULT_QUALITY, QualityName
from darkroom.modifiers.modifier import ModificationsRejected
from darkroom.modifiers.registry import ModifierUnusable, UnknownModifier
from darkroom.worker.api.asset_references import with_assets
from darkroom.worker.api.request_warnings import RequestWarning, assumed_cost_warnings, find_size_warnings, warning_of
from darkroom.worker.api.schemas import GenerateInput, ParsedRequest, StoresInput, WebhookInput
from darkroom.worker.api.services import DeliveryServices, FileServices, JobServices, RequestServices, Services
from darkroom.worker.concurrency.dedicated_thread import run_in_dedicated_thread
from darkroom.worker.concurrency.off_loop import needs_thread, off_loop
from darkroom.worker.engines.client.client import EngineClient
from darkroom.worker.engines.fallback.checks import FallbackChecks
from darkroom.worker.engines.fallback.choice import (
    EngineChoice,
    better_refusal,
    choice_for,
    may_be_run_elsewhere,
)
from darkroom.worker.engines.fallback.family_choice import choice_of_families
from darkroom.worker.errors import EngineAnswerInvalid, EngineUnreachable, NotReady, Problem, RequestRejected, shortened
from darkroom.worker.guard.url_secrets import without_url_secrets
from darkroom.worker.jobs.deadline_turns import Place
from darkroom.worker.jobs.job_models import page_of
from darkroom.worker.json.values import JsonObject
from darkroom.worker.outputs.options import OutputOptions
from darkroom.worker.prompts.missing_families import families_of_missing
from darkroom.worker.prompts.modifier_defaults import ModifierDefaults, checkpoints_of, find_defaults
from darkroom.worker.prompts.page_workflow import with_overrides
from darkroom.worker.prompts.random_values import repeatable, resolve
from darkroom.worker.prompts.workflows.expansion import weight_of
from darkroom.worker.prompts.workflows.node_uses import uses_in_prompt
from darkroom.worker.prompts.workflows.overrides import Overridden
from darkroom.worker.prompts.workflows.page_graph import is_page_format
from darkroom.worker.settings.workload import Workload
from darkroom.worker.storage.job import Credentials, Job, JobRequest, JobTimes, WebhookTarget
from darkroom.worker.storage.progress import Progress, steps_of

_RANDOM_BOUND = 2**32
ENGINE_WAIT_SECONDS = 15.0  # of a caller, while an engine is being replaced
ENGINE_LOOK_SECONDS = 0.1  # between two questions to an engine that may have come back

log = structlog.get_logger("jobs")


@dataclass(frozen=True, slots=True)
class JobName:
    """Names of a new job: its id, the id that its caller requested, the key's name, the name its limits apply to."""

    job_id: str
    asked_id: str
    owner: str
    counted_as: str


@dataclass(frozen=True, slots=True)
class CheckedPrompt:
    """A prompt that may run, its price, warnings about its contents, and the values of its overrides.

    `steps` are those of its nodes that sample, by node id.
    """

    prompt: Mapping[str, Any]
    price: Price
    steps: Mapping[str, float]
    warnings: tuple[RequestWarning, ...] = ()
    overrides: Mapping[str, Any] = field(default_factory=dict)
    choice: EngineChoice | None = None
    """The other engine that runs it; None: one of ours."""


class GraphChecks(Protocol):
    """Node classes of an engine, and its check of workflows."""

    has_check: bool
    """True if the engine checks names that arrive through links, too."""

    async def known_object_info(self) -> Mapping[str, Any]: ...

    async def check(self, prompt: JsonObject, pending_files: Collection[str] = ()) -> None: ...


async def make_job(services: Services, parsed: ParsedRequest, name: JobName, digest: str) -> Job:
    """Create a job whose prompt has passed the policy and the graph check, its random values drawn."""
    _check_timeout(services.jobs, parsed.input)
    webhook = webhook_target(services.deliveries, parsed.input.webhook)
    credentials, notes = _credentials(services, parsed.input)
    parsed = await _with_stored_workflow(services.files, parsed)
    async with with_assets(services, parsed, name.owner) as parsed:
        made = await _checked_prompt(services, parsed, name, credentials)
    if services.engines.fallback is not None:  # the job may move there later
        credentials = replace(credentials, partner_keys=_partner_keys(parsed.input))
    now_ms = int(time.time() * 1000)
    turn_ms = _check_estimates(services, parsed, made.price.cost, now_ms)
    request = _job_request(services.deliveries, parsed, webhook, name.counted_as, made, notes)
    await _check_room(services.files, name, made.prompt, request.extra)
    queued_at_ms = min(parsed.queued_at_ms or now_ms, now_ms)
    if parsed.input.deadline is not None:
        deadline_ms = queued_at_ms + round(parsed.input.deadline * 1000)
        request = replace(request, deadline_ms=deadline_ms, deadline_turn_ms=turn_ms)
    return Job(
        id=name.job_id,
        number=services.jobs.store.take_number(),
        body_hash=digest,
        cost=made.price.cost,
        request=request,
        prompt=made.prompt,
        progress=Progress(made.steps),
        times=JobTimes(queued_at_ms=queued_at_ms),
        credentials=credentials,
        owner=name.owner,
        metadata=parsed.input.metadata,
        asked_id=name.asked_id if name.asked_id != name.job_id else "",
    )


async def _check_room(files: FileServices, name: JobName, prompt: JsonObject, extra: JsonObject) -> None:
    """Check that the caller may store the files and the record of a new job. Raises LimitReached."""
    quota = files.caller_quota
    if name.counted_as and quota.counts_bytes:
        weight = await off_loop(needs_thread(prompt, extra), weight_of, [prompt, extra])
        quota.check_job(name.counted_as, name.job_id, weight.num_bytes)


async def _with_stored_workflow(files: FileServices, parsed: ParsedRequest) -> ParsedRequest:
    """Return the request with the stored workflow that it names, if any. Raises WorkflowNotFound, StateUnusable."""
    if not parsed.input.workflow:
        return parsed
    stored = await files.workflows.get(parsed.input.workflow)
    given = parsed.input.model_copy(update={"workflow_json": stored.document})
    return replace(parsed, input=given, stored=stored)


def _job_request(
    deliveries: DeliveryServices,
    parsed: ParsedRequest,
    webhook: WebhookTarget | None,
    counted_as: str,
    made: CheckedPrompt,
    notes: Sequence[RequestWarning],
) -> JobRequest:
    given = parsed.input
    return JobRequest(
        modifier=given.modifier,
        priority=given.priority,
        wants_base64=parsed.wants_base64,
        wants_engine_response=parsed.wants_engine_response or deliveries.outputs.include_engine_response,
        webhook=webhook,
        extra=_extra_data(given),
        base_url=parsed.base_url,
        caller=counted_as,
        traceparent=parsed.traceparent,
        warnings=(*parsed.warnings, *notes, *made.warnings),
        output=OutputOptions.of(given.output.model_dump() if given.output else None),
        quality=quality_of(given),
        timeout_seconds=given.timeout,
        expires_seconds=given.expires,
        wants_previews=given.previews,
        receipt=parsed.receipt,
        parameters=_parameters(parsed, made),
        is_split=bool(given.split),
        engine="" if made.choice is None else made.choice.name,
        engine_reason="" if made.choice is None else made.choice.reason,
    )


def _check_estimates(services: Services, parsed: ParsedRequest, cost: float, now_ms: int) -> int | None:
    """Refuse a deadline or a budget that this worker would not keep, as far as its speed is known.

    A broker's job waits no more, but has waited. Return the turn by which a deadline is kept, None for the usual one.
    Raises RequestRejected.
    """
    given, seconds = parsed.input, services.jobs.run_clock.seconds_of(cost)
    if seconds <= 0:
        return None
    problems = []
    before = (now_ms - parsed.queued_at_ms) / 1000 if parsed.queued_at_ms else 0.0
    place = Place(0.0)
    if given.deadline is not None and not parsed.receipt:
        latest = given.deadline - seconds
        place = services.jobs.queue_info.place_of_a_new_job(given.priority, seconds, latest)
    if given.deadline is not None and before + place.wait_seconds + seconds > given.deadline:
        least = round(before + place.wait_seconds + seconds, 1)
        message = f"deadline: the job would not be done by then; got {given.deadline:g} s, expected at least {least:g}"
        problems.append(Problem(message, field="input.deadline", type="too_soon", allowed={"minimum": least}))
    price = seconds * services.engines.price_per_hour / 3600
    if given.max_cost is not None and price > given.max_cost:
        message = f"max_cost: the job would cost more; got {given.max_cost:g}, expected at least {price:.6g}"
        problems.append(
            Problem(message, field="input.max_cost", type="too_cheap", allowed={"minimum": round(price, 6)})
        )
    if problems:
        raise RequestRejected(problems)
    return place.turn_ms


def _check_timeout(jobs: JobServices, given: GenerateInput) -> None:
    """Refuse a time limit above the worker's own. Raises RequestRejected."""
    allowed = jobs.limits.job_timeout_seconds
    if given.timeout is not None and given.timeout > allowed:
        message = f"timeout: too long; got {given.timeout:g} s, expected at most {allowed:g} (JOB_TIMEOUT)"
        raise RequestRejected([Problem(message, field="input.timeout", type="too_long", allowed={"maximum": allowed})])


def _parameters(parsed: ParsedRequest, made: CheckedPrompt) -> dict[str, Any]:
    """Return the values that a request chose, as its result repeats them; empty for one that chose none."""
    chosen: dict[str, Any] = {} if parsed.stored is None else {"workflow": parsed.stored.reference}
    return chosen | ({"overrides": dict(made.overrides)} if made.overrides else {})


def quality_of(given: GenerateInput) -> QualityName:
    """Return the request's quality, else the one among the modifications, which the modifier has validated."""
    asked: QualityName | None = given.quality or given.modifications.get("quality")
    return asked or DEFAULT_QUALITY


def _draws(parsed: ParsedRequest, name: JobName) -> Callable[[], int]:
    """Return the draws for `__RANDOM_INT__`. A broker's job, which may come to several workers, has the same at all."""
    if not parsed.receipt:
        return lambda: secrets.randbelow(_RANDOM_BOUND)
    return repeatable(name.job_id, _RANDOM_BOUND)


def _extra_data(given: GenerateInput) -> dict[str, Any]:
    """Return the extra data of a request; a page's workflow is in it, as the page itself sends it."""
    if given.extra_data and given.extra_data.extra_pnginfo:
        return {"extra_pnginfo": given.extra_data.extra_pnginfo}
    return {"extra_pnginfo": {"workflow": given.workflow_json}} if is_page_format(given.workflow_json) else {}


def _partner_keys(given: GenerateInput) -> dict[str, str]:
    """Return the keys of a request for partner nodes, by their names."""
    return given.extra_data.partner_keys() if given.extra_data else {}


async def _checked_prompt(
    services: Services, parsed: ParsedRequest, name: JobName, credentials: Credentials
) -> CheckedPrompt:
    """Return the prompt of a request, for our engine or, where only that can run it, for the fallback.

    Raises RequestRejected, NotReady, EngineUnreachable.
    """
    fallback = services.engines.fallback
    try:
        made = await _checked_by_ours(services, parsed, name, credentials)
        choice = None if fallback is None else await choice_of_families(services.engines.pool.any_client, made.prompt)
    except RequestRejected as rejected:
        if fallback is None or not may_be_run_elsewhere(rejected.problems):
            raise
        made, choice = await _checked_by_fallback(services, parsed, name, credentials, rejected)
    if choice is not None:
        assert fallback is not None
        fallback.uses.add(choice)
        log.info("fallback chosen", request_id=name.job_id, reason=choice.reason)
    return replace(made, choice=choice)


async def _checked_by_fallback(
    services: Services, parsed: ParsedRequest, name: JobName, credentials: Credentials, ours: RequestRejected
) -> tuple[CheckedPrompt, EngineChoice]:
    """Return a prompt that our engine has refused, checked by the fallback. Raises the more helpful refusal."""
    fallback = services.engines.fallback
    assert fallback is not None
    engine = services.engines.pool.any_client
    checks = FallbackChecks(fallback, _partner_keys(parsed.input))
    try:
        made = await _prompt_checked_by(engine, services, parsed, name, credentials, checks=checks)
    except RequestRejected as theirs:
        raise (theirs if better_refusal(ours.problems, theirs.problems) is theirs.problems else ours) from None
    return made, choice_for(ours.problems)


async def _checked_by_ours(
    services: Services, parsed: ParsedRequest, name: JobName, credentials: Credentials
) -> CheckedPrompt:
    """Return the prompt of a request, with its files stored.

    While our engine is away, be it since this moment, a prompt is accepted that what was last known of the engine does
    not refuse. What that refuses waits for the engine; if it stays away the prompt is accepted, too, and the engine
    checks the graph when the job begins. Raises RequestRejected, NotReady, EngineUnreachable.
    """
    pool, clock = services.engines.pool, asyncio.get_running_loop().time
    if not pool.restarts_engines:
        engine = await pool.any_up_within(ENGINE_WAIT_SECONDS)
        return await _prompt_checked_by(engine, services, parsed, name, credentials)
    waits_until = clock() + ENGINE_WAIT_SECONDS
    while True:
        engine = pool.any_client
        was_away, is_last = engine.is_away, clock() >= waits_until
        try:
            return await _prompt_checked_by(
                engine, services, parsed, name, credentials, is_graph_left=is_last and was_away
            )
        except RequestRejected:
            if is_last or not (was_away or engine.is_away):
                raise
        except NotReady:  # what it takes is not known of the engine
            if is_last:
                raise
        await asyncio.sleep(ENGINE_LOOK_SECONDS)
        with contextlib.suppress(NotReady):
            await pool.any_up_within(max(0.0, waits_until - clock()))


async def _prompt_checked_by(
    engine: EngineClient,
    services: Services,
    parsed: ParsedRequest,
    name: JobName,
    credentials: Credentials,
    *,
    is_graph_left: bool = False,
    checks: GraphChecks | None = None,
) -> CheckedPrompt:
    """Return the prompt of a request, checked by what is known of an engine.

    `is_graph_left`: the graph itself is left to the engine, which checks it when the job begins. `checks` are those of
    another engine than ours, which will run it. Raises RequestRejected, and NotReady or EngineUnreachable when the
    engine does not answer.
    """
    overridden = Overridden({})
    checks = checks or engine
    try:
        object_info = await checks.known_object_info()
        defaults = await defaults_of(services.requests, parsed.input, engine, object_info)
        prompt: JsonObject = build_prompt(services.requests, parsed.input, defaults)
        overrides, inputs, stored = parsed.input.overrides, parsed.input.inputs, parsed.stored
        named = None if stored is None else stored.places
        overridden = await with_overrides(prompt, overrides, object_info, services.requests.prompt_rules, named, inputs)
        prompt = overridden.prompt
        is_large, is_of_modifier = needs_thread(prompt), bool(parsed.input.modifier)
        if is_of_modifier:
            await services.requests.prompt_rules.check_size(prompt)
        prompt = await off_loop(is_large, resolve, prompt, _draws(parsed, name))
        work = PromptWork(prompt, object_info)
        await services.requests.prompt_rules.check(work, is_of_modifier=is_of_modifier)
        check = partial(services.files.inputs.check, engine_checks_links=checks.has_check)
        await off_loop(is_large, check, work.graph, credentials, parsed.files.keys())
        graph = work.graph
        if parsed.files:
            # its checks may wait long for a process: not in one of the few threads that all else shares
            prompt = await run_in_dedicated_thread(services.files.uploads.place, prompt, parsed.files, object_info)
            graph = PromptGraph(prompt, object_info)
        planned = await off_loop(is_large, services.files.inputs.plan, graph)
        page = page_of(_extra_data(parsed.input))
        models = await services.files.models.pending_names(graph, page)
        try:
            if not is_graph_left:
                await checks.check(planned.prompt, (*planned.pending_files, *models))
        except RequestRejected as rejected:
            refused = PromptGraph(planned.prompt, await checks.known_object_info())
            raise await services.files.models.explained(rejected, refused, page) from None
        known = await checks.known_object_info()
        if known is not object_info:  # reloaded by the check: the policy applies to the new one too
            work = PromptWork(prompt, known)
            await services.requests.prompt_rules.check(work, is_of_modifier=is_of_modifier)
        price = await price_of(services, work, engine, page if models else None)
        if planned.pending_files:
            prompt = await services.files.inputs.keep_inline(graph, name.job_id)
        if name.counted_as and services.requests.caller_rates.counts_pixel_steps:
            pixel_steps = await off_loop(is_large, lambda: work.pixel_steps)
            services.requests.caller_rates.spend_pixel_steps(name.counted_as, pixel_steps)
        steps = await off_loop(is_large, steps_of, work)
    except RequestRejected as rejected:
        raise _with_request_fields(services.requests, parsed.input.modifier, overridden, rejected) from None
    except EngineAnswerInvalid:
        if services.engines.pool.restarts_engines:
            raise services.engines.pool.no_engine() from None
        raise
    except EngineUnreachable:  # it disconnected just now
        if checks is not engine:
            raise
        raise services.engines.pool.no_engine() from None
    if parsed.files:
        await asyncio.to_thread(services.files.uploads.keep, parsed.files, prompt, name.job_id)
    warnings = await off_loop(is_large, _size_warnings, services, parsed.input.modifier, prompt, known)
    if engine.facts.families.last():  # an engine that tells no families prices everything as the default one
        warnings = (*warnings, *assumed_cost_warnings(price))
    return CheckedPrompt(prompt, price, steps, warnings, shown_values(overridden.values_in(prompt)))


def shown_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values of a request as its result repeats them: long ones cut, addresses without their secrets."""
    return {name: without_url_secrets(shortened(value)) for name, value in values.items()}


def _size_warnings(
    services: Services, modifier: str, prompt: JsonObject, object_info: JsonObject
) -> tuple[RequestWarning, ...]:
    """Return the warnings about sizes in a prompt, with the modification's field where one set the size."""
    found = find_size_warnings(prompt, object_info)
    is_known = modifier in services.requests.modifiers.names()
    warnings = []
    for node_id, name, warning in found:
        field = services.requests.modifiers.get(modifier).field_at(node_id, name) if is_known else None
        warnings.append(warning if field is None else {**warning, "field": f"input.modifications.{field}"})
    return tuple(warnings)


async def price_of(services: Services, work: PromptWork, engine: EngineClient, page: JsonObject | None = None) -> Price:
    """Return the price of a prompt, by the families of the models it names. Raises EngineUnreachable.

    `page` is given where files will be fetched first: they count as those that the manifest or their names tell.
    """
    graph, priced = work.graph, services.platform.price_of
    if services.platform.workload is not Workload.COMPUTED:
        return priced(work, {})
    is_large = needs_thread(graph.prompt)
    files = await off_loop(is_large, lambda: graph.model_files)
    families = await engine.facts.known_families_of(files)
    if page is not None and len(families) < len(files):
        known = await engine.facts.known_families()
        needs = await off_loop(
            True, services.files.models.needs, uses_in_prompt(graph.possible_part()), graph.object_info, page
        )
        families = {**families_of_missing(files, needs, known), **families}
    return await off_loop(is_large, priced, work, families)


async def defaults_of(
    requests: RequestServices, parsed: GenerateInput, engine: EngineClient, object_info: JsonObject
) -> ModifierDefaults:
    """Return the defaults of the request's modifier; none for a workflow and for an unknown modifier."""
    if parsed.modifier not in requests.modifiers.names():
        return ModifierDefaults()
    checkpoints = checkpoints_of(object_info)
    return await find_defaults(engine, requests.modifiers, checkpoints, parsed.modifier, parsed.modifications)


def _credentials(services: Services, parsed: GenerateInput) -> tuple[Credentials, list[RequestWarning]]:
    """Return the credentials of a request, and warnings about them. Raises RequestRejected."""
    stores, warnings = credentials_of_stores(services.deliveries, parsed)
    secret = None if parsed.webhook is None else parsed.webhook.secret
    return replace(stores, download_headers=parsed.download_headers or None, webhook_secret=secret), warnings


def credentials_of_stores(deliveries: DeliveryServices, asked: StoresInput) -> tuple[Credentials, list[RequestWarning]]:
    """Return the credentials of the store that a request names, and warnings about it. Raises RequestRejected."""
    stores = asked.stores()
    return Credentials(stores=stores), [warning_of(doubt) for doubt in deliveries.targets.check(stores)]


def build_prompt(requests: RequestServices, parsed: GenerateInput, defaults: ModifierDefaults) -> dict[str, Any]:
    """Return the workflow of a request, or the prompt that its modifier makes. Raises RequestRejected."""
    if not parsed.modifier:
        return parsed.workflow_json
    try:
        return defaults.build(requests.modifiers, parsed.modifier, parsed.modifications)
    except UnknownModifier as error:
        kind = "broken_modifier" if isinstance(error, ModifierUnusable) else "unknown_modifier"
        problem = Problem(str(error), field="input.modifier", type=kind, allowed=list(error.known))
        raise RequestRejected([problem]) from None
    except ModificationsRejected as error:
        problems = [
            Problem(item["message"], field=f"input.modifications.{item['field']}", allowed=item["allowed"])
            for item in error.problems
        ]
        raise RequestRejected(problems, num_unlisted=error.num_unlisted) from None


def _with_request_fields(
    requests: RequestServices, modifier: str, overridden: Overridden, rejected: RequestRejected
) -> RequestRejected:
    """Add the field of the request to each problem at an input that a modification or an override fills."""
    is_known = modifier in requests.modifiers.names()
    named = []
    for problem in rejected.problems:
        place = problem.node_id or "", problem.field or ""
        field = overridden.field_at(*place)
        if is_known and (modification := requests.modifiers.get(modifier).field_at(*place)) is not None:
            field = f"input.modifications.{modification}"
        named.append(problem if field is None else replace(problem, field=field))
    return RequestRejected(named, rejected.summary, rejected.num_unlisted)


def webhook_target(deliveries: DeliveryServices, given: WebhookInput | None) -> WebhookTarget | None:
    """Return the webhook of a request; the request's settings override the environment's. Raises RequestRejected."""
    asked = given or WebhookInput()
    if asked.url:
        deliveries.check_webhook_url(asked.url)
    url = asked.url or deliveries.webhook.url
    if not url:
        return None
    events = tuple(dict.fromkeys(asked.events))
    return WebhookTarget(url, asked.timeout or deliveries.webhook.timeout_seconds, asked.extra_params, events)
