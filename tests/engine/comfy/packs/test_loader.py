"""Packs of custom nodes: found, imported, registered, and reported when they fail."""

from __future__ import annotations

from pathlib import Path

import pytest

from darkroom.contract.errors import PromptRejected
from darkroom.engine.comfy.packs.discovery import Pack, find_packs
from darkroom.engine.comfy.packs.loader import wanted_packs
from darkroom.engine.engine import Engine
from darkroom.engine.settings import EngineSettings
from tests.engine.comfy.loading import loaded, write_pack

ADD = """
    class Add:
        INPUT_TYPES = classmethod(lambda cls: {"required": {"a": ("INT", {}), "b": ("INT", {})}})
        RETURN_TYPES = ("INT",)
        FUNCTION = "add"
        CATEGORY = "sums"

        def add(self, a, b):
            return (a + b,)

    NODE_CLASS_MAPPINGS = {"Add": Add}
    NODE_DISPLAY_NAME_MAPPINGS = {"Add": "Sum of two"}
"""

BY_SCHEMA = """
    from comfy_api.latest import ComfyExtension, io

    class Repeat(io.ComfyNode):
        @classmethod
        def define_schema(cls):
            return io.Schema(
                node_id="Repeat", display_name="Repeat text", category="text",
                inputs=[
                    io.String.Input("text", default="a"),
                    io.Int.Input("times", default=2, min=1, max=9),
                    io.Combo.Input("case", options=["upper", "lower"], optional=True),
                ],
                outputs=[io.String.Output(display_name="repeated")],
                hidden=[io.Hidden.unique_id],
            )

        @classmethod
        def validate_inputs(cls, text):
            return True if text != "bad" else "no bad text"

        @classmethod
        def execute(cls, text, times, case="lower"):
            return io.NodeOutput(getattr(text * times, case)() + cls.hidden.unique_id)

    class Extension(ComfyExtension):
        async def get_node_list(self):
            return [Repeat]

    async def comfy_entrypoint():
        return Extension()
"""


def test_a_folder_and_a_file_are_packs_and_their_nodes_run(tmp_path: Path) -> None:
    write_pack(tmp_path, "sums", "from .add import NODE_CLASS_MAPPINGS, NODE_DISPLAY_NAME_MAPPINGS", add=ADD)
    with loaded(tmp_path) as made:
        assert {name: report.status for name, report in made.reports.items()} == {"sums": "loaded", "zz_show": "loaded"}
        assert made.reports["sums"].nodes == ["Add"]
        info = made.engine.object_info("Add")["Add"]
        assert (info["display_name"], info["python_module"]) == ("Sum of two", "custom_nodes.sums")
        assert made.shown("Add", a=2, b=3) == "5"


def test_nodes_by_schema_run_are_checked_and_are_described_as_others(tmp_path: Path) -> None:
    write_pack(tmp_path, "schema_style", BY_SCHEMA)
    with loaded(tmp_path) as made:
        assert made.reports["schema_style"].error is None
        info = made.engine.object_info("Repeat")["Repeat"]
        assert info["input"]["required"]["times"] == ["INT", {"default": 2, "min": 1, "max": 9}]
        assert info["input"]["optional"]["case"] == ["COMBO", {"multiselect": False, "options": ["upper", "lower"]}]
        assert info["output_name"] == ["repeated"]
        assert made.shown("Repeat", text="xY", times=2, case="upper") == "XYXY1"
        with pytest.raises(PromptRejected, match="."):
            made.run(
                {
                    "1": {"class_type": "Repeat", "inputs": {"text": "bad", "times": 1}},
                    "2": {"class_type": "Show", "inputs": {"value": ["1", 0]}},
                }
            )


def test_a_pack_that_fails_is_reported_and_costs_no_other(tmp_path: Path) -> None:
    write_pack(tmp_path, "broken", "import a_package_that_nobody_has")
    write_pack(tmp_path, "exits", "raise SystemExit(3)")
    write_pack(tmp_path, "empty", "")
    write_pack(tmp_path, "sums.py", ADD)
    with loaded(tmp_path) as made:
        errors = {name: report.error for name, report in made.reports.items()}
        assert errors["broken"] == "ModuleNotFoundError: No module named 'a_package_that_nobody_has'"
        assert errors["exits"] == "SystemExit: 3"
        assert "neither NODE_CLASS_MAPPINGS nor comfy_entrypoint" in str(errors["empty"])
        assert errors["sums"] is None
        assert "a_package_that_nobody_has" in made.reports["broken"].trace


def test_prestartup_scripts_of_all_packs_run_before_the_first_import(tmp_path: Path) -> None:
    late = "import sys\nsys.modules['early_bird'] = sys"
    write_pack(tmp_path, "a_first", "import early_bird\nNODE_CLASS_MAPPINGS = {}")
    write_pack(tmp_path, "b_second", "NODE_CLASS_MAPPINGS = {}", prestartup_script=late)
    write_pack(tmp_path, "c_third", "NODE_CLASS_MAPPINGS = {}", prestartup_script="1 / 0")
    with loaded(tmp_path) as made:
        assert made.reports["a_first"].status == made.reports["b_second"].status == "loaded"
        assert made.reports["c_third"].error == "ZeroDivisionError: division by zero"


