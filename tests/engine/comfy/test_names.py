"""ComfyUI's import names, as packs use them."""

from __future__ import annotations

import importlib
import inspect
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from darkroom.engine.comfy.host import HOST
from darkroom.engine.events import NodeProgress, RunFailed
from darkroom.engine.models.random_weights import write_random_checkpoint
from tests.engine.comfy.loading import loaded, write_pack
from tests.engine.models.kinds.test_load_clip_vision import random_weights

NODE = """
    class {name}:
        INPUT_TYPES = classmethod(lambda cls: {{"required": {{"value": ("INT", {{"default": 0}})}}}})
        RETURN_TYPES = ("*",)
        FUNCTION = "go"

        def go(self, value):
            {body}

    NODE_CLASS_MAPPINGS = {{"{name}": {name}}}
"""


def pack_with(imports: str, body: str, name: str = "Tried") -> str:
    """A pack of one node; lines of `body` are the node's function."""
    return "\n".join([*("    " + line for line in imports.splitlines()), NODE.format(name=name, body=body)])


def test_progress_of_a_node_is_reported_in_both_of_comfyuis_ways(tmp_path: Path) -> None:
    body = "bar = ProgressBar(4); bar.update(1); bar.update_absolute(3, 5)"
    body += "; api.execution.set_progress(value=0.5, max_value=1.0); return (value,)"
    imports = "from comfy.utils import ProgressBar\nfrom comfy_api.v0_0_2 import ComfyAPISync\napi = ComfyAPISync()"
    write_pack(tmp_path, "progress.py", pack_with(imports, body))
    with loaded(tmp_path) as made:
        made.shown("Tried", value=1)
        told = [(event.value, event.maximum) for event in made.events if isinstance(event, NodeProgress)]
    assert told == [(1, 4), (3, 5), (0.5, 1.0)]


def test_a_node_expands_with_ids_that_are_the_same_each_time(tmp_path: Path) -> None:
    body = "g = GraphBuilder(); n = g.node('Plain', value=value + 1)"
    body += "; return {'result': (n.out(0),), 'expand': g.finalize()}"
    write_pack(tmp_path, "expands.py", pack_with("from comfy_execution.graph_utils import GraphBuilder", body))
    write_pack(tmp_path, "plain.py", pack_with("", "return (value * 10,)", "Plain"))
    with loaded(tmp_path) as made:
        assert made.shown("Tried", value=1) == "20"
        first = [event.node.node_id for event in made.events if hasattr(event, "node")]
        assert "1.0.0.1" in first


def test_built_in_nodes_can_be_called_as_classes(tmp_path: Path) -> None:
    body = "image = nodes.EmptyImage if hasattr(nodes, 'EmptyImage') else nodes.NODE_CLASS_MAPPINGS['EmptyImage']"
    body += "; return (tuple(getattr(image(), image.FUNCTION)(8, 4, 2)[0].shape),)"
    write_pack(tmp_path, "calls.py", pack_with("import nodes\nassert nodes.MAX_RESOLUTION == 16384", body))
    with loaded(tmp_path) as made:
        assert made.shown("Tried", value=0) == "(2, 4, 8, 3)"


def test_nodes_by_schema_are_called_by_their_names_of_before_as_well(tmp_path: Path) -> None:
    imports = (
        "from comfy_extras.nodes_mask import SolidMask\nfrom comfy_extras.nodes_hunyuan import EmptyHunyuanLatentVideo"
    )
    body = "masks = SolidMask.solid(0.5, 4, 2)[0], SolidMask().solid(value=0.5, width=4, height=2)[0], "
    body += "SolidMask.execute(0.5, 4, 2)[0], getattr(SolidMask(), SolidMask.FUNCTION)(0.5, 4, 2)[0]"
    body += "; video = EmptyHunyuanLatentVideo().generate(32, 16, 5)[0]"
    body += "; return ([mask.tolist() == [[[0.5] * 4] * 2] for mask in masks] + [tuple(video['samples'].shape)],)"
    write_pack(tmp_path, "calls.py", pack_with(imports, body))
    with loaded(tmp_path) as made:
        assert made.shown("Tried", value=0) == "[True, True, True, True, (1, 16, 2, 2, 4)]"


