"""PromptRules: the operator's limits and rules for prompts, checked before a prompt uses resources."""

from __future__ import annotations

from itertools import chain, islice

from darkroom.contract.graph.work import PromptWork
from darkroom.worker.concurrency.off_loop import needs_thread, off_loop
from darkroom.worker.errors import MAX_PROBLEMS, RequestRejected
from darkroom.worker.guard.node_policy import NodePolicy
from darkroom.worker.json.values import JsonObject
from darkroom.worker.prompts.graph_size import find_size_problem
from darkroom.worker.prompts.limits import find_limit_problems
from darkroom.worker.settings.jobs import NodePolicyConfig, PromptLimits

LARGE_GRAPH_BYTES = 256 * 1024


class PromptRules:
    """A stateless check of workflows before the engine's own."""

    def __init__(self, limits: PromptLimits, policy: NodePolicyConfig) -> None:
        self._limits = limits
        self._policy = NodePolicy(policy)

    @property
    def max_nodes(self) -> int:
        """Largest number of nodes of a workflow; 0: no limit."""
        return self._limits.max_nodes

    async def check_size(self, workflow: JsonObject, size_bytes: int = 0) -> None:
        """Raise RequestRejected for a workflow over the limits of nodes, links and bytes.

        `size_bytes` is the size of the request body that contained it.
        """
        if self._limits.max_nodes and len(workflow) > self._limits.max_nodes:
            is_large = False  # none of it is examined
        else:
            is_large = needs_thread(workflow) or size_bytes >= LARGE_GRAPH_BYTES
        problem = await off_loop(is_large, find_size_problem, workflow, self._limits)
        if problem is not None:
            raise RequestRejected([problem])

    async def check(self, work: PromptWork, *, is_of_modifier: bool = False) -> None:
        """Raise RequestRejected with every node of a prompt that a rule forbids, and every value over a limit."""
        if self._policy.is_active or self._limits.bounds_work:
            is_large = needs_thread(work.graph.prompt)
            await off_loop(is_large, self._check_now, work, is_of_modifier)

    def _check_now(self, work: PromptWork, is_of_modifier: bool) -> None:
        graph, limits = work.graph, self._limits
        forbidden = self._policy.find_problems(graph.prompt, graph.object_info, is_trusted=is_of_modifier)
        over = find_limit_problems(work, limits) if limits.bounds_work else ()
        problems = chain(forbidden, over)
        listed = list(islice(problems, MAX_PROBLEMS))
        if listed:
            raise RequestRejected(listed, num_unlisted=sum(1 for _ in problems))
