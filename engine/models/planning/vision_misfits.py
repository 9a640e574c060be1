"""MODELs that read images where one that denoises is wanted, and the other way round. Only headers are read.

Certain cases alone: a node whose MODEL comes from a file whose header tells what it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from darkroom.contract.errors import Explanation, Problem
from darkroom.contract.graph.facts import NO_FACTS
from darkroom.contract.graph.prompt import Node, Prompt
from darkroom.contract.graph.spec import NodeRules
from darkroom.engine.errors import BadModelFile
from darkroom.engine.families import registry
from darkroom.engine.formats.safetensors_file import SafetensorsFile
from darkroom.engine.formats.weight_file import SAFETENSORS_ENDINGS
from darkroom.engine.models.files.folders import ModelFolders
from darkroom.engine.models.files.header_answers import HeaderAnswers
from darkroom.engine.models.planning.prompt_stages import files_behind

MODEL = "model"
SAMPLED = frozenset({"LATENT", "GUIDER"})
MAX_NODES = 100  # looked at: a prompt of very many costs no more


class VisionMisfits:
    """Finder of such MODELs, by the answers of the headers of their files."""

    def __init__(self, folders: ModelFolders, answers: HeaderAnswers) -> None:
        self._folders = folders
        self._answers = answers

    def find(self, prompt: Prompt, rules: Mapping[str, NodeRules]) -> Mapping[str, Problem]:
        """Return the problem of each node whose MODEL is of the wrong kind, by node id."""
        found = ((node, self._problem_of(node, wanted, prompt, rules)) for node, wanted in _readers(prompt, rules))
        return {node.id: problem for node, problem in found if problem is not None}

    def _problem_of(self, node: Node, wanted: str, prompt: Prompt, rules: Mapping[str, NodeRules]) -> Problem | None:
        files = files_behind(node, frozenset({"MODEL"}), prompt, rules)
        if len(files) != 1:
            return None
        folder, name = files[0]
        found = self._family(folder, name)
        if found is None or found == wanted:
            return None
        labels = {family.name: family.label for family in registry.vision_families()}
        got = f"{labels[found]}, which reads images and denoises nothing" if found else "another network"
        expected = labels.get(wanted, "a diffusion model")
        message = f"{MODEL}: '{name}' is no model for this node; got {got}, expected {expected}"
        extra = {"input_name": MODEL, "received_value": name}
        return Problem(
            "model_of_other_kind", "Model of another kind", message, extra, Explanation(message, field=MODEL)
        )

    def _family(self, folder: str, name: str) -> str | None:
        """Return the family of a file's network that reads images, "" for another one, None where nothing tells."""
        try:
            path = self._folders.path(folder, name)
            if path is None or path.suffix.lower() not in SAFETENSORS_ENDINGS:
                return None
            found = self._answers.find(
                path, ("vision",), lambda: registry.recognise_vision(SafetensorsFile(path).shapes)
            )
        except (BadModelFile, KeyError, OSError, ValueError):
            return None
        return found[0].name if found else ""


def _readers(prompt: Prompt, rules: Mapping[str, NodeRules]) -> Iterator[tuple[Node, str]]:
    """Yield the nodes that compute with a MODEL, each with the family of what it reads images with, else ""."""
    num_found = 0
    for node in prompt.values():
        own = rules.get(node.class_type)
        facts = NO_FACTS if own is None else own.facts
        samples = own is not None and bool(SAMPLED & {str(item) for item in own.output_types})
        if MODEL in node.inputs and (facts.reads_images_with or samples):
            num_found += 1
            if num_found > MAX_NODES:
                return
            yield node, facts.reads_images_with
