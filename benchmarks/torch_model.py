"""The model and its step with torch's nn.Transformer, eager or compiled, for comparison.

Where nn.Transformer differs from the paper it stays as it is: biases everywhere, another norm at the end of each stack,
dropout on attention weights and inside the feed-forward layer too.
"""

import contextlib
import math
from collections.abc import Callable

import numpy as np
import torch
from torch import nn

from transformer_jax import ModelConfig, sinusoidal_positions

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


class TorchTransformer(nn.Module):
    """Logits_BTN of each next target token."""

    def __init__(self, config: ModelConfig, longest: int):
        super().__init__()
        self.scale = math.sqrt(config.d_model)
        self.table = nn.Embedding(config.vocab_size, config.d_model)
        nn.init.normal_(self.table.weight, std=config.d_model**-0.5)
        self.drop = nn.Dropout(config.dropout)
        self.transformer = nn.Transformer(
            config.d_model,
            config.num_heads,
            config.num_encoder_layers,
            config.num_decoder_layers,
            config.d_ff,
            config.dropout,
            batch_first=True,
        )
        positions = np.array(sinusoidal_positions(longest, config.d_model))
        self.register_buffer("positions", torch.from_numpy(positions))
        self.register_buffer("causal", torch.triu(torch.ones(longest, longest, dtype=torch.bool), 1))

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        source_padding, target_padding, length = source == 0, target == 0, target.shape[1]
        features = self.transformer(
            self.embed(source),
            self.embed(target),
            tgt_mask=self.causal[:length, :length],
            src_key_padding_mask=source_padding,
            tgt_key_padding_mask=target_padding,
            memory_key_padding_mask=source_padding,
            tgt_is_causal=True,  # else it looks at the mask to find out, which no compiled program can
        )
        return features @ self.table.weight.T

    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.drop(self.table(tokens) * self.scale + self.positions[: tokens.shape[1]])


def make_step(
    config: ModelConfig, batch: tuple[np.ndarray, ...], autocast: bool, compiled: bool
) -> Callable[[], object]:
    """A call takes one step on this batch: source, target input, target output."""
    source, target_input, target_output = (torch.from_numpy(np.asarray(array, np.int64)).to(DEVICE) for array in batch)
    model = TorchTransformer(config, max(source.shape[1], target_input.shape[1])).to(DEVICE).train()
    adam = torch.optim.Adam(model.parameters(), lr=1e-4, betas=(0.9, 0.98), eps=1e-9, fused=True)

    def loss_of(source: torch.Tensor, target_input: torch.Tensor, target_output: torch.Tensor) -> torch.Tensor:
        context = torch.autocast(DEVICE, torch.bfloat16) if autocast else contextlib.nullcontext()
        with context:
            logits = model(source, target_input)
            return nn.functional.cross_entropy(
                logits.flatten(0, 1), target_output.flatten(), ignore_index=0, label_smoothing=0.1
            )

    if compiled:
        loss_of = torch.compile(loss_of)

    def step() -> float:
        adam.zero_grad(set_to_none=True)
        loss = loss_of(source, target_input, target_output)
        loss.backward()
        adam.step()
        return loss.item()

    return step
