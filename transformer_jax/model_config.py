"""The options of the model. Part of the schema, which is `config.py`."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from fractions import Fraction
from typing import Any, Literal

from transformer_jax.errors import ConfigError, did_you_mean
from transformer_jax.schema import PROBABILITY, Condition, Part, Section, group, option, when
from transformer_jax.table3 import TABLE_3

# Far beyond any model: a typing error (1e30 layers) is an error at once.
MOST_LAYERS, LARGEST_SIZE = 1_000, 10_000_000
LEARNED_POSITIONS = Condition(
    lambda config: config.model.positions == "learned" or config.model.parts.positions is not None,
    "model.positions = learned, or custom positions",
)
SINUSOIDAL = Condition(
    lambda config: config.model.positions == "sinusoidal" and config.model.parts.positions is None,
    "model.positions = sinusoidal",
)
TRAINED_TOKENIZER = Condition(
    lambda config: config.data.trains_tokenizer,
    "a tokenizer that is trained: data.tokenizer = bpe or unigram, without a data.tokenizer_file",
)
EmbeddingInit = Literal["normal", "unit", "xavier", "kaiming"]
GATED = ("glu", "bilinear", "reglu", "geglu", "swiglu")
GATE, BUILT_IN_NORM = when("model.activation", *GATED), when("model.parts.norm", None)

# The optimizers that muP has learning rates for: their updates are as large for small gradients as for large ones.
MUP_OPTIMIZERS = ("adam", "adamw", "adamax", "adamaxw", "amsgrad", "nadam", "nadamw", "adabelief", "lion")


@dataclasses.dataclass(frozen=True)
class PartsConfig(Section):
    """Custom modules for parts of the model (docs/parts.md); none is the library's module."""

    attention: Part = option(None, "replaces MultiHeadAttention")
    feed_forward: Part = option(None, "replaces FeedForward")
    norm: Part = option(None, "replaces the class that model.norm_kind names, in every norm of the model")
    positions: Part = option(None, "replaces the class that model.positions names")
    embedding: Part = option(None, "replaces Embedding")
    encoder_layer: Part = option(None, "replaces EncoderLayer")
    decoder_layer: Part = option(None, "replaces DecoderLayer")


