"""Writes marian.npz: small Marian models as Hugging Face saves them, and what it computes with them.

In an environment of its own, from the root of the project (torch 2.13.0, transformers 5.23.0 and sentencepiece 0.2.3
made the stored file):

    pip install torch transformers sentencepiece
    PYTHONPATH=. python tests/golden/make_marian_golden.py

The models are random but for a few steps of training. Each is a whole folder, with SentencePiece models trained on the
library's own grammar. The three together have every option that is supported: activations, shared and separate
vocabularies, tied and untied output, embeddings scaled or not, 16-bit weights, `>>xx<<` tokens, more layers on either
side. `early_stopping="never"` is the search that stops no sooner than it may, as ours does.
"""

import io
import json
import tempfile
from pathlib import Path
from typing import NamedTuple

import numpy as np
import sentencepiece
import torch
from transformers import GenerationConfig, MarianConfig, MarianMTModel, MarianTokenizer

from transformer_jax.data.corpora.tasks import generate

CODES = (">>deu<<", ">>nds<<")
PAIRS = generate("grammar", "train", size=400)
TEXTS = [*sorted((source for source, _ in PAIRS), key=len)[:9], "two  spaces , and xylophones ÄÖ !", "a", "?"]
LONGEST = 48
STEPS = 120


class Case(NamedTuple):
    """What one of the models has of its own."""

    name: str
    config: dict
    generation: dict
    separate: bool = False
    codes: tuple[str, ...] = ()
    dtype: torch.dtype = torch.float32


CASES = [
    Case(
        "shared",
        {
            "activation_function": "swish",
            "encoder_layers": 2,
            "decoder_layers": 1,
            "d_model": 16,
            "ffn": 24,
            "heads": 2,
        },
        {"num_beams": 4, "renormalize_logits": True},
        codes=CODES,
    ),
    # The shape of a tc-big model: ReLU, more heads, a wider feed-forward layer, 16 bits.
    Case(
        "separate",
        {"activation_function": "relu", "encoder_layers": 1, "decoder_layers": 2, "d_model": 16, "ffn": 64, "heads": 4},
        {"num_beams": 6, "length_penalty": 0.8, "renormalize_logits": True},
        separate=True,
        dtype=torch.float16,
    ),
    Case(
        "untied",
        {"activation_function": "gelu", "encoder_layers": 1, "decoder_layers": 1, "d_model": 16, "ffn": 24, "heads": 1}
        | {"tie_word_embeddings": False, "scale_embedding": False}
        | {"dropout": 0.2, "attention_dropout": 0.05, "activation_dropout": 0.1},
        {"num_beams": 3, "length_penalty": 0.5, "min_length": 6},
        separate=True,
    ),
]


def spm(texts: list[str], size: int) -> bytes:
    """As opus-mt's: no bytes, spaces in excess removed."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.Train(
        sentence_iterator=iter(texts),
        model_writer=model,
        vocab_size=size,
        normalization_rule_name="identity",
        minloglevel=2,
    )
    return model.getvalue()


def pieces(model: bytes) -> list[str]:
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    return [processor.IdToPiece(i) for i in range(3, processor.GetPieceSize())]


def write_tokenizer(folder: Path, case: Case) -> None:
    """Marian's lists are in an order of their own."""
    dice = np.random.default_rng(len(case.name))
    models = [spm([pair[side] for pair in PAIRS], 70) for side in (0, 1)]
    for name, model in zip(("source.spm", "target.spm"), models, strict=True):
        (folder / name).write_bytes(model)
    source, target = ([str(piece) for piece in dice.permutation(pieces(model))] for model in models)
    both = list(dict.fromkeys([*source, *target]))
    for name, listed in (
        {"vocab.json": source, "target_vocab.json": target}.items()
        if case.separate
        else [("vocab.json", [*both[::2], *case.codes, *both[1::2]])]
    ):
        tokens = ["</s>", "<unk>", *listed, "<pad>"]
        (folder / name).write_text(json.dumps({token: i for i, token in enumerate(tokens)}))
    settings = {"source_lang": "en", "target_lang": "de", "separate_vocabs": case.separate}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def write_model(folder: Path, case: Case) -> None:
    torch.manual_seed(0)
    own = dict(case.config)
    ffn, heads = own.pop("ffn"), own.pop("heads")
    size = len(json.loads((folder / "vocab.json").read_text()))
    special = {"pad_token_id": size - 1, "decoder_start_token_id": size - 1, "eos_token_id": 0}
    defaults = {
        "vocab_size": size,
        "encoder_ffn_dim": ffn,
        "decoder_ffn_dim": ffn,
        "encoder_attention_heads": heads,
        "decoder_attention_heads": heads,
        "max_position_embeddings": 64,
        "scale_embedding": True,
        "share_encoder_decoder_embeddings": not case.separate,
    }
    model = MarianMTModel(MarianConfig(**{**defaults, **special, **own}))
    with torch.no_grad():
        model.final_logits_bias.copy_(torch.randint(-64, 65, model.final_logits_bias.shape) / 128)
    learn_a_little(model, MarianTokenizer.from_pretrained(folder))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "embed_positions" not in name:
                # Multiples of 1/128, which 16 bits can hold, and a compressed file in little space.
                parameter.copy_((parameter.clamp(-8, 8) * 128).round() / 128)
    model.generation_config = GenerationConfig(
        max_length=LONGEST,
        bad_words_ids=[[size - 1]],
        early_stopping="never",
        forced_eos_token_id=0,
        **special,
        **case.generation,
    )
    model.to(case.dtype).save_pretrained(folder)


