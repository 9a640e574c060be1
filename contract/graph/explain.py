"""Problems of a prompt as one plain list, in the prompt's order, for programs: the front of either engine. Pure.

The checker's problems carry all of it; ComfyUI's form of them, which its clients know, leaves half of it out.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from darkroom.contract.errors import Explanation, Problem, PromptRejected
from darkroom.contract.graph.file_names import is_pending
from darkroom.contract.graph.size import GraphLimits
from darkroom.contract.graph.spec import ValueDict
from darkroom.contract.graph.validate import MAX_PROBLEMS, Findings, FindRules, find_problems

SUMMARY_TYPE = "prompt_outputs_failed_validation"
"""Problem type that stands for the problems of nodes, which are listed themselves."""
MAX_ALLOWED_ITEMS = 20_000  # choices listed in one answer, over all its problems
MAX_SHOWN_ITEMS = 50  # of each problem's choices after those
NO_LIMITS = GraphLimits(max_nodes=0, max_links=0, max_bytes=0)


@dataclass(frozen=True, slots=True)
class ExplainedPrompt:
    """The problems of a prompt that are listed, each with its type, and the number of the others."""

    problems: tuple[Explanation, ...] = ()
    num_unlisted: int = 0

    def as_json(self) -> ValueDict:
        """Return the part of the answer of `/api/v1/workflow`; very many choices are cut."""
        shown, num_allowed = [], 0
        for problem in self.problems:
            item = _as_json(problem)
            if isinstance(item.get("allowed"), list):
                num_allowed += len(item["allowed"])
                if num_allowed > MAX_ALLOWED_ITEMS:
                    item["allowed"] = item["allowed"][:MAX_SHOWN_ITEMS]
            shown.append(item)
        return {"problems": shown, "unlisted_problems": self.num_unlisted}


def explain_prompt(prompt: object, find_rules: FindRules, pending_files: Collection[str] = ()) -> ExplainedPrompt:
    """Check a prompt of any size against the rules of its classes. `pending_files` will be there when it runs."""
    try:
        excuses = partial(is_pending, frozenset(pending_files))
        return explain(find_problems(prompt, find_rules, limits=NO_LIMITS, excuses=excuses))
    except PromptRejected as rejected:
        return explain_rejection(rejected)


def explain(findings: Findings) -> ExplainedPrompt:
    """List what was found: the prompt's own problems first, then those of its nodes in its order."""
    explained = [_explanation(problem) for problem in findings.problems if problem.type != SUMMARY_TYPE]
    for node_id, node in findings.node_problems.items():
        explained += (
            replace(_explanation(problem), node_id=node_id, class_type=node.class_type) for problem in node.problems
        )
    places = {node_id: place for place, node_id in enumerate(findings.prompt)} if len(explained) > 1 else {}
    explained.sort(key=lambda problem: -1 if problem.node_id is None else places.get(problem.node_id, -1))
    listed = explained[:MAX_PROBLEMS]
    return ExplainedPrompt(tuple(listed), findings.num_unlisted + len(explained) - len(listed))


def explain_rejection(rejected: PromptRejected) -> ExplainedPrompt:
    """List what makes data no prompt at all, or one that is too large."""
    return ExplainedPrompt((_explanation(rejected.problem),))


def _explanation(problem: Problem) -> Explanation:
    words = f"{problem.message}: {problem.details}" if problem.details else problem.message
    explanation = problem.explanation or Explanation(words)
    return explanation if explanation.type is not None else replace(explanation, type=problem.type)


def _as_json(problem: Explanation) -> ValueDict:
    return dict(_parts(problem))


def _parts(problem: Explanation) -> Iterator[tuple[str, object]]:
    for name in ("message", "type", "field", "node_id", "class_type", "extra"):
        value = getattr(problem, name)
        if value is not None:
            yield name, value
    allowed = problem.allowed
    if allowed is not None:
        yield "allowed", list(allowed) if isinstance(allowed, Sequence) and not isinstance(allowed, str) else allowed
