"""VAEs that cannot decode what a prompt samples, told before it samples. Only headers of files are read.

They have other channels, or, for videos, are the network of another family.

Certain cases alone: a sampler whose model and a decoder whose VAE come from files of known families, with nothing
between them but nodes that keep the number of channels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from darkroom.contract.errors import Explanation, Problem
from darkroom.contract.graph.facts import NO_FACTS, NodeFacts
from darkroom.contract.graph.prompt import Node, Prompt, is_link
from darkroom.contract.graph.spec import NodeRules
from darkroom.engine.errors import BadModelFile
from darkroom.engine.families import registry
from darkroom.engine.families.base import NotRecognised, TensorIndex
from darkroom.engine.formats.safetensors_file import SafetensorsFile
from darkroom.engine.formats.unfilled import unfilled
from darkroom.engine.formats.weight_file import SAFETENSORS_ENDINGS
from darkroom.engine.models.files.folders import ModelFolders
from darkroom.engine.models.files.header_answers import HeaderAnswers
from darkroom.engine.models.load import configured
from darkroom.engine.models.planning.prompt_stages import files_behind

LATENT, VAE = "LATENT", "vae"
MAX_DECODERS = 20  # looked at: a prompt of very many costs no more
MAX_SHOWN = 20

VIDEO_DIMENSIONS = 3


@dataclass(frozen=True, slots=True)
class Latents:
    """Latents that a network samples or a VAE decodes.

    `label` is that of the family, and `vae` builds the network of its VAE: families that share one have the same.
    """

    channels: int
    dimensions: int
    label: str
    vae: Callable[[Any], torch.nn.Module]

    def problem_with(self, read: Latents) -> str | None:
        """Return the mismatch of a VAE that reads the latents `read`, found and expected; None if it may decode these.

        Several families of videos have as many channels, but VAEs of networks of their own. Families of images share
        one, which differs by its weights alone.
        """
        if read.channels != self.channels:
            return f"got a VAE of {read.channels} channels, expected one of {self.channels}, as {self.label} has it"
        if VIDEO_DIMENSIONS in (self.dimensions, read.dimensions) and self.vae is not read.vae:
            return f"got a VAE like that of {read.label}, expected one like that of {self.label}"
        return None


class LatentMisfits:
    """Finder of such VAEs, by the answers of the headers of their files."""

    def __init__(self, folders: ModelFolders, answers: HeaderAnswers) -> None:
        self._folders = folders
        self._answers = answers

    def find(self, prompt: Prompt, rules: Mapping[str, NodeRules]) -> Mapping[str, Problem]:
        """Return the problem of each decoder whose VAE does not take the latents that it is given, by node id."""
        decoders = [node for node in prompt.values() if _facts_of(node, rules).decodes][:MAX_DECODERS]
        found = ((node.id, self._problem_of(node, prompt, rules)) for node in decoders)
        return {node_id: problem for node_id, problem in found if problem is not None}

    def _problem_of(self, node: Node, prompt: Prompt, rules: Mapping[str, NodeRules]) -> Problem | None:
        sampler = _sampler_of(node, prompt, rules)
        if sampler is None:
            return None
        models = files_behind(sampler, frozenset({"MODEL", "GUIDER"}), prompt, rules)
        vaes = files_behind(node, frozenset({"VAE"}), prompt, rules)
        if len(models) != 1 or len(vaes) != 1:
            return None
        sampled, read = self._latents("network", *models[0]), self._latents("vae", *vaes[0])
        problem = None if sampled is None or read is None else sampled.problem_with(read)
        if sampled is None or problem is None:
            return None
        message = f"vae: '{vaes[0][1]}' cannot decode what '{models[0][1]}' samples; {problem}"
        explanation = Explanation(message, field=VAE, allowed=self._fitting(sampled))
        extra = {"input_name": VAE, "received_value": vaes[0][1]}
        return Problem("vae_of_other_latents", "VAE of other latents", message, extra, explanation)

    def _fitting(self, sampled: Latents) -> list[str]:
        """Return the first VAE files for such latents."""
        known = ((name, self._latents("vae", "vae", name)) for name in self._folders.names("vae"))
        fitting = [name for name, read in known if read is not None and sampled.problem_with(read) is None]
        return fitting[:MAX_SHOWN]

    def _latents(self, part: str, folder: str, name: str) -> Latents | None:
        """Return the latents that the network or the VAE of a file works on; None where its header does not tell."""
        try:
            path = self._folders.path(folder, name)
            if path is None or path.suffix.lower() not in SAFETENSORS_ENDINGS:
                return None
            return self._answers.find(path, ("latents", part, folder), lambda: _latents_of(path, part, folder))
        except (KeyError, OSError, ValueError):
            return None


def _latents_of(path: Path, part: str, folder: str) -> Latents | None:
    try:
        file = SafetensorsFile(path)
        return _of_network(file) if part == "network" else _of_vae(file, folder)
    except (BadModelFile, NotRecognised, OSError):
        return None


def _facts_of(node: Node, rules: Mapping[str, NodeRules]) -> NodeFacts:
    own = rules.get(node.class_type)
    return NO_FACTS if own is None else own.facts


def _sampler_of(node: Node, prompt: Prompt, rules: Mapping[str, NodeRules]) -> Node | None:
    """Return the node whose latents, or their first stream, a decoder gets; None if others may have changed them."""
    taken = _facts_of(node, rules).decodes
    for _ in prompt:
        link = node.inputs.get(taken)
        if not is_link(link) or link[0] not in prompt:
            return None
        node = prompt[link[0]]
        facts = _facts_of(node, rules)
        if facts.parts_streams and link[1] == 0:
            taken = facts.parts_streams
        elif facts.keeps_channels:
            latents = [item.name for item in rules[node.class_type].declared if item.type == LATENT]
            if len(latents) != 1:
                return None
            (taken,) = latents
        else:
            return node
    return None


def _of_network(file: SafetensorsFile) -> Latents:
    found = registry.recognise(TensorIndex(file.shapes, file.metadata))
    latent_format = found.family.parameterise(found.match, file).latent_format or found.family.latent_format
    made = latent_format()
    if made.stream_channels:  # of which a VAE of images decodes the first
        made = found.family.latent_format()
    channels = made.latent_channels if made.vae_channels is None else made.vae_channels
    return Latents(channels, made.latent_dimensions, found.family.label, found.family.vae.build)


def _of_vae(file: SafetensorsFile, folder: str) -> Latents | None:
    if folder == "vae":
        family, names = registry.recognise_vae(file.shapes, file.metadata)
    else:
        family = registry.recognise(TensorIndex(file.shapes, file.metadata)).family
        found = registry.checkpoint_vae(family, file.shapes)
        if found is None:
            return None
        vae, names = found
        family = replace(family, vae=vae)
    with unfilled():
        network = family.vae.build(configured(file, family.vae, names))
    channels: int | None = getattr(network, "latent_channels", None)
    if channels is None:
        return None
    return Latents(channels, getattr(network, "latent_dim", 2), family.label, family.vae.build)
