"""Files leave the engine's output folder when jobs have them, and are found all the same."""

from __future__ import annotations

import os
from pathlib import Path

from darkroom.worker.outputs.claimed_outputs import ClaimedOutputs, family_of, numbers_of
from darkroom.worker.outputs.collect import Output, collect_outputs


class Engine:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def folder_of(self, kind: str) -> Path | None:
        return self.folder

    async def view(self, filename: str, subfolder: str, kind: str, target: Path, max_bytes: int | None = None) -> None:
        raise AssertionError("its files are here")


def engine_with(tmp_path: Path, *names: str) -> Engine:
    folder = tmp_path / "output"
    folder.mkdir(exist_ok=True)
    for name in names:
        (folder / name).write_text(name)
    return Engine(folder)


async def collect(engine: Engine, job: Path, claimed_outputs: ClaimedOutputs, *names: str) -> list[str]:
    outputs = {"9": {"images": [{"filename": name, "subfolder": "", "type": "output"} for name in names]}}
    collected = await collect_outputs(outputs, job, engine, claimed_outputs)
    return [item.path.read_text() for item in collected if isinstance(item, Output)]


async def test_by_default_everything_stays(tmp_path: Path) -> None:
    engine = engine_with(tmp_path, "a_00001_.png", "a_00002_.png")
    claimed_outputs = ClaimedOutputs(keeps=True)
    await collect(engine, tmp_path / "job", claimed_outputs, "a_00001_.png", "a_00002_.png")
    claimed_outputs.remove_all()
    assert len(os.listdir(engine.folder)) == 2


async def test_the_highest_number_stays_until_no_job_is_at_the_engine(tmp_path: Path) -> None:
    engine = engine_with(tmp_path, "a_00001_.png", "a_00002_.png", "b_00001_.png", "of the user.png")
    claimed_outputs = ClaimedOutputs(keeps=False)
    await collect(engine, tmp_path / "job", claimed_outputs, "a_00001_.png", "a_00002_.png", "b_00001_.png")
    assert sorted(os.listdir(engine.folder)) == ["a_00002_.png", "b_00001_.png", "of the user.png"]
    claimed_outputs.remove_all()
    assert os.listdir(engine.folder) == ["of the user.png"]
    assert len(os.listdir(tmp_path / "job")) == 3


async def test_a_cached_answer_that_names_a_file_which_has_left_gets_it_from_the_job_that_has_it(
    tmp_path: Path,
) -> None:
    engine = engine_with(tmp_path, "a_00001_.png", "a_00002_.png")
    claimed_outputs = ClaimedOutputs(keeps=False)
    await collect(engine, tmp_path / "one", claimed_outputs, "a_00001_.png", "a_00002_.png")
    assert await collect(engine, tmp_path / "two", claimed_outputs, "a_00001_.png") == ["a_00001_.png"]


async def test_a_name_that_is_used_again_is_the_new_file(tmp_path: Path) -> None:
    engine = engine_with(tmp_path, "a_00001_.png")
    claimed_outputs = ClaimedOutputs(keeps=False)
    await collect(engine, tmp_path / "one", claimed_outputs, "a_00001_.png")
    claimed_outputs.remove_all()
    (engine.folder / "a_00001_.png").write_text("another")
    assert await collect(engine, tmp_path / "two", claimed_outputs, "a_00001_.png") == ["another"]


def test_files_are_numbered_together_by_all_but_their_digits() -> None:
    first, second = Path("/o/job7_00002_.png"), Path("/o/job12_00001_.png")
    assert family_of(first) == family_of(second) and numbers_of(first) < numbers_of(second)
    assert family_of(first) != family_of(Path("/o/sub/job7_00002_.png"))
