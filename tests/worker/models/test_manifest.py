"""Manifests: the built-in one, the operator's over it, their sources and what is refused; and the lock beside them."""

from __future__ import annotations

from pathlib import Path

import pytest

from darkroom.modifiers.registry import build_registry
from darkroom.worker.models.errors import ManifestInvalid, UnknownModel
from darkroom.worker.models.lock import LockedFile, add_to_lock, lock_path_of, read_lock, with_locked
from darkroom.worker.models.manifest import built_in_manifest, load_manifest
from darkroom.worker.models.sources import (
    BucketSource,
    CivitaiSource,
    FileSource,
    HubSource,
    Source,
    WebSource,
    parse_source,
)

KNOWN = built_in_manifest()
KINDS = {
    *("checkpoints", "diffusion_models", "text_encoders", "vae", "clip_vision", "loras", "controlnet", "vae_approx"),
    *("upscale_models", "model_patches", "style_models", "latent_upscale_models"),
}

MINE = """
[sd15]

[mine]
label = "My LoRA"
kind = "loras"
sources = ["s3://bucket/loras/mine.safetensors", "https://host.example/mine.safetensors?key=1"]
licence = "all rights reserved"
families = ["sdxl"]

[spare]
kind = "vae"
name = "spare/vae.safetensors"
sources = ["civitai://123"]
optional = true

[both]
files = ["sdxl", "mine"]
"""


def manifest_file(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "models.toml"
    path.write_text(text)
    return path


@pytest.mark.parametrize("name", KNOWN.entries)
def test_a_known_file_has_a_source_and_a_place(name: str) -> None:
    (entry,) = KNOWN.named(name)
    assert entry.label and entry.kind in KINDS and (entry.families or entry.kind == "upscale_models")
    assert all(isinstance(source, HubSource | CivitaiSource | WebSource) for source in entry.sources)
    assert (entry.sha256 is None) or len(entry.sha256) == 64


@pytest.mark.parametrize("name", KNOWN.sets)
def test_a_model_of_several_files_has_all_that_draws(name: str) -> None:
    kinds = {entry.kind for entry in KNOWN.named(name)}
    has_encoder = bool(kinds & {"text_encoders", "clip_vision"})
    assert "checkpoints" in kinds or ({"diffusion_models", "vae"} <= kinds and has_encoder)


def test_the_checkpoint_that_modifiers_draw_with_is_a_known_model() -> None:
    own = build_registry().checkpoint_of("Text2Image", {})
    assert KNOWN.find(["checkpoints"], str(own)) is not None


def test_an_unknown_model_names_the_nearest_and_the_command_that_lists_all() -> None:
    with pytest.raises(UnknownModel, match=r"got 'sdxl-refinr' \(did you mean sdxl-refiner.*`darkroom models known`"):
        KNOWN.named("sdxl-refinr")


def test_the_operators_manifest_asks_for_files_and_adds_some(tmp_path: Path) -> None:
    manifest = load_manifest(manifest_file(tmp_path, MINE))
    assert [entry.id for entry in manifest.required()] == ["sd15", "sdxl", "mine"]
    (mine,) = manifest.named("mine")
    assert (mine.place, mine.licence, mine.families) == ("loras/mine.safetensors", "all rights reserved", ("sdxl",))
    assert manifest.find(["loras"], "mine.safetensors") is mine
    assert manifest.find(["vae"], "mine.safetensors") is None
    assert manifest.find(["vae"], "spare\\vae.safetensors") is not None
    assert [entry.id for entry in manifest.named("both")] == ["sdxl", "mine"]


def test_a_table_of_the_operators_changes_a_known_file(tmp_path: Path) -> None:
    text = '[sd15]\nsources = ["/volume/sd15.safetensors"]\nname = "sd15.safetensors"\n'
    (entry,) = load_manifest(manifest_file(tmp_path, text)).named("sd15")
    assert entry.sources == (FileSource(Path("/volume/sd15.safetensors")),) and entry.sha256
    assert entry.place == "checkpoints/sd15.safetensors"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[a", "is not TOML"),
        ('[a]\nkind = "vae"\n', r"\[a\] sources: Field required"),
        ('[a]\nkind = "vae"\nsources = []\n', r"\[a\] sources: List should have at least 1"),
        ('[a]\nkind = "vae"\nsources = ["ftp://x/a.safetensors"]\n', "unknown kind of source; got 'ftp:.*expected hf:"),
        ('[a]\nkind = "vae"\nsources = ["civitai://12"]\n', "name: missing"),
        ('[a]\nkind = "../x"\nsources = ["/a.safetensors"]\n', "kind: is not a folder below models/"),
        ('[a]\nkind = "vae"\nname = "../a.safetensors"\nsources = ["/a"]\n', "name: is not a path below"),
        ('[a]\nkind = "vae"\nname = "a.exe"\nsources = ["/a"]\n', "name: is no model file; got '.exe', expected one"),
        ('[a]\nkind = "vae"\nsources = ["/a.safetensors"]\nsha256 = "12"\n', r"\[a\] sha256: .*got '12'"),
        ('[a]\nkind = "vae"\nsources = ["/a.safetensors"]\nhash = "1"\n', "hash: .*expected one of label, kind"),
        ('[a]\nfiles = ["nothing"]\n', r"\[a\] files: no such entry; got 'nothing'"),
        ("a = 1\n", r"\[a\] table: "),
        (
            '[a]\nkind = "vae"\nsources = ["/x/ae.sft"]\n[b]\nkind = "vae"\nname = "ae.sft"\nsources = ["/b"]\n'
            f'sha256 = "{"1" * 64}"\n',
            "another entry has this place",
        ),
    ],
)
def test_a_broken_manifest_names_entry_and_field(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(ManifestInvalid, match=words):
        load_manifest(manifest_file(tmp_path, text))


def test_a_manifest_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ManifestInvalid, match="nothing.toml: cannot be read: no such file"):
        load_manifest(tmp_path / "nothing.toml")