@dataclasses.dataclass(frozen=True)
class ModelConfig(Section, largest=LARGEST_SIZE):
    """The architecture. The defaults are the paper's base model."""

    # Vocabulary. In a config the sizes are those requested of the tokenizer; in a run, those that it has.
    vocab_size: int = option(
        37_000, "rows of the (shared) embedding table", at_least=4, affects="data", condition=TRAINED_TOKENIZER
    )
    target_vocab_size: int | None = option(
        None, "rows of the target's own embedding table; none = shared", at_least=4, affects="data"
    )
    pad_id: int = option(0, "id of the padding token, which default masks hide", at_least=0)

    # Size.
    num_encoder_layers: int = option(6, "encoder layers (the paper's N)", at_least=1, at_most=MOST_LAYERS)
    num_decoder_layers: int = option(6, "decoder layers (the paper's N)", at_least=1, at_most=MOST_LAYERS)
    d_model: int = option(512, "model width: the size of every layer's input and output", at_least=2)
    d_ff: int = option(2048, "inner width of the feed-forward layer", at_least=1)
    num_heads: int = option(8, "number of attention heads (the paper's h)", at_least=1)
    num_key_value_heads: int | None = option(None, "heads of keys and values; none = num_heads", at_least=1)
    d_k: int | None = option(None, "width of a head's queries and keys; none = d_model / num_heads", at_least=1)
    d_v: int | None = option(None, "width of a head's values; none = d_model / num_heads", at_least=1)

    # Regularisation.
    dropout: float = option(0.1, "dropout rate of each sub-layer's output and of the embeddings", **PROBABILITY)
    attention_dropout: float = option(0.0, "dropout rate of the attention weights (paper: 0)", **PROBABILITY)
    activation_dropout: float = option(0.0, "dropout rate inside the feed-forward layer (paper: 0)", **PROBABILITY)
    layer_dropout: float = option(0.0, "rate at which a sentence skips a sub-layer (paper: 0)", **PROBABILITY)

    # Layers.
    norm: Literal["post", "pre", "sandwich", "deepnorm"] = option(
        "post", "norm after the residual sum (paper), before the sub-layer, both, or after a sum scaled with depth"
    )
    norm_kind: Literal["layer", "rms"] = option("layer", "LayerNorm (paper) or RMSNorm", condition=BUILT_IN_NORM)
    norm_epsilon: float = option(1e-6, "added to the variance, or to RMSNorm's mean square", above=0)
    activation: Literal["relu", "gelu", "swish", "glu", "bilinear", "reglu", "geglu", "swiglu"] = option(
        "relu", "activation function of the feed-forward layer; glu and later ones have a gate"
    )
    gated_width: Literal["d_ff", "two_thirds"] = option(
        "d_ff", "inner width with a gate: d_ff, or two thirds of it, for the same number of weights", condition=GATE
    )
    attention_bias: bool = option(False, "biases in attention's projections (the paper's equations have none)")
    qk_norm: bool = option(False, "normalize each head's queries and keys (model.norm_kind), before positions act")
    attention_softcap: float | None = option(None, "scores s become cap * tanh(s / cap); none = no cap", above=0)
    window: int | None = option(
        None, "self-attention sees keys within this distance (before and, in the encoder, after); none = all",
        at_least=1,
    )  # fmt: skip
    ffn_bias: bool = option(True, "biases in the feed-forward layer (the paper's equation 2 has them)")

    share_layers: bool = option(False, "one layer, applied N times, in each stack (Universal Transformer)")

    # Positions and embeddings.
    positions: Literal["sinusoidal", "learned", "none", "rotary", "relative", "transformer_xl", "t5", "alibi"] = option(
        "sinusoidal", "position encoding"
    )
    sinusoids: Literal["interleaved", "halves"] = option(
        "interleaved", "sines and cosines in turn (paper), or all sines first", condition=SINUSOIDAL
    )
    max_length: int = option(1024, "rows of the learned position table", at_least=1, condition=LEARNED_POSITIONS)
    tie_embeddings: Literal["all", "target", "none"] = option(
        "all", "share one matrix between both embeddings and the output (paper), between target and output, or none"
    )
    scale_embeddings: bool = option(True, "multiply embeddings by sqrt(d_model)")
    embedding_init: EmbeddingInit = option(
        "normal", "normal of variance 1 / d_model, 1 (unit) or 2 / d_model (kaiming), or Xavier-uniform"
    )
    scale_positions: bool = option(False, "multiply sinusoids by 1 / sqrt(d_model)", condition=SINUSOIDAL)
    output_bias: bool = option(False, "a bias for each token's logit (the paper has none, Marian has)")

    # Computation.
    dtype: Literal["float32", "bfloat16"] = option("float32", "type of the computation; parameters are always float32")
    matmul_precision: Literal["highest", "high", "default"] = option(
        "highest",
        "precision of float32 matrix products: float32; on TPUs high is three and default one pass of bfloat16, on "
        "NVIDIA GPUs default is TF32",
    )
    attention_implementation: Literal["auto", "plain", "cudnn"] = option(
        "auto",
        "the formula as written, or cuDNN's fused kernels; auto: cuDNN where it is supported",
        affects="computation",
    )
    parts: PartsConfig = group(PartsConfig)

    # muP (Yang et al. 2022): the widths of the base model, at which it is the standard parametrisation.
    mup_base_d_model: int | None = option(
        None, "muP: d_model of the base model, whose best learning rate serves all; none = no muP", at_least=1
    )
    mup_base_d_ff: int | None = option(None, "muP: d_ff of the base model; none = in proportion to d_model", at_least=1)
    mup_base_d_k: int | None = option(None, "muP: d_k of the base model; none = in proportion to d_model", at_least=1)

    @property
    def key_value_heads(self) -> int:
        """num_key_value_heads, resolved."""
        return self.num_key_value_heads or self.num_heads

    @property
    def key_size(self) -> int:
        """d_k, resolved."""
        return self.d_k or self.d_model // self.num_heads

    @property
    def value_size(self) -> int:
        """d_v, resolved."""
        return self.d_v or self.d_model // self.num_heads

    @property
    def in_words(self) -> str:
        """Layers, widths, heads and norms."""
        shared = "shared " if self.share_layers else ""
        key_value = f" ({self.key_value_heads} of keys and values)" if self.num_key_value_heads else ""
        return (
            f"{self.num_encoder_layers} + {self.num_decoder_layers} {shared}layers, d_model {self.d_model}, "
            f"d_ff {self.inner_width}, {self.num_heads} heads{key_value}, norm {self.norm} ({self.norm_kind})"
        )

    def stored(self, layers: int) -> int:
        """How many of a stack's layers have separate parameters."""
        return 1 if self.share_layers else layers

    @property
    def is_pre_norm(self) -> bool:
        """Whether each sub-layer's input is normalised, and each stack ends with a norm."""
        return self.norm in ("pre", "sandwich")

    @property
    def is_gated(self) -> bool:
        """Whether the feed-forward layer multiplies its inner layer by a gate."""
        return self.activation in GATED

    @property
    def inner_width(self) -> int:
        """The width of the feed-forward layer's inner layer: d_ff, or two thirds of it to the nearest whole number."""
        return round(self.d_ff * 2 / 3) if self.is_gated and self.gated_width == "two_thirds" else self.d_ff

    @property
    def base_d_model(self) -> int:
        """d_model of muP's base model; in the standard parametrisation, which has none, its own."""
        return self.mup_base_d_model or self.d_model

    @property
    def score_scale(self) -> float:
        """The factor of attention's scores: 1 / sqrt(d_k), under muP sqrt(base d_k) / d_k."""
        return float(self.key_size**-0.5 * (self.mup_base_widths()["d_k"] / self.key_size) ** 0.5)

    def mup_base_widths(self) -> dict[str, Fraction]:
        """The widths of muP's base model by option; its own in the standard parametrisation.

        The width of all heads together is in proportion to d_model: where d_k does not grow, the number of heads does.
        """
        share = Fraction(self.base_d_model, self.d_model)
        d_k = Fraction(self.mup_base_d_k or self.key_size * share)
        return {
            "d_model": Fraction(self.base_d_model),
            "d_ff": Fraction(self.mup_base_d_ff or self.d_ff * share),
            "num_heads": self.num_heads * share * self.key_size / d_k,
            "num_key_value_heads": self.key_value_heads * share * self.key_size / d_k,
            "d_k": d_k,
            "d_v": self.value_size * d_k / self.key_size,
        }

    def mup_base(self) -> ModelConfig:
        """muP's base model, in the standard parametrisation."""
        # A width that is not whole is left to the schema, which says so.
        widths: dict[str, Any] = {name: float(width) for name, width in self.mup_base_widths().items()}
        return dataclasses.replace(self, **widths, mup_base_d_model=None, mup_base_d_ff=None, mup_base_d_k=None)

    def contradictions(self) -> Iterator[str]:
        if self.num_heads % self.key_value_heads:
            hint = f"do not divide; set the first to {_nearest_divisor(self.num_heads, self.key_value_heads)}"
            yield self.clash("num_key_value_heads", "num_heads", hint=hint)
        positions = None if self.parts.positions else self.positions
        if positions in ("sinusoidal", "transformer_xl") and self.d_model % 2:
            yield self.clash("positions", "d_model", hint="pairs of sine and cosine need an even width")
        if self.target_vocab_size is not None and self.tie_embeddings == "all":
            yield self.clash("tie_embeddings", "target_vocab_size", hint="only one vocabulary can: use target or none")
        if self.pad_id >= min(self.vocab_size, self.target_vocab_size or self.vocab_size):
            yield self.clash("pad_id", "vocab_size", "target_vocab_size", hint="is outside a vocabulary")
        if self.window is not None and self.parts.attention:
            yield self.clash("window", "parts.attention", hint="a window needs the library's attention")
        for name in ("mup_base_d_ff", "mup_base_d_k"):
            if self.mup_base_d_model is None and getattr(self, name) is not None:
                yield self.clash(name, "mup_base_d_model", hint="muP needs both")
        if self.d_model % self.num_heads and (self.d_k is None or self.d_v is None):
            unset = " and ".join(name for name in ("d_k", "d_v") if getattr(self, name) is None)
            hint = f"do not divide; set {unset}, or num_heads to {_nearest_divisor(self.d_model, self.num_heads)}"
            yield self.clash("num_heads", "d_model", hint=hint)
            return  # the widths of a head are unknown
        if positions == "rotary" and self.key_size % 2:
            yield f"positions = rotary and d_k = {self.key_size}: pairs of numbers need an even d_k"
        if self.mup_base_d_model is not None:
            try:
                self.mup_base()
            except ConfigError as error:
                yield from (f"mup_base_d_model = {self.mup_base_d_model}: its model: {each}" for each in error.problems)

    @classmethod
    def base(cls, vocab_size: int = 37_000, **changes: Any) -> ModelConfig:
        """The paper's base model (Table 3), with any field changed by keyword."""
        return cls(vocab_size=vocab_size, **changes)

    @classmethod
    def big(cls, vocab_size: int = 37_000, **changes: Any) -> ModelConfig:
        """The paper's big model (Table 3)."""
        return cls.variant("big", vocab_size, **changes)

    @classmethod
    def tiny(cls, vocab_size: int = 10_000, **changes: Any) -> ModelConfig:
        """2.6 million parameters: the size that does best on the 29,000 sentences of Multi30k."""
        size = {"num_encoder_layers": 4, "num_decoder_layers": 4, "d_model": 128, "d_ff": 256, "num_heads": 4}
        return cls(vocab_size=vocab_size, **{**size, "dropout": 0.3, **changes})

    @classmethod
    def variant(cls, row: str, vocab_size: int = 37_000, **changes: Any) -> ModelConfig:
        """The architecture of a row of Table 3 by its name: "B d_k=16".

        Rows that change only the training ("D eps_ls=0") have the architecture of the base model.
        """
        if row not in TABLE_3:
            raise ConfigError([f"{row!r} is not a row of Table 3; {did_you_mean(row, TABLE_3)}"])
        differences = [(path.partition("."), value) for path, value in TABLE_3[row].items()]
        fields = {name: value for (group, _, name), value in differences if group == "model"}
        return cls(vocab_size=vocab_size, **{**fields, **changes})


def _nearest_divisor(number: int, near: int) -> int:
    return min((n for n in range(1, number + 1) if number % n == 0), key=lambda divisor: abs(divisor - near))
