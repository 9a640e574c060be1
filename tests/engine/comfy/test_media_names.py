"""ComfyUI's names for videos and audio, as packs use them."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import av
import pytest

from darkroom.engine.images.svg import Svg
from darkroom.engine.media import video
from tests.engine.comfy.loading import loaded, write_pack

# A pack by schema that makes a video, cuts its audio and saves both with the helpers of ComfyUI.
CLIP_PACK = """
    import torch
    from fractions import Fraction
    from comfy_api.input import AudioInput, VideoInput
    from comfy_api.input_impl import VideoFromComponents
    from comfy_api.latest import ComfyExtension, Input, InputImpl, Types, io, ui
    from comfy_api.util import VideoCodec, VideoComponents, VideoContainer

    class Clip(io.ComfyNode):
        @classmethod
        def define_schema(cls):
            return io.Schema(node_id="Clip", inputs=[io.Image.Input("images")], outputs=[io.Video.Output()])

        @classmethod
        def execute(cls, images):
            audio: AudioInput = {"waveform": torch.zeros(1, 2, 8000), "sample_rate": 8000}
            parts = Types.VideoComponents(images=images, audio=audio, frame_rate=Fraction(4))
            return io.NodeOutput(InputImpl.VideoFromComponents(parts))

    class Soundtrack(io.ComfyNode):
        @classmethod
        def define_schema(cls):
            return io.Schema(node_id="Soundtrack", inputs=[io.Video.Input("video")], outputs=[io.Audio.Output()],
                             hidden=[io.Hidden.prompt], is_output_node=True)

        @classmethod
        def execute(cls, video: Input.Video) -> tuple[io.Audio.AudioDict, io.Latent.LatentDict, io.Load3D.Model3DDict]:
            assert isinstance(video, VideoInput) and video.get_duration() == 1.0
            audio = video.get_components().audio
            return io.NodeOutput(audio, ui=ui.AudioSaveHelper.get_save_audio_ui(audio, "track", cls, format="mp3"))

    class Extension(ComfyExtension):
        async def get_node_list(self):
            return [Clip, Soundtrack]

    async def comfy_entrypoint():
        return Extension()
