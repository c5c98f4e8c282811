"""The arrays of a Marian model, in safetensors files, to and from parameters of this library ("ours").

Only the vocabulary differs. Marian's <pad>, a vector of zeros with which its targets begin, is our <bos>, and our <pad>
is an additional token. So the rows of tables are reordered.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from transformer_jax.data.tokenizer import BOS, PAD
from transformer_jax.errors import BadInput
from transformer_jax.model.positions import sinusoid
from transformer_jax.model_config import ModelConfig
from transformer_jax.runs.export import stored_arrays

Arrays = dict[str, np.ndarray]

WEIGHTS = "model.safetensors"
TYPES = ("float32", "float16", "bfloat16")

# The output bias of our <pad>: low enough for a probability of zero.
NEVER = -100.0
# Position tables within this tolerance are the sinusoids, possibly stored in 16 bits.
SAME_POSITIONS = 2e-3

BIAS = "final_logits_bias"
POSITIONS = {stack: f"model.{stack}.embed_positions.weight" for stack in ("encoder", "decoder")}
SOURCE, TARGET, OUTPUT = (f"{name}_embedding/table" for name in ("source", "target", "output"))
HEAD, EMBEDDED = "lm_head.weight", {stack: f"model.{stack}.embed_tokens.weight" for stack in ("encoder", "decoder")}
# Our tables, by `tie_embeddings`, with the names that each may have in a file; at least one must be there.
TABLES: dict[str, dict[str, tuple[str, ...]]] = {
    "all": {SOURCE: ("model.shared.weight", *EMBEDDED.values(), HEAD)},
    "target": {SOURCE: (EMBEDDED["encoder"],), TARGET: (EMBEDDED["decoder"], HEAD)},
    "none": {SOURCE: (EMBEDDED["encoder"],), TARGET: (EMBEDDED["decoder"],), OUTPUT: (HEAD,)},
}
ATTENTION = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "output": "out_proj"}


class Ids(NamedTuple):
    """This library's id of each Marian token, on both sides, and conversions of token ids and logits."""

    source: np.ndarray
    target: np.ndarray

    def of(self, table: str) -> np.ndarray:
        return self.source if table == SOURCE else self.target

    def our_source(self, input_ids: Any) -> np.ndarray:
        """Marian's `input_ids`, BS, in our ids. Their <pad> is padding."""
        ours_BS = self.source[np.asarray(input_ids)]
        return np.where(ours_BS == BOS, PAD, ours_BS)

    def our_target(self, decoder_input_ids: Any) -> np.ndarray:
        """Marian's `decoder_input_ids`, BT, in our ids. Their first <pad> is the beginning, any other one padding."""
        ours_BT = self.target[np.asarray(decoder_input_ids)]
        is_first_T = np.arange(ours_BT.shape[1]) == 0
        return np.where((ours_BT == BOS) & ~is_first_T[None], PAD, ours_BT)

    def marian_logits(self, logits_BTN: Any) -> Any:
        """Our logits in the order of Marian's tokens; our <pad>, which Marian does not have, is left out."""
        return logits_BTN[..., self.target]


def layer_names(model: ModelConfig) -> Iterator[tuple[str, str, tuple[int, ...]]]:
    """Our path, Marian's name and its shape for every array of the layers. A kernel is the transpose of a weight."""
    d_model, d_ff = model.d_model, model.d_ff
    for stack, layers in (("encoder", model.num_encoder_layers), ("decoder", model.num_decoder_layers)):
        attentions = {"self_attention": "self_attn"}
        if stack == "decoder":
            attentions["cross_attention"] = "encoder_attn"
        for layer in range(layers):
            ours, theirs = f"{stack}/layers_{layer}", f"model.{stack}.layers.{layer}"
            linears = {"feed_forward/inner": ("fc1", d_ff, d_model), "feed_forward/outer": ("fc2", d_model, d_ff)}
            norms = {"feed_forward_residual/norm": "final_layer_norm"}
            for name, theirs_of in attentions.items():
                for part, their_part in ATTENTION.items():
                    linears[f"{name}/{part}"] = (f"{theirs_of}.{their_part}", d_model, d_model)
                norms[f"{name}_residual/norm"] = f"{theirs_of}_layer_norm"
            for name, (their_name, rows, columns) in linears.items():
                yield f"{ours}/{name}/kernel", f"{theirs}.{their_name}.weight", (rows, columns)
                yield f"{ours}/{name}/bias", f"{theirs}.{their_name}.bias", (rows,)
            for name, their_name in norms.items():
                yield f"{ours}/{name}/scale", f"{theirs}.{their_name}.weight", (d_model,)
                yield f"{ours}/{name}/bias", f"{theirs}.{their_name}.bias", (d_model,)


