"""Checks of a request at the gateway: modifications by the modifier's schema, graphs by the node lists of the fleet."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from modifiers.modifier import ModificationsRejected
from modifiers.registry import ModifierRegistry, ModifierUnusable, UnknownModifier
from worker.api.schemas import GenerateInput
from worker.engines.graph_check import FoundProblems, find_problems
from worker.errors import Problem, RequestRejected
from worker.inputs.references import find_references, replace_references
from worker.jobs.page_workflow import as_prompt
from worker.jobs.prompt_rules import PromptRules
from worker.jobs.random_values import resolve
from worker.json_values import JsonObject


async def check_request(
    given: GenerateInput, modifiers: ModifierRegistry, node_lists: Sequence[JsonObject], rules: PromptRules
) -> None:
    """Raise RequestRejected with every problem of a request that every worker would refuse.

    A workflow is accepted if the node list of one worker accepts it, and where no list is known.
    """
    if given.modifier:
        _check_modifications(given, modifiers)
        return
    await rules.check_size(given.workflow_json)
    refused: RequestRejected | None = None
    for object_info in node_lists:
        try:
            await _check_workflow(given.workflow_json, object_info, rules)
        except RequestRejected as error:
            if refused is None or len(error.problems) < len(refused.problems):
                refused = error
        else:
            return
    if refused is not None:
        raise refused


def _check_modifications(given: GenerateInput, modifiers: ModifierRegistry) -> None:
    try:
        modifiers.build(given.modifier, given.modifications)
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


async def _check_workflow(workflow: JsonObject, object_info: JsonObject, rules: PromptRules) -> None:
    prompt = await as_prompt(workflow, object_info, rules)
    await rules.check(prompt, object_info)
    found = await asyncio.to_thread(_found, prompt, object_info)
    if found.listed:
        raise RequestRejected(list(found.listed), num_unlisted=found.num_unlisted)


def _found(given: JsonObject, object_info: JsonObject) -> FoundProblems:
    prompt: JsonObject = resolve(given, lambda: 0)
    references = find_references(prompt, object_info)
    names = {reference: f"pending-{index}.png" for index, reference in enumerate(references)}
    return find_problems(replace_references(prompt, names), object_info, tuple(names.values()))
