"""Repeated blocks of a network compiled with `torch.compile`, in the background.

No step waits for the compiler: blocks run as they are while a thread compiles them for the shapes that it has seen,
and all compiled ones take their place together before an evaluation begins. Regional compilation:
https://docs.pytorch.org/tutorials/recipes/regional_compilation.html.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Hashable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path

import torch
from torch import nn

from engine.architectures.latent_unet_layers import BasicTransformerBlock, ResBlock
from engine.diffusion.compilation import missing_compiler
from engine.tuning.quality import Quality
from engine.tuning.strategy import (
    NETWORK_OPTIONS,
    Evaluation,
    MachineFacts,
    SamplingUse,
    Strategy,
    Undo,
    custom_code,
    offloaded,
    replace_forwards,
    unchanged_layers,
)

BLOCKS: tuple[type[nn.Module], ...] = (BasicTransformerBlock, ResBlock)
MAX_SHAPES = 64  # compiled forms of one kind of block
ARTIFACTS = "compiled_blocks.bin"

log = logging.getLogger(__name__)

Arguments = tuple[object, ...]
BlockFunction = Callable[..., torch.Tensor]


class Compiler:
    """Compiled functions of kinds of blocks, made on one background thread, and the shapes they are ready for.

    `folder` keeps compiled artifacts from one process to the next; None keeps none.
    """

    def __init__(
        self, folder: Path | None, compile_block: Callable[[type[nn.Module]], BlockFunction] | None = None
    ) -> None:
        self._folder = folder
        self._compile = _compile if compile_block is None else compile_block
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="compiler")
        self._lock = threading.Lock()
        self._functions: dict[type[nn.Module], Callable[..., torch.Tensor]] = {}
        self._pending: dict[Hashable, Future[None]] = {}
        self._ready: frozenset[Hashable] = frozenset()
        self._has_loaded = False
        self.failure: str | None = None

    @property
    def ready(self) -> frozenset[Hashable]:
        """The shapes for which compiled code is there now."""
        return self._ready

    def function(self, kind: type[nn.Module]) -> Callable[..., torch.Tensor]:
        return self._functions[kind]

    def ask(self, key: Hashable, block: nn.Module, arguments: Arguments) -> None:
        """Have the code for a block and the shapes of these arguments compiled, once."""
        with self._lock:
            if key in self._pending or self.failure is not None or len(self._pending) >= MAX_SHAPES:
                return
            examples = tuple(torch.zeros_like(item) if isinstance(item, torch.Tensor) else item for item in arguments)
            self._pending[key] = self._thread.submit(self._make, key, block, examples)

    def settle(self, seconds: float) -> str | None:
        """Wait until nothing is being compiled. Return why that is not so, or the compiler's failure, or None."""
        left = wait(tuple(self._pending.values()), seconds).not_done
        return f"still compiling after {seconds:.0f} s" if left else self.failure

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _make(self, key: Hashable, block: nn.Module, examples: Arguments) -> None:
        try:
            self._load_artifacts()
            function = self._functions.setdefault(type(block), self._compile(type(block)))
            with torch.inference_mode():
                function(block, *examples)
        except Exception as error:  # noqa: BLE001 - the compiler: blocks then run as they are
            self.failure = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
            log.warning("blocks not compiled: reason=%s", self.failure)
            return
        self._ready = self._ready | {key}
        if all(future.done() for other, future in self._pending.items() if other != key):
            self._save_artifacts()

    def _load_artifacts(self) -> None:
        path = None if self._folder is None else self._folder / ARTIFACTS
        if not self._has_loaded and path is not None and path.is_file():
            torch.compiler.load_cache_artifacts(path.read_bytes())
        self._has_loaded = True

    def _save_artifacts(self) -> None:
        found = None if self._folder is None else torch.compiler.save_cache_artifacts()
        if found is None or self._folder is None:
            return
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            whole = self._folder / f"{ARTIFACTS}.new"
            whole.write_bytes(found[0])
            whole.replace(self._folder / ARTIFACTS)
        except OSError as error:
            log.warning("compiled artifacts not kept: reason=%s", error)


