"""Tests of nodes, links and classes of a prompt as data."""

from __future__ import annotations

from darkroom.contract.graph.prompt_graph import PromptGraph
from tests.contract.graph.declared import node


def test_a_prompts_outputs_tell_what_runs() -> None:
    prompt = {
        "3": node("KSampler", latent_image=["5", 0]),
        "5": node("EmptyLatentImage", width=512, height=512),
        "8": node("VAEDecode", samples=["3", 0]),
        "9": node("SaveImage", images=["8", 0]),
        "20": node("VAEDecode", samples=["3", 0]),
    }
    graph = PromptGraph(prompt, {"SaveImage": {"output_node": True}})
    assert set(graph.running_part()) == {"3", "5", "8", "9"}
    assert graph.below("3") == {"8", "9", "20"}
