"""What one update needs, by closed formulas: memory on each device, and bytes sent along each axis of the mesh.

Letters as in model/size.py. XLA's compilers differ: `platform` is "cpu", "gpu" or "tpu", as JAX calls it.
`tests/update/test_reduction.py` compares the formulas with programs compiled for CPUs, `tests/planning/test_cost.py`
with figures of programs that were compiled for GPUs and TPUs.
"""

import math
from typing import NamedTuple

from transformer_jax.model.size import parameter_counts
from transformer_jax.model_config import ModelConfig
from transformer_jax.update.loss import HELD_LOGITS
from transformer_jax.update.rematerialization import recomputes_activations

FLOAT = 4  # bytes: parameters, moments, gradients and sums are always float32
BYTES = {"float32": 4, "bfloat16": 2}
# Copies of a slice of logits: the logits, their exponentials, and the gradient of both; fewer where these are fused.
LOGITS_COPIES = {"cpu": 3.0, "gpu": 1.25, "tpu": 2.0}
# Gradients of the inputs of sub-layers that wait for their sums along tensor: the share seen in compiled programs.
WAITING = {"cpu": 0.45, "gpu": 0.0, "tpu": 0.0}


class MeshSize(NamedTuple):
    data: int
    fsdp: int
    tensor: int

    @property
    def devices(self) -> int:
        return math.prod(self)

    @property
    def rows(self) -> int:
        """The number of devices that share the batch."""
        return self.data * self.fsdp

    def __str__(self) -> str:
        return f"data {self.data} x fsdp {self.fsdp} x tensor {self.tensor}"


