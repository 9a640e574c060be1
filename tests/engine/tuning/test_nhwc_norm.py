"""Group normalisation that keeps channels innermost, in UNets and VAEs, with its kernel in Triton's interpreter."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from darkroom.engine.layers.vae_kl import AutoencoderKl, ResnetBlock, VaeConfig
from darkroom.engine.tuning.strategies.nhwc_norm import NhwcVae
from darkroom.engine.tuning.strategy import SamplingUse

ROOT = Path(__file__).resolve().parents[3]

PROGRAM = """
import json
import torch
from darkroom.engine.layers.vae_kl import AutoencoderKl, VaeConfig
from darkroom.engine.models.load import LoadTypes
from darkroom.engine.models.random_weights import random_networks
from darkroom.engine.diffusion.likeness import relative_error
from darkroom.engine.tuning.kernels import group_norm
from darkroom.engine.tuning.strategies import nhwc_norm
from darkroom.engine.tuning.strategy import SamplingUse

calls = []
kernel = group_norm.group_norm_silu
def counted(*arguments, with_silu):
    calls.append(with_silu)
    return kernel(*arguments, with_silu=with_silu)
group_norm.group_norm_silu = counted

unet, _, _ = random_networks("small", 0, LoadTypes(), "cpu")
vae = AutoencoderKl(VaeConfig(32, (32, 64), 1))
torch.manual_seed(0)
for weight in vae.parameters():
    torch.nn.init.normal_(weight, std=0.1)
laid_out = {"memory_format": torch.channels_last}
x = torch.randn(1, 4, 4, 4, generator=torch.Generator().manual_seed(1))
context = torch.randn(1, 7, unet.config.context_dim, generator=torch.Generator().manual_seed(2))
times = torch.full((1,), 500.0)
found = {}
with torch.inference_mode():
    for name, strategy, network, work in (
        ("unet", nhwc_norm.NhwcGroupNorm(), unet, lambda: unet(x.contiguous(**laid_out), times, context=context)),
        ("decoder", nhwc_norm.NhwcVae(), vae, lambda: vae.decode(x.contiguous(**laid_out))),
        ("encoder", nhwc_norm.NhwcVae(), vae, lambda: vae.encode(vae.decode(x).contiguous(**laid_out))),
    ):
        network.to(**laid_out)
        plain = work()
        calls.clear()
        undo = strategy.apply(SamplingUse(None, network, {}))
        error = relative_error(work(), plain)
        undo()
        found[name] = [error, calls.count(True), calls.count(False), torch.equal(work(), plain)]
print(json.dumps(found))
"""


def test_networks_with_the_kernel_compute_what_they_do_without_it() -> None:
    pytest.importorskip("triton", reason="triton is not installed")
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, env=environment, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    for name, (error, num_with_silu, num_without, is_restored) in found.items():
        assert error < 1e-5 and num_with_silu > 4 and num_without > 0 and is_restored, (name, found)


def test_a_vae_that_others_may_decode_with_meanwhile_stays_as_it_is() -> None:
    """A request that joins takes changes off, also between a norm and the activation that its kernel has applied."""
    vae = AutoencoderKl(VaeConfig(32, (32,), 1))
    assert NhwcVae().unfit(SamplingUse(None, vae, {})) is None
    assert NhwcVae().unfit(SamplingUse(None, vae, {}, may_share=True)) == "other requests may compute at the same time"


def test_a_block_of_which_a_node_has_replaced_one_norm_stays_as_it_is() -> None:
    """Both norms have one activation behind them."""
    block = ResnetBlock(32, 32)
    assert NhwcVae().unfit(SamplingUse(None, block, {})) is None
    block.norm1.__dict__["forward"] = torch.nn.Identity().forward
    assert NhwcVae().unfit(SamplingUse(None, block, {})) is not None
