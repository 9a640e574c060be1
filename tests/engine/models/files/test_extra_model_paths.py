"""Further folders of models from `extra_model_paths.yaml`, in the notations that people use."""

from __future__ import annotations

from pathlib import Path

import pytest

from darkroom.engine.engine import Engine
from darkroom.engine.models.files.extra_model_paths import ExtraFolder, read_extra_model_paths
from darkroom.engine.settings import EngineSettings


def written(folder: Path, text: str) -> Path:
    config = folder / "extra_model_paths.yaml"
    config.write_text(text, "utf-8")
    return config


def test_folders_are_below_the_base_path_of_their_group(tmp_path: Path) -> None:
    config = written(
        tmp_path,
        "# where models are\na111:\n    base_path: /data/webui\n"
        "    checkpoints: models/Stable-diffusion\n"
        "    loras: |\n        models/Lora\n        models/LyCORIS\n"
        "other:\n    clip: [one, '/two # three']\n    vae: \"with: colon\"\n    embeddings:\n"
        "    controlnet:\n      - nets\n",
    )
    assert read_extra_model_paths(config) == [
        ExtraFolder("checkpoints", Path("/data/webui/models/Stable-diffusion")),
        ExtraFolder("loras", Path("/data/webui/models/Lora")),
        ExtraFolder("loras", Path("/data/webui/models/LyCORIS")),
        ExtraFolder("text_encoders", tmp_path / "one"),
        ExtraFolder("text_encoders", Path("/two # three")),
        ExtraFolder("vae", tmp_path / "with: colon"),
        ExtraFolder("controlnet", tmp_path / "nets"),
    ]


def test_a_group_can_be_the_default(tmp_path: Path) -> None:
    config = written(tmp_path, "a:\n  is_default: true\n  vae: x\nb:\n  is_default: false\n  vae: y\n")
    assert [folder.is_default for folder in read_extra_model_paths(config)] == [True, False]


@pytest.mark.parametrize("text", ["", "# nothing\n", "a:\n", "a:\n  vae:\n"])
def test_nothing_named_is_nothing(tmp_path: Path, text: str) -> None:
    assert read_extra_model_paths(written(tmp_path, text)) == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a111:\n    nonsense\n", "group 'a111'"),
        ("a: [1\n", "line 2"),
        ("a:\n\tvae: x\n", "line 2"),
        ("- x\n", "expected a mapping"),
        ("a:\n  vae: 5\n", "group 'a', vae"),
        ("a:\n  vae: !!python/object/apply:os.system ['x']\n", "line 2"),
    ],
)
def test_what_is_no_such_file_is_named(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said) as caught:
        read_extra_model_paths(written(tmp_path, text))
    assert "extra_model_paths.yaml" in str(caught.value)


def test_the_engine_searches_default_folders_first_and_others_last(tmp_path: Path) -> None:
    written(tmp_path, "a:\n  is_default: true\n  vae: first\nb:\n  vae: last\n")
    engine = Engine(EngineSettings(base_directory=tmp_path, cpu=True))
    roots = engine.folders.roots("vae")
    assert roots[0] == tmp_path / "first" and roots.index(tmp_path / "models" / "vae") < roots.index(tmp_path / "last")