def learn_a_little(model: MarianMTModel, tokenizer: MarianTokenizer) -> None:
    """Random models repeat themselves without end; after a few steps they stop, and their beams compete."""
    optimizer = torch.optim.Adam((p for p in model.parameters() if p.requires_grad), lr=1e-2)
    short = sorted(PAIRS, key=lambda pair: sum(map(len, pair)))[:64]
    batch = tokenizer(
        [source for source, _ in short], text_target=[target for _, target in short], return_tensors="pt", padding=True
    )
    batch["labels"][batch["labels"] == tokenizer.pad_token_id] = -100
    model.train()
    for _ in range(STEPS):
        optimizer.zero_grad()
        model(**batch).loss.backward()
        for embedding in {model.model.encoder.embed_tokens, model.model.decoder.embed_tokens}:
            embedding.weight.grad[tokenizer.pad_token_id] = 0  # <pad> stays a vector of zeros
        optimizer.step()
    model.eval()


def outputs(folder: Path, case: Case) -> dict[str, np.ndarray]:
    """Of the folder as it was saved."""
    model = MarianMTModel.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    tokenizer = MarianTokenizer.from_pretrained(folder)
    texts = [f"{CODES[i % 2]} {text}" if case.codes else text for i, text in enumerate(TEXTS)]
    batch = tokenizer(texts, return_tensors="pt", padding=True)
    found = model.generate(**batch, return_dict_in_generate=True, output_scores=True)
    assert found.sequences.shape[1] < LONGEST, "a translation reached the limit"
    few = {name: tensor[:4] for name, tensor in batch.items()}
    decoder_input_ids = found.sequences[:4, :8]
    with torch.no_grad():
        full = model(**few, decoder_input_ids=decoder_input_ids, output_hidden_states=True)
    return {
        "texts": np.array(json.dumps(texts)),
        "input_ids": batch["input_ids"].numpy().astype(np.int16),
        "sequences": found.sequences[:, 1:].numpy().astype(np.int16),
        "scores": found.sequences_scores.numpy(),
        "translations": np.array(json.dumps(tokenizer.batch_decode(found.sequences, skip_special_tokens=True))),
        "logits": full.logits.numpy(),
        "encoder_states": torch.stack(full.encoder_hidden_states).numpy(),
        "decoder_states": torch.stack(full.decoder_hidden_states).numpy(),
    }


def main() -> None:
    golden: dict[str, np.ndarray] = {}
    for case in CASES:
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            write_tokenizer(folder, case)
            write_model(folder, case)
            for file in sorted(folder.iterdir()):
                golden[f"{case.name}/files/{file.name}"] = np.frombuffer(file.read_bytes(), np.uint8)
            golden |= {f"{case.name}/{name}": array for name, array in outputs(folder, case).items()}
            print(case.name, json.loads(str(golden[f"{case.name}/translations"]))[:4])
    np.savez_compressed(Path(__file__).with_name("marian.npz"), **golden)


if __name__ == "__main__":
    main()
