"""The encoder and the decoder (section 3.1): positions, dropout on the sum, N layers, pre-norm's final norm."""

import bisect

import jax
from flax import linen as nn

from transformer_jax.errors import BadInput
from transformer_jax.model import parts
from transformer_jax.model.dropout import Dropout
from transformer_jax.model.layers import DecoderLayer, EncoderLayer, LayerCache, norm_of
from transformer_jax.model.positions import KINDS, TELLING, Places, Positions
from transformer_jax.model_config import MOST_ROWS, ModelConfig

# The decoder's memory of the tokens so far: each layer's.
DecoderCache = tuple[LayerCache, ...]
# One factor a head, "NH" (layer, head), for each of the three attentions: "encoder", "decoder", "cross".
HeadMasks = dict[str, jax.Array]


class Encoder(nn.Module):
    """N encoder layers over embedded tokens."""

    config: ModelConfig

    def setup(self) -> None:
        config = self.config
        layer = parts.choose(config.parts.encoder_layer, EncoderLayer, "encoder_layer")
        self.layers = [layer(config) for _ in range(config.num_encoder_layers)]
        self.positions = _positions(config, config.num_encoder_layers, causal=False)
        self.drop = Dropout(config.dropout)
        if config.norm == "pre":  # post-norm, the paper's, ends with its last layer's norm
            self.final_norm = norm_of(config)

    def __call__(
        self,
        x_BSD: jax.Array,
        mask: jax.Array | None,
        positions_BS: jax.Array,
        head_mask_NH: jax.Array | None = None,
        deterministic: bool = True,
    ) -> jax.Array:
        x_BSD = self.drop(_embedded(self.positions[0], x_BSD, positions_BS), deterministic)
        for i, layer in enumerate(self.layers):
            places = Places(self.positions[i % len(self.positions)], positions_BS, positions_BS)
            head_mask_H = None if head_mask_NH is None else head_mask_NH[i]
            x_BSD = layer(x_BSD, mask, places, head_mask_H, deterministic)
        return self.final_norm(x_BSD) if self.config.norm == "pre" else x_BSD

    def check_length(self, length: int) -> None:
        self.positions[0].check_length(length)


class Decoder(nn.Module):
    """N decoder layers over embedded tokens and the encoder's output."""

    config: ModelConfig

    def setup(self) -> None:
        config = self.config
        layer = parts.choose(config.parts.decoder_layer, DecoderLayer, "decoder_layer", ("__call__", "new_cache"))
        self.layers = [layer(config) for _ in range(config.num_decoder_layers)]
        self.positions = _positions(config, config.num_decoder_layers, causal=True)
        self.drop = Dropout(config.dropout)
        if config.norm == "pre":
            self.final_norm = norm_of(config)

    def __call__(
        self,
        x_BTD: jax.Array,
        memory_BSD: jax.Array | None,
        mask: jax.Array | None,
        memory_mask: jax.Array | None,
        positions_BT: jax.Array,
        key_positions_BS: jax.Array,
        cache: DecoderCache | None = None,
        head_masks: HeadMasks | None = None,
        deterministic: bool = True,
    ) -> tuple[jax.Array, DecoderCache | None]:
        x_BTD = self.drop(_embedded(self.positions[0], x_BTD, positions_BT), deterministic)
        kept = []
        for i, layer in enumerate(self.layers):
            places = Places(self.positions[i % len(self.positions)], positions_BT, key_positions_BS)
            own_and_cross = tuple(_of_layer(head_masks, name, i) for name in ("decoder", "cross"))
            held = None if cache is None else cache[i]
            x_BTD, held = layer(x_BTD, memory_BSD, mask, memory_mask, held, places, own_and_cross, deterministic)
            kept.append(held)
        x_BTD = self.final_norm(x_BTD) if self.config.norm == "pre" else x_BTD
        return x_BTD, None if cache is None else tuple(kept)

    def check_length(self, length: int) -> None:
        self.positions[0].check_length(length)

    def new_cache(self, memory_BSD: jax.Array, length: int, beams: int = 1) -> DecoderCache:
        self.check_length(length)
        return tuple(layer.new_cache(memory_BSD, length * beams) for layer in self.layers)


def position_limit(config: ModelConfig) -> int | None:
    """Tokens of the longest sequence whose positions the model can tell apart; None without a limit."""
    kind = _kind(config)(config, parent=None)

    def refuses(length: int) -> bool:
        try:
            kind.check_length(length)
        except ValueError:
            return True
        return False

    lengths = range(1, MOST_ROWS + 1)
    return bisect.bisect_left(lengths, True, key=refuses) if refuses(lengths[-1]) else None


def _positions(config: ModelConfig, layers: int, causal: bool) -> list[Positions]:
    """One module for all layers, or one each, as the kind wants it."""
    kind = _kind(config)
    return [kind(config, causal) for _ in range(layers if kind.per_layer else 1)]


def _kind(config: ModelConfig) -> type[Positions]:
    """The class that model.positions names, or the user's."""
    part, methods = config.parts.positions, (*TELLING, "check_length")
    if part is None:
        return KINDS[config.positions]
    kind = parts.choose(part, Positions, "positions", methods, at_least_one_of=TELLING)
    if kind.moved_values is not Positions.moved_values and not kind.moves_values:
        raise BadInput(f"model.parts.positions = {parts.told(part)}: has moved_values, but not moves_values = True")
    return kind


def _embedded(kind: Positions, x_BTD: jax.Array, positions_BT: jax.Array) -> jax.Array:
    """The input with positions in it, which must not have become something else."""
    told = kind.embed(x_BTD, positions_BT)
    if told.shape != x_BTD.shape:
        raise BadInput(f"{type(kind).__name__}.embed made {told.shape} of {x_BTD.shape}: it must keep the shape")
    return told


def _of_layer(head_masks: HeadMasks | None, name: str, layer: int) -> jax.Array | None:
    chosen = None if head_masks is None else head_masks.get(name)
    return None if chosen is None else chosen[layer]