def test_a_built_in_class_declares_its_inputs_in_the_older_form(tmp_path: Path) -> None:
    write_pack(tmp_path, "any.py", "NODE_CLASS_MAPPINGS = {}")
    with loaded(tmp_path):
        import nodes  # served while packs are loaded

        declared = nodes.KSampler.INPUT_TYPES()
        assert list(declared["required"])[:3] == ["model", "seed", "steps"]
        assert declared["required"]["steps"] == ("INT", {"default": 20, "min": 1, "max": 10000})
        assert nodes.KSampler.FUNCTION == "sample"
        assert nodes.KSampler is nodes.NODE_CLASS_MAPPINGS["KSampler"]


def test_folders_are_the_engines_and_packs_add_to_them(tmp_path: Path) -> None:
    extra = tmp_path / "elsewhere"
    extra.mkdir()
    (extra / "a.gguf").write_bytes(b"")
    (tmp_path / "models" / "loras").mkdir(parents=True)
    (tmp_path / "models" / "loras" / "style.safetensors").write_bytes(b"")
    source = f"""
        import folder_paths
        folder_paths.folder_names_and_paths["quantized"] = ([{str(extra)!r}], {{".gguf"}})
        folder_paths.add_model_folder_path("loras", {str(extra)!r})
        folder_paths.folder_names_and_paths["loras"][1].add(".gguf")
        NODE_CLASS_MAPPINGS = {{}}
    """
    write_pack(tmp_path, "folders.py", source)
    with loaded(tmp_path) as made:
        import folder_paths  # served while packs are loaded

        assert made.reports["folders"].error is None
        assert folder_paths.get_filename_list("quantized") == ["a.gguf"]
        assert folder_paths.get_filename_list("loras") == ["a.gguf", "style.safetensors"]
        assert folder_paths.get_full_path("loras", "a.gguf") == str(extra / "a.gguf")
        assert folder_paths.get_full_path("loras", "../../secret") is None
        assert folder_paths.base_path == str(tmp_path)
        assert folder_paths.get_save_image_path("sub/x", folder_paths.get_output_directory())[1:4] == ("x", 1, "sub")
        with pytest.raises(ValueError, match="outside its folder"):
            folder_paths.get_annotated_filepath("../x.png [temp]")


def test_a_name_that_is_lacking_can_be_imported_and_raises_when_used(tmp_path: Path) -> None:
    imports = "from comfy.ldm.flux.model import Flux\nimport comfy.model_base\nclass Mine(Flux): pass\n"
    imports += "assert not isinstance(1, comfy.model_base.Hunyuan3Dv2_1)"
    write_pack(tmp_path, "needy.py", pack_with(imports, "return (Flux(),)"))
    with loaded(tmp_path) as made:
        assert made.reports["needy"].status == "loaded"
        assert made.reports["needy"].missing == (
            "comfy.ldm.flux.model.Flux",
            "comfy.model_base.Hunyuan3Dv2_1",
        )
        graph = {
            "1": {"class_type": "Tried", "inputs": {"value": 0}},
            "2": {"class_type": "Show", "inputs": {"value": ["1", 0]}},
        }
        assert made.run(graph).status == "error"
        failure = made.events[-1]
        assert isinstance(failure, RunFailed)
        assert failure.code == "not_supported"
        assert "needy uses comfy.ldm.flux.model.Flux, which this engine does not support" in failure.exception_message


def test_an_import_with_a_fallback_gets_the_fallback_for_what_is_lacking(tmp_path: Path) -> None:
    """Whatever else imported the name before; one whose handler gives up gets the placeholder, as without a handler."""
    source = """
        from comfy.ldm.flux.model import Flux as first
        try:
            from comfy.ldm.flux.model import (
                Flux,
            )
        except ImportError:
            Flux = None
        try:
            from comfy.ldm.flux.model import Flux as needed
        except ImportError as error:
            raise RuntimeError("update ComfyUI") from error
        try:
            import comfy.utils
            from comfy.utils import ProgressBar
        except (ImportError, AttributeError):
            ProgressBar = None
        assert Flux is None and needed is first and ProgressBar is not None
        NODE_CLASS_MAPPINGS = {}
    """
    write_pack(tmp_path, "falls_back.py", source)
    with loaded(tmp_path) as made:
        assert made.reports["falls_back"].error is None
        assert made.reports["falls_back"].missing == ("comfy.ldm.flux.model.Flux",)


