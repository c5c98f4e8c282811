"""Makes the golden values of tests/update/test_training_parity.py: ten training steps in torch.

To make them again, in an environment of its own (they were made with torch 2.13 on a CPU):

    pip install torch numpy && python tests/golden/make_torch_training_golden.py

The model is that of make_torch_golden.py (torch's own layers, post-norm, relu, tied embeddings, dropout 0); the loss is
torch's own cross_entropy with label_smoothing, the optimizer its own Adam, the rate equation 3, written out. Weights
begin as float32 numbers; torch computes in float64.
"""

import math
from pathlib import Path

import numpy as np
import torch
from make_torch_golden import in_our_layout, layer_entries, sinusoids
from torch import nn

HERE = Path(__file__).parent
VOCABULARY, LAYERS, D_MODEL, D_FF, HEADS, PAD, BOS, EOS = 17, 1, 16, 24, 4, 0, 1, 2
STEPS, WARMUP, SMOOTHING = 10, 40, 0.1
KEPT = (1, STEPS)  # the steps after which the parameters are stored


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        stack = {"d_model": D_MODEL, "nhead": HEADS, "dim_feedforward": D_FF, "dropout": 0.0, "batch_first": True}
        stack["layer_norm_eps"] = 1e-6
        self.encoder = nn.ModuleList(nn.TransformerEncoderLayer(**stack) for _ in range(LAYERS))
        self.decoder = nn.ModuleList(nn.TransformerDecoderLayer(**stack) for _ in range(LAYERS))
        for layer in [*self.encoder, *self.decoder]:
            layer.self_attn = nn.MultiheadAttention(D_MODEL, HEADS, bias=False, batch_first=True)
        for layer in self.decoder:
            layer.multihead_attn = nn.MultiheadAttention(D_MODEL, HEADS, bias=False, batch_first=True)
        self.table = nn.Parameter(torch.randn(VOCABULARY, D_MODEL) * D_MODEL**-0.5)
        self.double()

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        source_padding, target_padding = source == PAD, target == PAD
        future = torch.triu(torch.ones(target.shape[1], target.shape[1], dtype=torch.bool), diagonal=1)
        memory, x = self.embed(source), self.embed(target)
        for layer in self.encoder:
            memory = layer(memory, src_key_padding_mask=source_padding)
        for layer in self.decoder:
            masks = {"tgt_mask": future, "tgt_key_padding_mask": target_padding}
            x = layer(x, memory, **masks, memory_key_padding_mask=source_padding)
        return x @ self.table.T

    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.table[tokens] * math.sqrt(D_MODEL) + sinusoids(tokens.shape[1])

    def entries(self) -> dict[str, torch.Tensor]:
        """A copy of each parameter, under our name."""
        listed = [("source_embedding/table", self.table, slice(None))]
        for side in ("encoder", "decoder"):
            for i, layer in enumerate(getattr(self, side)):
                listed += layer_entries(f"{side}/layers_{i}", layer)
        return {name: in_our_layout(name, tensor[rows]).detach().clone() for name, tensor, rows in listed}


def batch(dice: np.random.Generator, rows: int = 6, width: int = 8) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    source, target_input, target_output = (np.full((rows, width), PAD, np.int32) for _ in range(3))
    for row in range(rows):
        s, t = (dice.integers(4, VOCABULARY, dice.integers(2, width)) for _ in range(2))
        source[row, : len(s) + 1] = [*s, EOS]
        target_input[row, : len(t) + 1] = [BOS, *t]
        target_output[row, : len(t) + 1] = [*t, EOS]
    return source, target_input, target_output


def main() -> None:
    torch.manual_seed(0)
    model = Model()
    for parameter in model.parameters():
        parameter.data = parameter.data.float().double()
    dice = np.random.default_rng(0)
    batches = [batch(dice) for _ in range(STEPS)]
    stored: dict[str, np.ndarray] = {}
    for i, name in enumerate(("source", "target_input", "target_output")):
        stored[name] = np.stack([one[i] for one in batches])
    keep(stored, 0, model)
    adam = torch.optim.Adam(model.parameters(), lr=1.0, betas=(0.9, 0.98), eps=1e-9)
    losses = []
    for step, (source, target_input, target_output) in enumerate(batches, start=1):
        adam.param_groups[0]["lr"] = D_MODEL**-0.5 * min(step**-0.5, step * WARMUP**-1.5)  # equation 3
        logits = model(torch.tensor(source, dtype=torch.long), torch.tensor(target_input, dtype=torch.long))
        loss = nn.functional.cross_entropy(
            logits.reshape(-1, VOCABULARY),
            torch.tensor(target_output, dtype=torch.long).reshape(-1),
            ignore_index=PAD,
            label_smoothing=SMOOTHING,
        )
        adam.zero_grad()
        loss.backward()
        adam.step()
        losses.append(loss.item())
        if step in KEPT:
            keep(stored, step, model)
    stored["losses"] = np.array(losses)
    np.savez_compressed(HERE / "torch_training.npz", **stored)


def keep(stored: dict[str, np.ndarray], step: int, model: Model) -> None:
    for name, tensor in model.entries().items():
        stored[f"{step}/{name}"] = tensor.numpy().astype(np.float32)


if __name__ == "__main__":
    main()