@pytest.mark.parametrize(
    ("text", "source"),
    [
        ("hf://a/b/c/d.safetensors", HubSource("a/b", "c/d.safetensors")),
        ("hf://a/b/d.safetensors@refs/pr/1", HubSource("a/b", "d.safetensors", "refs/pr/1")),
        ("https://huggingface.co/a/b/resolve/v1/d.sft?download=true", HubSource("a/b", "d.sft", "v1")),
        ("https://huggingface.co/a/b/blob/main/d.sft", HubSource("a/b", "d.sft")),
        ("civitai://12", CivitaiSource("12")),
        ("https://civitai.com/api/download/models/12", CivitaiSource("12")),
        (
            "https://civitai.com/api/download/models/12?type=VAE",
            WebSource("https://civitai.com/api/download/models/12?type=VAE"),
        ),
        ("s3://bucket/a/b.sft", BucketSource("bucket", "a/b.sft")),
        ("file:///a%20b.sft", FileSource(Path("/a b.sft"))),
    ],
)
def test_sources_are_parsed(text: str, source: Source) -> None:
    assert parse_source(text) == source and parse_source(str(source)) == parse_source(str(source))


@pytest.mark.parametrize("text", ["hf://a/b", "hf://a/b/../c", "civitai://x", "s3://b", "s3://b/../k", "https://", "a"])
def test_other_sources_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        parse_source(text)


def test_a_secret_in_an_address_is_not_shown() -> None:
    assert "secret" not in str(parse_source("https://user:secret@host.example/a.sft?token=secret"))


def test_the_lock_gives_hashes_that_the_manifest_lacks(tmp_path: Path) -> None:
    path = lock_path_of(tmp_path / "models.toml", tmp_path)
    assert path.name == "models.lock.toml" and read_lock(path) == {}
    add_to_lock(path, {'vae/a "b".sft': LockedFile("1" * 64, 5, "hf://a/b/c.sft@main")})
    add_to_lock(path, {"loras/mine.safetensors": LockedFile("2" * 64, 6)})
    locked = read_lock(path)
    assert locked['vae/a "b".sft'] == LockedFile("1" * 64, 5, "hf://a/b/c.sft@main") and len(locked) == 2
    (mine,) = load_manifest(manifest_file(tmp_path, MINE)).named("mine")
    assert with_locked(mine, locked).sha256 == "2" * 64 and with_locked(mine, {}) is mine
    (sd15,) = KNOWN.named("sd15")
    assert with_locked(sd15, {sd15.place: LockedFile("3" * 64, 1)}).sha256 == sd15.sha256


def test_a_broken_lock_is_named(tmp_path: Path) -> None:
    path = tmp_path / "models.lock.toml"
    path.write_text('["vae/a.sft"]\nsha256 = "1"\n')
    with pytest.raises(ManifestInvalid, match="lacks sha256 or size_bytes"):
        read_lock(path)
