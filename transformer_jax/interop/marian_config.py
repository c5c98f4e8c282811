"""config.json and generation_config.json of a Marian model, converted to and from a config of this library.

Every field is read. Values that are not supported and unknown fields raise BadInput with their name.
"""

import dataclasses
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from transformer_jax.config import DecodeConfig
from transformer_jax.errors import BadInput, ConfigError
from transformer_jax.files.record import read_object
from transformer_jax.model_config import ModelConfig

Config = TypeVar("Config")

CONFIG, GENERATION = "config.json", "generation_config.json"
ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "swish": "swish", "silu": "swish"}
NORM_EPSILON = 1e-5  # the default of PyTorch's LayerNorm, which no field of config.json changes

# Fields that are options of ours, and those that repeat one.
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
REPEATED = {
    "num_hidden_layers": "encoder_layers",
    "decoder_attention_heads": "encoder_attention_heads",
    "decoder_ffn_dim": "encoder_ffn_dim",
}
# What a missing field means.
MISSING = {"dropout": 0.1, "attention_dropout": 0.0, "activation_dropout": 0.0, "scale_embedding": False}
# The supported values of fields that could change what the model computes.
ARCHITECTURE: dict[str, tuple[Any, ...]] = {
    "architectures": (["MarianMTModel"],),
    **dict.fromkeys(("is_encoder_decoder", "static_position_embeddings"), (True,)),
    **dict.fromkeys(("is_decoder", "add_cross_attention", "force_bos_token_to_be_generated"), (False,)),
    **dict.fromkeys(("normalize_before", "normalize_embedding", "add_final_layer_norm"), (False,)),
    "tie_encoder_decoder": (False,),
    "pruned_heads": ({},),
    **dict.fromkeys(("encoder_layerdrop", "decoder_layerdrop", "chunk_size_feed_forward"), (0,)),
    **dict.fromkeys(("cross_attention_hidden_size", "quantization_config"), ()),
}
# Fields that do not affect a translation: notes, training, other tasks.
IDLE = (
    "_name_or_path", "_num_labels", "_commit_hash", "add_bias_logits", "bos_token_id", "classif_dropout",
    "classifier_dropout", "dtype", "extra_pos_embeddings", "finetuning_task", "gradient_checkpointing", "id2label",
    "init_std", "label2id", "num_labels", "output_attentions", "output_hidden_states", "output_past", "prefix",
    "problem_type", "return_dict", "save_step", "sep_token_id", "task_specific_params", "tf_legacy_loss",
    "tokenizer_class", "torch_dtype", "torchscript", "transformers_version", "unk_token_id", "use_bfloat16",
    "use_cache",
)  # fmt: skip
# The supported values of fields of the search of `generate`.
SEARCH: dict[str, tuple[Any, ...]] = {
    "early_stopping": (False, "never"),
    **dict.fromkeys(("do_sample", "token_healing"), (False,)),
    **dict.fromkeys(("diversity_penalty", "penalty_alpha"), (0,)),
    **dict.fromkeys(("no_repeat_ngram_size", "encoder_no_repeat_ngram_size"), (0,)),
    **dict.fromkeys(("num_return_sequences", "num_beam_groups", "guidance_scale"), (1,)),
    **dict.fromkeys(("repetition_penalty", "encoder_repetition_penalty"), (1,)),
    **dict.fromkeys(("suppress_tokens", "begin_suppress_tokens"), ([],)),
    **dict.fromkeys(("forced_bos_token_id", "forced_decoder_ids", "exponential_decay_length_penalty"), ()),
    **dict.fromkeys(("sequence_bias", "constraints", "force_words_ids", "stop_strings", "max_time"), ()),
    "watermarking_config": (),
}
# Fields of sampling, which is not supported, and of additional results of `generate`.
IDLE_SEARCH = (
    "temperature", "top_k", "top_p", "min_p", "typical_p", "epsilon_cutoff", "eta_cutoff", "remove_invalid_values",
    "return_dict_in_generate", "output_scores", "output_logits", "output_attentions", "output_hidden_states",
    "use_cache", "cache_implementation", "low_memory", "disable_compile", "transformers_version", "_from_model_config",
    "bos_token_id",
)  # fmt: skip
USED_SEARCH = (
    "num_beams", "length_penalty", "max_length", "max_new_tokens", "min_length", "min_new_tokens",
    "renormalize_logits", "bad_words_ids", "forced_eos_token_id",
)  # fmt: skip
# The values of our options that a Marian model can have.
EXPORTED: dict[str, tuple[Any, ...]] = {
    "norm": ("post",),
    "norm_kind": ("layer",),
    "activation": ("relu", "gelu", "swish"),
    "positions": ("sinusoidal", "learned", "none"),
    **dict.fromkeys(("share_layers", "qk_norm", "scale_positions"), (False,)),
    **dict.fromkeys(("attention_softcap", "mup_base_d_model"), (None,)),
}