"""


def test_a_pack_by_schema_makes_and_reads_videos(tmp_path: Path) -> None:
    write_pack(tmp_path, "clips.py", CLIP_PACK)
    with loaded(tmp_path) as made:
        blank = {"width": 32, "height": 32, "batch_size": 4, "color": 0}
        saving = {"video": ["2", 0], "filename_prefix": "x", "format": "mp4", "codec": "h264"}
        result = made.run(
            {
                "1": {"class_type": "EmptyImage", "inputs": blank},
                "2": {"class_type": "Clip", "inputs": {"images": ["1", 0]}},
                "3": {"class_type": "SaveVideo", "inputs": saving},
                "4": {"class_type": "Soundtrack", "inputs": {"video": ["2", 0]}},
                "5": {"class_type": "PreviewAudio", "inputs": {"audio": ["4", 0]}},
            }
        )
        assert result.status == "success", made.events[-1]
        folder = made.engine.settings.output_path
        with av.open(str(folder / "x_00001_.mp4")) as container:
            assert [stream.type for stream in container.streams] == ["video", "audio"]
        assert result.outputs["4"]["audio"] == [{"filename": "track_00001_.mp3", "subfolder": "", "type": "output"}]
        with av.open(str(folder / "track_00001_.mp3")) as container:
            assert "Soundtrack" in container.metadata["prompt"]


NAMES = {
    "comfy_api.input": ("AudioInput", "ImageInput", "LatentInput", "MaskInput", "VideoInput"),
    "comfy_api.input.basic_types": ("AudioInput", "ImageInput", "LatentInput", "MaskInput"),
    "comfy_api.input.video_types": ("VideoInput",),
    "comfy_api.input_impl": ("VideoFromComponents", "VideoFromFile"),
    "comfy_api.input_impl.video_types": ("VideoFromComponents", "VideoFromFile"),
    "comfy_api.latest": ("Input", "InputImpl", "Types", "VideoFromFile", "VideoInput", "VideoCodec"),
    "comfy_api.latest._input": ("AudioInput", "VideoInput"),
    "comfy_api.latest._input.basic_types": ("AudioInput", "ImageInput"),
    "comfy_api.latest._input.video_types": ("VideoInput",),
    "comfy_api.latest._input_impl": ("VideoFromComponents", "VideoFromFile"),
    "comfy_api.latest._input_impl.video_types": ("VideoFromComponents", "VideoFromFile"),
    "comfy_api.latest._util": ("VideoCodec", "VideoComponents", "VideoContainer"),
    "comfy_api.latest._util.video_types": ("VideoCodec", "VideoComponents", "VideoContainer"),
    "comfy_api.torch_helpers": ("set_torch_compile_wrapper",),
    "comfy_api.torch_helpers.torch_compile": ("COMPILE_KEY", "TORCH_COMPILE_KWARGS", "set_torch_compile_wrapper"),
    "comfy_api.util": ("VideoCodec", "VideoComponents", "VideoContainer"),
    "comfy_api.util.video_types": ("VideoCodec", "VideoComponents", "VideoContainer"),
    "comfy_api.v0_0_1": ("Input", "InputImpl", "Types"),
    "comfy_api.v0_0_2": ("Input", "InputImpl", "Types"),
    "comfy_extras.nodes_audio": ("load", "f32_pcm", "match_audio_sample_rates", "SaveAudio", "LoadAudio"),
    "comfy_extras.nodes_images": ("SVG", "SaveSVGNode", "ImageCrop"),
    "comfy_extras.nodes_video": ("SaveVideo", "LoadVideo", "CreateVideo", "GetVideoComponents", "SaveWEBM"),
}


def test_every_name_is_the_engines_own_and_known_to_comfyui(tmp_path: Path) -> None:
    write_pack(tmp_path, "any.py", "NODE_CLASS_MAPPINGS = {}")
    with loaded(tmp_path):
        for module, names in NAMES.items():
            served = importlib.import_module(module)
            for name in names:
                assert not hasattr(getattr(served, name), "lacking_name"), f"{module}.{name}"
        assert importlib.import_module("comfy_api.input_impl").VideoFromFile is video.VideoFromFile
        assert importlib.import_module("comfy_extras.nodes_images").SVG is Svg


def test_a_pack_calls_and_derives_from_the_built_in_classes(tmp_path: Path) -> None:
    pack = """
        from comfy_extras.nodes_audio import EmptyAudio
        from comfy_extras.nodes_video import CreateVideo

        class Quiet:
            INPUT_TYPES = classmethod(lambda cls: {"required": {"images": ("IMAGE",)}})
            RETURN_TYPES = ("*",)
            FUNCTION = "go"

            def go(self, images):
                (audio,) = EmptyAudio().create_empty_audio(1.0, 8000, 2)
                (clip,) = CreateVideo.execute(images, 4.0, audio)
                return (clip.get_dimensions(),)

        NODE_CLASS_MAPPINGS = {"Quiet": Quiet}
    """
    write_pack(tmp_path, "quiet.py", pack)
    with loaded(tmp_path) as made:
        blank = {"width": 32, "height": 16, "batch_size": 4, "color": 0}
        result = made.run(
            {
                "1": {"class_type": "EmptyImage", "inputs": blank},
                "2": {"class_type": "Quiet", "inputs": {"images": ["1", 0]}},
                "3": {"class_type": "Show", "inputs": {"value": ["2", 0]}},
            }
        )
        assert result.outputs["3"]["value"] == ["(32, 16)"]


@pytest.mark.parametrize("module", ["comfy_api.torch_helpers", "comfy_api.torch_helpers.torch_compile"])
def test_a_pack_compiles_a_model(tmp_path: Path, module: str) -> None:
    write_pack(tmp_path, "any.py", "NODE_CLASS_MAPPINGS = {}")

    class Recorded:
        """Just so much of a MODEL as compiling asks for."""

        def __init__(self) -> None:
            self.model_options: dict[str, object] = {}
            self.wrappers: list[tuple[str, str, Any]] = []

        def remove_wrappers_with_key(self, wrapper_type: str, key: str) -> None:
            self.wrappers.clear()

        def add_wrapper_with_key(self, wrapper_type: str, key: str, wrapper: Any) -> None:
            self.wrappers.append((wrapper_type, key, wrapper))

    with loaded(tmp_path):
        model = Recorded()
        importlib.import_module(module).set_torch_compile_wrapper(model, "eager", keys=["diffusion_model.middle"])
    [(kind, key, wrapper)] = model.wrappers
    assert (kind, key) == ("apply_model", "torch.compile")
    assert wrapper.keys == ("diffusion_model.middle",) and wrapper.arguments["backend"] == "eager"
