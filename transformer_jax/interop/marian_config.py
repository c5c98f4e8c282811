"""config.json and generation_config.json of a Marian model, converted to and from a config of this library.

Every field is read. Unsupported values and unknown fields are refused by name.
"""

import dataclasses
from pathlib import Path
from typing import Any, NamedTuple

from transformer_jax.config import DecodeConfig
from transformer_jax.errors import BadInput
from transformer_jax.files.record import read_object
from transformer_jax.interop.fields import Fields
from transformer_jax.model_config import ModelConfig

CONFIG, GENERATION = "config.json", "generation_config.json"
ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "swish": "swish", "silu": "swish"}
# The default of PyTorch's LayerNorm, which no field of config.json changes.
NORM_EPSILON = 1e-5

# Larger sizes are refused before anything is allocated.
MOST_TOKENS, MOST_LAYERS, WIDEST, MOST_ROWS = 10**7, 1000, 10**6, 10**6

# Marian's field, our option, and the largest value.
SIZES = (
    ("encoder_layers", "num_encoder_layers", MOST_LAYERS),
    ("decoder_layers", "num_decoder_layers", MOST_LAYERS),
    ("d_model", "d_model", WIDEST),
    ("encoder_ffn_dim", "d_ff", WIDEST),
    ("encoder_attention_heads", "num_heads", WIDEST),
)
# Fields that repeat one of these options.
REPEATED = {
    "num_hidden_layers": "num_encoder_layers",
    "decoder_attention_heads": "num_heads",
    "decoder_ffn_dim": "d_ff",
}
RATES = {"dropout": 0.1, "attention_dropout": 0.0, "activation_dropout": 0.0}
# Fields that do not affect a translation: notes, training, other tasks.
IDLE = (
    "_name_or_path", "_num_labels", "_commit_hash", "add_bias_logits", "bos_token_id", "classif_dropout",
    "classifier_dropout", "dtype", "extra_pos_embeddings", "finetuning_task", "gradient_checkpointing", "id2label",
    "init_std", "label2id", "num_labels", "output_attentions", "output_hidden_states", "output_past", "prefix",
    "problem_type", "return_dict", "save_step", "sep_token_id", "task_specific_params", "tf_legacy_loss",
    "tokenizer_class", "torch_dtype", "torchscript", "transformers_version", "unk_token_id", "use_bfloat16",
    "use_cache",
)  # fmt: skip
# Fields that could change what the model computes, with the values that are supported.
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
# The same for the search of `generate`.
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
# Fields of sampling, which is refused, and of additional results of `generate`.
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
    path = directory / CONFIG
    values = read_object(path)
    kind = values.pop("model_type", None)
    if kind != "marian":
        raise BadInput(f"{path}: model_type = {str(kind)[:40]!r}: is not a Marian model; must be 'marian'")
    legacy = {name: values.pop(name) for name in (*SEARCH, *USED_SEARCH) if name in values}
    fields = Fields(path, values)
    pad, eos = fields.take("pad_token_id", int), fields.take("eos_token_id", int)
    fields.expect("decoder_start_token_id", pad)
    source = fields.size("vocab_size", MOST_TOKENS)
    target = fields.size("decoder_vocab_size", MOST_TOKENS, source)
    rows = fields.size("max_position_embeddings", MOST_ROWS)
    model = _model(fields, source, target)
    for name, allowed in ARCHITECTURE.items():
        fields.expect(name, *allowed)
    fields.finish(*IDLE, *IDLE_SEARCH)
    if not (0 <= pad < min(source, target) and 0 <= eos < min(source, target) and pad != eos):
        raise BadInput(
            f"{path}: pad_token_id = {pad} and eos_token_id = {eos} must be two different tokens of the vocabulary"
        )
    generation = directory / GENERATION
    search = Fields(generation, read_object(generation)) if generation.exists() else Fields(path, legacy)
    return Marian(model, source, target, rows, pad, eos, _decode(search, pad, eos, rows))