class Fields:
    """The fields of a JSON object from another library, each read once; null is a missing field."""

    def __init__(self, path: Path, values: dict[str, Any]):
        self.path, self._left = path, {name: value for name, value in values.items() if value is not None}

    def take(self, name: str, kind: type | tuple[type, ...], default: Any = None) -> Any:
        """The value of a field, of one of these types. A field without a default must be there."""
        value = self._left.pop(name, default)
        if not isinstance(value, kind):
            raise self.problem(name, value, "has another type, or is missing")
        return value

    def expect(self, name: str, *supported: Any) -> None:
        """Raises BadInput for a field with another value than these; it may be missing."""
        if name in self._left and (value := self._left.pop(name)) not in supported:
            wanted = " or ".join(json.dumps(each) for each in supported)
            raise self.problem(name, value, f"is not supported; {wanted or 'null'} is")

    def move(self, names: Iterable[str]) -> dict[str, Any]:
        """Takes all fields of these names that are there."""
        return {name: self._left.pop(name) for name in names if name in self._left}

    def build(self, kind: type[Config], **values: Any) -> Config:
        """A config with these values, or its first problem as an error of this file."""
        try:
            return kind(**values)
        except ConfigError as error:
            raise BadInput(f"{self.path}: {error.problems[0]}") from None

    def finish(self, *ignored: str) -> None:
        """Raises BadInput for a field that was not read, except those that do not affect a translation."""
        for name in self._left.keys() - set(ignored):
            raise self.problem(name, self._left[name], "is an unknown field, which may change the model")

    def problem(self, name: str, value: Any, why: str) -> BadInput:
        return BadInput(f"{self.path}: {name[:80]} = {json.dumps(value)[:60]}: {why}")


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
    fields = Fields(path, {"model_type": "none", **MISSING, **read_object(path)})
    fields.expect("model_type", "marian")
    search = Fields(path, fields.move((*SEARCH, *USED_SEARCH)))  # where older folders have it
    if generation.exists():
        search = Fields(generation, read_object(generation))
    pad, eos = fields.take("pad_token_id", int), fields.take("eos_token_id", int)
    fields.expect("decoder_start_token_id", pad)
    source = fields.take("vocab_size", int)
    target = fields.take("decoder_vocab_size", int, source)
    rows = fields.take("max_position_embeddings", int)
    model = _model(fields, source, target)
    for name, supported in ARCHITECTURE.items():
        fields.expect(name, *supported)
    fields.finish(*IDLE, *IDLE_SEARCH)
    return Marian(model, source, target, rows, pad, eos, _decode(search, pad, eos, rows))


def _model(fields: Fields, source: int, target: int) -> ModelConfig:
    """The ModelConfig with the values of these fields."""
    values = {name: fields.take(name, (int, float)) for name in OPTIONS}
    for name, repeated in REPEATED.items():
        fields.expect(name, values[repeated])
    shared = fields.take("share_encoder_decoder_embeddings", bool, True)
    tied = fields.take("tie_word_embeddings", bool, True)
    if shared and (source != target or not tied):
        raise BadInput(f"{fields.path}: shared embeddings need one vocab_size and tie_word_embeddings = true")
    activation = fields.take("activation_function", str)
    if activation not in ACTIVATIONS:
        raise fields.problem("activation_function", activation, f"is not supported; {', '.join(ACTIVATIONS)} are")
    return fields.build(
        ModelConfig,
        vocab_size=source + 1,  # this library's <pad> is one more token
        target_vocab_size=None if source == target else target + 1,  # vocabularies of the same size may still differ
        **{option: values[name] for name, option in OPTIONS.items()},
        norm_epsilon=NORM_EPSILON,
        activation=ACTIVATIONS[activation],
        attention_bias=True,
        sinusoids="halves",
        tie_embeddings="all" if shared else "target" if tied else "none",
        output_bias=True,
    )


