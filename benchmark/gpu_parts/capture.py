"""CUDA graphs of every network: whether they are captured, draw the same bits, and leave torch as it was.

Each family, the float8 weights that pass through buffers, and a capture that must fail have a process of their own: a
failed capture may leave allocator and stream of its process in any state.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from typing import Any

import torch

from benchmark.gpu_parts.bench import MIB, Bench, run_cases
from benchmark.gpu_parts.sampling import GRAPHS, STAND_IN, Drawing, computing_engine
from darkroom.engine.diffusion.likeness import relative_error
from darkroom.engine.families.registry import families
from darkroom.engine.settings import DtypeName, DtypeSettings

FIRST = ("sd15", "sdxl", "flux", "wan", "qwen_image", "sd3", "z_image")
FAILED_CAPTURE = "failed_capture"
KEPT: dict[str, DtypeName] = {"sd15 float8": "float8_e4m3fn", "flux float8": "float8_e4m3fn"}
AT_ONCE, CASE_SECONDS = 8, 40.0
SIDE_PX, NUM_STEPS = 64, 4
LEFT_BYTES = 4 * MIB  # that libraries may keep after all models have gone


def measure(bench: Bench) -> None:
    names = case_names(bench)
    at_once, seconds = (2, bench.left_seconds) if bench.is_toy else (AT_ONCE, CASE_SECONDS)
    cases = run_cases(bench, "capture", names, at_once=at_once, each_seconds=seconds)
    captured: list[bool] = []
    equal: list[bool] = []
    is_right: list[bool] = []
    for case in cases:
        if case.reason is not None:
            bench.report.fail(case.name, case.reason)
            is_right.append(False)
            continue
        for label, reason in case.failures.items():
            bench.report.fail(f"{case.name}.{label}", reason)
        bench.note(f"cases.{case.name}", {**case.figures, "seconds": case.seconds})
        for way in case.figures.get("ways", {}).values():
            captured.append(bool(way["is_captured"]))
            equal.append(way["error"] == 0.0)
            is_right.append(not way["unsound"])
        is_right += [not case.failures] if case.name == FAILED_CAPTURE else []
    bench.note("share_captured", share(captured))
    bench.note("share_equal", share(equal))
    bench.note("share_sound", share(is_right))


def share(found: Sequence[bool]) -> float | None:
    return sum(found) / len(found) if found else None


def case_names(bench: Bench) -> list[str]:
    """Return the cases, the most used networks first."""
    if bench.is_toy:
        return ["sd15", "flux", FAILED_CAPTURE]
    others = [family.name for family in families() if family.text and family.name not in FIRST]
    return [*FIRST, FAILED_CAPTURE, *KEPT, *others]


def measure_case(bench: Bench, name: str) -> None:
    if name == FAILED_CAPTURE:
        bench.attempt("failed", measure_failed_capture, bench)
        return
    family = name.partition(" ")[0]
    before = allocated_bytes(bench)
    bench.attempt("ways", measure_family, bench, family, DtypeSettings(unet=KEPT.get(name)))
    gc.collect()
    bench.note("left_mib", (allocated_bytes(bench) - before) / MIB)
    if allocated_bytes(bench) - before > LEFT_BYTES:
        bench.report.fail("memory", f"{(allocated_bytes(bench) - before) / MIB:.1f} MiB are left after the engine")


def measure_family(bench: Bench, family: str, dtypes: DtypeSettings) -> None:
    with computing_engine(bench, dtypes=dtypes) as engine:
        model, clip, _ = engine.models.random_checkpoint(family, "small")
        drawing = Drawing.of_text(bench, engine, model, clip, family=family, side_px=SIDE_PX, num_steps=NUM_STEPS)
        plain = drawing.draw(()).latent
        for name in GRAPHS if bench.is_gpu else (STAND_IN,):
            first = drawing.draw((name,))
            with counted_replays(bench) as count:
                again = drawing.draw((name,))
            engine.tuner.release()
            errors = [relative_error(item.latent, plain) for item in (first, again, drawing.draw(()))]
            bench.note(f"ways.{name}", {
                "is_captured": count() > 0, "replays": count(), "used": again.used, "unused": dict(again.unused),
                "error": max(errors), "errors": errors, "unsound": unsound(bench),
            })  # fmt: skip


class counted_replays:  # noqa: N801 - read as a function
    """Count replays of CUDA graphs while the context is open; what is counted stays counted."""

    def __init__(self, bench: Bench) -> None:
        self._is_gpu = bench.is_gpu
        self._num = 0

    def __enter__(self) -> Any:
        if self._is_gpu:
            self._replay = torch.cuda.CUDAGraph.replay
            count = self

            def replay(graph: Any) -> None:
                count._num += 1
                count._replay(graph)

            torch.cuda.CUDAGraph.replay = replay  # type: ignore[method-assign, assignment]
        return lambda: self._num

    def __exit__(self, *error: object) -> None:
        if self._is_gpu:
            torch.cuda.CUDAGraph.replay = self._replay  # type: ignore[method-assign]


def unsound(bench: Bench) -> list[str]:
    """Return the faults that a capture has left in torch: its stream, its allocator, its generator, its arithmetic."""
    if not bench.is_gpu:
        return []
    found: list[str] = []
    if torch.cuda.current_stream() != torch.cuda.default_stream():
        found.append(f"the current stream is {torch.cuda.current_stream()}")
    if torch.cuda.is_current_stream_capturing():
        found.append("the stream is capturing")
    checks: dict[str, Callable[[], object]] = {
        "empty_cache": torch.cuda.empty_cache,
        "synchronize": torch.cuda.synchronize,
        "randn": lambda: torch.randn(1024, device=bench.device).sum().item(),
        "record_stream": lambda: freed_after_use_on_a_stream(bench),
        "new graph": lambda: graph_of_addition(bench),
    }
    for name, check in checks.items():
        try:
            check()
        except RuntimeError as error:
            found.append(f"{name}: {str(error).partition(chr(10))[0]}")
    return found


def freed_after_use_on_a_stream(bench: Bench) -> None:
    """Raise RuntimeError where memory that another stream has used is never given back."""
    side: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    before = torch.cuda.memory_stats()["active_bytes.all.current"]
    tensor = torch.zeros(8 * MIB, dtype=torch.uint8, device=bench.device)
    tensor.record_stream(side)
    del tensor
    torch.cuda.synchronize()
    torch.zeros(1024, device=bench.device)  # the allocator looks after events when it is asked for memory
    torch.cuda.empty_cache()
    left = torch.cuda.memory_stats()["active_bytes.all.current"] - before
    if left >= 8 * MIB:
        raise RuntimeError(f"{left} bytes that a stream has used are not given back")


def graph_of_addition(bench: Bench) -> None:
    """Raise RuntimeError where torch can capture nothing more."""
    value = torch.zeros(16, device=bench.device)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        value += 1
    graph.replay()
    if float(value.sum()) != 16.0:
        raise RuntimeError("a graph of an addition computes something else")


def after_waiting(value: torch.Tensor) -> torch.Tensor:
    torch.cuda.synchronize()
    return value + 1.0


def measure_failed_capture(bench: Bench) -> None:
    """Record computations that no graph may have; afterwards torch has to be as before."""
    if not bench.is_gpu:
        bench.note("skipped", "needs a CUDA device")
        return
    from darkroom.engine.tuning.strategies.cuda_graph import CudaRecorder

    on_host = torch.ones(64)
    value = torch.ones(64, device=bench.device)
    faults: dict[str, Any] = {
        "copy_from_host": lambda: value + on_host.to(bench.device),
        "copy_to_host": lambda: value * float(value.sum()),
        "wait": lambda: value[value.nonzero()],
        "error_of_its_own": lambda: value @ value[:3],
        "wait_unseen": lambda: after_waiting(value),  # no operation: a capture alone can refuse it
    }
    for name, work in faults.items():
        try:
            recorder: Any = CudaRecorder()
            recorder.record(work)
            outcome = "captured"
        except Exception as error:  # noqa: BLE001 - whatever it raises: what counts is what it leaves behind
            outcome = f"refused: {str(error).partition(chr(10))[0][:120]}"
        wrong = unsound(bench)
        bench.note(f"failed.{name}", {"outcome": outcome, "unsound": wrong})
        if wrong or outcome == "captured":
            bench.report.fail(name, "; ".join(wrong) or "it was captured")


def allocated_bytes(bench: Bench) -> int:
    return torch.cuda.memory_allocated() if bench.is_gpu else 0
