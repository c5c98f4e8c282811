"""Beam search compared with Hugging Face and CTranslate2: the same work on the same machine, alternating in one run.

pip install -e '.[peers]' && python benchmarks/decoding_peers.py [--rounds 5] [--int8] [--json FILE]

A base-size model with random weights in each system (11,600 pieces), sources of --tokens tokens, exactly as many
tokens generated. Each round times every system once; prints medians over the rounds, relative to this library.
"limit" is the matrix products of the model (`model/size.py`) over seconds x the rate of a square float32 product of the
same library (torch's for CTranslate2), measured in the same run; int8 has no limit.
"""

import argparse
import functools
import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
from side_by_side import limits, machine, medians, turn_by_turn, write_json

from transformer_jax import ModelConfig, Transformer
from transformer_jax.config import DecodeConfig
from transformer_jax.model.size import forward_flops
from transformer_jax.translation.translate import Rows, search

VOCABULARY = 11_600
EXTRA_LENGTH = 50
OURS = "transformer_jax"


class Case(NamedTuple):
    """A batch to decode."""

    sentences: int
    beam: int
    tokens: int

    def sources(self) -> np.ndarray:
        return np.random.default_rng(0).integers(4, VOCABULARY - 1, (self.sentences, self.tokens))

    def flops(self) -> float:
        """FLOPs of each source once and a target for each beam."""
        words = self.sentences * self.tokens
        return forward_flops(ModelConfig.base(vocab_size=VOCABULARY), self.tokens, self.tokens).of(
            words, words * self.beam
        )


System = Callable[[Case], object]


def ours() -> System:
    model = ModelConfig.base(vocab_size=VOCABULARY)
    one = np.ones((1, 2), np.int32)
    params = jax.jit(Transformer(model).init)(jax.random.key(0), one, one)["params"]
    jitted = jax.jit(search, static_argnames=("model", "decode", "max_length"))

    def decode(case: Case) -> object:
        lengths, numbers = np.full(case.sentences, case.tokens, np.int32), np.arange(case.sentences)
        found = jitted(
            params,
            Rows(case.sources().astype(np.int32), lengths, numbers),
            model=model,
            decode=DecodeConfig(beam=case.beam, min_length=case.tokens),
            max_length=case.tokens + EXTRA_LENGTH,
        )
        written = np.asarray(jax.block_until_ready(found).lengths_BN)
        assert (written == case.tokens).all()  # random weights never end by themselves, nor does min_length let them
        return found

    return decode


def marian_folder(directory: Path) -> Path:
    """A Hugging Face Marian model of the same size, in the files that its tools expect; its tokenizer is not used."""
    import sentencepiece
    from transformers import MarianConfig, MarianMTModel

    (directory / "text.txt").write_text("a few words of text\nand a few more\n")
    for side in ("source", "target"):
        sentencepiece.SentencePieceTrainer.train(
            input=str(directory / "text.txt"),
            model_prefix=str(directory / side),
            vocab_size=40,
            hard_vocab_limit=False,
            minloglevel=2,
        )
        (directory / f"{side}.model").rename(directory / f"{side}.spm")
    pieces = ["</s>", "<unk>", *(f"piece{number}" for number in range(2, VOCABULARY - 1)), "<pad>"]
    (directory / "vocab.json").write_text(json.dumps({piece: number for number, piece in enumerate(pieces)}))
    (directory / "tokenizer_config.json").write_text('{"source_lang": "xx", "target_lang": "yy"}')
    config = MarianConfig(
        vocab_size=VOCABULARY,
        d_model=512,
        encoder_layers=6,
        decoder_layers=6,
        encoder_attention_heads=8,
        decoder_attention_heads=8,
        encoder_ffn_dim=2048,
        decoder_ffn_dim=2048,
        activation_function="relu",
        scale_embedding=True,
        max_position_embeddings=512,
        pad_token_id=VOCABULARY - 1,
        decoder_start_token_id=VOCABULARY - 1,
        eos_token_id=0,
        forced_eos_token_id=None,
    )
    MarianMTModel(config).save_pretrained(directory)
    return directory


def hugging_face(directory: Path) -> System:
    import torch
    from transformers import MarianMTModel

    model = MarianMTModel.from_pretrained(directory).eval()

    def decode(case: Case) -> object:
        sources = torch.from_numpy(case.sources())
        with torch.inference_mode():
            written = model.generate(
                sources,
                attention_mask=torch.ones_like(sources),
                num_beams=case.beam,
                min_new_tokens=case.tokens,
                max_new_tokens=case.tokens,
                do_sample=False,
            )
        assert written.shape == (case.sentences, case.tokens + 1)
        return written

    return decode


def ctranslate2_system(directory: Path, compute_type: str) -> System:
    import ctranslate2

    threads = len(os.sched_getaffinity(0))
    translator = ctranslate2.Translator(
        str(directory / "ctranslate2"), device="cpu", compute_type=compute_type, inter_threads=1, intra_threads=threads
    )

    def decode(case: Case) -> object:
        found = translator.translate_batch(
            [[f"piece{number}" for number in source] for source in case.sources().tolist()],
            beam_size=case.beam,
            min_decoding_length=case.tokens,
            max_decoding_length=case.tokens,
            max_batch_size=0,
        )
        assert all(len(one.hypotheses[0]) == case.tokens for one in found)
        return found

    return decode


def peers(directory: Path, with_int8: bool) -> dict[str, System]:
    from ctranslate2.converters import TransformersConverter

    marian_folder(directory)
    TransformersConverter(str(directory)).convert(str(directory / "ctranslate2"))
    systems = {
        "Hugging Face": hugging_face(directory),
        "CTranslate2 float32": ctranslate2_system(directory, "float32"),
    }
    return {**systems, "CTranslate2 int8": ctranslate2_system(directory, "int8")} if with_int8 else systems


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=24)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--int8", action="store_true", help="CTranslate2's int8 as well")
    parser.add_argument("--json", type=Path, metavar="FILE")
    arguments = parser.parse_args()

    usual = Case(sentences=64, beam=4, tokens=arguments.tokens)
    cases = {
        "64 sentences, beam 4": usual,
        "64 sentences, greedy": usual._replace(beam=1),
        "1 sentence, beam 4": usual._replace(sentences=1),
        "1 sentence, greedy": usual._replace(sentences=1, beam=1),
    }
    limit = limits(["jax float32", "torch float32"])
    print(f"{machine()}\n{limit}", flush=True)
    print(f"{arguments.tokens} tokens per sentence; medians of {arguments.rounds} rounds\n")
    print(f"{'':<24}{'':<22}{'sentences/s':>12}{'seconds':>9}{'times ours':>12}{'limit':>8}")
    results = {}
    with tempfile.TemporaryDirectory() as directory:
        systems = {OURS: ours(), **peers(Path(directory), arguments.int8)}
        for title, case in cases.items():
            turns = {name: functools.partial(system, case) for name, system in systems.items()}
            results[title] = turn_by_turn(turns, arguments.rounds)
            middle = medians(results[title])
            for name, value in middle.items():
                rate = limit.products["jax float32" if name == OURS else "torch float32"]
                share = "" if "int8" in name else f"{case.flops() / value / rate:.0%}"
                row = f"{title:<24}{name:<22}{case.sentences / value:>12.1f}{value:>9.3f}"
                print(f"{row}{value / middle[OURS]:>12.2f}{share:>8}", flush=True)
    write_json(arguments.json, machine=machine(), limits=limit._asdict(), seconds=results)


if __name__ == "__main__":
    main()