def _model(fields: Fields, source: int, target: int) -> ModelConfig:
    """The ModelConfig with the values of these fields."""
    sizes = {option: fields.size(name, most) for name, option, most in SIZES}
    for name, option in REPEATED.items():
        fields.expect(name, sizes[option])
    shared = fields.take("share_encoder_decoder_embeddings", bool, True)
    tied = fields.take("tie_word_embeddings", bool, True)
    if shared and not tied:
        raise fields.refused("tie_word_embeddings", tied, "with shared embeddings is not supported; true is")
    if shared and source != target:
        raise fields.refused("decoder_vocab_size", target, f"must be vocab_size = {source}: embeddings are shared")
    activation = fields.take("activation_function", str)
    if activation not in ACTIVATIONS:
        raise fields.refused("activation_function", activation, f"is not supported; {', '.join(ACTIVATIONS)} are")
    return fields.build(
        ModelConfig,
        vocab_size=source + 1,  # this library's <pad> is one more token
        target_vocab_size=None if source == target else target + 1,  # vocabularies of the same size may still differ
        **sizes,
        **{name: fields.take(name, (int, float), default) for name, default in RATES.items()},
        norm_epsilon=NORM_EPSILON,
        activation=ACTIVATIONS[activation],
        attention_bias=True,
        sinusoids="halves",
        tie_embeddings="all" if shared else "target" if tied else "none",
        scale_embeddings=fields.take("scale_embedding", bool, False),
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
    shortest_new = fields.take("min_new_tokens", int, None)
    # n new tokens before <eos> are n + 1 tokens with it.
    min_length = shortest if shortest_new is None else shortest_new + 1
    beam, penalty = fields.take("num_beams", int, 1), fields.take("length_penalty", (int, float), 1.0)
    renormalize = fields.take("renormalize_logits", bool, False)
    for name, allowed in SEARCH.items():
        fields.expect(name, *allowed)
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
    reasons = []
    wanted = {
        "norm": ["post"],
        "norm_kind": ["layer"],
        "activation": ["relu", "gelu", "swish"],
        "positions": ["sinusoidal", "learned", "none"],
    }
    for name, allowed in wanted.items():
        if (value := getattr(model, name)) not in allowed:
            reasons.append(f"model.{name} = {value}: Marian has only {', '.join(allowed)}")
    if model.share_layers:
        reasons.append("model.share_layers = true: Marian's layers have parameters of their own")
    for option, width in (("d_k", model.key_size), ("d_v", model.value_size)):
        if width * model.num_heads != model.d_model:
            reasons.append(f"model.{option} = {width}: Marian's heads divide d_model, {model.d_model}, evenly")
    if model.key_value_heads != model.num_heads:
        reasons.append(f"model.num_key_value_heads = {model.key_value_heads}: Marian's is num_heads, {model.num_heads}")
    for option in ("qk_norm", "attention_softcap", "scale_positions"):
        if value := getattr(model, option):
            reasons.append(f"model.{option} = {value}: Marian has no such option")
    if model.norm_epsilon > NORM_EPSILON:
        reasons.append(f"model.norm_epsilon = {model.norm_epsilon}: Marian's is {NORM_EPSILON}")
    if model.mup_base_d_model is not None:
        reasons.append(f"model.mup_base_d_model = {model.mup_base_d_model}: Marian's logits and scores have no factors")
    for field in dataclasses.fields(model.parts):
        if getattr(model.parts, field.name) is not None:
            reasons.append(f"model.parts.{field.name}: Marian has no custom modules")
    return reasons


def config_json(model: ModelConfig, source: int, target: int, rows: int, pad: int, eos: int) -> dict[str, Any]:
    """config.json of a supported model, with Marian's numbers of source and target tokens and of positions."""
    names = {name: option for name, option, _ in SIZES} | REPEATED | {name: name for name in RATES}
    fixed = ("architectures", "is_encoder_decoder", "static_position_embeddings", "normalize_before")
    return {
        "model_type": "marian",
        **{name: ARCHITECTURE[name][0] for name in (*fixed, "normalize_embedding", "add_final_layer_norm")},
        "vocab_size": source,
        "decoder_vocab_size": target,
        **{name: getattr(model, option) for name, option in names.items()},
        "encoder_layerdrop": 0.0,
        "decoder_layerdrop": 0.0,
        "activation_function": model.activation,
        "scale_embedding": model.scale_embeddings,
        "share_encoder_decoder_embeddings": model.tie_embeddings == "all",
        "tie_word_embeddings": model.tie_embeddings != "none",
        "max_position_embeddings": rows,
        **_special(pad, eos),
        "torch_dtype": "float32",
    }


def generation_json(decode: DecodeConfig, rows: int, pad: int, eos: int, renormalize: bool) -> dict[str, Any]:
    """generation_config.json: the same search as far as possible (see `differences`)."""
    limit = rows if decode.max_length is None else decode.max_length + 1
    return {
        "num_beams": decode.beam,
        "length_penalty": {"average": decode.alpha, "none": 0.0, "gnmt": 1.0}[decode.length_penalty],
        "early_stopping": "never",  # stop only when no better hypothesis is possible
        "max_length": limit,
        "min_length": decode.min_length,
        "bad_words_ids": [[pad]],
        "renormalize_logits": renormalize,
        **_special(pad, eos),
    }


def differences(model: ModelConfig, decode: DecodeConfig, rows: int, tables: bool) -> list[str]:
    """How the model and `generate` will differ there from here; `tables`: whether positions are written as tables."""
    found = []
    if decode.length_penalty == "gnmt":
        found.append("decode.length_penalty = gnmt does not exist there: length_penalty = 1.0 (n^1) is written instead")
    if decode.max_length is None:
        found.append(f"decode.extra_length has no counterpart there: max_length = {rows} is written instead")
    if decode.sample:
        found.append("decode.sample = true is not written: the export uses beam search")
    if model.norm_epsilon != NORM_EPSILON:
        found.append(
            f"model.norm_epsilon = {model.norm_epsilon:g} is {NORM_EPSILON:g} there: logits differ in the sixth digit"
        )
    if tables:
        found.append(
            "positions are written as tables (model.*.embed_positions.weight), which transformers reads but does "
            "not save: convert this folder, not a copy that was saved with transformers"
        )
    return found


def _special(pad: int, eos: int) -> dict[str, Any]:
    return {
        "pad_token_id": pad,
        "eos_token_id": eos,
        "bos_token_id": eos,
        "decoder_start_token_id": pad,
        "forced_eos_token_id": eos,
    }
