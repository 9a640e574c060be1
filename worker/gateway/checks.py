"""Checks of a request at the gateway: modifications by the modifier's schema, graphs by the node lists of the fleet.

A request that names what a worker keeps in its own database, stored workflows and assets, is refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace

from darkroom.contract.graph.prompt_graph import PromptGraph
from darkroom.contract.graph.work import PromptWork
from darkroom.modifiers.modifier import ModificationsRejected
from darkroom.modifiers.registry import ModifierRegistry, ModifierUnusable, UnknownModifier
from darkroom.worker.api.asset_references import fields_with_assets
from darkroom.worker.api.schemas import GenerateInput
from darkroom.worker.concurrency.off_loop import needs_thread, off_loop
from darkroom.worker.engines.choices import with_hints
from darkroom.worker.engines.fallback.choice import may_be_run_elsewhere
from darkroom.worker.engines.graph_check import FoundProblems, find_problems
from darkroom.worker.errors import Problem, RequestRejected
from darkroom.worker.gateway.fleet import NodeLists
from darkroom.worker.inputs.references import find_references, replace_references
from darkroom.worker.json.values import JsonObject, object_at
from darkroom.worker.models.files import MODEL_EXTENSIONS
from darkroom.worker.models.manifest import built_in_manifest
from darkroom.worker.prompts.missing_words import explained
from darkroom.worker.prompts.model_needs import find_needs
from darkroom.worker.prompts.page_workflow import with_overrides
from darkroom.worker.prompts.random_values import resolve
from darkroom.worker.prompts.rules import PromptRules
from darkroom.worker.prompts.workflows.node_uses import uses_in_prompt


async def check_request(
    given: GenerateInput,
    modifiers: ModifierRegistry,
    node_lists: NodeLists,
    rules: PromptRules,
    *,
    fetches_models: bool = False,
) -> PromptWork:
    """Return the prompt of a request. Raises RequestRejected with every problem that every worker would find.

    A workflow is accepted if one node list of a worker accepts it, that of its engine or of its fallback, and where no
    list is known; its work is read by that list. What a fallback with unknown nodes may run is left to its worker,
    which starts it for that. `fetches_models`: workers fetch model files that they lack, so that their names are no
    problem.
    """
    elsewhere = list(_things_of_one_worker(given))
    if elsewhere:
        raise RequestRejected(elsewhere)
    if given.modifier:
        return PromptWork(_built(given, modifiers), next(iter(node_lists.lists), None))
    await rules.check_size(given.workflow_json)
    refused: RequestRejected | None = None
    for object_info in node_lists.lists:
        try:
            work = await _check_workflow(given, object_info, rules, fetches_models=fetches_models)
        except RequestRejected as error:
            if node_lists.has_unlisted and may_be_run_elsewhere(error.problems):
                return PromptWork(given.workflow_json, object_info)
            if refused is None or len(error.problems) < len(refused.problems):
                refused = error
        else:
            return work
    if refused is not None:
        raise refused
    return PromptWork(given.workflow_json)


def _built(given: GenerateInput, modifiers: ModifierRegistry) -> JsonObject:
    try:
        return modifiers.build(given.modifier, given.modifications)
    except UnknownModifier as error:
        kind = "broken_modifier" if isinstance(error, ModifierUnusable) else "unknown_modifier"
        raise RequestRejected(
            [Problem(str(error), field="input.modifier", type=kind, allowed=list(error.known))]
        ) from None
    except ModificationsRejected as error:
        problems = [
            Problem(item["message"], field=f"input.modifications.{item['field']}", allowed=item["allowed"])
            for item in error.problems
        ]
        raise RequestRejected(problems, num_unlisted=error.num_unlisted) from None


def _things_of_one_worker(given: GenerateInput) -> Iterator[Problem]:
    """Yield a problem for everything that is in the database of one worker alone."""
    if given.workflow:
        message = "workflow: a gateway has no stored workflows; expected the workflow itself in workflow_json"
        yield Problem(message, field="input.workflow", type="not_at_gateway")
    for field in fields_with_assets(given):
        message = f"{field}: a gateway has no assets; expected a URL or the file's data"
        yield Problem(message, field=field, type="not_at_gateway")


async def _check_workflow(
    given: GenerateInput, object_info: JsonObject, rules: PromptRules, *, fetches_models: bool
) -> PromptWork:
    overridden = await with_overrides(
        given.workflow_json, given.overrides, object_info, rules, inputs=given.inputs or None
    )
    is_large = needs_thread(overridden.prompt)
    work = PromptWork(await off_loop(is_large, resolve, overridden.prompt, lambda: 0), object_info)
    await rules.check(work)
    found = await asyncio.to_thread(_found, work.graph, fetches_models=fetches_models)
    if found.listed:
        refused = await asyncio.to_thread(_explained, work.graph, found)
        named = [
            replace(problem, field=overridden.field_at(problem.node_id or "", problem.field or "") or problem.field)
            for problem in refused.problems
        ]
        raise RequestRejected(named, refused.summary, refused.num_unlisted)
    return work


def _explained(graph: PromptGraph, found: FoundProblems) -> RequestRejected:
    """Return the refusal of a prompt in a worker's words, by the models that every worker knows."""
    refused = RequestRejected(with_hints(found.listed, graph.object_info), num_unlisted=found.num_unlisted)
    manifest = built_in_manifest()
    needs = find_needs(uses_in_prompt(graph.possible_part()), graph.object_info, manifest)
    return explained(refused, graph, needs, manifest)


def _found(graph: PromptGraph, *, fetches_models: bool) -> FoundProblems:
    references = find_references(graph)
    names = {reference: f"pending-{index}.png" for index, reference in enumerate(references)}
    models = _model_names(graph.prompt) if fetches_models else ()
    return find_problems(replace_references(graph.prompt, names), graph.object_info, (*names.values(), *models))


def _model_names(prompt: JsonObject) -> Iterator[str]:
    for node in prompt.values():
        for value in object_at(node, "inputs").values():
            if isinstance(value, str) and value.lower().endswith(tuple(MODEL_EXTENSIONS)):
                yield value