def test_libraries_that_comfyuis_modules_import_are_found_in_them(tmp_path: Path) -> None:
    source = "from comfy.sample import np\nassert np.zeros(2).sum() == 0\nNODE_CLASS_MAPPINGS = {}"
    write_pack(tmp_path, "borrows.py", source)
    with loaded(tmp_path) as made:
        assert made.reports["borrows"].error is None
        assert made.reports["borrows"].missing == ()


def test_what_nobody_has_is_missing_as_usual(tmp_path: Path) -> None:
    source = """
        import comfy.model_management as mm
        assert not hasattr(mm, "added_in_another_version")
        try:
            import comfy.no_such_module
        except ModuleNotFoundError:
            NODE_CLASS_MAPPINGS = {}
    """
    write_pack(tmp_path, "probing.py", source)
    with loaded(tmp_path) as made:
        assert made.reports["probing"].error is None


def test_replacing_a_function_that_the_engine_would_not_call_is_refused(tmp_path: Path) -> None:
    write_pack(tmp_path, "patcher.py", "import comfy.samplers\ncomfy.samplers.cond_cat = lambda *args: None")
    with loaded(tmp_path) as made:
        error = made.reports["patcher"].error
    assert error is not None
    assert "patcher uses replacing comfy.samplers.cond_cat" in error


def test_the_import_names_are_free_before_and_after(tmp_path: Path) -> None:
    assert "folder_paths" not in sys.modules
    write_pack(tmp_path, "uses.py", "import folder_paths\nNODE_CLASS_MAPPINGS = {}")
    with loaded(tmp_path):
        assert "folder_paths" in sys.modules
    assert "folder_paths" not in sys.modules
    with pytest.raises(ModuleNotFoundError):
        import comfy  # noqa: F401


def test_packs_that_look_for_comfyuis_folder_find_the_base_directory(tmp_path: Path) -> None:
    write_pack(tmp_path, "looks.py", "import inspect\nfrom server import PromptServer\nNODE_CLASS_MAPPINGS = {}")
    with loaded(tmp_path):
        import server  # served while packs are loaded

        assert Path(inspect.getfile(server.PromptServer)).parent == tmp_path


def test_an_interruption_reaches_a_node_that_asks_for_it(tmp_path: Path) -> None:
    body = (
        "model_management.interrupt_current_processing(); model_management.throw_exception_if_processing_interrupted()"
    )
    write_pack(tmp_path, "stops.py", pack_with("from comfy import model_management", body))
    with loaded(tmp_path) as made:
        graph = {
            "1": {"class_type": "Tried", "inputs": {"value": 0}},
            "2": {"class_type": "Show", "inputs": {"value": ["1", 0]}},
        }
        assert made.run(graph).status == "interrupted"


def test_a_pack_that_wraps_the_server_s_messages_loads_and_is_told_that_it_sees_its_own_alone(tmp_path: Path) -> None:
    marks = "from server import PromptServer\nPromptServer.marked_by_me = True\nNODE_CLASS_MAPPINGS = {}\n"
    write_pack(tmp_path, "marks.py", marks)
    write_pack(tmp_path, "replaces.py", marks + "PromptServer.send_sync = lambda *args: None\n")
    with loaded(tmp_path) as made:
        assert made.reports["marks"].error is None
        assert made.reports["replaces"].error is None
        assert "replacing server.PromptServer.send_sync" in made.reports["replaces"].missing


