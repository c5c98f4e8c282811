"""Which layer, and which position, carries the number of a verb?

    transformer-jax sweep experiments/verb_number.py --scale=demo --workdir=runs/verb_number --jobs=2
    transformer-jax report runs/verb_number

*Yesterday the teacher rescued the wolf* is *gestern rettete der Lehrer den Wolf*, and with *the teachers* it is
*retteten*. In English only the noun has the number, and in German the verb comes before its noun: the decoder can
read the number nowhere but in the encoder's output.

`where_number_is` patches activations (Vig et al. 2020). The model reads the plural sentence, but its residual stream
after one layer, at one position, is that of the singular sentence. The *share* is how far this moves the model from the
plural verb to the singular one: the difference of their logits is 0 % that of the plural sentence and 100 % that of the
singular one.

Expected: the number begins at the noun, and the encoder moves some of it to other positions.
"""

import functools
import itertools
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from transformer_jax import ModelConfig, Transformer, capture, patch
from transformer_jax.config import ExperimentConfig
from transformer_jax.data.tokenizer import BOS, EOS
from transformer_jax.experiment import TestSet
from transformer_jax.extension import load_module
from transformer_jax.grammar import english, german, lexicon, tree
from transformer_jax.grammar.lexicon import Frame, Kind, Number, Tense
from transformer_jax.grammar.sampler import verbs_of
from transformer_jax.model.transformer import matmul_precision
from transformer_jax.sweeps import Sweep, Variant
from transformer_jax.translation.load import Run

bases = load_module(str(Path(__file__).with_name("bases.py")))
SCALES = ("demo",)
EVERY = 331  # of some 67,000 sentences
STACKS = {"encoder": "Encoder", "decoder": "Decoder"}


def get_sweep(scale: str) -> Sweep:
    return Sweep(
        name="verb_number",
        question="Which layer, and which position, carries the number of a verb, with post-norm and with pre-norm?",
        base=bases.base(scale),
        variants=[Variant("post"), Variant("pre", {"model.norm": "pre"})],
        baseline="post",
        analyses={"number": bases.own(__file__, "where_number_is")},
    )


class Pairs(NamedTuple):
    """Sentences in singular and plural, a row each, all of one length."""

    singular_BS: np.ndarray
    plural_BS: np.ndarray
    target_BT: np.ndarray  # the decoder's input, the same for both: what stands before the verb
    verbs_B2: np.ndarray  # its first token in singular and plural


def where_number_is(run: Run, experiment: ExperimentConfig, tests: dict[str, TestSet]) -> dict[str, Any]:
    """The analysis: the share of the verb's number by layer and position, in the encoder and in the decoder."""
    pairs = tokens_of(run)
    found = shares(run, pairs)
    labels = {
        "encoder": run.tokenizer.pieces(pairs.plural_BS[0].tolist()),
        "decoder": run.target_tokenizer.pieces(pairs.target_BT[0].tolist()),
    }
    rows = {
        stack: [[name, *(round(100 * share, 1) for share in row)] for name, row in found[stack]] for stack in STACKS
    }
    return {
        "title": "Where the number of the verb is",
        "text": "The residual stream of a plural sentence, replaced by that of the singular one after one layer at one "
        f"position: how far the verb moves from plural to singular, in percent. {len(pairs.verbs_B2)} sentences of the "
        "form above the columns.",
        "tables": [
            {"title": title, "columns": ["after", *numbered(labels[stack])], "rows": rows[stack]}
            for stack, title in STACKS.items()
        ],
        "plots": [
            {
                "title": f"{title}: each position, by layer",
                "x": "layer (0: embeddings)",
                "y": "share of the number, %",
                "series": {
                    label: [[layer, row[place]] for layer, row in enumerate(rows[stack])]
                    for place, label in enumerate(numbered(labels[stack]), start=1)
                },
            }
            for stack, title in STACKS.items()
        ],
    }


