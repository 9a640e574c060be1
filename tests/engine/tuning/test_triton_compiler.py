"""A compiler for kernels in Triton is looked for before one is launched."""

from __future__ import annotations

import importlib.util
import shutil
import sysconfig
from pathlib import Path

import pytest
import torch

from darkroom.engine.diffusion.compilation import missing_compiler
from darkroom.engine.tuning.registry import make_strategies
from darkroom.engine.tuning.strategy import MachineFacts
from darkroom.engine.tuning.triton_compiler import has_triton, missing_triton

CARD = MachineFacts("cuda", "a card", (9, 0))
CPU = MachineFacts("cpu", "a processor")


@pytest.fixture
def compiling(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine with Triton, gcc and Python's headers; the file of the headers."""
    header = tmp_path / "Python.h"
    header.touch()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(shutil, "which", lambda name, **where: "/usr/bin/gcc" if name == "gcc" else None)
    monkeypatch.setattr(sysconfig, "get_paths", lambda **where: {"include": str(tmp_path)})
    return header


def test_a_machine_that_has_everything_lacks_nothing(compiling: Path) -> None:
    assert missing_triton(CARD) is None and missing_compiler("inductor", "cuda") is None
    assert has_triton(torch.device("cuda")) and not has_triton(torch.device("cpu"))
    assert missing_triton(CPU) == "needs a CUDA device"


def test_each_thing_that_lacks_is_named(compiling: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiling.unlink()
    assert missing_triton(CARD) == f"needs Python's headers: {compiling}"
    monkeypatch.setattr(shutil, "which", lambda name, **where: "/usr/bin/cc" if name == "cc" else None)
    assert missing_triton(CARD) == "needs a C compiler: gcc or clang in PATH"
    found = missing_compiler("inductor", "cuda")
    assert found is not None and found.endswith(
        "got inductor on a machine that needs a C compiler: gcc or clang in PATH"
    )
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert missing_triton(CARD) == "needs the package triton"


def test_no_strategy_with_a_kernel_in_triton_is_begun_without_a_compiler(
    compiling: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "which", lambda name, **where: None)
    missing = {name: strategy.missing(CARD) for name, strategy in make_strategies().items()}
    assert missing["nhwc_group_norm"] == missing_triton(CARD)
    assert "needs a C compiler" in str(missing["compiled_blocks"])