def test_what_computes_is_not_replaced_in_vain(tmp_path: Path) -> None:
    source = "import comfy.lora\ncomfy.lora.load_lora = lambda *args: {}\nNODE_CLASS_MAPPINGS = {}\n"
    write_pack(tmp_path, "replaces.py", source)
    with loaded(tmp_path) as made:
        assert "replacing comfy.lora.load_lora" in str(made.reports["replaces"].error)


def test_pickled_weights_come_in_the_dictionaries_they_are_in(tmp_path: Path) -> None:
    torch.save({"a": {"w": torch.ones(1)}, "b": {"w": torch.zeros(2)}}, tmp_path / "two.bin")
    torch.save({"state_dict": {"w": torch.ones(3)}, "step": 1}, tmp_path / "trained.bin")
    torch.save({"only": {"w": torch.ones(4)}}, tmp_path / "one.bin")
    torch.save({"w": torch.ones(5)}, tmp_path / "flat.bin")
    body = "read = lambda name: comfy.utils.load_torch_file(str(base / name), safe_load=True)"
    body += "; files = [read(f'{name}.bin') for name in ('trained', 'one', 'flat')]"
    body += "; return ([list(read('two.bin')), *(list(file['w'].shape) for file in files)],)"
    imports = f"import comfy.utils\nfrom pathlib import Path\nbase = Path({str(tmp_path)!r})"
    write_pack(tmp_path, "reads.py", pack_with(imports, body))
    with loaded(tmp_path) as made:
        assert made.shown("Tried", value=0) == "[['a', 'b'], [3], [4], [5]]"


def test_images_are_encoded_through_comfyuis_names(tmp_path: Path) -> None:
    (tmp_path / "models" / "clip_vision").mkdir(parents=True)
    path = tmp_path / "models" / "clip_vision" / "v.safetensors"
    save_file(random_weights(), path)
    body = f"vision = clip_vision.load({str(path)!r}); load_model_gpu(vision.patcher)"
    body += "; pixels = clip_vision.clip_preprocess(torch.ones(1, 20, 24, 3), size=vision.image_size)"
    body += "; out = vision.model(pixel_values=pixels, intermediate_output=-2)"
    body += "; seen = clip_vision.Output(); seen['image_embeds'] = out[2]"
    body += "; return ([torch.equal(seen.image_embeds, vision.encode_image(torch.ones(1, 20, 24, 3)).image_embeds)],)"
    imports = "import torch\nfrom comfy import clip_vision\nfrom comfy.model_management import load_model_gpu"
    write_pack(tmp_path, "sees.py", pack_with(imports, body))
    with loaded(tmp_path) as made:
        assert made.shown("Tried", value=0) == "[True]"


def test_every_module_and_name_of_comfyui_is_importable(tmp_path: Path) -> None:
    """A name that is not there is a placeholder: it fails when it is used."""
    write_pack(tmp_path, "any.py", "NODE_CLASS_MAPPINGS = {}")
    with loaded(tmp_path):
        known = HOST.get().known
        missing = []
        for module, names in known.modules.items():
            served = importlib.import_module(module)
            of_libraries = {
                name for name, source in known.imports[module].items() if not source.startswith(tuple(known.roots))
            }
            missing += [f"{module}.{name}" for name in names - of_libraries if not hasattr(served, name)]
        assert not missing
        assert len(known.modules) > 700 and {"app", "utils", "api_server", "main", "cuda_malloc"} <= known.roots
        assert importlib.import_module("comfy.samplers").torch is torch
        assert importlib.import_module("comfy.sd").comfy is importlib.import_module("comfy")


def test_modules_of_comfy_are_importable_without_it(tmp_path: Path) -> None:
    body = "return (str(get_torch_device()) + ' ' + str(model_management.__name__ == comfy_mm.__name__),)"
    imports = (
        "import model_management\nfrom model_management import get_torch_device\nimport sd1_clip, samplers, ldm.util\n"
        "import comfy.model_management as comfy_mm\nfrom ldm.modules.attention import optimized_attention\n"
        "from utils.extra_config import load_extra_path_config\nimport app.user_manager"
    )
    write_pack(tmp_path, "bare.py", pack_with(imports, body))
    with loaded(tmp_path) as made:
        assert made.shown("Tried", value=0) == "cpu True"
    assert not {"model_management", "samplers", "ldm", "utils", "app"} & sys.modules.keys()