def _decode(fields: Fields, pad: int, eos: int, rows: int) -> DecodeConfig:
    """The beam search of `generate`, whose lengths count the start token; those of DecodeConfig do not."""
    fields.expect("bad_words_ids", [[pad]])  # <pad> is never generated in any case
    for name, token in (("pad_token_id", pad), ("decoder_start_token_id", pad), ("eos_token_id", eos)):
        fields.expect(name, token)
    fields.expect("forced_eos_token_id", eos)
    # The default of `generate`, 20 tokens, is never meant: the limit is then the position table.
    longest = fields.take("max_length", int, rows)
    limit = min(fields.take("max_new_tokens", int, longest - 1), rows - 1)
    shortest = fields.take("min_length", int, 0)
    # n new tokens before <eos> are n + 1 tokens with it.
    min_length = fields.take("min_new_tokens", int, shortest - 1) + 1
    beam, penalty = fields.take("num_beams", int, 1), fields.take("length_penalty", (int, float), 1.0)
    renormalize = fields.take("renormalize_logits", bool, False)
    for name, supported in SEARCH.items():
        fields.expect(name, *supported)
    fields.finish(*IDLE_SEARCH)
    return fields.build(
        DecodeConfig,
        beam=beam,
        length_penalty="average",
        alpha=float(penalty),
        max_length=limit,
        extra_length=max(limit, 0),  # no smaller limit
        min_length=min_length,
        renormalize=renormalize,
    )


def unsupported(model: ModelConfig) -> list[str]:
    """All reasons why a model cannot be a Marian model, by option."""
    width = model.d_model // model.num_heads
    computed = {"d_k": model.key_size, "d_v": model.value_size, "num_key_value_heads": model.key_value_heads}
    found = {**{name: getattr(model, name) for name in EXPORTED}, **computed}
    supported = EXPORTED | {"d_k": (width,), "d_v": (width,), "num_key_value_heads": (model.num_heads,)}
    reasons = [
        f"model.{name} = {value}: Marian has only {', '.join(map(str, supported[name]))}"
        for name, value in found.items()
        if value not in supported[name]
    ]
    if model.norm_epsilon > NORM_EPSILON:
        reasons.append(f"model.norm_epsilon = {model.norm_epsilon}: Marian's is {NORM_EPSILON}")
    if any(dataclasses.asdict(model.parts).values()):
        reasons.append("model.parts: Marian has no custom modules")
    return reasons


def config_json(model: ModelConfig, source: int, target: int, rows: int, pad: int, eos: int) -> dict[str, Any]:
    """config.json of a supported model, with Marian's numbers of source and target tokens and of positions."""
    fixed = ("architectures", "is_encoder_decoder", "static_position_embeddings", "normalize_before")
    values = {name: getattr(model, option) for name, option in OPTIONS.items()}
    return {
        "model_type": "marian",
        **{name: ARCHITECTURE[name][0] for name in (*fixed, "normalize_embedding", "add_final_layer_norm")},
        "vocab_size": source,
        "decoder_vocab_size": target,
        **values,
        **{name: values[repeated] for name, repeated in REPEATED.items()},
        "encoder_layerdrop": 0.0,
        "decoder_layerdrop": 0.0,
        "activation_function": model.activation,
        "share_encoder_decoder_embeddings": model.tie_embeddings == "all",
        "tie_word_embeddings": model.tie_embeddings != "none",
        "max_position_embeddings": rows,
        **_special(pad, eos),
        "torch_dtype": "float32",
    }


def generation_json(decode: DecodeConfig, rows: int, pad: int, eos: int, renormalize: bool) -> dict[str, Any]:
    """generation_config.json: the same search as far as possible (see `differences`)."""
    return {
        "num_beams": decode.beam,
        "length_penalty": {"average": decode.alpha, "none": 0.0, "gnmt": 1.0}[decode.length_penalty],
        "early_stopping": "never",  # stop only when no better hypothesis is possible
        "max_length": rows if decode.max_length is None else decode.max_length + 1,
        "min_length": decode.min_length,
        "bad_words_ids": [[pad]],
        "renormalize_logits": renormalize,
        **_special(pad, eos),
    }


def differences(model: ModelConfig, decode: DecodeConfig, rows: int, tables: bool) -> list[str]:
    """How the model and `generate` will differ there from here; `tables`: whether positions are written as tables."""
    found = {
        "decode.length_penalty = gnmt does not exist there: length_penalty = 1.0 (n^1) is written instead": (
            decode.length_penalty == "gnmt"
        ),
        f"decode.extra_length has no counterpart there: max_length = {rows} is written instead": (
            decode.max_length is None
        ),
        "decode.sample = true is not written: the export uses beam search": decode.sample,
        f"model.norm_epsilon = {model.norm_epsilon:g} is {NORM_EPSILON:g} there: logits differ in the sixth digit": (
            model.norm_epsilon != NORM_EPSILON
        ),
        "positions are written as tables (model.*.embed_positions.weight), which transformers reads but does not "
        "save: convert this folder, not a copy that was saved with transformers": tables,
    }
    return [line for line, applies in found.items() if applies]


def _special(pad: int, eos: int) -> dict[str, Any]:
    return {
        "pad_token_id": pad,
        "eos_token_id": eos,
        "bos_token_id": eos,
        "decoder_start_token_id": pad,
        "forced_eos_token_id": eos,
    }
