"""The rows of the paper's Table 3 as differences from the base config."""

from typing import Any

TABLE_3: dict[str, dict[str, Any]] = {
    "base": {},
    "A h=1": {"model.num_heads": 1},
    "A h=4": {"model.num_heads": 4},
    "A h=16": {"model.num_heads": 16},
    "A h=32": {"model.num_heads": 32},
    "B d_k=16": {"model.d_k": 16},
    "B d_k=32": {"model.d_k": 32},
    "C N=2": {"model.num_encoder_layers": 2, "model.num_decoder_layers": 2},
    "C N=4": {"model.num_encoder_layers": 4, "model.num_decoder_layers": 4},
    "C N=8": {"model.num_encoder_layers": 8, "model.num_decoder_layers": 8},
    "C d_model=256": {"model.d_model": 256},
    "C d_model=1024": {"model.d_model": 1024},
    "C d_ff=1024": {"model.d_ff": 1024},
    "C d_ff=4096": {"model.d_ff": 4096},
    "D P_drop=0": {"model.dropout": 0.0},
    "D P_drop=0.2": {"model.dropout": 0.2},
    "D eps_ls=0": {"train.label_smoothing": 0.0},
    "D eps_ls=0.2": {"train.label_smoothing": 0.2},
    "E learned positions": {"model.positions": "learned"},
    "big": {
        "model.d_model": 1024,
        "model.d_ff": 4096,
        "model.num_heads": 16,
        "model.dropout": 0.3,
        "train.steps": 300_000,
    },
}
