"""The table of known packs is written from the results of trying them."""

from __future__ import annotations

from pathlib import Path

import pytest

from darkroom.engine.comfy.packs.discovery import Pack
from darkroom.engine.comfy.packs.known_packs import KNOWN_PACKS
from darkroom.engine.comfy.packs.sync.manifest import PackEntry, read_packs
from tests.engine.comfy.loading import write_pack
from tools.packs_table import PackCompared, PackResult, main, num_listed, read_results, table, try_pack

ENTRY = PackEntry("one", "https://github.com/a/one", revision="a" * 40)
NODES = """
    import comfy.ldm.flux.model

    class Works:
        INPUT_TYPES = classmethod(lambda cls: {"required": {}})
        RETURN_TYPES = ("INT",)
        FUNCTION = "go"

        def go(self):
            return (1,)

    class Lacks(Works):
        def go(self):
            return (comfy.ldm.flux.model.Flux(),)

    NODE_CLASS_MAPPINGS = {"Works": Works, "Lacks": Lacks}
"""


def test_the_page_is_current() -> None:
    assert main(["--check"]) == 0, "run `python -m tools.packs_table`"


def test_results_are_of_known_packs() -> None:
    assert read_results().keys() <= {entry.name for entry in read_packs(KNOWN_PACKS)}


def test_nodes_with_the_same_lack_are_named_together() -> None:
    lack = "one uses comfy.x.Y, which this engine does not support"
    result = PackResult(nodes=8, ran=3, untried=0, reference=8, failed={f"N{index}": lack for index in range(5)})
    written = table([ENTRY], {"one": result}, {}).splitlines()
    assert written[2] == "| [one](https://github.com/a/one) | `aaaaaaa` | 8 | 8 | 3 | 5 | 0 | – | – |"
    assert " ".join(written[4:]).replace("  ", " ") == (
        "- one: `N0`, `N1`, `N2`, `N3` and 1 more: comfy.x.Y, which this engine does not support."
    )


def test_a_pack_that_does_not_load_says_why() -> None:
    written = table([ENTRY], {"one": PackResult(error="ImportError: no x")}, {}).splitlines()
    assert written[2].endswith("| 0 | – | 0 | all | 0 | – | – |")
    assert written[-1] == "- one does not load: ImportError: no x."


def test_nodes_and_workflows_that_agree_are_counted_and_the_others_named() -> None:
    nodes = {"A": "", "B": "differs: value", "C": "fails alike: no model"}
    compared = PackCompared(nodes, {"w": "", "v": "fails alike: no file"})
    written = table([ENTRY], {"one": PackResult(nodes=3, ran=3)}, {"one": compared}).splitlines()
    assert written[2].endswith("| 1 of 2 | 1 of 2 |")
    assert written[-1] == "- one: `B` differs: value; `v` fails alike: no file."


def test_nodes_that_a_server_lists_are_counted_by_pack() -> None:
    nodes = {"A": {"python_module": "custom_nodes.one"}, "B": {"python_module": "nodes"}}
    assert num_listed(nodes) == {"one": 1}


@pytest.mark.slow
def test_a_pack_is_tried_in_a_process_of_its_own(tmp_path: Path) -> None:
    write_pack(tmp_path, "tried", NODES)
    result = try_pack(Pack("tried", tmp_path / "custom_nodes" / "tried"), 120.0)
    assert (result.nodes, result.ran, result.error) == (2, 1, None)
    assert [*result.failed] == ["Lacks"]
