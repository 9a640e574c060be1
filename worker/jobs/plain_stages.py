"""The simplest two ends of the pipeline: prompts that need no fetching, outputs that stay in the job's folder."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from worker.engine.client import EngineClient
from worker.engine.outcome import RunOutcome
from worker.jobs.job import Credentials, Job
from worker.jobs.stages import OutputRecord, PlannedInputs


class NoInputs:
    def plan(self, prompt: Mapping[str, Any], object_info: Mapping[str, Any]) -> PlannedInputs:
        return PlannedInputs(prompt, ())

    async def fetch(
        self, prompt: Mapping[str, Any], credentials: Credentials | None, engine: EngineClient
    ) -> Mapping[str, Any]:
        return prompt


class LocalOutputs:
    async def collect(self, outcome: RunOutcome, directory: Path, engine: EngineClient) -> Sequence[OutputRecord]:
        """Links (or fetches) every file that a node lists into the job's folder; temporary ones are left out."""
        records: list[OutputRecord] = []
        await asyncio.to_thread(directory.mkdir, parents=True, exist_ok=True)
        for node_id, shown in outcome.outputs.items():
            for kind, items in shown.items():
                for item in items if isinstance(items, list) else ():
                    if isinstance(item, dict) and item.get("type") == "output" and item.get("filename"):
                        records.append(await _take(node_id, kind, item, len(records), directory, engine))
        return records

    async def deliver(self, job: Job, directory: Path) -> Sequence[OutputRecord]:
        return [dict(record) for record in job.outputs]


async def _take(
    node_id: str, kind: str, item: Mapping[str, Any], index: int, directory: Path, engine: EngineClient
) -> OutputRecord:
    name = Path(str(item["filename"])).name
    subfolder = str(item.get("subfolder") or "")
    target = directory / (name if not (directory / name).exists() else f"{index}_{name}")
    folder = None if engine.folders is None else engine.folders.of(str(item["type"]))
    if folder is None:
        await engine.view(name, subfolder, str(item["type"]), target)
    else:
        await asyncio.to_thread(_link, folder / subfolder / name, target)
    return {
        "filename": name,
        "local_path": str(target),
        "subfolder": subfolder,
        "type": item["type"],
        "node_id": node_id,
        "output_type": kind,
        "path": target.name,
    }


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