class Work(NamedTuple):
    """One update: rows of the batch, tokens per row (padding included), accumulation steps; packed rows have masks."""

    rows: int
    source: int
    target: int
    parts: int = 1
    is_packed: bool = False
    rematerialize: str = "auto"  # train.rematerialize

    def on(self, mesh: MeshSize) -> "Work":
        """The share of one device in one accumulation step."""
        return self._replace(rows=-(-self.rows // (mesh.rows * self.parts)))

    @property
    def source_tokens(self) -> int:
        return self.rows * self.source

    @property
    def target_tokens(self) -> int:
        return self.rows * self.target


class Parameters(NamedTuple):
    """The number of parameters, by how a mesh divides them (the rules of update/sharding.py)."""

    tables: int  # embeddings: divided along fsdp and tensor, like
    matrices: int
    biases: int  # of divided outputs: along tensor
    whole: int  # norms, other biases, positions

    def on(self, mesh: MeshSize) -> float:
        divided = (self.tables + self.matrices) / (mesh.fsdp * mesh.tensor)
        return divided + self.biases / mesh.tensor + self.whole


def parameters(config: ModelConfig) -> Parameters:
    """Of the matrices, attention has D (h + g) (K + V), feed-forward 2 D F (with a gate 3 D F) and Transformer-XL's
    positions D h K."""
    c, encoder, decoder = config, config.stored(config.num_encoder_layers), config.stored(config.num_decoder_layers)
    widths, gates = c.key_size + c.value_size, 2 if c.is_gated else 1
    attention = c.d_model * (c.num_heads + c.key_value_heads) * widths
    feed_forward = (gates + 1) * c.d_model * c.inner_width
    counts = parameter_counts(config)
    output_bias = (c.target_vocab_size or c.vocab_size) * c.output_bias
    tables = counts["embeddings"] - output_bias
    matrices = (encoder + 2 * decoder) * attention + (encoder + decoder) * feed_forward
    biases = (encoder + 2 * decoder) * (c.num_heads * c.key_size + c.key_value_heads * widths) * c.attention_bias
    biases += (encoder + decoder) * gates * c.inner_width * c.ffn_bias + output_bias
    if c.positions == "transformer_xl":
        matrices += (encoder + decoder) * c.num_heads * c.key_size * c.d_model
        biases += (encoder + decoder) * c.num_heads * c.key_size * 2
    return Parameters(tables, matrices, biases, sum(counts.values()) - tables - matrices - biases)


class Bytes(NamedTuple):
    """Bytes that each device sends in one update, in rings: an all-reduce among n devices sends 2 (n - 1) / n of its
    bytes, an all-gather or a reduce-scatter (n - 1) / n."""

    data: float
    fsdp: float
    tensor: float


def bytes_sent(config: ModelConfig, work: Work, mesh: MeshSize, platform: str = "cpu") -> Bytes:
    """The bytes along each axis.

    - data: the gradient of a device's share of the parameters, all-reduced once; parameters that fsdp leaves whole are
      reduced over the devices of both axes.
    - fsdp: in each accumulation step the matrices are gathered for the forward pass and again for the backward pass,
      tables once (the loss computes their gradient in the forward pass), and all gradients are reduce-scattered. For
      GPUs XLA merges the two gathers; for TPUs it gathers in the model's dtype, and all-reduces the tables' gradients.
    - tensor: in each accumulation step all-reduces of activations: 2 forward and 4 backward in an encoder layer (the
      inputs of query, key, value and feed-forward, which has two with a gate), 3 and 5 in a decoder layer and twice
      the encoder's output (where each device has whole heads of keys and values); one for each embedding, one for the
      output, and 7 numbers per token for the softmax over a divided vocabulary.
    """
    count = parameters(config)
    local, width = work.on(mesh), config.d_model * BYTES[config.dtype]
    sliced = (count.tables + count.matrices) / mesh.tensor * FLOAT
    summed = sliced + (count.tables / mesh.tensor * FLOAT if platform == "tpu" else 0)
    gathered = {
        "cpu": (count.tables + 2 * count.matrices) * FLOAT,
        "gpu": (count.tables + count.matrices) * FLOAT,
        "tpu": 2 * (count.tables + count.matrices) * BYTES[config.dtype],
    }[platform] / mesh.tensor
    whole = 2 * _share(mesh.rows) * (count.biases / mesh.tensor + count.whole) * FLOAT
    gate = config.is_gated
    source_sums = (6 + gate) * config.num_encoder_layers + 2 * config.num_decoder_layers + 1
    target_sums = (8 + gate) * config.num_decoder_layers + 2
    activations = (source_sums * local.source_tokens + target_sums * local.target_tokens) * width
    softmax = 7 * local.target_tokens * FLOAT
    return Bytes(
        data=2 * _share(mesh.data) * sliced / mesh.fsdp + (whole if mesh.data > 1 else 0),
        fsdp=work.parts * _share(mesh.fsdp) * (gathered + summed) + (whole if mesh.data == 1 else 0),
        tensor=work.parts * 2 * _share(mesh.tensor) * (activations + softmax),
    )


def _share(devices: int) -> float:
    return (devices - 1) / devices


class Memory(NamedTuple):
    """Bytes on each device."""

    parameters: float
    optimizer: float
    gradients: float
    gathered: float
    activations: float
    logits: float

    @property
    def total(self) -> float:
        return sum(self)


def memory(config: ModelConfig, work: Work, mesh: MeshSize, moments: float = 2.0, platform: str = "cpu") -> Memory:
    """The memory at the peak of an update: between the forward and the backward pass, at the logits.

    `moments`: numbers that the optimizer keeps for each parameter, two for Adam. With accumulation a gradient exists
    twice, as the sum so far and the new one. With fsdp the output's table is gathered and its gradient not yet
    scattered.

    Compilers for accelerators make room for the gradients only when they are computed: at the logits there is that of
    the output's table alone. Where there are few activations, the peak is when all gradients are there, beside the
    parameters in the model's dtype. With fsdp all parameters are gathered in it, at both times.
    """
    count, local = parameters(config), work.on(mesh)
    held = FLOAT * count.on(mesh)
    classes = config.target_vocab_size or config.vocab_size
    slices = max(1, -(-local.target_tokens * classes // HELD_LOGITS))
    slice_of_logits = local.target_tokens / slices * classes / mesh.tensor * FLOAT
    table = classes * config.d_model / mesh.tensor * FLOAT
    at_logits = Memory(
        parameters=held,
        optimizer=moments * held,
        gradients=held * (2 if work.parts > 1 else 1),
        gathered=2 * table if mesh.fsdp > 1 else 0,
        activations=activations(config, local, mesh.tensor, platform),
        logits=LOGITS_COPIES[platform] * slice_of_logits,
    )
    if platform == "cpu":
        return at_logits
    copies = (count.tables + count.matrices) / mesh.tensor * BYTES[config.dtype]
    at_end = at_logits._replace(
        gathered=copies if mesh.fsdp > 1 or config.dtype != "float32" else 0, activations=0, logits=0
    )
    at_logits = at_logits._replace(
        gradients=table + (held if work.parts > 1 else 0), gathered=copies if mesh.fsdp > 1 else 0
    )
    return max(at_logits, at_end, key=lambda peak: peak.total)


def activations(config: ModelConfig, local: Work, tensor: int, platform: str = "cpu") -> float:
    """Bytes that the forward pass keeps for the backward pass.

    For each token of an encoder layer: queries, keys, values and heads, (h + g) (K + V), the h S attention weights, and
    the inner layer, F before and F after the activation and F of a gate, all divided along `tensor`; and undivided, for
    each sub-layer, D before and D after its norm, or each of its two norms. A decoder layer has three sub-layers; the
    keys and values of the second are those of the source. Norms are kept in float32, dropout keeps a byte, fused
    attention no weights. With train.rematerialize activations are computed again: of a sub-layer D is kept for
    each norm, and of the inner layer F before the activation.

    Norms of queries and keys keep twice their size in float32, (h + g) 2 K; Transformer-XL's positions h K for queries,
    h 2 D in float32 and, where scores are capped, what they add to these: as seen in programs for CPUs.
    """
    c, size = config, BYTES[config.dtype]
    widths = c.key_size + c.value_size
    is_recomputed = platform != "cpu" and recomputes_activations(local.rematerialize, platform)  # CPUs keep as much
    inner = ((3 if c.is_gated else 2) - is_recomputed) * c.inner_width
    norms = 2 if c.norm == "sandwich" else 1
    kept_D = norms * size if is_recomputed else norms * (FLOAT + size) + (c.dropout > 0)
    whole = kept_D * c.d_model * (1 + WAITING[platform] * (tensor > 1))

    has_kernels = platform == "gpu" and c.dtype == "bfloat16" and c.attention_implementation in ("auto", "cudnn")
    is_fused = has_kernels and c.attention_softcap is None and not local.is_packed
    adds_to_scores = c.positions in ("relative", "transformer_xl", "t5", "alibi")

    def attention(queries: int, kept: int, length: int) -> float:
        weights = 0 if is_fused else size * queries * c.num_heads * length
        heads = size * (queries * c.num_heads + kept * c.key_value_heads) * widths
        if c.qk_norm and not is_recomputed:
            heads += 2 * FLOAT * (queries * c.num_heads + kept * c.key_value_heads) * c.key_size
        return (heads + weights) / tensor + queries * whole

    def self_attention(tokens: int, length: int) -> float:
        kept = size * length if is_fused and adds_to_scores else 0
        if c.positions == "transformer_xl":
            kept += size * c.key_size + 2 * FLOAT * c.d_model + (FLOAT * length if c.attention_softcap else 0)
        return attention(tokens, tokens, length) + tokens * c.num_heads * kept / tensor

    def feed_forward(tokens: int) -> float:
        return tokens * (size * inner / tensor + whole)

    source, target = local.source_tokens, local.target_tokens
    encoder = self_attention(source, local.source) + feed_forward(source)
    decoder = self_attention(target, local.target) + attention(target, source, local.source) + feed_forward(target)
    return c.num_encoder_layers * encoder + c.num_decoder_layers * decoder + (source + target) * whole


def amount(size: float) -> str:
    """A number of bytes in readable units."""
    for unit in ("bytes", "kB", "MB"):
        if size < 999.5:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:,.3g} GB"