def read_weights(directory: Path, model: ModelConfig, ids: Ids, rows: int) -> Arrays:
    """Our parameters by their paths, including position tables other than sinusoids.

    The arrays must be the ones that config.json implies, by name and shape.
    """
    where = directory / WEIGHTS
    stored = stored_arrays(where)
    pending = dict(stored)

    def read(name: str, shape: tuple[int, ...]) -> np.ndarray:
        array = pending.pop(name, None)
        if array is None or array.shape != shape or array.dtype.name not in TYPES:
            found = "missing" if array is None else f"{array.dtype.name}{list(array.shape)}"
            raise BadInput(f"{where}: {name} is {found}; must be {list(shape)} of {', '.join(TYPES)}")
        array = array.astype(np.float32)
        if not np.isfinite(array).all():
            raise BadInput(f"{where}: {name} has non-finite numbers")
        return array

    arrays = {}
    for ours, theirs, shape in layer_names(model):
        array = read(theirs, shape)
        arrays[ours] = array.T if ours.endswith("kernel") else array
    for table, names in TABLES[model.tie_embeddings].items():
        first, *others = [name for name in names if name in stored] or names
        shape = (len(ids.of(table)), model.d_model)
        array = read(first, shape)
        for other in others:
            if not np.array_equal(array, read(other, shape)):
                raise BadInput(f"{where}: {first} and {other} differ, but config.json says that they are shared")
        arrays[table] = _with_our_rows(array, ids.of(table), 0.0)
    bias_1N = np.zeros((1, len(ids.target)), np.float32)
    if BIAS in stored:
        bias_1N = read(BIAS, bias_1N.shape)
    arrays["output_bias"] = _with_our_rows(bias_1N[0], ids.target, NEVER)
    tables = {stack: read(name, (rows, model.d_model)) for stack, name in POSITIONS.items() if name in stored}
    if tables:
        sinusoids = np.asarray(sinusoid(np.arange(rows), model.d_model, "halves"))
        if any(np.abs(table - sinusoids).max() > SAME_POSITIONS for table in tables.values()):
            arrays |= {f"{stack}/positions_0/table": tables.get(stack, sinusoids) for stack in POSITIONS}
    if pending:
        raise BadInput(f"{where}: {', '.join(pending)[:80]} is not in a model of this config.json")
    return arrays


def write_weights(params: Arrays, model: ModelConfig, ids: Ids, rows: int) -> tuple[Arrays, bool]:
    """The arrays of a Marian folder, and whether the embedding of <bos> is zero, as in Marian.

    One that is not zero is added to the first position.
    """
    arrays = {}
    for ours, theirs, shape in layer_names(model):
        # A missing bias is zero.
        array = params.get(ours, np.zeros(shape, np.float32))
        arrays[theirs] = array.T if ours.endswith("kernel") else array
    tables = {table: params[table].copy() for table in TABLES[model.tie_embeddings]}
    begin = tables[SOURCE if model.tie_embeddings == "all" else TARGET][BOS]
    begins_from_zeros = not begin.any()
    positions = {stack: positions_of(params, model, stack, rows) for stack in POSITIONS}
    positions["decoder"][0] += begin * (model.d_model**0.5 if model.scale_embeddings else 1.0)
    begin[:] = 0
    sinusoids = np.asarray(sinusoid(np.arange(rows), model.d_model, "halves"))
    arrays |= {POSITIONS[stack]: table for stack, table in positions.items() if not np.array_equal(table, sinusoids)}
    for table, names in TABLES[model.tie_embeddings].items():
        arrays[names[0]] = tables[table][ids.of(table)]
    bias_N = params.get("output_bias", np.zeros(len(ids.target) + 1, np.float32))
    arrays[BIAS] = bias_N[ids.target][None]
    return {name: np.ascontiguousarray(array, np.float32) for name, array in arrays.items()}, begins_from_zeros


def positions_of(params: Arrays, model: ModelConfig, stack: str, rows: int) -> np.ndarray:
    """The position encodings of a stack as a table."""
    if model.positions == "none":
        return np.zeros((rows, model.d_model), np.float32)
    if model.positions == "learned":
        return params[f"{stack}/positions_0/table"].copy()
    return np.array(sinusoid(np.arange(rows), model.d_model, model.sinusoids))


def _with_our_rows(array: np.ndarray, ids: np.ndarray, padding: float) -> np.ndarray:
    """The rows in our order, with a row for our <pad>."""
    ours = np.full((len(ids) + 1, *array.shape[1:]), padding, np.float32)
    ours[ids] = array  # no Marian token is our <pad>
    return ours
