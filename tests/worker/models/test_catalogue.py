"""The catalogue of known models: groups, sizes, what is here, and what fits on a card."""

from __future__ import annotations

import pytest

from darkroom.worker.models.catalogue import Fit, Group, KnownModel, Room, catalogue, matching
from darkroom.worker.models.entry import ModelEntry
from darkroom.worker.models.manifest import Manifest, ModelSet, built_in_manifest
from darkroom.worker.models.sources import parse_source

GB = 10**9
NOWHERE = Room(None, None)


def entry(
    name: str, kind: str, size_gb: float | None, licence: str = "MIT", families: tuple[str, ...] = ()
) -> ModelEntry:
    size = None if size_gb is None else int(size_gb * GB)
    return ModelEntry(name, name, kind, name, (parse_source(f"hf://a/b/{name}"),), size, None, licence, families)


NET = entry("net.safetensors", "diffusion_models", 12, "Apache-2.0", ("flux", "chroma"))
TEXT = entry("text.safetensors", "text_encoders", 8, "MIT; gated", ("sd3", "flux"))
ENTRIES = {
    "net": NET,
    "text": TEXT,
    "lora": entry("lora.safetensors", "loras", 1),
    "union": entry("union.safetensors", "controlnet", 2),
    "x4": entry("x4.safetensors", "upscale_models", 0.1),
    "small": entry("small.gguf", "diffusion_models", 5),
    "odd": entry("odd.safetensors", "checkpoints", None, licence=""),
    "base": entry("base.safetensors", "checkpoints", 3),
}
MANIFEST = Manifest(
    ENTRIES, {"whole": ModelSet("All of it", ("net", "text")), "pair": ModelSet("Two", ("base", "text"))}
)


def listed(room: Room = NOWHERE) -> dict[str, KnownModel]:
    return {model.name: model for model in catalogue(MANIFEST, {NET.place}, room)}


def test_whole_models_come_first_and_single_files_last() -> None:
    found = listed()
    assert list(found) == ["whole", "pair", "odd", "small", "lora", "union", "x4", "net", "text", "base"]
    assert [found[name].group for name in ("whole", "small", "lora", "union", "x4", "net")] == list(Group)
    whole = found["whole"]
    assert (whole.size_bytes, whole.num_here, whole.is_here, whole.is_gated) == (20 * GB, 1, False, True)
    assert (whole.families, whole.licences) == (("flux",), ("Apache-2.0", "MIT; gated"))
    assert found["net"].is_here and not found["odd"].is_size_known and found["odd"].licences == ("?",)


@pytest.mark.parametrize(
    ("room", "fits"),
    [
        (Room(16 * GB, 64 * GB), Fit.WHOLE),
        (Room(8 * GB, 64 * GB), Fit.STREAMED),
        (Room(8 * GB, 16 * GB), Fit.TOO_LARGE),
        (Room(8 * GB), Fit.STREAMED),
        (Room(64 * GB, None, is_processor=True), Fit.WHOLE),
        (Room(16 * GB, None, is_processor=True), Fit.TOO_LARGE),
        (NOWHERE, Fit.UNKNOWN),
    ],
)
def test_the_largest_file_has_to_lie_on_the_card_or_all_of_them_in_ram(room: Room, fits: Fit) -> None:
    found = listed(room)
    assert found["whole"].fit is fits
    assert (found["odd"].fit, found["lora"].fit) == (Fit.UNKNOWN, Fit.OWN_MODEL)


def test_models_are_found_by_name_label_and_family() -> None:
    models = list(listed().values())
    assert [model.name for model in matching(models, "FLUX all")] == ["whole"]
    assert [model.name for model in matching(models, "")] == list(listed())
    assert matching(models, "nothing of it") == []


@pytest.mark.parametrize("group", list(Group))
def test_every_group_has_known_models_and_most_say_size_and_licence(group: Group) -> None:
    found = [model for model in catalogue(built_in_manifest(), (), NOWHERE) if model.group is group]
    assert found
    assert sum(model.is_size_known for model in found) > len(found) / 2
    assert sum(model.licences != ("?",) for model in found) > len(found) / 2
