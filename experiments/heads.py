"""How many heads does attention need, and what does each head do?

    transformer-jax sweep experiments/heads.py --scale=demo --workdir=runs/heads --jobs=2
    transformer-jax report runs/heads

Rows A of Table 3 in finer steps: h heads of width d_model / h, so that parameters and computation stay the same. Then
each trained model is analyzed on some of the test sentences by `what_heads_do` in this file:

- each head is masked, one at a time: the change in loss and BLEU;
- its importance, the mean over sentences of |d loss / d mask| (Michel et al. 2019), which needs no masking at all;
- its entropy (0: attention to a single word) and its mean distance from the query position;
- all heads of a layer but the best are masked: the change in loss;
- heads are pruned in order of importance, the least important first, all three attentions together: the curve.

Expected: h matters little, except at the extremes, and most heads of a trained model
can be removed without effect, but fewest in cross-attention.

At demo scale 6 variants have three seeds each; `--dry-run` estimates the time.
"""

import copy
import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from transformer_jax.config import ExperimentConfig, ModelConfig
from transformer_jax.data.batching import Batch, EvaluationBatches
from transformer_jax.data.tokenizer import PAD
from transformer_jax.evaluation import measures
from transformer_jax.experiment import TestSet
from transformer_jax.extension import load_module
from transformer_jax.model.stacks import attention_weights_of
from transformer_jax.model.transformer import Transformer, matmul_precision
from transformer_jax.sweeps import Sweep, Variant
from transformer_jax.translation.load import Run
from transformer_jax.translation.log_probabilities import token_log_probabilities, token_pairs

bases = load_module(str(Path(__file__).with_name("bases.py")))
SCALES = bases.SCALES
HEADS = {"demo": (1, 2, 4, 8, 16, 32), "multi30k": (1, 2, 4, 8, 16, 32), "paper": (1, 2, 4, 8, 16, 32, 64)}
SENTENCES = 200  # of the first test set, used by the analysis
TRANSLATED = 50  # of these, translated again (greedily) for each masked head
PRUNED_SHARES = np.linspace(0, 1, 9)
# The three attentions by their names in `head_masks`, and where their parameters are.
ATTENTIONS = {
    "encoder": ("encoder", "self_attention"),
    "decoder": ("decoder", "self_attention"),
    "cross": ("decoder", "cross_attention"),
}
TITLES = {"encoder": "encoder self-attention", "decoder": "decoder self-attention", "cross": "cross-attention"}
Masks = dict[str, np.ndarray]  # for each attention, a factor for every layer and head, NH
Head = tuple[str, int, int]  # attention, layer, head


def get_sweep(scale: str) -> Sweep:
    base = bases.base(scale)
    own = base.model.num_heads
    others = [h for h in HEADS[scale] if h != own]
    return Sweep(
        name="heads",
        question="How many heads does attention need at the same amount of computation, and what does each of them do?",
        base=base,
        variants=[
            Variant(f"h={own}", note=f"d_k = d_v = {base.model.d_model // own}"),
            *(Variant(f"h={h}", {"model.num_heads": h}, note=f"d_k = d_v = {base.model.d_model // h}") for h in others),
        ],
        baseline=f"h={own}",
        primary="perplexity",
        analyses={"heads": bases.own(__file__, "what_heads_do")},
        notes=(
            f"Heads were looked at on the first {SENTENCES} test sentences; BLEU without a head is of {TRANSLATED} of "
            "them, greedily. Heads have no names that two seeds would share: within each layer they are ranked by what "
            "the loss loses without them, and means over seeds are means over heads of one rank.",
        ),
    )


class Probe(NamedTuple):
    """One head: its importance and its attention pattern."""

    head: Head
    loss: float  # a token's, how much more without it
    bleu: float  # how much less without it
    importance: float
    entropy: float  # in bits
    distance: float  # in tokens


