"""Nodes that save or show pass on what they got, as in newer ComfyUI: what they declare, and links from them."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from io import BytesIO
from pathlib import Path
from typing import Annotated, Any

import pytest
import torch

from darkroom.engine.engine import Engine, RunRequest, RunResult
from darkroom.engine.images.svg import Svg
from darkroom.engine.media.video import VideoComponents, VideoFromComponents
from darkroom.engine.nodes.base import NodeContext, NodeOutput
from darkroom.engine.nodes.built_in import built_in_nodes
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.markers import Socket
from darkroom.engine.nodes.sockets import ANY, AUDIO, IMAGE, LATENT, MASK, STRING, SVG, VIDEO
from darkroom.engine.runtime.outputs import FileFolders
from darkroom.engine.settings import EngineSettings
from tests.engine.nodes.passing_on import OUTPUTS_OF_OUTPUT_NODES
from tests.engine.nodes.test_object_info import OURS_ALONE, Environment

# In place of these ComfyUI 0.33.0 has nodes of other names, `Preview3D` and `SaveLoRA`, without outputs.
GONE_LATER = {"Preview3DAnimation", "SaveLoRANode"}
ADDED_LATER = {"SaveConditioning"}
MADE = {
    "IMAGE": torch.linspace(0, 1, 2 * 16 * 16 * 3).reshape(2, 16, 16, 3),
    "MASK": torch.linspace(0, 1, 64).reshape(1, 8, 8),
    "LATENT": {"samples": torch.ones(1, 4, 8, 8)},
    "AUDIO": {"waveform": torch.zeros(1, 2, 4410), "sample_rate": 44100},
    "SVG": Svg([BytesIO(b"<svg></svg>")]),
    "VIDEO": VideoFromComponents(VideoComponents(torch.zeros(3, 32, 32, 3), Fraction(8))),
    "STRING": "words",
    "*": {"words": ["a", "\u00fc"]},
}
OPTIONS: dict[str, dict[str, Any]] = {
    "SaveAnimatedPNG": {"fps": 6.0, "compress_level": 4},
    "SaveAnimatedWEBP": {"fps": 6.0, "lossless": True, "quality": 80, "method": "default"},
    "SaveWEBM": {"codec": "vp9", "fps": 8.0, "crf": 32.0},
    "SaveVideo": {"format": "auto", "codec": "auto"},
    "SaveAudioMP3": {"quality": "128k"},
    "SaveAudioOpus": {"quality": "128k"},
    "SaveText": {"format": "txt"},
    "SaveAudioAdvanced": {"format": "mp3", "format.quality": "128k"},
    "SaveImageAdvanced": {"format": "png", "format.bit_depth": "8-bit", "format.input_color_space": "sRGB"},
}
TAKEN = {"PreviewAny": "*"}  # what it got, where that is not what it passes on
COUNTS = "LoopProgress"  # passes on no value that it got
# Nodes with several outputs have made what they pass on, or have tests of their own.
PASSING = sorted(name for name, outputs in OUTPUTS_OF_OUTPUT_NODES.items() if len(outputs) == 1 and name != COUNTS)
CLASSES = {item.class_type: item for item in built_in_nodes()}


def sources() -> list[Any]:
    def source(kind: str, socket: Any) -> Any:
        def make(context: NodeContext) -> Any:
            return MADE[kind]

        make.__annotations__["return"] = socket
        return node(f"Make {kind}", category="test")(make)

    sockets = {
        "IMAGE": IMAGE, "MASK": MASK, "LATENT": LATENT, "AUDIO": AUDIO, "SVG": SVG, "VIDEO": VIDEO, "STRING": STRING,
        "*": ANY,
    }  # fmt: skip
    return [source(kind, socket) for kind, socket in sockets.items()]


class Passed:
    """An engine of the output nodes, of sources for them, and of a node that keeps what reaches it."""

    def __init__(self, base: Path) -> None:
        self.settings = EngineSettings(base_directory=base, cpu=True)
        self.kept: list[Any] = []
        kept = self.kept

        @node("Keep", category="test", is_output=True)
        def keep(context: NodeContext, *, value: ANY) -> Annotated[NodeOutput, Socket("*")]:
            kept.append(value)
            return NodeOutput({"text": ("kept",)}, (value,))

        self.engine = Engine(self.settings, (*sources(), keep, *(CLASSES[name] for name in OUTPUTS_OF_OUTPUT_NODES)))

    def has(self, shown: dict[str, Any]) -> bool:
        """Return True where a file that a result shows exists."""
        settings = self.settings
        return FileFolders(settings.input_path, settings.output_path, settings.temp_path).has(shown)

    def run(self, prompt: dict[str, Any]) -> RunResult:
        checked = self.engine.check(prompt)
        assert not checked.node_problems
        request = RunRequest("p", checked.prompt, checked.outputs, {}, False)
        return self.engine.submit(request, lambda event: None).result(timeout=60)


@pytest.fixture
def passed(tmp_path: Path) -> Iterator[Passed]:
    passed = Passed(tmp_path)
    yield passed
    passed.engine.close()


def prompt_of(class_type: str) -> dict[str, Any]:
    """Return a prompt in which a node keeps what an output node of this class passes on."""
    (kind, _), *_ = OUTPUTS_OF_OUTPUT_NODES[class_type]
    spec = CLASSES[class_type].spec(Environment())
    taken = next(item.name for item in spec.inputs if not isinstance(item.type, str) or item.name != "filename_prefix")
    prefix = {"filename_prefix": "a"} if any(item.name == "filename_prefix" for item in spec.inputs) else {}
    inputs = {taken: ["source", 0], **prefix, **OPTIONS.get(class_type, {})}
    return {
        "source": {"class_type": f"Make {TAKEN.get(class_type, kind)}", "inputs": {}},
        "end": {"class_type": "Keep", "inputs": {"value": ["show", 0]}},
        "show": {"class_type": class_type, "inputs": inputs},
    }


def test_output_nodes_declare_the_outputs_that_they_have_in_comfyui() -> None:
    ours = {
        class_type: [(output.type, output.name) for output in spec.outputs]
        for class_type, item in CLASSES.items()
        if (spec := item.spec(Environment())).is_output and class_type not in OURS_ALONE | GONE_LATER | ADDED_LATER
    }
    assert ours == OUTPUTS_OF_OUTPUT_NODES


@pytest.mark.parametrize("class_type", PASSING)
def test_a_link_from_an_output_node_gets_what_it_got_and_its_own_results_stay(class_type: str, passed: Passed) -> None:
    result = passed.run(prompt_of(class_type))
    assert result.status == "success"
    (value,) = passed.kept
    if class_type == "PreviewAny":
        assert value == '{\n    "words": [\n        "a",\n        "\u00fc"\n    ]\n}'
        assert result.outputs["show"] == {"text": (value,)}
    else:
        (kind, _), *_ = OUTPUTS_OF_OUTPUT_NODES[class_type]
        assert value is MADE[kind]
        files = [item for items in result.outputs["show"].values() for item in items if isinstance(item, dict)]
        assert files and all(passed.has(item) for item in files)
    assert result.outputs["end"] == {"text": ("kept",)}


def test_an_output_node_whose_file_is_gone_runs_again_and_passes_on_again(passed: Passed) -> None:
    prompt = prompt_of("SaveImage")
    first = passed.run(prompt)
    assert passed.run(prompt).outputs == first.outputs and len(passed.kept) == 1
    (passed.settings.output_path / first.outputs["show"]["images"][0]["filename"]).unlink()
    again = passed.run(prompt)
    assert again.status == "success" and again.outputs["show"] != first.outputs["show"]
    assert all(passed.has(item) for item in again.outputs["show"]["images"])
