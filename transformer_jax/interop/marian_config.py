"""config.json and generation_config.json of a Marian model, converted to and from a config of this library.

A field that affects a translation must have the value that an export of the same model has; otherwise BadInput names
it. Other fields are ignored, as transformers ignores those that it does not know.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from transformer_jax.config import DecodeConfig
from transformer_jax.errors import BadInput, ConfigError
from transformer_jax.files.record import read_object
from transformer_jax.model_config import ModelConfig, PartsConfig

Config = TypeVar("Config")

CONFIG, GENERATION = "config.json", "generation_config.json"
NORM_EPSILON = 1e-5  # the default of PyTorch's LayerNorm, which no field of config.json changes

# Fields that are options of ours.
OPTIONS = {
    "encoder_layers": "num_encoder_layers",
    "decoder_layers": "num_decoder_layers",
    "d_model": "d_model",
    "encoder_ffn_dim": "d_ff",
    "encoder_attention_heads": "num_heads",
    "dropout": "dropout",
    "attention_dropout": "attention_dropout",
    "activation_dropout": "activation_dropout",
    "scale_embedding": "scale_embeddings",
}
# The meaning of missing fields.
MISSING = {
    "dropout": 0.1,
    "attention_dropout": 0.0,
    "activation_dropout": 0.0,
    "scale_embedding": False,
    "share_encoder_decoder_embeddings": True,
    "tie_word_embeddings": True,
}
# Fields that could change what the model computes, with the only value that is supported; None is null.
ARCHITECTURE: dict[str, Any] = {
    "architectures": ["MarianMTModel"],
    **dict.fromkeys(("is_encoder_decoder", "static_position_embeddings"), True),
    **dict.fromkeys(("is_decoder", "add_cross_attention", "force_bos_token_to_be_generated"), False),
    **dict.fromkeys(("normalize_before", "normalize_embedding", "add_final_layer_norm"), False),
    "tie_encoder_decoder": False,
    "pruned_heads": {},
    **dict.fromkeys(("encoder_layerdrop", "decoder_layerdrop", "chunk_size_feed_forward"), 0),
    **dict.fromkeys(("cross_attention_hidden_size", "quantization_config"), None),
}
# Fields of the search of `generate`, with the only value that is supported.
SEARCH: dict[str, Any] = {
    **dict.fromkeys(("do_sample", "token_healing"), False),
    **dict.fromkeys(("diversity_penalty", "penalty_alpha"), 0),
    **dict.fromkeys(("no_repeat_ngram_size", "encoder_no_repeat_ngram_size"), 0),
    **dict.fromkeys(("num_return_sequences", "num_beam_groups", "guidance_scale"), 1),
    **dict.fromkeys(("repetition_penalty", "encoder_repetition_penalty"), 1),
    "suppress_tokens": [],
    "begin_suppress_tokens": [],
    **dict.fromkeys(("forced_bos_token_id", "forced_decoder_ids", "exponential_decay_length_penalty"), None),
    **dict.fromkeys(("sequence_bias", "constraints", "force_words_ids", "stop_strings", "max_time"), None),
    "dola_layers": None,
    "watermarking_config": None,
}
# The values of our options that a Marian model can have.
EXPORTED: dict[str, tuple[Any, ...]] = {
    "norm": ("post",),
    "norm_kind": ("layer",),
    "activation": ("relu", "gelu", "swish"),
    "positions": ("sinusoidal", "learned", "none"),
    **dict.fromkeys(("share_layers", "qk_norm", "scale_positions"), (False,)),
    **dict.fromkeys(("attention_softcap", "window", "mup_base_d_model"), (None,)),
    "parts": (PartsConfig(),),
}


class Fields(dict[str, Any]):
    """The fields of a JSON object from another library; null is a missing field."""

    def __init__(self, path: Path, values: Mapping[str, Any]):
        self.path = path
        super().__init__((name, value) for name, value in values.items() if value is not None)

    def number(self, name: str, default: float | None = None) -> Any:
        """A number. Without a default it must be there."""
        value = self.get(name, default)
        if not isinstance(value, (int, float)):
            raise self.problem(name, "must be a number")
        return value

    def integer(self, name: str, default: int | None = None) -> int:
        """A whole number, which may be written as 7.0."""
        value = self.number(name, default)
        if value % 1 != 0:
            raise self.problem(name, "must be a whole number")
        return int(value)

    def build(self, kind: type[Config], **values: Any) -> Config:
        """A config with these values, or its first problem as an error of this file."""
        try:
            return kind(**values)
        except ConfigError as error:
            raise BadInput(f"{self.path}: {error.problems[0]}") from None

    def check(self, supported: Mapping[str, Any]) -> None:
        """Raises BadInput for a field with another value than the supported one."""
        for name in supported.keys() & self.keys():
            if self[name] != supported[name]:
                raise self.problem(name, f"is not supported; {json.dumps(supported[name])} is")

    def problem(self, name: str, why: str) -> BadInput:
        return BadInput(f"{self.path}: {name[:80]} = {json.dumps(self.get(name))[:60]}: {why}")


class Marian(NamedTuple):
    """The content of config.json and generation_config.json, with vocabulary sizes as in Marian."""

    model: ModelConfig
    source_tokens: int
    target_tokens: int
    rows: int  # of the position tables
    pad_id: int
    eos_id: int
    decode: DecodeConfig


def read_config(directory: Path) -> Marian:
    """The architecture and the search that a folder describes."""
    path, generation = directory / CONFIG, directory / GENERATION
    fields = Fields(path, {"model_type": "none", **MISSING, **Fields(path, read_object(path))})
    source, rows = fields.integer("vocab_size"), fields.integer("max_position_embeddings")
    target = fields.integer("decoder_vocab_size", source)
    pad, eos = fields.integer("pad_token_id"), fields.integer("eos_token_id")
    if fields.get("activation_function") == "silu":
        fields["activation_function"] = "swish"
    tied = "target" if fields["tie_word_embeddings"] else "none"
    model = fields.build(
        ModelConfig,
        vocab_size=source + 1,  # this library's <pad> is one more token
        target_vocab_size=None if source == target else target + 1,  # vocabularies of the same size may still differ
        **{option: fields.number(name) for name, option in OPTIONS.items()},
        norm_epsilon=NORM_EPSILON,
        activation=fields.get("activation_function"),
        attention_bias=True,
        sinusoids="halves",
        tie_embeddings="all" if fields["share_encoder_decoder_embeddings"] else tied,
        output_bias=True,
    )
    search = Fields(generation, read_object(generation)) if generation.exists() else fields  # as in older folders
    if search.get("early_stopping") is False:
        search["early_stopping"] = "never"
    decode = _decode(search, rows)
    ours, our_search = config_json(model, source, target, rows, pad, eos), generation_json(decode, rows, pad, eos)
    # A length has several forms.
    search.check({name: value for name, value in (SEARCH | our_search).items() if not name.endswith("_length")})
    del ours["torch_dtype"]  # weights in 16 bits are read, too
    fields.check(ARCHITECTURE | ours)
    return Marian(model, source, target, rows, pad, eos, decode)


def _decode(search: Fields, rows: int) -> DecodeConfig:
    """The beam search of `generate`, whose lengths count the start token; lengths in DecodeConfig do not."""
    # The default of `generate`, 20 tokens, is never meant: the limit is then the position table.
    longest = search.number("max_length", rows)
    limit = min(search.number("max_new_tokens", longest - 1), rows - 1)
    return search.build(
        DecodeConfig,
        beam=search.number("num_beams", 1),
        length_penalty="average",
        alpha=float(search.number("length_penalty", 1.0)),
        max_length=limit,
        extra_length=max(limit, 0),  # no smaller limit
        # n new tokens before <eos> are n + 1 tokens with it.
        min_length=search.number("min_new_tokens", search.number("min_length", 0) - 1) + 1,
        renormalize=search.get("renormalize_logits", False),
    )


def unsupported(model: ModelConfig) -> list[str]:
    """All reasons why a model cannot be a Marian model, by option."""
    width = model.d_model // model.num_heads
    heads = {"d_k": (model.key_size, width), "d_v": (model.value_size, width)}
    heads["num_key_value_heads"] = model.key_value_heads, model.num_heads
    found = [(name, getattr(model, name), supported) for name, supported in EXPORTED.items()]
    found += [(name, value, (supported,)) for name, (value, supported) in heads.items()]
    reasons = [
        f"model.{name} = {value}: Marian has only {', '.join(map(str, supported))}"
        for name, value, supported in found
        if value not in supported
    ]
    if model.d_model % model.num_heads or model.d_model % 2:
        needed = f"a multiple of 2 and of model.num_heads = {model.num_heads}"
        reasons.append(f"model.d_model = {model.d_model}: Marian's is {needed}")
    if model.norm_epsilon > NORM_EPSILON:
        reasons.append(f"model.norm_epsilon = {model.norm_epsilon}: Marian's is {NORM_EPSILON}")
    return reasons


def config_json(model: ModelConfig, source: int, target: int, rows: int, pad: int, eos: int) -> dict[str, Any]:
    """config.json of a supported model, with Marian's numbers of source and target tokens and of positions."""
    fixed = ("architectures", "is_encoder_decoder", "static_position_embeddings", "normalize_before")
    values = {name: getattr(model, option) for name, option in OPTIONS.items()}
    return {
        "model_type": "marian",
        **{name: ARCHITECTURE[name] for name in (*fixed, "normalize_embedding", "add_final_layer_norm")},
        "vocab_size": source,
        "decoder_vocab_size": target,
        **values,
        "num_hidden_layers": values["encoder_layers"],
        "decoder_attention_heads": values["encoder_attention_heads"],
        "decoder_ffn_dim": values["encoder_ffn_dim"],
        "encoder_layerdrop": 0.0,
        "decoder_layerdrop": 0.0,
        "activation_function": model.activation,
        "share_encoder_decoder_embeddings": model.tie_embeddings == "all",
        "tie_word_embeddings": model.tie_embeddings != "none",
        "max_position_embeddings": rows,
        **_special(pad, eos),
        "torch_dtype": "float32",
    }