class Subject:
    """A trained model, and the sentences of its analysis."""

    def __init__(self, run: Run, test_set: TestSet):
        self.run, self.model = run, run.config.model
        self.sources, self.references = test_set.sources[:SENTENCES], test_set.references[:SENTENCES]
        sides = (run.tokenizer.encode_batch(self.sources), run.target_tokenizer.encode_batch(self.references))
        pairs = token_pairs(*sides)
        longest = int(max(pairs.source_lengths.max(), pairs.target_lengths.max())) + 1
        self.batches = list(EvaluationBatches(pairs, tokens_per_batch=max(2048, longest)))
        self.tokens = sum(int((batch.target_output != PAD).sum()) for batch in self.batches)
        layers = {"encoder": self.model.num_encoder_layers}
        self.shapes = {
            name: (layers.get(name, self.model.num_decoder_layers), self.model.num_heads) for name in ATTENTIONS
        }

    @property
    def whole(self) -> Masks:
        """No head masked."""
        return {name: np.ones(shape, np.float32) for name, shape in self.shapes.items()}

    def heads(self) -> Iterator[Head]:
        for name, (layers, heads) in self.shapes.items():
            yield from ((name, layer, head) for layer in range(layers) for head in range(heads))

    def without(self, *heads: Head) -> Masks:
        masks = self.whole
        for name, layer, head in heads:
            masks[name][layer, head] = 0.0
        return masks

    def loss(self, masks: Masks) -> float:
        """Negative log-likelihood of a reference token, with each head's output times its factor."""
        sums = [
            negative_log_likelihood(self.model, self.run.params, unnumbered(batch), masks) for batch in self.batches
        ]
        return float(np.sum(jax.device_get(sums))) / self.tokens

    def bleu(self, masks: Masks) -> float:
        """Of greedy translations, with heads masked."""
        run = copy.copy(self.run)
        run.params = masked(self.run.params, masks)
        found = measures(run.translate(self.sources[:TRANSLATED], beam=1), self.references[:TRANSLATED])
        return found["bleu"].score


def what_heads_do(run: Run, experiment: ExperimentConfig, tests: dict[str, TestSet]) -> dict[str, Any]:
    """The analysis: each head separately, one head per layer, and the pruning curve."""
    subject = Subject(run, next(iter(tests.values())))
    probes = probed(subject)
    curve = pruning_curve(subject, probes)
    return {
        "title": "What heads do",
        "text": "Within each layer, heads are ranked by what the loss loses without them. Masking: more loss a token, "
        "and less BLEU, without this one head. Importance: mean |d loss / d mask| (Michel et al. 2019). Entropy in "
        "bits; distance in tokens between a word's own place and where the head looks.",
        "tables": [
            {
                "title": "Each head",
                "columns": ["attention", "layer", "rank", "loss +", "BLEU -", "importance", "entropy", "distance"],
                "rows": ranked(probes),
            },
            {
                "title": "One head left in a layer, the best",
                "columns": ["attention", "layer", "loss +"],
                "rows": one_left(subject, probes),
            },
            {
                "title": "Heads pruned, the least important first",
                "columns": ["share of heads pruned", "perplexity", "BLEU"],
                "rows": curve,
            },
        ],
        "plots": [
            {
                "title": "Heads pruned, the least important first",
                "x": "share of heads pruned",
                "y": "BLEU",
                "series": {"BLEU": [[share, bleu] for share, _, bleu in curve]},
            },
            {
                "title": "What the loss loses without a head, by its rank in the layer",
                "x": "rank",
                "y": "loss + without it",
                "series": by_rank(probes),
            },
        ],
    }


def probed(subject: Subject) -> list[Probe]:
    """Effect of masking, importance and attention pattern of every head."""
    whole_loss, whole_bleu = subject.loss(subject.whole), subject.bleu(subject.whole)
    importance, entropy, distance = head_importance(subject), *head_attention(subject)
    probes = []
    for head in subject.heads():
        name, *place = head
        masks, at = subject.without(head), tuple(place)
        seen = (float(found[name][at]) for found in (importance, entropy, distance))
        probes.append(Probe(head, subject.loss(masks) - whole_loss, whole_bleu - subject.bleu(masks), *seen))
    return probes


def ranked(probes: list[Probe]) -> list[list[Any]]:
    """Rows of a table; the heads of a layer are in the order of what the loss loses without them."""
    return [
        [TITLES[name], layer + 1, rank, *(round(value, 4) for value in probe[1:])]
        for (name, layer), heads in by_layer(probes).items()
        for rank, probe in enumerate(heads, start=1)
    ]


def by_layer(probes: list[Probe]) -> dict[tuple[str, int], list[Probe]]:
    layers: dict[tuple[str, int], list[Probe]] = {}
    for probe in sorted(probes, key=lambda probe: -probe.loss):
        layers.setdefault(probe.head[:2], []).append(probe)
    return dict(sorted(layers.items(), key=lambda item: (list(ATTENTIONS).index(item[0][0]), item[0][1])))


def by_rank(probes: list[Probe]) -> dict[str, list[list[float]]]:
    """Mean over the layers of an attention, for each rank."""
    series: dict[str, list[list[float]]] = {}
    for name in ATTENTIONS:
        layers = [[probe.loss for probe in heads] for (of, _), heads in by_layer(probes).items() if of == name]
        series[TITLES[name]] = [
            [rank, round(float(mean), 5)] for rank, mean in enumerate(np.mean(layers, axis=0), start=1)
        ]
    return series


def one_left(subject: Subject, probes: list[Probe]) -> list[list[Any]]:
    whole = subject.loss(subject.whole)
    rows = []
    for (name, layer), heads in by_layer(probes).items():
        masks = subject.without(*(probe.head for probe in heads[1:]))
        rows.append([TITLES[name], layer + 1, round(subject.loss(masks) - whole, 4)])
    return rows


