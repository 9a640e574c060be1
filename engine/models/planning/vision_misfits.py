"""MODELs that read images where one that denoises is wanted, and the other way round. Only headers are read.

A network that denoises may read images too: a variant of its family, for nodes that name the two.

Certain cases alone: a node whose MODEL, or the CLIP of whose CONDITIONING, comes from a file whose header tells what
it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from darkroom.contract.errors import Explanation, Problem
from darkroom.contract.graph.facts import NO_FACTS, NodeFacts
from darkroom.contract.graph.prompt import Node, Prompt
from darkroom.contract.graph.spec import NodeRules
from darkroom.engine.errors import BadModelFile
from darkroom.engine.families import registry
from darkroom.engine.families.base import ModelFamily, NotRecognised, TensorIndex
from darkroom.engine.formats.safetensors_file import SafetensorsFile
from darkroom.engine.formats.weight_file import SAFETENSORS_ENDINGS
from darkroom.engine.models.files.folders import ModelFolders
from darkroom.engine.models.files.header_answers import HeaderAnswers
from darkroom.engine.models.planning.prompt_stages import files_behind

MODEL, CONDITIONING = "model", "conditioning"
THROUGH: Mapping[str, frozenset[str]] = {
    MODEL: frozenset({"MODEL"}),
    CONDITIONING: frozenset({"CONDITIONING", "CLIP"}),
}
"""Types of the links by which each input's file is found."""

SAMPLED = frozenset({"LATENT", "GUIDER"})
MAX_NODES = 100  # looked at: a prompt of very many costs no more


@dataclass(frozen=True, slots=True)
class Reading:
    """Family and label of a network that reads images; both are empty for another network."""

    family: str = ""
    label: str = ""

    def fits(self, facts: NodeFacts) -> bool:
        """Return True where a node of these facts computes with the network."""
        return self.family == facts.reads_images_with and facts.reads_images_variant in ("", self.label)


class VisionMisfits:
    """Finder of such MODELs, by the answers of the headers of their files."""

    def __init__(self, folders: ModelFolders, answers: HeaderAnswers) -> None:
        self._folders = folders
        self._answers = answers

    def find(self, prompt: Prompt, rules: Mapping[str, NodeRules]) -> Mapping[str, Problem]:
        """Return the problem of each node whose MODEL is of the wrong kind, by node id."""
        found: dict[str, Problem] = {}
        for node, facts in _readers(prompt, rules):
            names = (MODEL, CONDITIONING) if facts.reads_images_with else (MODEL,)
            problems = (self._problem_of(node, facts, name, prompt, rules) for name in names)
            problem = next((item for item in problems if item is not None), None)
            if problem is not None:
                found[node.id] = problem
        return found

    def _problem_of(
        self, node: Node, facts: NodeFacts, input_name: str, prompt: Prompt, rules: Mapping[str, NodeRules]
    ) -> Problem | None:
        files = files_behind(node, THROUGH[input_name], prompt, rules)
        denoising = _denoising_reader(facts)
        found = self._reading(*files[0], denoising) if len(files) == 1 else None
        if found is None or (
            found.family == facts.reads_images_with if input_name == CONDITIONING else found.fits(facts)
        ):
            return None
        labels = {family.name: family.label for family in registry.vision_families()}
        wanted = facts.reads_images_variant or labels.get(facts.reads_images_with, "a diffusion model")
        if denoising is not None:
            wanted = f"{denoising.label}'s network, variant {wanted}"
        is_vision = found.family in labels
        got = f"{found.label}, which reads images and denoises nothing" if is_vision else "another network"
        expected = f"the text encoder of {wanted}" if input_name == CONDITIONING else wanted
        message = f"{input_name}: '{files[0][1]}' is no model for this node; got {got}, expected {expected}"
        extra = {"input_name": input_name, "received_value": files[0][1]}
        explanation = Explanation(message, field=input_name)
        return Problem("model_of_other_kind", "Model of another kind", message, extra, explanation)

    def _reading(self, folder: str, name: str, denoising: ModelFamily | None) -> Reading | None:
        """Return the kind of a file's network; None where nothing tells.

        With a family that denoises, a network of its is told with its variant.
        """
        try:
            path = self._folders.path(folder, name)
            if path is None or path.suffix.lower() not in SAFETENSORS_ENDINGS:
                return None
            if denoising is not None:
                return self._answers.find(path, ("variant",), lambda: _variant_of(SafetensorsFile(path)))
            return self._answers.find(path, ("vision",), lambda: _reading_of(SafetensorsFile(path)))
        except (BadModelFile, KeyError, OSError, ValueError):
            return None


def _reading_of(file: SafetensorsFile) -> Reading:
    found = registry.recognise_vision(file.shapes)
    return Reading() if found is None else Reading(found[0].name, found[0].variant_of(file.shapes))


def _variant_of(file: SafetensorsFile) -> Reading:
    """Return the family and the variant of a network that denoises; raises ValueError for one that nobody knows."""
    reading = _reading_of(file)
    if reading.family:
        return reading
    try:
        found = registry.recognise(TensorIndex(file.shapes, file.metadata))
    except NotRecognised as error:
        raise ValueError(error.found) from error
    return Reading(found.family.name, found.match.variant)


def _denoising_reader(facts: NodeFacts) -> ModelFamily | None:
    """Return the family that denoises of whose networks the node needs a variant, None for other nodes."""
    families = registry.families() if facts.reads_images_variant else ()
    return next((family for family in families if family.name == facts.reads_images_with), None)


def _readers(prompt: Prompt, rules: Mapping[str, NodeRules]) -> Iterator[tuple[Node, NodeFacts]]:
    """Yield the nodes that compute with a MODEL, each with the facts of its class."""
    num_found = 0
    for node in prompt.values():
        own = rules.get(node.class_type)
        facts = NO_FACTS if own is None else own.facts
        samples = own is not None and bool(SAMPLED & {str(item) for item in own.output_types})
        if MODEL in node.inputs and (facts.reads_images_with or samples):
            num_found += 1
            if num_found > MAX_NODES:
                return
            yield node, facts
