"""The text encoder of Ideogram 4: Qwen3-VL 8B, of which thirteen layers are read. It reads images too."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch

from darkroom.engine.families.text.qwen3_vl import QWEN3_VL_8B, QWEN3_VL_8B_WIDTH, qwen3_vl
from darkroom.engine.text.chunk_encoding import Encoded, TokenWeights
from darkroom.engine.text.qwen_encoding import QwenEncoding, TappedQwenEncoder
from darkroom.engine.text.qwen_tokens import IMAGE_PLACEHOLDER, QwenTokenizer

SLOT = "qwen3vl_8b"
OTHER_SIZES = (2048, 2560, 5120)  # of Qwen3-VL models that other networks read
LAYERS = (1, 4, 7, 10, 13, 16, 19, 22, 25, 28, 31, 34, 36)  # those whose inputs are read; behind the last, the output
TEMPLATE = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
IMAGE_TEMPLATE = TEMPLATE.replace("{}", IMAGE_PLACEHOLDER + "{}")


class Ideogram4Encoder(TappedQwenEncoder):
    """A language model whose conditioning is what some layers read, channel by channel [1, T, D * layers].

    It is of all tokens, those of the template too. The last is the model's output, behind the final norm.
    """

    def _states(
        self,
        embeds: torch.Tensor,
        mask: torch.Tensor | None,
        layer: int | None,
        positions: torch.Tensor | None,
        added: Sequence[torch.Tensor],
    ) -> torch.Tensor:
        model = self.transformer.model
        states = model.chosen_states(self.layers, embeds, mask, positions=positions, added=added)  # [1, N, T, D]
        states = torch.cat([states[:, :-1], model.norm(states[:, -1:])], dim=1)
        return states.permute(0, 2, 3, 1).flatten(2)

    def encode_weighted(
        self, chunks: Sequence[TokenWeights], *, layer_idx: int | None, project_pooled: bool
    ) -> Encoded:
        """Return the conditioning [1, T, D * layers]. Only the first chunk is read, and no weights."""
        return Encoded(self.encode([token[0] for token in chunks[0]], layer_idx), None)


QWEN = qwen3_vl(
    QwenEncoding(SLOT, TEMPLATE, IMAGE_TEMPLATE, QWEN3_VL_8B_WIDTH),
    other_widths=OTHER_SIZES,
    encoder_type=partial(Ideogram4Encoder, layers=LAYERS),
    tokenizer_type=partial(QwenTokenizer, repeats_images=True),
    sizes=QWEN3_VL_8B,
)
