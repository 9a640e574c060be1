"""Node classes made for Flux.1: sizes of images, options of conditioning."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from darkroom.contract.errors import Problem
from darkroom.contract.graph.validate import find_problems
from darkroom.engine.families.flux import nodes
from darkroom.engine.nodes.built_in import built_in_nodes
from tests.contract.graph.declared import node, rules
from tests.engine.runtime.runs import NoFiles

CONTEXT: Any = None  # these nodes use nothing of it


@pytest.mark.parametrize(
    ("size", "scaled"), [((64, 64), (1024, 1024)), ((100, 64), (1248, 832)), ((3, 90), (672, 1568))]
)
def test_an_image_takes_the_size_whose_aspect_ratio_is_nearest(size: tuple[int, int], scaled: tuple[int, int]) -> None:
    image = torch.rand(1, size[1], size[0], 3)
    made = nodes.flux_kontext_image_scale(CONTEXT, image=image)
    assert made.shape == (1, scaled[1], scaled[0], 3)


def test_conditioning_gets_options_and_the_given_one_stays_as_it_is() -> None:
    given: list[list[Any]] = [[torch.zeros(1, 77, 768), {"pooled_output": None}]]
    guided = nodes.flux_guidance(CONTEXT, conditioning=given, guidance=2.0)
    assert guided[0][1]["guidance"] == 2.0 and "guidance" not in given[0][1]
    assert nodes.flux_disable_guidance(CONTEXT, conditioning=guided)[0][1]["guidance"] is None
    method = nodes.flux_kontext_multi_reference_latent_method
    assert method(CONTEXT, conditioning=given, reference_latents_method="uxo/uno")[0][1] == {
        "pooled_output": None,
        "reference_latents_method": "uxo",
    }


@pytest.mark.parametrize(("given", "stored"), [("uxo/uno", "uxo"), ("uso", "uxo"), ("uxo", "uxo"), ("index", "index")])
def test_former_names_of_reference_methods_are_taken(given: str, stored: str) -> None:
    conditioning: list[list[Any]] = [[torch.zeros(1, 1, 4), {}]]
    method = nodes.flux_kontext_multi_reference_latent_method
    found = method(CONTEXT, conditioning=conditioning, reference_latents_method=given)
    assert found[0][1]["reference_latents_method"] == stored
    assert problems_of(given) == []


def test_an_unknown_reference_method_is_refused_with_those_there_are() -> None:
    (problem,) = problems_of("sideways")
    assert "got 'sideways', expected one of offset, index" in problem.details
    assert problem.explanation is not None and problem.explanation.allowed == list(nodes.REFERENCE_METHODS)


def problems_of(method: str) -> list[Problem]:
    """Return the problems of a prompt with a reference method."""
    [item] = [item for item in built_in_nodes() if item.class_type == "FluxKontextMultiReferenceLatentMethod"]
    own = replace(item.rules(NoFiles()), is_output=True)
    empty = rules("Empty", {}, ("CONDITIONING",))
    prompt = {"1": node("Empty"), "2": node("Method", conditioning=["1", 0], reference_latents_method=method)}
    found = find_problems(prompt, {"Empty": empty, "Method": own}.get).node_problems
    return list(found["2"].problems) if found else []
