"""Kernels compiled ahead of time for the cards that they run on. Triton needs no card for that."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="triton is not installed")

from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile

from tests.engine.tuning.kernels.forms import TYPES, Form, forms, kernel_functions

CAPABILITIES = (80, 89, 90, 120)  # A100, L4 and RTX 4090, H100, RTX 5090
SHARED_BYTES = 99 * 1024  # that a program may use on the smallest of them
WARP_THREADS = 32


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))


def compiled_bytes(form: Form, capability: int) -> int:
    """Compile a kernel and return the size of its machine code. Raises AssertionError for too much shared memory."""
    source = ASTSource(form.kernel, form.signature, form.constexprs, form.attributes)
    target = GPUTarget("cuda", capability, WARP_THREADS)
    made = compile(source, target=target, options={"num_warps": form.num_warps, "enable_fp_fusion": False})
    assert made.metadata.shared <= SHARED_BYTES, f"{form.name}: {made.metadata.shared} bytes of shared memory"
    return len(made.asm["cubin"])


def test_every_kernel_has_a_form_that_is_compiled() -> None:
    compiled = {form.kernel for form in forms()}
    assert [name for name, kernel in kernel_functions() if kernel not in compiled] == []


def first_forms() -> Iterator[Form]:
    """Yield the first form of each kernel."""
    seen = set()
    for form in forms(("bf16",)):
        if form.kernel not in seen:
            seen.add(form.kernel)
            yield form


@pytest.mark.parametrize("form", list(first_forms()), ids=lambda form: form.name.replace(" ", "-"))
def test_a_kernel_compiles_for_an_h100_or_the_first_card_that_has_its_numbers(form: Form) -> None:
    assert compiled_bytes(form, max(90, form.least_capability)) > 0


def compiled_of_type(kind: str, capability: int) -> list[tuple[str, int]]:
    """Compile all kernels for one type and card; return their names and sizes."""
    return [
        (form.name, compiled_bytes(form, capability)) for form in forms((kind,)) if form.least_capability <= capability
    ]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_form_compiles_for_every_card() -> None:
    work = [(kind, capability) for kind in TYPES for capability in CAPABILITIES]
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as processes:
        found = list(processes.map(compiled_of_type, *zip(*work, strict=True)))
    assert all(size > 0 for forms_of_card in found for _, size in forms_of_card)
