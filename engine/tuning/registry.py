"""All strategies, in the order in which they are measured: those that a later one may go with come first."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from darkroom.contract.quality import STRATEGIES
from darkroom.engine.tuning.barred import BarredStrategies
from darkroom.engine.tuning.compiled_forms import CompiledForms
from darkroom.engine.tuning.strategies.attention_kernels import AttentionKernels
from darkroom.engine.tuning.strategies.compiled_blocks import CompiledBlocks
from darkroom.engine.tuning.strategies.cuda_graph import CudaGraph, CudaRecorder, Graphs
from darkroom.engine.tuning.strategies.direct_casts import DirectCasts
from darkroom.engine.tuning.strategies.fewer_evaluations import MergedTokens, StepCache
from darkroom.engine.tuning.strategies.fused_geglu import FusedGeglu
from darkroom.engine.tuning.strategies.fused_layers import FusedActivations, FusedModulation, FusedRotary
from darkroom.engine.tuning.strategies.fused_qkv import FusedQkv
from darkroom.engine.tuning.strategies.half_vae import HalfVae
from darkroom.engine.tuning.strategies.library_flags import CudnnBenchmark, Fp16Accumulation
from darkroom.engine.tuning.strategies.low_precision import Bfloat16Layers, Fp8Linear, Int8Linear
from darkroom.engine.tuning.strategies.nhwc_norm import NhwcGroupNorm, NhwcVae
from darkroom.engine.tuning.strategies.packed_products import PackedProducts
from darkroom.engine.tuning.strategies.prompt_cache import PromptCache
from darkroom.engine.tuning.strategies.step_graph import StepGraph
from darkroom.engine.tuning.strategies.threads import Threads
from darkroom.engine.tuning.strategies.vae_graph import MAX_GRAPHS, VaeGraph
from darkroom.engine.tuning.strategies.winograd import WinogradConvolutions
from darkroom.engine.tuning.strategies.zero_blocks import ZeroBlocks
from darkroom.engine.tuning.strategy import Strategy


def make_strategies(folder: Path | None = None, barred: BarredStrategies | None = None) -> Mapping[str, Strategy]:
    """Make one of each strategy, by name.

    `folder` keeps compiled code from one process to the next. `barred` is for strategies that go on without an error
    where they cannot be used, and bar themselves.
    """
    graphs = Graphs(CudaRecorder(), barred=barred)  # both kinds share the memory budget
    made: list[Strategy] = [
        ZeroBlocks(),
        DirectCasts(),
        CudaGraph(graphs),
        StepGraph(graphs),
        PromptCache(),
        Threads(),
        WinogradConvolutions(),
        CudnnBenchmark(),
        FusedQkv(),
        FusedGeglu(),
        FusedRotary(),
        FusedModulation(),
        FusedActivations(),
        AttentionKernels(),
        NhwcGroupNorm(),
        CompiledBlocks(CompiledForms(folder)),
        HalfVae(),
        NhwcVae(),
        Fp16Accumulation(),
        VaeGraph(Graphs(CudaRecorder(), MAX_GRAPHS, barred)),
        Bfloat16Layers(),
        StepCache(),
        MergedTokens(),
        PackedProducts(),
        Int8Linear(),
        Fp8Linear(),
    ]
    by_name = {strategy.name: strategy for strategy in made}
    return {name: by_name[name] for name in STRATEGIES}