def test_a_pack_s_own_module_of_a_common_name_comes_first(tmp_path: Path) -> None:
    imports = "import sys, os\nsys.path.insert(0, os.path.dirname(__file__))\nimport utils"
    write_pack(tmp_path, "own", pack_with(imports, "return (utils.WHOSE,)"), utils="WHOSE = 'mine'")
    try:
        with loaded(tmp_path) as made:
            assert made.shown("Tried", value=0) == "mine"
    finally:
        sys.path.remove(str(tmp_path / "custom_nodes" / "own"))
        sys.modules.pop("utils", None)


def test_what_one_node_cannot_have_disables_that_node_alone(tmp_path: Path) -> None:
    imports = (
        "import comfy.ldm.flux.model as flux\nDEVICE = flux.Flux()\n"
        "@flux.LastLayer\nclass Decorated:\n    pass\nclass Good2:\n    pass"
    )
    source = pack_with(imports, "return (value,)")
    write_pack(tmp_path, "some.py", source + "\n    NODE_CLASS_MAPPINGS |= {'Decorated': Decorated, 'Nothing': None}\n")
    uses = pack_with("import comfy.ldm.flux.model as flux\nMODEL = flux.Flux()", "return (MODEL.anything(),)", "Uses")
    write_pack(tmp_path, "uses.py", uses)
    with loaded(tmp_path) as made:
        report = made.reports["some"]
        assert report.status == "loaded" and report.nodes == ["Tried"]
        assert set(report.failed_nodes) == {"Decorated", "Nothing"}
        assert "comfy.ldm.flux.layers.LastLayer()" in report.failed_nodes["Decorated"]
        assert made.shown("Tried", value=3) == "3"
        prompt = {
            "1": {"class_type": "Uses", "inputs": {"value": 1}},
            "2": {"class_type": "Show", "inputs": {"value": ["1", 0]}},
        }
        assert made.run(prompt).status == "error"
        (failed,) = [event for event in made.events if isinstance(event, RunFailed)]
        assert "uses uses comfy.ldm.flux.model.Flux().anything, which this engine does not support" in (
            failed.exception_message
        )


def test_a_declaration_that_fails_leaves_out_its_node(tmp_path: Path) -> None:
    source = """
        from comfy_api.latest import ComfyExtension, io

        class Good(io.ComfyNode):
            @classmethod
            def define_schema(cls):
                return io.Schema(node_id="Good", inputs=[], outputs=[io.Int.Output()])

            @classmethod
            def execute(cls):
                return io.NodeOutput(4)

        class Bad(io.ComfyNode):
            @classmethod
            def define_schema(cls):
                return io.Schema(node_id="Bad", inputs=[io.NoSuchType.Input("a")], outputs=[])

        class Both(ComfyExtension):
            async def get_node_list(self):
                return [Bad, Good]

        async def comfy_entrypoint():
            return Both()
    """
    write_pack(tmp_path, "both.py", source)
    with loaded(tmp_path) as made:
        assert made.reports["both"].nodes == ["Good"]
        assert "NoSuchType" in made.reports["both"].failed_nodes["Bad"]
        assert made.shown("Good") == "4"


def test_a_handler_that_imports_what_comfyui_once_had_is_no_fallback(tmp_path: Path) -> None:
    source = """
        import sys
        assert "folder_paths" in sys.modules
        try:
            from comfy.ldm.flux.model import Flux
        except ImportError:
            from comfy.once_there import Flux
        NODE_CLASS_MAPPINGS = {}
    """
    write_pack(tmp_path, "old.py", source)
    with loaded(tmp_path) as made:
        assert made.reports["old"].error is None
        assert made.reports["old"].missing == ("comfy.ldm.flux.model.Flux",)


