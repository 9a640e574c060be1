"""A pack of custom nodes for the real engine: they draw slowly, never return, or take the engine with them.

Every drawing is written to a tally beside the output folder when it begins and when it is done, so that a test can
count how often a job was really drawn, whatever the front believes.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

TALLY = "tally.txt"

PACK = '''
import ctypes
import os
import time

import comfy.model_management
import comfy.utils
import folder_paths


def tally(word, text):
    path = os.path.join(folder_paths.get_output_directory(), "..", "tally.txt")
    line = f"{word} {text} {time.time()}\\n".encode()
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(descriptor, line)
    os.close(descriptor)


class FaultDraw:
    """Saves `num_files` files that hold `text` and so many megabytes of nothing, after `seconds`."""

    INPUT_TYPES = classmethod(
        lambda cls: {
            "required": {
                "text": ("STRING", {}),
                "seconds": ("FLOAT", {"default": 0.0, "max": 600.0}),
                "num_files": ("INT", {"default": 1, "max": 10000}),
                "megabytes": ("INT", {"default": 0, "max": 10000}),
            },
            "optional": {"image": ("IMAGE",)},
        }
    )
    RETURN_TYPES = ()
    FUNCTION = "draw"
    OUTPUT_NODE = True

    def draw(self, text, seconds, num_files, megabytes, image=None):
        tally("began", text)
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            time.sleep(max(0.0, min(0.01, until - time.monotonic())))
            comfy.model_management.throw_exception_if_processing_interrupted()
        content = text + " " * (megabytes * 2**20)
        saved = [self.save(f"{text}-{time.time_ns()}-{number}.txt", content) for number in range(num_files)]
        tally("drawn", text)
        return {"ui": {"files": saved}}

    def save(self, name, text):
        with open(os.path.join(folder_paths.get_output_directory(), name), "w") as file:
            file.write(text)
        return {"filename": name, "subfolder": "", "type": "output"}


class FaultHang:
    """Never returns and hears no interrupt."""

    INPUT_TYPES = classmethod(lambda cls: {"required": {"text": ("STRING", {})}})
    RETURN_TYPES = ()
    FUNCTION = "hang"
    OUTPUT_NODE = True

    def hang(self, text):
        tally("began", text)
        while True:
            time.sleep(3600)


class FaultStuck:
    """Does not look up: computes in Python, holds the interpreter's lock, or goes on after every interrupt."""

    INPUT_TYPES = classmethod(
        lambda cls: {"required": {"text": ("STRING", {}), "how": (["python", "lock", "swallow"],)}}
    )
    RETURN_TYPES = ()
    FUNCTION = "stick"
    OUTPUT_NODE = True

    def stick(self, text, how):
        tally("began", text)
        while how == "python":
            sum(range(1000))
        while how == "lock":
            ctypes.PyDLL(None).sleep(3600)
        bar = comfy.utils.ProgressBar(10)
        while True:
            try:
                time.sleep(0.01)
                bar.update_absolute(1)
                comfy.model_management.throw_exception_if_processing_interrupted()
            except BaseException:
                pass


class FaultDie:
    """Takes the whole engine with it."""

    INPUT_TYPES = classmethod(lambda cls: {"required": {"text": ("STRING", {})}})
    RETURN_TYPES = ()
    FUNCTION = "die"
    OUTPUT_NODE = True

    def die(self, text):
        tally("began", text)
        os.abort()


NODE_CLASS_MAPPINGS = {"FaultDraw": FaultDraw, "FaultHang": FaultHang, "FaultStuck": FaultStuck, "FaultDie": FaultDie}
'''


def write_pack(base: Path) -> None:
    folder = base / "custom_nodes"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "faults.py").write_text(PACK)


def draw(
    text: str, seconds: float = 0.0, num_files: int = 1, image_url: str = "", megabytes: int = 0
) -> dict[str, Any]:
    inputs: dict[str, Any] = {"text": text, "seconds": seconds, "num_files": num_files, "megabytes": megabytes}
    workflow: dict[str, Any] = {"1": {"class_type": "FaultDraw", "inputs": inputs}}
    if image_url:
        workflow["1"]["inputs"]["image"] = ["2", 0]
        workflow["2"] = {"class_type": "LoadImage", "inputs": {"image": image_url}}
    return workflow


def hang(text: str) -> dict[str, Any]:
    return {"1": {"class_type": "FaultHang", "inputs": {"text": text}}}


def stick(text: str, how: str) -> dict[str, Any]:
    return {"1": {"class_type": "FaultStuck", "inputs": {"text": text, "how": how}}}


def die(text: str) -> dict[str, Any]:
    return {"1": {"class_type": "FaultDie", "inputs": {"text": text}}}


@dataclass(frozen=True, slots=True)
class Stroke:
    """One line of the tally. `at` is the engine's clock, seconds since the epoch."""

    is_end: bool
    text: str
    at: float


def read_tally(base: Path) -> list[Stroke]:
    """Everything that was ever begun or drawn below `base`, in its order."""
    path = base / TALLY
    lines = path.read_text().splitlines() if path.exists() else []
    return [Stroke(word == "drawn", text, float(at)) for word, text, at in (line.split(" ") for line in lines)]
