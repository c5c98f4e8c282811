"""Makes the golden values of tests/update/test_training_parity.py: ten training steps in torch.

To make them again, in an environment of its own (they were made with torch 2.13 on a CPU):

    pip install torch numpy && python tests/golden/make_torch_training_golden.py

The model is that of make_torch_golden.py (torch's own layers, post-norm, relu, tied embeddings, dropout 0); the loss is
torch's own cross_entropy with label_smoothing, the optimizer its own Adam, the rate equation 3, written out. Weights
begin as float32 numbers; torch computes in float64.
"""

import numpy as np
import torch
from make_torch_golden import D_MODEL, HERE, PAD, VOCABULARY, Model, in_our_layout
from torch import nn

BOS, EOS = 1, 2
STEPS, WARMUP, SMOOTHING = 10, 40, 0.1
KEPT = (1, STEPS)  # the steps after which the parameters are stored


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
    model = Model(layers=1)
    model.table.data = torch.randn(VOCABULARY, D_MODEL) * D_MODEL**-0.5
    model.double()
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
    for name, tensor, rows in model.entries():
        stored[f"{step}/{name}"] = in_our_layout(name, tensor[rows]).detach().numpy().astype(np.float32)


if __name__ == "__main__":
    main()
