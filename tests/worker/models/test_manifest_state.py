"""Model files and packs compared with their manifests: counted in /health, named in /ready?verbose."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from darkroom.worker.errors import EngineUnreachable
from darkroom.worker.jobs.manifest_state import ManifestState
from darkroom.worker.models.entry import ModelEntry
from darkroom.worker.models.file_states import file_states
from darkroom.worker.models.files import checksum_path
from darkroom.worker.models.library import build_library
from darkroom.worker.settings.environment import load_settings
from tests.fakes import FakeEngine
from tests.worker.running_front import running_front, until

CONTENT = b"weights"
DIGEST = hashlib.sha256(CONTENT).hexdigest()


def entry(name: str, **changes: Any) -> ModelEntry:
    return ModelEntry(name, name, "loras", f"{name}.safetensors", (), **changes)


def put(models: Path, name: str, digest: str = "") -> None:
    path = models / "loras" / f"{name}.safetensors"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(CONTENT)
    if digest:
        checksum_path(path).write_text(f"{digest}  {path.name}\n")


def test_files_of_another_size_or_checksum_are_other_versions(tmp_path: Path) -> None:
    put(tmp_path, "own")
    put(tmp_path, "fetched", DIGEST)
    put(tmp_path, "older", "0" * 64)
    put(tmp_path, "longer")
    entries = [
        entry("own", sha256="1" * 64),  # nothing is known of its content
        entry("fetched", sha256=DIGEST, size_bytes=len(CONTENT)),
        entry("older", sha256=DIGEST),
        entry("longer", size_bytes=1),
        entry("gone"),
    ]
    states = file_states(entries, tmp_path)
    assert {place.removeprefix("loras/").partition(".")[0]: state for place, state in states.items()} == {
        "own": "good", "fetched": "good", "older": "other version", "longer": "other version", "gone": "missing",
    }  # fmt: skip


class AnsweringEngine:
    """An engine of ours in a pool: it answers what it is given, or nothing."""

    has_check = True

    def __init__(self, answer: dict[str, Any] | None) -> None:
        self.answer = answer
        self.calls = self
        self.clients_serving = [self]

    async def ask(self, *_: object, **__: object) -> tuple[int, dict[str, Any]]:
        if self.answer is None:
            raise EngineUnreachable("no answer")
        return 200, self.answer


async def test_packs_are_as_the_engine_says_and_stay_known_while_it_is_away(tmp_path: Path) -> None:
    versions = [{"name": "One", "state": "good"}, {"name": "Two", "state": "other version"}]
    engine: Any = AnsweringEngine({"packs": [], "versions": versions, "manifest_problem": "packs.toml: is not TOML"})
    library = build_library(load_settings(env_file=None, base_directory=tmp_path).settings)
    state = ManifestState(library, engine)
    assert state.report() is None
    assert await state.check()
    assert state.report() == {"models": {}, "packs": {"good": 1, "other version": 1}}
    assert state.differences() == [("pack Two", "other version"), ("manifest", "packs.toml: is not TOML")]
    engine.answer = None
    assert not await state.check()
    assert state.report() == {"models": {}, "packs": {"good": 1, "other version": 1}}


async def test_health_counts_and_the_operators_check_names_what_differs(tmp_path: Path) -> None:
    base = tmp_path / "base"
    put(base / "models", "here")
    tables = [f'[{name}]\nkind = "loras"\nsources = ["/no/{name}.safetensors"]\n' for name in ("here", "gone")]
    (base / "models.toml").write_text("".join(tables))
    async with FakeEngine(tmp_path / "out") as engine, running_front(tmp_path, engine, base_directory=base) as front:

        async def counted() -> bool:
            body = (await front.http.get("/health")).json()
            return bool(body.get("manifest") == {"models": {"good": 1, "missing": 1}, "packs": {}})

        await until(counted)
        checks = (await front.http.get("/ready?verbose=1")).json()["checks"]
        found = {check["name"]: check["detail"] for check in checks if check["name"].startswith("model ")}
        assert found == {"model loras/gone.safetensors": "missing"}


async def test_without_a_manifest_health_says_nothing_of_one(tmp_path: Path) -> None:
    async with FakeEngine(tmp_path / "out") as engine, running_front(tmp_path, engine) as front:
        assert "manifest" not in (await front.http.get("/health")).json()
