"""ComfyUI's command line: every flag reaches its setting, those without effect are named."""

from __future__ import annotations

from pathlib import Path

import pytest

from darkroom.engine.server.flags import read_flags
from darkroom.engine.settings import CacheSettings, DtypeSettings, EngineSettings, MemorySettings


def test_without_flags_the_defaults_are_comfyuis() -> None:
    command = read_flags([])
    assert command.settings == EngineSettings()
    assert command.liveness_fd is None and command.ignored == ()


def test_every_flag_reaches_its_setting() -> None:
    flags = (
        "--listen --port 0 --base-directory /b --input-directory /i --output-directory /o --temp-directory /t"
        " --extra-model-paths-config a.yaml b.yaml --cpu --cache-lru 7 --reserve-vram 1.5 --disable-smart-memory"
        " --async-offload --disable-pinned-memory --force-fp16 --bf16-unet --fp32-vae --fp16-text-enc"
        " --disable-metadata --max-upload-size 3 --preview-method latent2rgb --disable-all-custom-nodes"
        " --whitelist-custom-nodes x y --enable-cors-header --tls-keyfile k --tls-certfile c --cuda-device 1"
        " --default-device 2 --verbose"
    )
    settings = read_flags(flags.split()).settings
    assert settings == EngineSettings(
        listen="0.0.0.0,::",
        port=0,
        base_directory=Path("/b"),
        input_directory=Path("/i"),
        output_directory=Path("/o"),
        temp_directory=Path("/t"),
        extra_model_paths_config=(Path("a.yaml"), Path("b.yaml")),
        cpu=True,
        cache=CacheSettings("lru", 7),
        dtypes=DtypeSettings(False, True, "bfloat16", "float32", "float16"),
        memory=MemorySettings("auto", 1.5, False, 2, False),
        embed_metadata=False,
        max_upload_mb=3,
        preview_method="latent2rgb",
        disable_all_custom_nodes=True,
        whitelist_custom_nodes=("x", "y"),
        cors_origin="*",
        tls_keyfile=Path("k"),
        tls_certfile=Path("c"),
        cuda_device=1,
        default_device=2,
        verbose="DEBUG",
    )


@pytest.mark.parametrize(
    ("flags", "cache"),
    [
        ("--cache-classic", CacheSettings()),
        ("--cache-none", CacheSettings("none")),
        ("--cache-ram", CacheSettings("ram")),
        ("--cache-ram 4", CacheSettings("ram", 0, 4.0)),
    ],
)
def test_caches_are_chosen_by_flag(flags: str, cache: CacheSettings) -> None:
    assert read_flags(flags.split()).settings.cache == cache


def test_flags_without_effect_are_accepted_and_named() -> None:
    command = read_flags(["--database-url", "sqlite://", "--fast", "--disable-xformers"])
    assert command.ignored == ("--database-url", "--fast", "--disable-xformers")


@pytest.mark.parametrize(
    "flags",
    [
        "--nonsense",
        "--tls-keyfile k",
        "--cuda-device -1",
        "--port 70000",
        "--port x",
        "--lowvram --cpu",
        "--cache-lru -1",
    ],
)
def test_flags_that_do_not_parse_end_the_start(flags: str) -> None:
    with pytest.raises(SystemExit) as ended:
        read_flags(flags.split())
    assert ended.value.code == 2


def test_a_type_that_cannot_hold_weights_is_refused_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        read_flags(["--fp8_e8m0fnu-unet"])
    told = capsys.readouterr().err
    assert "--fp8_e8m0fnu-unet" in told and "--fp8_e4m3fn-unet" in told


def test_the_number_of_runs_at_a_time_is_given_or_measured() -> None:
    given = read_flags(["--max-concurrent-runs", "3"]).settings
    assert (given.max_concurrent_runs, given.chooses_runs) == (3, False)
    chosen = read_flags(["--max-concurrent-runs", "auto"]).settings
    assert (chosen.max_concurrent_runs, chosen.chooses_runs) == (8, True)