def generation_json(decode: DecodeConfig, rows: int, pad: int, eos: int) -> dict[str, Any]:
    """generation_config.json: the same search as far as possible (see `differences`)."""
    return {
        "num_beams": decode.beam,
        "length_penalty": {"average": decode.alpha, "none": 0.0, "gnmt": 1.0}[decode.length_penalty],
        "early_stopping": "never",  # stop only when no better hypothesis is possible
        "max_length": rows if decode.max_length is None else min(decode.max_length + 1, rows),
        "min_length": decode.min_length,
        "bad_words_ids": [[pad]],  # <pad> is never generated in any case
        "renormalize_logits": decode.renormalize,
        **_special(pad, eos),
    }


def differences(model: ModelConfig, decode: DecodeConfig, rows: int, tables: bool) -> list[str]:
    """How the model and `generate` will differ there from here; `tables`: whether positions are written as tables."""
    lines = []
    if decode.length_penalty == "gnmt":
        lines.append("decode.length_penalty = gnmt does not exist there: length_penalty = 1.0 (n^1) is written instead")
    if decode.max_length is None:
        lines.append(f"decode.extra_length has no counterpart there: max_length = {rows} is written instead")
    if decode.sample:
        lines.append("decode.sample = true is not written: the export uses beam search")
    if model.norm_epsilon != NORM_EPSILON:
        lines.append(f"model.norm_epsilon = {model.norm_epsilon:g} is {NORM_EPSILON:g} there: logits differ slightly")
    if tables:
        lines.append(
            "positions are written as tables (model.*.embed_positions.weight), which transformers reads but does not "
            "save: convert this folder, not a copy that was saved with transformers"
        )
    return lines


def _special(pad: int, eos: int) -> dict[str, Any]:
    return {
        "pad_token_id": pad,
        "eos_token_id": eos,
        "bos_token_id": eos,
        "decoder_start_token_id": pad,
        "forced_eos_token_id": eos,
    }