def pruning_curve(subject: Subject, probes: list[Probe]) -> list[list[float]]:
    """(share of heads pruned, perplexity, BLEU)."""
    order = [probe.head for probe in sorted(probes, key=lambda probe: probe.importance)]
    rows = []
    for share in PRUNED_SHARES:
        masks = subject.without(*order[: round(share * len(order))])
        perplexity = float(np.exp(min(subject.loss(masks), 50.0)))
        rows.append([float(share), round(perplexity, 3), round(subject.bleu(masks), 2)])
    return rows


def masked(params: Any, masks: Masks) -> Any:
    """Parameters with which the model computes what it computes with its heads masked.

    A head's output meets its own rows of W^O and nothing else, so a factor on one is the same factor on the other.
    """
    params = jax.tree.map(lambda leaf: leaf, params)  # new dictionaries around the same arrays
    for name, mask_NH in masks.items():
        stack, attention = ATTENTIONS[name]
        for layer, mask_H in enumerate(mask_NH):
            output = params[stack][f"layers_{layer}"][attention]["output"]
            rows = np.repeat(mask_H, output["kernel"].shape[0] // len(mask_H))
            output["kernel"] = output["kernel"] * rows[:, None]
    return params


@functools.partial(jax.jit, static_argnums=0)
def negative_log_likelihood(model: ModelConfig, params: Any, batch: Batch, masks: Masks) -> jax.Array:
    return -jnp.sum(token_log_probabilities(model, params, batch, masks))


def head_importance(subject: Subject) -> Masks:
    """Mean over sentences of |d loss / d mask|, the loss being a token's (Michel et al. 2019, equation 2)."""
    total: Any = jax.tree.map(np.zeros_like, subject.whole)
    for batch in subject.batches:
        more = gradient_sizes(subject.model, subject.run.params, unnumbered(batch), subject.whole)
        total = jax.tree.map(np.add, total, jax.device_get(more))
    return jax.tree.map(lambda size: size / len(subject.sources), total)


@functools.partial(jax.jit, static_argnums=0)
def gradient_sizes(model: ModelConfig, params: Any, batch: Batch, masks: Masks) -> Any:
    """|d loss / d mask| of each row of the batch, added up."""

    def loss(masks: Masks, row: Batch) -> jax.Array:
        alone = jax.tree.map(lambda array: array[None], row)
        tokens = jnp.maximum(jnp.sum(row.target_output != PAD), 1)
        return -jnp.sum(token_log_probabilities(model, params, alone, masks)) / tokens

    gradients = jax.vmap(jax.grad(loss), in_axes=(None, 0))(masks, batch)
    return jax.tree.map(lambda gradient_BNH: jnp.sum(jnp.abs(gradient_BNH), axis=0), gradients)


def head_attention(subject: Subject) -> tuple[Masks, Masks]:
    """Mean entropy and mean distance of the attention of each head, over every word that attends."""
    total: Any = None
    for batch in subject.batches:
        more = jax.device_get(attention_sums(subject.model, subject.run.params, unnumbered(batch)))
        total = more if total is None else jax.tree.map(np.add, total, more)
    entropy = {name: entropy_NH / count for name, (entropy_NH, _, count) in total.items()}
    distance = {name: distance_NH / count for name, (_, distance_NH, count) in total.items()}
    return entropy, distance


@functools.partial(jax.jit, static_argnums=0)
def attention_sums(model: ModelConfig, params: Any, batch: Batch) -> dict[str, tuple[jax.Array, jax.Array, jax.Array]]:
    """For each attention: entropy and distance of every head, added up over the words that attend; how many do."""
    inputs = batch.source, batch.target_input
    with matmul_precision(model):
        _, shown = Transformer(model).apply({"params": params}, *inputs, mutable=["intermediates"])
    found = {}
    for name, (stack, attention) in ATTENTIONS.items():
        weights_NBHTS = jnp.stack(attention_weights_of(shown["intermediates"][stack], attention))
        own = batch.source if name == "encoder" else batch.target_output
        attends_NBHT = (own != PAD)[None, :, None]
        bits = -jnp.sum(weights_NBHTS * jnp.log2(jnp.maximum(weights_NBHTS, 1e-30)), axis=-1)
        queries, keys = (jnp.arange(length) for length in weights_NBHTS.shape[-2:])
        away_TS = jnp.abs(queries[:, None] - keys[None])
        away = jnp.einsum("nbhts,ts->nbht", weights_NBHTS, away_TS.astype(jnp.float32))
        entropy_NH, distance_NH = (jnp.sum(jnp.where(attends_NBHT, each, 0.0), axis=(1, 3)) for each in (bits, away))
        found[name] = (entropy_NH, distance_NH, jnp.sum(own != PAD))
    return found


def unnumbered(batch: Batch) -> Batch:
    return batch._replace(pair_index=None)
