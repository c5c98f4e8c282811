"""Writes hf_beam.npz: a small random Marian model of Hugging Face, and what its `generate` finds with it.

In an environment of its own (torch 2.13.0 and transformers 5.23.0 made the stored file):

    pip install torch transformers
    python tests/golden/make_hf_beam_golden.py

`early_stopping="never"` is the one setting of `generate` that stops no sooner than it may for length_penalty > 0. Its
penalty n^length_penalty is `average` here. A target of the greatest length ends with an <eos> of probability 1
(`forced_eos_token_id`), which the test's model gives it too.
"""

from pathlib import Path

import numpy as np
import torch
from transformers import MarianConfig, MarianMTModel

VOCABULARY, SENTENCES, LONGEST = 24, 24, 14
EOS, PAD = 0, VOCABULARY - 1
SEARCHES = [(1, 1.0), (2, 0.3), (4, 0.0), (4, 0.6), (4, 0.8), (6, 0.7), (4, 1.0), (8, 0.3)]  # beams, length_penalty


def small_marian() -> MarianMTModel:
    torch.manual_seed(0)
    config = MarianConfig(
        vocab_size=VOCABULARY,
        d_model=16,
        encoder_layers=1,
        decoder_layers=2,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=24,
        decoder_ffn_dim=24,
        activation_function="swish",
        max_position_embeddings=64,
        scale_embedding=True,
        pad_token_id=PAD,
        eos_token_id=EOS,
        decoder_start_token_id=PAD,
        forced_eos_token_id=EOS,
        tie_word_embeddings=True,
    )
    model = MarianMTModel(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "embed_positions" not in name and "layer_norm" not in name:
                parameter.copy_(torch.randn_like(parameter) * 0.25)
        model.final_logits_bias[0, EOS] = 3.0  # so that translations end, some soon, some late
    return model


def sources() -> np.ndarray:
    """Rows of 1 to 8 tokens and <eos>, padded."""
    dice = np.random.default_rng(0)
    rows = np.full((SENTENCES, 9), PAD)
    for row in rows:
        length = dice.integers(1, 9)
        row[: length + 1] = [*dice.integers(1, PAD, length), EOS]
    return rows


def main() -> None:
    model, source_BS = small_marian(), sources()
    golden = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    golden["source_BS"] = source_BS
    for beams, penalty in SEARCHES:
        found = model.generate(
            input_ids=torch.as_tensor(source_BS),
            attention_mask=torch.as_tensor(source_BS != PAD),
            num_beams=beams,
            num_return_sequences=beams,
            length_penalty=penalty,
            early_stopping="never" if beams > 1 else False,
            max_new_tokens=LONGEST,
            bad_words_ids=[[PAD]],
            do_sample=False,
            output_scores=True,
            return_dict_in_generate=True,
        )
        sequences = found.sequences[:, 1:].numpy()
        golden[f"beams={beams} penalty={penalty} tokens"] = sequences
        if beams > 1:
            golden[f"beams={beams} penalty={penalty} scores"] = found.sequences_scores.numpy()
    np.savez_compressed(Path(__file__).with_name("hf_beam.npz"), **golden)


if __name__ == "__main__":
    main()
