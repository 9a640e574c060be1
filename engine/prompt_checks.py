"""Checks of a prompt before it runs: its problems, the files and node classes it needs, and the memory it takes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial

from darkroom.contract.errors import Problem, PromptRejected
from darkroom.contract.graph.file_names import is_pending
from darkroom.contract.graph.prompt import Prompt, parse_prompt
from darkroom.contract.graph.size import GraphLimits
from darkroom.contract.graph.spec import NodeRules
from darkroom.contract.graph.switches import without_left_out
from darkroom.contract.graph.validate import (
    CheckedPrompt,
    Excuses,
    Findings,
    check_prompt,
    find_problems,
    left_out_in,
    never,
)
from darkroom.engine.families.base import ModelFamily
from darkroom.engine.memory import machine_memory
from darkroom.engine.memory.device import dtype_of
from darkroom.engine.memory.model_memory import ModelMemory
from darkroom.engine.memory.timeline import StageKind
from darkroom.engine.models.files.folders import ModelFolders
from darkroom.engine.models.files.header_answers import HeaderAnswers
from darkroom.engine.models.planning.latent_misfits import LatentMisfits
from darkroom.engine.models.planning.memory_plan import MemoryPlan, MemoryPlanner, MissingFile, Target, card_item_bytes
from darkroom.engine.models.planning.vision_misfits import VisionMisfits
from darkroom.engine.nodes.base import NodeEnvironment
from darkroom.engine.nodes.catalogue import Catalogue
from darkroom.engine.nodes.needs import PromptNeeds, needs_of
from darkroom.engine.settings import EngineSettings


class PromptChecks:
    """Checks of prompts against the node classes and files of this moment. Callable from any thread."""

    def __init__(
        self,
        settings: EngineSettings,
        catalogue: Catalogue,
        environment: NodeEnvironment,
        folders: ModelFolders,
        memory: ModelMemory,
        answers: HeaderAnswers,
    ) -> None:
        self._limits = GraphLimits(settings.max_prompt_nodes, settings.max_prompt_links, settings.max_prompt_bytes)
        self._catalogue = catalogue
        self._environment = environment
        self._folders = folders
        self._memory = memory
        self._latent_misfits = LatentMisfits(folders, answers)
        self._vision_misfits = VisionMisfits(folders, answers)

    def check(
        self, prompt: object, partial_execution_targets: Collection[str] | None = None, arriving: Collection[str] = ()
    ) -> CheckedPrompt:
        """Check that a prompt can run; see `Engine.check`."""
        names = frozenset(path.partition("/")[2] for path in arriving)
        excuses = partial(is_pending, names)
        return check_prompt(
            prompt, self._rules_of_now(), partial_execution_targets, self._limits, excuses, self._misfits
        )

    def find_problems(
        self, prompt: object, partial_execution_targets: Collection[str] | None = None, excuses: Excuses = never
    ) -> Findings:
        """Find all problems of a prompt; those for which `excuses` returns True are left out.

        Raises `PromptRejected` when the data is no prompt at all, or is too large.
        """
        return find_problems(
            prompt, self._rules_of_now(), partial_execution_targets, self._limits, excuses, self._misfits
        )

    def needs_of(self, prompt: object) -> PromptNeeds:
        """Return the models a prompt names and the node classes it lacks, even if it is invalid otherwise.

        Those of nodes that a switch leaves out are not needed.
        """
        return needs_of(self._running(prompt) if isinstance(prompt, Mapping) else {}, self._catalogue, self._folders)

    def memory_plan(
        self,
        prompt: object,
        *,
        total_bytes: int | None = None,
        missing: Mapping[str, Mapping[str, object]] | None = None,
        pixels: Mapping[str, int] | None = None,
    ) -> MemoryPlan:
        """Return the weights that the stages of a prompt bring to this device, or to a card with `total_bytes`.

        Nothing is loaded. `missing` has `size_bytes` and `family` of files that are not there, by `folder/name`,
        `pixels` those that a node works on at once. Raises `PromptRejected` when the data is no prompt at all.
        """
        target = Target(total_bytes, False, card_item_bytes) if total_bytes else own_target(self._memory)
        files = {path: MissingFile.of(item) for path, item in (missing or {}).items()}
        planner = MemoryPlanner(self._folders, target, files, pixels or {})
        nodes, find_rules = parse_prompt(prompt), self._rules_of_now()
        left_out = left_out_in(nodes, find_rules).nodes
        return planner.plan({name: node for name, node in nodes.items() if name not in left_out}, find_rules)

    def _misfits(self, prompt: Prompt, rules: Mapping[str, NodeRules]) -> Mapping[str, Problem]:
        """Return the problem of each node whose model or VAE does not fit what it is used for, by node id."""
        return {**self._latent_misfits.find(prompt, rules), **self._vision_misfits.find(prompt, rules)}

    def _running(self, prompt: Mapping[str, object]) -> Mapping[str, object]:
        """Return a prompt without what switches leave out; as it is where it has a malformed node."""
        try:
            return without_left_out(prompt, left_out_in(parse_prompt(prompt), self._rules_of_now()))
        except PromptRejected:
            return prompt

    def _rules_of_now(self) -> Callable[[str], NodeRules | None]:
        return lambda class_type: self._catalogue.rules(class_type, self._environment)


def own_target(memory: ModelMemory) -> Target:
    """Return the device of this engine as the target of a memory plan."""
    has_own = memory.device.has_own_memory

    def item_bytes(family: ModelFamily | None, kind: StageKind) -> int:
        types = memory.resolved if family is None else memory.types_for(family.dtypes)
        names = {"network": types.unet_dtype, "text_encoder": types.text_encoder_dtype, "vae": types.vae_dtype}
        return dtype_of(names[kind]).itemsize

    total = memory.facts.total_bytes if has_own else machine_memory.total_bytes()
    return Target(total, not has_own, item_bytes)
