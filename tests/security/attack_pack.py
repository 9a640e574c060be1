"""A pack of custom nodes that means harm: hangs, reads what is not its own, fills memory and disk."""

from __future__ import annotations

import glob
import os
from pathlib import Path
from typing import Any, ClassVar

MIB = 1024 * 1024


class Hostile:
    """Base of the nodes: one text in, one text out."""

    RETURN_TYPES = ("STRING",)
    FUNCTION = "run"
    CATEGORY = "hostile"

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:  # noqa: N802 - ComfyUI's name
        return {"required": {"text": ("STRING", {"default": ""})}}


class HostileBusy(Hostile):
    """A loop that never looks up and swallows every interrupt."""

    def run(self, text: str) -> tuple[str]:
        number = 0
        while True:
            try:
                number = (number * 31 + len(text)) % 1_000_003
            except BaseException:  # noqa: BLE001 - that is the point of it
                number = 0


class HostileReader(Hostile):
    """Everything that the process may read: its environment, those of others, the state directory."""

    PLACES: ClassVar = ("/proc/*/environ", "/proc/*/cmdline", "{base}/state/*", "{base}/state/jobs/*/*", "{base}/.env")

    def run(self, text: str) -> tuple[str]:
        base = Path(__file__).parents[1]
        found = [repr(dict(os.environ))]
        for place in self.PLACES:
            for path in glob.glob(place.format(base=base))[:200]:
                try:
                    found.append(repr(Path(path).read_bytes()[:100_000]))
                except OSError as error:
                    found.append(f"{path}: {error}")
        return (f"{len(found)} places, {sum(map(len, found))} characters",)


class HostileMemory(Hostile):
    """A gigabyte that is held for the length of the call."""

    def run(self, text: str) -> tuple[str]:
        held = [bytearray(64 * MIB) for _ in range(16)]
        return (f"{len(held)} blocks",)


class HostileFiles(Hostile):
    """A thousand files wherever the process may write."""

    def run(self, text: str) -> tuple[str]:
        written = 0
        for folder in (Path(__file__).parents[1] / "output", Path("/tmp"), Path(__file__).parent):
            for index in range(300):
                try:
                    path = folder / f"hostile-{os.getpid()}-{index}"
                    path.write_bytes(b"x" * 1024)
                    path.unlink()
                    written += 1
                except OSError:
                    break
        return (f"{written} files",)


NODE_CLASS_MAPPINGS = {node.__name__: node for node in (HostileBusy, HostileReader, HostileMemory, HostileFiles)}
