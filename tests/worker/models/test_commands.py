"""The commands `darkroom models` against a server of this machine, and the check of files that are here."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from darkroom.engine.models.random_weights import write_random_checkpoint
from darkroom.worker.cli.known_models import known_lines
from darkroom.worker.cli.models import commands
from darkroom.worker.models.catalogue import Room, catalogue
from darkroom.worker.models.files import checksum_path, find_problem, list_models
from darkroom.worker.models.lock import read_lock
from darkroom.worker.models.manifest import built_in_manifest
from tests.worker.models.model_server import ModelServer, checkpoint, model_server

MANIFEST = """
[mine]
kind = "loras"
sources = ["hf://someone/small/mine.safetensors"]

[second]
kind = "vae"
sources = ["{url}/second.safetensors"]
size_bytes = 2_000_000
optional = true
"""


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModelServer]:
    for name in ("HF_TOKEN", "HF_TOKEN_FILE", "CIVITAI_TOKEN", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    with model_server() as running:
        running.files = {"/someone/small/resolve/main/mine.safetensors": checkpoint()}
        monkeypatch.setenv("HF_ENDPOINT", running.url)
        (tmp_path / "models.toml").write_text(MANIFEST.format(url=running.url))
        yield running


def run(tmp_path: Path, *words: str) -> Result:
    return CliRunner().invoke(commands, [*words, "--base-directory", str(tmp_path)])


def test_the_files_that_the_manifest_asks_for_are_fetched(server: ModelServer, tmp_path: Path) -> None:
    done = run(tmp_path, "fetch")
    assert done.exit_code == 0 and "mine.safetensors is complete and verified" in done.output
    assert [model.name for model in list_models(tmp_path / "models")] == ["loras/mine.safetensors"]
    assert list(read_lock(tmp_path / "models.lock.toml")) == ["loras/mine.safetensors"]
    assert "is here already" in run(tmp_path, "fetch").output


def test_the_plan_tells_bytes_and_sources_and_asks_nothing(server: ModelServer, tmp_path: Path) -> None:
    plan = run(tmp_path, "plan", "mine", "second")
    assert "unknown  loras/mine.safetensors from hf://someone/small/mine.safetensors@main" in plan.output
    assert "2 of 2 to fetch: 2.0 MB, and 1 of unknown size" in plan.output and server.heads == []


@pytest.mark.parametrize(
    ("name", "exit_code", "words"),
    [
        ("nope", 2, "unknown model; got 'nope'"),
        ("second", 7, "second.safetensors: there is no such file"),
    ],
)
def test_exit_codes_tell_what_happened(
    server: ModelServer, tmp_path: Path, name: str, exit_code: int, words: str
) -> None:
    done = run(tmp_path, "fetch", name)
    assert done.exit_code == exit_code and words in done.output


def test_a_hub_out_of_reach_and_a_gated_one_have_exit_codes(
    server: ModelServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.token, server.gate = "right", "GatedRepo"
    assert run(tmp_path, "fetch", "mine").exit_code == 6
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert run(tmp_path, "fetch", "mine").exit_code == 3


def test_a_broken_manifest_is_named(tmp_path: Path) -> None:
    (tmp_path / "models.toml").write_text("[a]\nkind = 3\n")
    done = run(tmp_path, "list")
    assert done.exit_code == 2 and "models.toml: [a] kind:" in done.output


def test_the_lock_takes_files_that_are_here(server: ModelServer, tmp_path: Path) -> None:
    path = tmp_path / "models" / "vae" / "second.safetensors"
    path.parent.mkdir(parents=True)
    path.write_bytes(checkpoint())
    assert "1 added, 1 files" in run(tmp_path, "lock").output
    assert run(tmp_path, "verify").exit_code == 0
    path.write_bytes(checkpoint(fill=1))
    done = run(tmp_path, "verify")
    assert done.exit_code == 4 and "has SHA-256" in done.output


def test_only_downloads_that_nobody_asks_for_are_pruned(server: ModelServer, tmp_path: Path) -> None:
    run(tmp_path, "fetch")
    server.files["/second.safetensors"] = checkpoint(2_000_000)[:2_000_000]
    models = tmp_path / "models"
    for name, is_download in (("loras/old.safetensors", True), ("loras/own.safetensors", False)):
        (models / name).write_bytes(checkpoint())
        if is_download:
            checksum_path(models / name).write_text("x")
    part = models / ".downloads" / "vae" / "a.part"
    part.parent.mkdir(parents=True, exist_ok=True)
    part.write_bytes(b"x")
    os.utime(part, (time.time() - 2 * 86400,) * 2)
    listed = run(tmp_path, "prune").output
    assert "loras/old.safetensors" in listed and "a.part" in listed and "--yes removes them" in listed
    assert (models / "loras/old.safetensors").is_file()
    run(tmp_path, "prune", "--yes")
    assert [model.name for model in list_models(models)] == ["loras/mine.safetensors", "loras/own.safetensors"]
    assert not part.exists()


def test_lists_and_verifies(server: ModelServer, tmp_path: Path) -> None:
    assert "sdxl-turbo" in run(tmp_path, "known").output and "mine" in run(tmp_path, "known").output
    assert "missing  loras/mine.safetensors" in run(tmp_path, "list").output
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "a.safetensors").write_bytes(checkpoint())
    assert "a.safetensors" in run(tmp_path, "list").output and run(tmp_path, "verify").exit_code == 0
    (tmp_path / "models" / "a.safetensors").write_bytes(b"broken")
    assert run(tmp_path, "verify").exit_code == 4


def test_lists_model_files_of_every_folder_and_nothing_else(tmp_path: Path) -> None:
    for name in ("checkpoints/a.safetensors", "loras/sub/b.safetensors", "vae/note.txt", ".downloads/c.safetensors"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(checkpoint())
    assert [model.name for model in list_models(tmp_path)] == ["checkpoints/a.safetensors", "loras/sub/b.safetensors"]


@pytest.mark.parametrize("content", [b"", b"short", checkpoint()[:-1], checkpoint() + b"x", b"\xff" * 100, b"{" * 40])
def test_a_damaged_file_is_reported(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes(content)
    assert find_problem(path)


def test_a_changed_file_is_recognised_by_its_checksum(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes(checkpoint())
    assert find_problem(path, hashlib.sha256(checkpoint()).hexdigest()) is None
    assert "SHA-256" in (find_problem(path, "1" * 64) or "")
    checksum_path(path).write_text(f"{'0' * 64}  a.safetensors\n")
    assert "SHA-256" in (find_problem(path) or "")


def test_verify_says_which_files_are_of_no_known_layout(tmp_path: Path) -> None:
    checkpoints = tmp_path / "models" / "checkpoints"
    checkpoints.mkdir(parents=True)
    (checkpoints / "mystery.safetensors").write_bytes(checkpoint())
    write_random_checkpoint(checkpoints / "whole.safetensors")
    done = run(tmp_path, "verify")
    assert done.exit_code == 0
    assert "unknown checkpoints/mystery.safetensors: of no known family; mystery.safetensors: " in done.output
    assert "good    checkpoints/whole.safetensors" in done.output and "2 checked, 0 broken" in done.output


def test_known_models_are_a_table_by_group_that_says_what_fits_and_is_here(tmp_path: Path) -> None:
    path = tmp_path / "models" / "vae" / "ae.safetensors"
    path.parent.mkdir(parents=True)
    path.write_bytes(checkpoint())
    done = run(tmp_path, "known", "--card", "RTX 4090")
    first, _, heading, columns, *rest = done.stdout.splitlines()
    assert (first, heading) == ("Compared with a card of 24 GiB.", "Models")
    assert columns.split() == ["NAME", "SIZE", "FITS", "HERE", "LICENCE", "MODEL"]
    starts = [columns.index(name) for name in ("FITS", "HERE", "LICENCE", "MODEL")]
    rows = {line.split()[0]: [line[at:].split("  ")[0] for at in starts] for line in rest if "GB" in line}
    assert rows["z-image-turbo"] == ["yes", "1/3", "Apache-2.0", "Z-Image Turbo with text encoder and VAE"]
    assert rows["flux2-dev"][0] == "streamed" and rows["sdxl-lcm-lora"][0] == ""
    assert {"LoRAs", "ControlNets", "Upscalers", "Networks packed as GGUF"} <= set(rest)
    assert "flux-vae" not in rows and "single files more: darkroom models known --all" in done.stderr
    every = run(tmp_path, "known", "--all").stdout
    assert re.search(r"^flux-vae +0\.34 GB +yes +yes ", every, re.MULTILINE)


def test_known_models_are_found_by_words_and_printed_as_json(tmp_path: Path) -> None:
    found = [json.loads(line) for line in run(tmp_path, "known", "wan22", "image", "--json").stdout.splitlines()]
    assert "wan22-i2v" in [model["name"] for model in found] and "sdxl" not in [model["name"] for model in found]
    assert all("wan" in model["families"] or "wan22" in model["families"] for model in found)
    assert "none has 'nothing'" in run(tmp_path, "known", "nothing").output
    assert run(tmp_path, "known", "--card", "Voodoo 2").exit_code == 2


def test_a_table_is_as_wide_as_its_terminal() -> None:
    models = catalogue(built_in_manifest(), (), Room(8 * 1024**3, None))
    lines = list(known_lines(models, Room(8 * 1024**3, None), 120))
    assert max(map(len, lines)) <= 120 and any(line.endswith("…") for line in lines)
    assert not any("…" in line.split("  ")[-1] for line in known_lines(models, Room(None, None), None))


def test_an_unknown_model_is_answered_with_the_nearest_alone(tmp_path: Path) -> None:
    done = run(tmp_path, "fetch", "sdxll")
    assert done.exit_code == 2 and "did you mean sdxl" in done.output
    assert len(done.output) < 200


def test_a_failed_download_is_told_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    done = run(tmp_path, "fetch", "sd15")
    assert done.exit_code == 3 and done.output.count("it cannot be reached") == 1
    assert len(done.output.splitlines()) == 1


def test_the_shell_completes_names_of_known_models() -> None:
    words = "darkroom models fetch sdxl-r"
    asked = {"_DARKROOM_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": "3"}
    command = [sys.executable, "-c", "from darkroom.worker.cli.main import main; main()"]
    done = subprocess.run(command, env={**os.environ, **asked}, capture_output=True, text=True, timeout=120)
    assert done.stdout.split() == ["sdxl-refiner"]
