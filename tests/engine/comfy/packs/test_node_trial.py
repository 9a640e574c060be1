"""Trials of nodes: what a pack asks for only when its nodes run is found before a job does."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from darkroom.engine.comfy.packs.commands import node_list, table
from darkroom.engine.comfy.packs.discovery import Pack
from darkroom.engine.comfy.packs.node_trial import no_network
from darkroom.engine.comfy.packs.trial import TrialResult, try_pack
from tests.engine.comfy.loading import write_pack

PACK = """
    import comfy.utils, comfy.ldm.flux.model

    class AnyType(str):
        def __ne__(self, other):
            return False

        def __eq__(self, other):
            return True

    def node(function, inputs, outputs=("*",)):
        return type("Made", (), {
            "INPUT_TYPES": classmethod(lambda cls: {"required": inputs}), "RETURN_TYPES": outputs, "FUNCTION": "go",
            "go": function,
        })

    def ends(self):
        import os
        os._exit(3)

    def loads(self, model, conditioning, latent, mask, count):
        assert count == 4 and model.model.diffusion_model is not None and len(conditioning) == 1
        return (latent,)

    def calls(self, number):
        import socket
        socket.create_connection(("127.0.0.1", 9))

    NODE_CLASS_MAPPINGS = {
        "Member": node(lambda self, clip: clip.tokenizer.no_such_member, {"clip": ("CLIP",)}),
        "Name": node(lambda self: comfy.ldm.flux.model.Flux(), {}),
        "Package": node(lambda self, text: __import__("no_such_package"), {"text": ("STRING", {})}),
        "Own": node(lambda self: self.own_mistake, {}),
        "Good": node(loads, {
            "model": ("MODEL",), "conditioning": ("CONDITIONING",), "latent": ("LATENT",), "mask": ("MASK",),
            "count": ("INT", {"min": 4}),
        }),
        "Chained": node(lambda self, value: (value,), {"value": ("MINE",)}),
        "Mine": node(lambda self, kind: ("mine",), {"kind": (["a", "b"],)}, ("MINE",)),
        "Any": node(lambda self, value: (value,), {"value": (AnyType("*"),)}),
        "Strange": node(lambda self, value: (value,), {"value": ("UNKNOWN",)}),
        "Network": node(calls, {"number": ("FLOAT", {})}),
        "Ends": node(ends, {}),
    }
"""


@pytest.mark.slow
def test_nodes_that_lack_something_are_named_and_others_are_not(tmp_path: Path) -> None:
    result = try_pack(write_pack(tmp_path, "some.py", PACK), tmp_path, runs_nodes=True)
    assert result.error is None and len(result.nodes) == 11
    assert set(result.failed_nodes) == {"Member", "Name", "Package", "Ends"}
    assert result.failed_nodes["Member"] == "TokenizerSet has no no_such_member, which ComfyUI's may have"
    assert "comfy.ldm.flux.model.Flux, which this engine does not support" in result.failed_nodes["Name"]
    assert result.failed_nodes["Package"] == "it needs the Python package no_such_package"
    assert result.untried == {"Strange": "it takes a UNKNOWN"}
    assert set(result.tried) == set(result.nodes) - {"Strange", "Ends"}
    assert not list((tmp_path / "output").glob("*")) if (tmp_path / "output").exists() else True


def test_no_socket_connects_in_a_trial() -> None:
    with no_network(), pytest.raises(OSError, match="a trial has no network"):
        socket.create_connection(("127.0.0.1", 9), timeout=1)


def test_the_table_counts_nodes_and_the_lines_below_name_them(tmp_path: Path) -> None:
    result = TrialResult(
        None, ("A", "B", "C"), seconds=0.5, failed_nodes={"B": "it needs\nmore"}, tried=("A", "B"), untried={"C": "why"}
    )
    rows = [(Pack("pack", tmp_path), result)]
    assert "| pack | 3 | 2 | 1 | 0.50 | none |  |  |" in table(rows)
    assert node_list(rows) == "pack: B fails: it needs\npack: C was not run: why\n"