def test_a_pack_never_replaces_a_built_in_node(tmp_path: Path) -> None:
    write_pack(tmp_path, "greedy.py", ADD.replace('{"Add": Add}', '{"KSampler": Add, "Add": Add}'))
    with loaded(tmp_path) as made:
        assert made.reports["greedy"].nodes == ["Add"]
        assert made.engine.object_info("KSampler")["KSampler"]["python_module"] == "nodes"


def test_a_pack_replaces_a_node_that_the_engine_has_under_the_packs_name(tmp_path: Path) -> None:
    write_pack(tmp_path, "gguf.py", ADD.replace('{"Add": Add}', '{"UnetLoaderGGUF": Add}'))
    with loaded(tmp_path) as made:
        assert made.reports["gguf"].nodes == ["UnetLoaderGGUF"]
        assert made.engine.object_info("UnetLoaderGGUF")["UnetLoaderGGUF"]["python_module"] == "custom_nodes.gguf"


def test_what_is_disabled_or_hidden_is_no_pack(tmp_path: Path) -> None:
    folder = tmp_path / "custom_nodes"
    for name in ("one", "two.disabled", "__pycache__", ".git", "no_init"):
        write_pack(tmp_path, name, "")
    (folder / "no_init" / "__init__.py").unlink()
    write_pack(tmp_path, "single.py", "")
    write_pack(tmp_path, "example.py.disabled", "")
    assert [pack.name for pack in find_packs([folder, tmp_path / "nowhere"])] == ["one", "single"]


def test_flags_let_in_all_none_or_the_named_packs() -> None:
    packs = [Pack("one", Path("/one")), Pack("two", Path("/two.py"))]
    assert wanted_packs(packs, disable_all=False, whitelist=()) == packs
    assert wanted_packs(packs, disable_all=True, whitelist=()) == []
    assert wanted_packs(packs, disable_all=True, whitelist=("two.py",)) == packs[1:]


def test_an_engine_set_to_load_none_reports_them_as_skipped(tmp_path: Path) -> None:
    write_pack(tmp_path, "one", "raise RuntimeError")
    settings = EngineSettings(base_directory=tmp_path, cpu=True, disable_all_custom_nodes=True)
    with Engine(settings) as engine:
        reports = engine.load_custom_nodes()
    assert [(report.name, report.status) for report in reports] == [("one", "skipped")]


def test_a_pack_that_ends_the_process_is_found_out_in_its_trial(tmp_path: Path) -> None:
    write_pack(tmp_path, "deadly", "import os\nos._exit(7)")
    with Engine(EngineSettings(base_directory=tmp_path, cpu=True)) as engine:
        (report,) = engine.load_custom_nodes()
        assert (report.name, report.error) == ("deadly", "its import ends the process (exit code 7)")
        assert "SaveImage" in engine.catalogue


def test_a_node_that_cannot_describe_itself_costs_no_other_its_description(tmp_path: Path) -> None:
    write_pack(tmp_path, "sums.py", ADD)
    write_pack(tmp_path, "vague.py", ADD.replace('{"required"', '{1 / 0: 1, "required"').replace('"Add"', '"Vague"'))
    with loaded(tmp_path) as made:
        every = made.engine.object_info()
        assert "Add" in every
        assert "Vague" not in every
        with pytest.raises(ZeroDivisionError):
            made.engine.object_info("Vague")


def test_packs_offer_the_choices_of_the_built_in_scalers(tmp_path: Path) -> None:
    choices = ADD.replace('("INT", {})}})', "(nodes.ImageScale.upscale_methods,)}})", 1)
    write_pack(tmp_path, "scaler.py", "\n    import nodes\n" + choices)
    with loaded(tmp_path) as made:
        asked = made.engine.object_info("Add")["Add"]["input"]["required"]["b"]
        assert asked == made.engine.object_info("ImageScale")["ImageScale"]["input"]["required"]["upscale_method"][:1]


@pytest.mark.parametrize("section", ["optional", "hidden"])
def test_a_section_that_answers_to_any_name_takes_values_and_links_it_does_not_list(
    tmp_path: Path, section: str
) -> None:
    any_name = """
    class AnyName(dict):
        __contains__ = lambda self, key: True
        __getitem__ = lambda self, key: (None, {})

    class Gather:
        INPUT_TYPES = classmethod(lambda cls: {"required": {}, SECTION: AnyName()})
        RETURN_TYPES = ("STRING",)
        FUNCTION = "gather"

        def gather(self, **given):
            return (str(sorted(given.items())),)

    NODE_CLASS_MAPPINGS = {"Gather": Gather}
    """
    write_pack(tmp_path, "gather.py", any_name.replace("SECTION", repr(section)))
    with loaded(tmp_path) as made:
        assert made.shown("Gather", first=1, second="b") == "[('first', 1), ('second', 'b')]"