def _compile(kind: type[nn.Module]) -> Callable[..., torch.Tensor]:
    forward = kind.forward
    with torch._dynamo.config.patch(recompile_limit=MAX_SHAPES):
        return torch.compile(lambda block, *arguments: forward(block, *arguments), dynamic=False)


class CompiledBlocks(Strategy):
    """Blocks compiled in the background."""

    name = "compiled_blocks"
    quality = Quality.SAME
    about = "repeated blocks are compiled in the background and take their place when they are ready"
    is_size_sensitive = True
    # Their functions would be compiled anew.
    conflicts = frozenset(
        {"prompt_cache", "fused_qkv", "fused_geglu", "joined_embeddings", "nhwc_group_norm", "winograd_convolutions"}
    )

    def __init__(self, compiler: Compiler) -> None:
        self.compiler = compiler

    def missing(self, machine: MachineFacts) -> str | None:
        return missing_compiler("inductor", machine.device_type)

    def unfit(self, use: SamplingUse) -> str | None:
        found = custom_code(use) or offloaded(use)
        if found is not None:
            return found
        if self.compiler.failure is not None:
            return self.compiler.failure
        return None if unchanged_layers(use, BLOCKS) else "the network has no blocks of this kind"

    def apply(self, use: SamplingUse) -> Undo:
        state = _Swap(self.compiler, use.evaluation)
        undo = replace_forwards([(block, state.forward_of(block)) for block in unchanged_layers(use, BLOCKS)])
        hook = use.network.register_forward_pre_hook(lambda network, arguments: state.begin_evaluation())

        def undo_all() -> None:
            hook.remove()
            undo()

        return undo_all

    def settle(self, seconds: float) -> str | None:
        return self.compiler.settle(seconds)

    def close(self) -> None:
        self.compiler.close()


class _Swap:
    """The shapes whose compiled code is used in the evaluation that runs."""

    def __init__(self, compiler: Compiler, evaluation: Evaluation) -> None:
        self._compiler = compiler
        self._evaluation = evaluation
        self._in_use: frozenset[Hashable] = frozenset()

    def begin_evaluation(self) -> None:
        self._in_use = self._compiler.ready
        self._evaluation.num_compiled = len(self._in_use)

    def forward_of(self, block: nn.Module) -> Callable[..., torch.Tensor]:
        kind, plain = type(block), type(block).forward

        def forward(
            x: torch.Tensor,
            second: object = None,
            transformer_options: Mapping[str, object] | None = None,
            **named: object,
        ) -> torch.Tensor:
            second = named.pop("context", second) if second is None else second
            options = transformer_options or {}
            if named or any(options.get(name) for name in NETWORK_OPTIONS):
                return _call(plain, block, x, second, transformer_options, named)
            key = (kind, block_key(block), _shape(x), _shape(second))
            if key in self._in_use:
                out: torch.Tensor = self._compiler.function(kind)(block, x, second)
                return out
            self._compiler.ask(key, block, (x, second))
            return _call(plain, block, x, second, transformer_options, named)

        return forward


def _call(
    plain: Callable[..., torch.Tensor],
    block: nn.Module,
    x: torch.Tensor,
    second: object,
    options: object,
    named: Mapping[str, object],
) -> torch.Tensor:
    if isinstance(block, ResBlock):
        return plain(block, x, second)
    return plain(block, x, context=second, transformer_options=options, **named)


def block_key(block: nn.Module) -> Hashable:
    """Return the shapes of the block's weights: blocks that share them share compiled code."""
    return tuple((name, tuple(weight.shape), weight.dtype) for name, weight in block.named_parameters())


def _shape(value: object) -> Hashable:
    if not isinstance(value, torch.Tensor):
        return None
    return tuple(value.shape), value.stride(), value.dtype