def test_settings_of_the_device_have_their_older_and_later_names(tmp_path: Path) -> None:
    body = (
        "import torch; half = torch.float16; return (str(("
        "mm.get_autocast_device(mm.get_torch_device()), mm.get_autocast_device('x'), mm.current_loaded_models, "
        "mm.pick_weight_dtype(torch.float32, half), mm.pick_weight_dtype(half, torch.float32), "
        "mm.intermediate_dtype(), mm.current_stream(mm.get_torch_device()), mm.XFORMERS_IS_AVAILABLE, "
        "mm.cleanup_models_gc())),)"
    )
    write_pack(tmp_path, "asks.py", pack_with("import comfy.model_management as mm", body))
    with loaded(tmp_path) as made:
        expected: tuple[object, ...] = (
            "cpu",
            "cuda",
            [],
            torch.float16,
            torch.float16,
            torch.float32,
            None,
            False,
            None,
        )
        assert made.shown("Tried", value=0) == str(expected)


def test_only_an_error_of_memory_is_let_pass(tmp_path: Path) -> None:
    body = (
        "mm.raise_non_oom(torch.OutOfMemoryError('full'))\n"
        "            try: mm.raise_non_oom(KeyError('else'))\n"
        "            except KeyError as error: return (str(error),)"
    )
    write_pack(tmp_path, "asks.py", pack_with("import torch, comfy.model_management as mm", body))
    with loaded(tmp_path) as made:
        assert made.shown("Tried", value=0) == "'else'"


def test_a_checkpoints_network_is_stored_in_the_type_that_a_pack_asks_for(tmp_path: Path) -> None:
    (tmp_path / "models" / "checkpoints").mkdir(parents=True)
    write_random_checkpoint(tmp_path / "models" / "checkpoints" / "a.safetensors", "small")
    body = (
        "load = lambda **options: comfy.sd.load_checkpoint_guess_config('a.safetensors', **options)[0].model\n"
        "            ours = load(model_options={'dtype': torch.float8_e4m3fn, 'initial_device': 'cpu'})\n"
        "            plain = load(te_model_options={'load_device': 'cpu'})\n"
        "            return ([{p.dtype for p in each.parameters()} - {torch.float32} for each in (ours, plain)],)"
    )
    write_pack(tmp_path, "loads.py", pack_with("import torch, comfy.sd", body))
    with loaded(tmp_path) as made:
        assert made.shown("Tried", value=0) == "[{torch.float8_e4m3fn}, set()]"


def test_fast_float8_is_an_option_that_the_loader_takes(tmp_path: Path) -> None:
    body = "return (comfy.sd.load_diffusion_model('none.safetensors', {option: True}),)"
    write_pack(tmp_path, "asks.py", pack_with("import comfy.sd", body.replace("option", "'fp8_optimizations'")))
    write_pack(tmp_path, "other.py", pack_with("import comfy.sd", body.replace("option", "'other'"), "Other"))
    with loaded(tmp_path) as made:
        failures = {}
        for class_type in ("Tried", "Other"):
            node = {"class_type": class_type, "inputs": {"value": 0}}
            shown = {"class_type": "Show", "inputs": {"value": ["1", 0]}}
            assert made.run({"1": node, "2": shown}).status == "error"
            failure = made.events[-1]
            assert isinstance(failure, RunFailed)
            failures[class_type] = failure.exception_message
    assert "none.safetensors" in failures["Tried"]
    assert "with other in model_options" in failures["Other"]


def test_a_hidden_input_may_be_a_list_of_choices(tmp_path: Path) -> None:
    source = """
        class Tried:
            @classmethod
            def INPUT_TYPES(cls):
                return {"required": {"value": ("INT", {})}, "hidden": {"saved": (["CHOOSE"],), "id": "UNIQUE_ID"}}
            RETURN_TYPES = ("*",)
            FUNCTION = "go"
            def go(self, value, id, saved="none"):
                return (f"{id} {saved}",)
        NODE_CLASS_MAPPINGS = {"Tried": Tried}
    """
    write_pack(tmp_path, "lists.py", source)
    with loaded(tmp_path) as made:
        assert made.shown("Tried", value=0) == "1 none"