def shares(run: Run, pairs: Pairs) -> dict[str, list[tuple[str, np.ndarray]]]:
    """For each layer of both stacks its name, and the share of each position."""
    model, params = run.config.model, run.params
    layers = {"encoder": model.num_encoder_layers, "decoder": model.num_decoder_layers}
    names = {
        stack: {"embeddings": f"{stack}/residual"}
        | {f"layer {i + 1}": f"{stack}/layers_{i}/residual" for i in range(count)}
        for stack, count in layers.items()
    }
    wanted = frozenset(name for of_stack in names.values() for name in of_stack.values())
    singular = activations(model, wanted, params, pairs.singular_BS, pairs.target_BT)

    def preference(source_BS: np.ndarray, name: str = "", position: int = 0) -> float:
        chosen = {other: other == name for other in wanted}
        given = (source_BS, pairs.target_BT, pairs.verbs_B2, singular, chosen, position)
        return float(singular_over_plural(model, params, *given))

    whole, none = preference(pairs.singular_BS), preference(pairs.plural_BS)
    lengths = {"encoder": pairs.plural_BS.shape[1], "decoder": pairs.target_BT.shape[1]}

    def of_positions(stack: str, name: str) -> np.ndarray:
        found = [preference(pairs.plural_BS, name, position) for position in range(lengths[stack])]
        return (np.array(found) - none) / (whole - none)

    return {
        stack: [(title, of_positions(stack, name)) for title, name in of_stack.items()]
        for stack, of_stack in names.items()
    }


@functools.partial(jax.jit, static_argnums=(0, 1))
def activations(model: ModelConfig, names: frozenset[str], params: Any, *pair: Any) -> dict[str, jax.Array]:
    with matmul_precision(model):
        return capture(Transformer(model).apply, names)({"params": params}, *pair)[1]


@functools.partial(jax.jit, static_argnums=0)
def singular_over_plural(
    model: ModelConfig, params: Any, source: Any, target: Any, verbs: Any, singular: Any, chosen: Any, position: Any
) -> jax.Array:
    """By how much the logit of the singular verb is larger, with the chosen activation of the singular sentence.

    Which one that is, and its position, are arguments, so that one program serves all.
    """

    def change(name: str, x_BLD: jax.Array, positions_BL: jax.Array) -> jax.Array:
        is_replaced_BL = chosen[name] & (positions_BL == position)
        return jnp.where(is_replaced_BL[..., None], singular[name], x_BLD)

    changes = {name: functools.partial(change, name) for name in singular}
    with matmul_precision(model):
        logits_BTN = patch(Transformer(model).apply, changes)({"params": params}, source, target)
    both_B2 = jnp.take_along_axis(logits_BTN[:, -1], verbs, axis=1)
    return jnp.mean(both_B2[:, 0] - both_B2[:, 1])


def tokens_of(run: Run) -> Pairs:
    """Sentences whose numbers differ in one token of the source: those of the most frequent shape."""
    by_shape: dict[Any, list[Any]] = {}
    for singular, plural in sentences()[::EVERY]:
        sources = [run.tokenizer.encode(text) for text, _ in (singular, plural)]
        targets = [run.target_tokenizer.encode(text) for _, text in (singular, plural)]
        noun = differing(*sources)
        if len(noun) == 1 and len(sources[0]) == len(sources[1]):
            verb = differing(*targets)[0]
            row = *([*source, EOS] for source in sources), [BOS, *targets[0][:verb]], [each[verb] for each in targets]
            by_shape.setdefault((len(sources[0]), *noun, verb), []).append(row)
    return Pairs(*map(np.array, zip(*max(by_shape.values(), key=len), strict=True)))


def differing(one: list[int], other: list[int]) -> list[int]:
    """The positions at which two lists of tokens differ."""
    return [position for position, (a, b) in enumerate(zip(one, other, strict=False)) if a != b]


def sentences() -> list[list[tuple[str, str]]]:
    """All sentences of the form in singular and plural, each as English and German."""
    yesterday = next(time for time in lexicon.TIMES if time.english == "yesterday")
    verbs = [verb for verb in verbs_of(Frame.TRANSITIVE) if Kind.PERSON in verb.subject and not verb.german.prefix]
    found = []
    for verb, noun, what in itertools.product(verbs, lexicon.NOUNS, lexicon.NOUNS):
        fits = Kind.PERSON in noun.kind and what.kind & verb.object and noun is not what
        if not fits or verb.particle or noun.is_mass or what.is_mass:
            continue
        subjects = [tree.NounPhrase(noun, number, lexicon.THE) for number in Number]
        objects = tree.NounPhrase(what, Number.SINGULAR, lexicon.THE)
        rest: Any = {"tense": Tense.PAST, "object": objects, "time": yesterday, "time_first": True}
        both = [tree.Statement(tree.Clause(verb, subject, **rest)) for subject in subjects]
        found.append([(english.render(each), german.render(each)) for each in both])
    return found


def numbered(labels: list[str]) -> list[str]:
    """Labels with their positions, so that they differ."""
    return [f"{position} {label}" for position, label in enumerate(labels)]
