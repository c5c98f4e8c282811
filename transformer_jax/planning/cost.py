"""What one update needs, by closed formulas: memory on each device, and bytes sent along each axis of the mesh.

Letters as in model/size.py. `tests/test_cost.py` holds the formulas to compiled programs.
"""

import math
from typing import NamedTuple

from transformer_jax.model.size import parameter_counts
from transformer_jax.model_config import ModelConfig
from transformer_jax.update.loss import HELD_LOGITS

FLOAT = 4  # bytes: parameters, moments, gradients and sums are float32 whatever the computation's type


class MeshSize(NamedTuple):
    data: int
    fsdp: int
    tensor: int

    @property
    def devices(self) -> int:
        return math.prod(self)

    @property
    def rows(self) -> int:
        """Devices that share the batch."""
        return self.data * self.fsdp

    def __str__(self) -> str:
        return f"data {self.data} x fsdp {self.fsdp} x tensor {self.tensor}"


class Work(NamedTuple):
    """One update: rows of the batch, tokens of a row (padding included), parts it is made in."""

    rows: int
    source: int
    target: int
    parts: int = 1

    def on(self, mesh: MeshSize) -> "Work":
        """What one device has of it, in one part."""
        return self._replace(rows=-(-self.rows // (mesh.rows * self.parts)))

    @property
    def source_tokens(self) -> int:
        return self.rows * self.source

    @property
    def target_tokens(self) -> int:
        return self.rows * self.target


class Parameters(NamedTuple):
    """How many parameters, by how a mesh divides them (the rules of update/sharding.py)."""

    tables: int  # of embeddings: by fsdp and tensor, as are
    matrices: int
    biases: int  # of divided outputs: by tensor
    whole: int  # norms, other biases, positions

    def on(self, mesh: MeshSize) -> float:
        divided = (self.tables + self.matrices) / (mesh.fsdp * mesh.tensor)
        return divided + self.biases / mesh.tensor + self.whole


def parameters(config: ModelConfig) -> Parameters:
    """Attention D h (2 K + 2 V) and feed-forward 2 D F (SwiGLU 3 D F) are matrices."""
    c, encoder, decoder = config, config.num_encoder_layers, config.num_decoder_layers
    keys, values, gates = c.num_heads * c.key_size, c.num_heads * c.value_size, 2 if c.activation == "swiglu" else 1
    attention, feed_forward = 2 * c.d_model * (keys + values), (gates + 1) * c.d_model * c.d_ff
    counts = parameter_counts(config)
    output_bias = (c.target_vocab_size or c.vocab_size) * c.output_bias
    tables = counts["embeddings"] - output_bias
    matrices = (encoder + 2 * decoder) * attention + (encoder + decoder) * feed_forward
    biases = (encoder + 2 * decoder) * (2 * keys + values) * c.attention_bias
    biases += (encoder + decoder) * gates * c.d_ff * c.ffn_bias + output_bias
    return Parameters(tables, matrices, biases, sum(counts.values()) - tables - matrices - biases)


class Bytes(NamedTuple):
    """What each device sends in one update, in rings: an all-reduce among n sends 2 (n - 1) / n of its bytes, an
    all-gather or a reduce-scatter (n - 1) / n."""

    data: float
    fsdp: float
    tensor: float


def bytes_sent(config: ModelConfig, work: Work, mesh: MeshSize) -> Bytes:
    """Along each axis.

    - data: the gradient of what a device has of the parameters, all-reduced once; with what fsdp leaves whole, of which
      the devices of both axes have the sum.
    - fsdp: in each part the matrices are gathered for the forward pass and again for the backward pass, tables only
      once (the loss leaves their gradient behind), and all gradients reduced and scattered.
    - tensor: in each part all-reduces of activations: for an encoder layer 2 forward and 4 backward (the inputs of
      query, key, value and feed-forward, of which SwiGLU has two), for a decoder layer 3 and 5 and twice the memory;
      one for each embedding, one for the output, and for the softmax over a divided vocabulary 7 numbers a token.
    """
    count = parameters(config)
    own, width = work.on(mesh), config.d_model * _bytes(config)
    sliced = (count.tables + count.matrices) / mesh.tensor * FLOAT
    gathered = (count.tables + 2 * count.matrices) / mesh.tensor * FLOAT
    whole = 2 * _share(mesh.rows) * (count.biases / mesh.tensor + count.whole) * FLOAT
    gate = config.activation == "swiglu"
    source_sums = (6 + gate) * config.num_encoder_layers + 2 * config.num_decoder_layers + 1
    target_sums = (8 + gate) * config.num_decoder_layers + 2
    activations = (source_sums * own.source_tokens + target_sums * own.target_tokens) * width
    softmax = 7 * own.target_tokens * FLOAT
    return Bytes(
        data=2 * _share(mesh.data) * sliced / mesh.fsdp + (whole if mesh.data > 1 else 0),
        fsdp=work.parts * _share(mesh.fsdp) * (gathered + sliced) + (whole if mesh.data == 1 else 0),
        tensor=work.parts * 2 * _share(mesh.tensor) * (activations + softmax),
    )


def _share(devices: int) -> float:
    return (devices - 1) / devices


def _bytes(config: ModelConfig) -> int:
    """Of a number of the computation."""
    return {"float32": 4, "bfloat16": 2}[config.dtype]


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


def memory(config: ModelConfig, work: Work, mesh: MeshSize, moments: float = 2.0) -> Memory:
    """At the peak of an update: what the forward pass has left for the backward pass, which begins with the logits.

    `moments` are the numbers that the optimizer keeps for each parameter: Adam's are two. A gradient made in parts
    exists twice, the sum of the parts and the new one. With fsdp the output's table is gathered there, and its gradient
    not yet sliced.
    """
    count, own = parameters(config), work.on(mesh)
    held = FLOAT * count.on(mesh)
    classes = config.target_vocab_size or config.vocab_size
    slices = max(1, -(-own.target_tokens * classes // HELD_LOGITS))
    slice_of_logits = own.target_tokens / slices * classes / mesh.tensor * FLOAT
    table = classes * config.d_model / mesh.tensor * FLOAT
    return Memory(
        parameters=held,
        optimizer=moments * held,
        gradients=held * (2 if work.parts > 1 else 1),
        gathered=2 * table if mesh.fsdp > 1 else 0,
        activations=activations(config, own, mesh.tensor),
        logits=LOGITS_COPIES * slice_of_logits,
    )


# Of a slice: the logits, their exponentials, and the error that both become.
LOGITS_COPIES = 3


# Along tensor the gradients of what sub-layers are given wait for their sums: how much, as compiled programs show.
WAITING = 0.45


def activations(config: ModelConfig, own: Work, tensor: int) -> float:
    """Bytes that the forward pass leaves for the backward pass.

    For each token of an encoder layer: queries, keys, values and heads, h (2 K + 2 V), of which each device of `tensor`
    has its share, as it has of the h S weights, and of the inner layer, F before and F after the activation; and whole,
    for each sub-layer, the D that its norm is given and the D that it makes. A decoder layer has three sub-layers; the
    keys and values of the second are the source's. Norm and softmax are float32, and dropout leaves a byte.
    """
    c, size = config, _bytes(config)
    keys, values = c.num_heads * c.key_size, c.num_heads * c.value_size
    inner = (3 if c.activation == "swiglu" else 2) * c.d_ff
    whole = (FLOAT + size + (c.dropout > 0)) * c.d_model * (1 + WAITING * (tensor > 1))

    def attention(queries: int, kept: int, length: int) -> float:
        divided = size * (queries + kept) * (keys + values) + FLOAT * queries * c.num_heads * length
        return divided / tensor + queries * whole

    def feed_forward(tokens: int) -> float:
        return tokens * (size * inner / tensor + whole)

    source, target = own.source_tokens, own.target_tokens
    encoder = attention(source, source, own.source) + feed_forward(source)
    decoder = attention(target, target, own.target) + attention(target, source, own.source) + feed_forward(target)
    return c.num_encoder_layers * encoder + c.num_decoder_layers * decoder + (source + target) * whole