def test_a_node_that_extends_a_built_in_one_by_a_schema_declares_and_runs_itself(tmp_path: Path) -> None:
    source = """
        from comfy_api.latest import io
        from comfy_extras.nodes_lt import LTXVAddGuide

        class Derived(LTXVAddGuide):
            @classmethod
            def define_schema(cls):
                return io.Schema(node_id="Tried", inputs=[io.Int.Input("value")], outputs=[io.Int.Output()])
            @classmethod
            def execute(cls, value):
                return io.NodeOutput(value + 1)
        NODE_CLASS_MAPPINGS = {"Tried": Derived}
    """
    write_pack(tmp_path, "derives.py", source)
    with loaded(tmp_path) as made:
        assert made.shown("Tried", value=1) == "2"


def test_an_input_takes_the_link_itself_where_its_further_options_say_so(tmp_path: Path) -> None:
    source = """
        from comfy_api.latest import io

        class Raw(io.ComfyNode):
            @classmethod
            def define_schema(cls):
                raw = io.Model.Input("value", extra_dict={"rawLink": True})
                return io.Schema(node_id="Tried", inputs=[raw], outputs=[io.String.Output()])
            @classmethod
            def execute(cls, value):
                return io.NodeOutput(str(value))
        NODE_CLASS_MAPPINGS = {"Tried": Raw}
    """
    write_pack(tmp_path, "raw.py", source)
    write_pack(tmp_path, "models.py", pack_with("", "return (value,)", "Model"))
    with loaded(tmp_path) as made:
        prompt = {
            "0": {"class_type": "Model", "inputs": {"value": 5}},
            "1": {"class_type": "Tried", "inputs": {"value": ["0", 0]}},
            "2": {"class_type": "Show", "inputs": {"value": ["1", 0]}},
        }
        assert made.run(prompt).outputs["2"]["value"] == ["['0', 0]"]


def test_a_vae_and_an_upscaler_are_loaded_from_tensors(tmp_path: Path) -> None:
    checkpoints = tmp_path / "models" / "checkpoints"
    checkpoints.mkdir(parents=True)
    write_random_checkpoint(checkpoints / "a.safetensors", "small")
    imports = "import torch, comfy.sd, comfy.utils\nfrom comfy.cli_args import args\n"
    imports += "from comfy_extras.chainner_models import model_loading"
    body = (
        "args.fast.discard('cublas_ops')\n"
        "            whole = comfy.utils.load_torch_file(folder)\n"
        "            names = [name for name in whole if name.startswith('first_stage_model.')]\n"
        "            vae = comfy.sd.VAE(sd={name.removeprefix('first_stage_model.'): whole[name] for name in names})\n"
        "            image = vae.decode(torch.zeros(1, 4, 8, 8))\n"
        "            kernels = {'body.0': (64, 3), 'body.1': (64,), 'body.2': (3 * 4, 64)}\n"
        "            network = {f'{name}.weight': torch.zeros(*shape, *([3, 3] if len(shape) > 1 else []))\n"
        "                       for name, shape in kernels.items()}\n"
        "            network |= {'body.0.bias': torch.zeros(64), 'body.2.bias': torch.zeros(12)}\n"
        "            larger = model_loading.load_state_dict(network).eval().to('cpu', dtype=torch.float32).cuda(0)\n"
        "            class Own(comfy.sd.VAE):\n"
        "                def __init__(self, name):\n"
        "                    self.own_name = name\n"
        "            Own.is_own = True\n"
        "            own = Own('mine')\n"
        "            kinds = isinstance(vae, comfy.sd.VAE), isinstance(vae, Own), isinstance(own, Own)\n"
        "            facts = own.own_name, hasattr(vae, 'is_own')\n"
        "            return ((kinds, facts, tuple(image.shape), larger.scale),)"
    )
    write_pack(
        tmp_path, "loads.py", pack_with(imports, body.replace("folder", repr(str(checkpoints / "a.safetensors"))))
    )
    with loaded(tmp_path) as made:
        shown = made.shown("Tried", value=0)
        assert shown == "((True, False, True), ('mine', False), (1, 64, 64, 3), 2)"
