"""Texts to translations: tokenised, decoded in groups of similar length, put back into their order."""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from transformer_jax.config import DecodeConfig, ExperimentConfig
from transformer_jax.data.tokenizer import BOS, EOS, PAD, Tokenizer
from transformer_jax.model.stacks import position_limit
from transformer_jax.model_config import ModelConfig
from transformer_jax.processes.compilation import unfused_if_custom
from transformer_jax.search.search import SearchResult, Step, beam_search, sample_search
from transformer_jax.search.stages import Stage, Tail
from transformer_jax.translation.shapes import Group, groups, padded
from transformer_jax.translation.stepper import Stepper
from transformer_jax.update.sharding import batch_devices, batch_sharding

# What `data.lines` takes for the end of a line, or refuses, as a space.
NO_LINE = str.maketrans("\n\r\0", "   ")


class Source(NamedTuple):
    """A text as the model is shown it: its tokens with <eos>; none for a blank text, which it is never shown."""

    text: str
    tokens: tuple[int, ...]
    full_length: int  # more than there are tokens: the text was cut


class Hypothesis(NamedTuple):
    """One translation of a text."""

    text: str
    tokens: tuple[int, ...]  # with <eos>
    score: float  # log-probability / length penalty
    log_probability: float
    at_limit: bool  # it was ended because it may not be longer

    @property
    def line(self) -> str:
        """The text as one line of a file: a model that spells bytes can write the end of a line, or a NUL."""
        return self.text.translate(NO_LINE)


class Translation(NamedTuple):
    """A text and its translations, best first. That of a blank text is empty."""

    source: Source
    hypotheses: tuple[Hypothesis, ...]

    @property
    def text(self) -> str:
        return self.hypotheses[0].text

    @property
    def line(self) -> str:
        return self.hypotheses[0].line


FEWEST_IN_TAIL = 8  # sentences a device: fewer gain too little for what the tail takes to compile
BLANK = Hypothesis("", (), 0.0, 0.0, at_limit=False)


class Translator:
    """Tokenizers, devices, and the compiled searches of one model."""

    def __init__(self, config: ExperimentConfig, tokenizer: Tokenizer, target_tokenizer: Tokenizer, mesh: Mesh):
        self._config, self._mesh = config, mesh
        self._tokenizer, self._target_tokenizer = tokenizer, target_tokenizer
        self._search = jax.jit(
            search_on,
            static_argnames=("mesh", "model", "decode", "max_length", "tail"),
            out_shardings=NamedSharding(mesh, PartitionSpec()),
            compiler_options=unfused_if_custom(mesh, config.model),
        )

    def translate(
        self, params: Any, texts: Sequence[str], decode: DecodeConfig, first_id: int = 0
    ) -> list[Translation]:
        """The translation of every text, in order. A text's number, from `first_id` on, decides what is sampled."""
        sources = self.sources(texts, decode)
        translations = [Translation(source, (BLANK,)) for source in sources]
        shown = [number for number, source in enumerate(sources) if source.tokens]
        for group in groups(
            [len(sources[number].tokens) for number in shown],
            extra_length=decode.extra_length,
            min_length=decode.min_length,
            longest_target=longest_target(self._config.model, decode),
            tokens=decode.tokens_per_batch,
            devices=batch_devices(self._mesh),
        ):
            members = [shown[member] for member in group.members]
            wanted = [len(sources[number].tokens) + decode.extra_length for number in members]
            limits = [min(max(length, decode.min_length), group.target) for length in wanted]
            ids = [first_id + number for number in members]
            found = self._decode(params, [sources[number].tokens for number in members], limits, ids, group, decode)
            for row, number in enumerate(members):
                translations[number] = Translation(sources[number], self._hypotheses(found, row, limits[row]))
        return translations

    def sources(self, texts: Sequence[str], decode: DecodeConfig) -> list[Source]:
        """The texts in tokens, cut where the model's input ends."""
        longest = longest_source(self._config, decode)
        encoded = self._tokenizer.encode_batch(texts)
        return [
            Source(text, (*tokens[: longest - 1], EOS), len(tokens) + 1)
            if text.strip() and tokens
            else Source(text, (), 0)
            for text, tokens in zip(texts, encoded, strict=True)
        ]

    def _decode(
        self,
        params: Any,
        sources: Sequence[Sequence[int]],
        limits: Sequence[int],
        ids: Sequence[int],
        group: Group,
        decode: DecodeConfig,
    ) -> SearchResult:
        """Searches for the translations of one group. An empty row may have one token: it never delays the others."""
        spare = [0] * (group.rows - len(sources))
        rows = (
            padded(sources, group.rows, group.source, PAD),
            np.asarray([*limits, *(1 for _ in spare)], np.int32),
            np.asarray([*ids, *spare], np.int32),
        )
        # Every process has all rows; each device takes its own share of them.
        placed = jax.device_put(rows, batch_sharding(self._mesh))
        found = self._search(
            params,
            *placed,
            model=self._config.model,
            decode=decode,
            max_length=group.target,
            tail=tail_of(group.rows, self._mesh),
            mesh=self._mesh,
        )
        return jax.device_get(found)

    def _hypotheses(self, found: SearchResult, row: int, limit: int) -> tuple[Hypothesis, ...]:
        hypotheses = []
        for rank in range(found.tokens_BNT.shape[1]):
            length = int(found.lengths_BN[row, rank])
            if length == 0:  # there are fewer translations than were asked for
                break
            tokens = tuple(found.tokens_BNT[row, rank, :length].tolist())
            score, log_probability = float(found.scores_BN[row, rank]), float(found.log_probabilities_BN[row, rank])
            text = self._target_tokenizer.decode(tokens)
            hypotheses.append(Hypothesis(text, tokens, score, log_probability, length == limit))
        return tuple(hypotheses)


def tail_of(rows: int, mesh: Mesh) -> Tail | None:
    """A quarter of each device's sentences, where that is worth compiling; of Multi30k no other share left out more.

    On CPUs alone: an accelerator takes about as long for a quarter of the rows, and then turns would cost time.
    """
    quarter = rows // mesh.size // 4
    is_cpu = mesh.devices.flat[0].platform == "cpu"
    return Tail(quarter) if is_cpu and has_whole_models(mesh) and quarter >= FEWEST_IN_TAIL else None


def has_whole_models(mesh: Mesh) -> bool:
    """Whether each device has all parameters."""
    return mesh.size == mesh.shape["data"]


def search_on(
    params: Any, source_BS: jax.Array, limits_B: jax.Array, ids_B: jax.Array, *, mesh: Mesh, **options: Any
) -> SearchResult:
    """`search` over a batch that lies on all devices of the mesh."""
    searched: Callable[..., SearchResult] = partial(search, **options)
    if has_whole_models(mesh):
        # Each device searches its own sentences and is done when these are: on the way nothing is sent.
        rows, whole = PartitionSpec("data"), PartitionSpec()
        spread: dict[str, Any] = {"in_specs": (whole, rows, rows, rows), "out_specs": rows}
        searched = jax.shard_map(searched, mesh=mesh, check_vma=False, **spread)
    return searched(params, source_BS, limits_B, ids_B)


def search(
    params: Any,
    source_BS: jax.Array,
    limits_B: jax.Array,
    ids_B: jax.Array,
    *,
    model: ModelConfig,
    decode: DecodeConfig,
    max_length: int,
    tail: Tail | None = None,
) -> SearchResult:
    """The search that `decode` describes, over one batch. Pure; to be jitted."""
    stepper = Stepper(model, params)
    # Few translations need all the room they may have, and attention pays for all the room there is.
    expected = min(max(source_BS.shape[1] * 5 // 4 + 6, decode.min_length), max_length)
    rooms = sorted({max(expected // 2, 1), expected, max_length})
    stages = [Stage(end, partial(stepper.grow, length=room)) for end, room in pairwise(rooms)]
    if tail and expected == max_length:  # else it would begin half-way, when nearly all go on
        stages.append(Stage(max_length, lambda cache: cache))
    common: dict[str, Any] = {
        "batch_size": source_BS.shape[0],
        "max_length": max_length,
        "max_lengths": limits_B,
        "min_length": min(decode.min_length, max_length),
        "length_penalty": decode.length_penalty,
        "alpha": decode.alpha,
        "bos_id": BOS,
        "eos_id": EOS,
        "pad_id": PAD,
        "stages": stages,
        "tail": tail,
    }
    step = among_possible(stepper.step) if decode.renormalize else stepper.step
    if decode.sample:
        return sample_search(
            step,
            stepper.start(source_BS, rooms[0]),
            jax.random.key(decode.seed),
            temperature=decode.temperature,
            top_k=decode.top_k,
            top_p=decode.top_p,
            sentence_ids=ids_B,
            **common,
        )
    return beam_search(
        step,
        stepper.start(source_BS, rooms[0], decode.beam),
        beam_size=decode.beam,
        n_best=decode.n_best,
        reorder=stepper.reorder,
        **common,
    )


def longest_target(model: ModelConfig, decode: DecodeConfig) -> int | None:
    """Tokens, <eos> included, of the longest translation of any source; None where nothing but the source limits it."""
    limits = [limit for limit in (decode.max_length, position_limit(model)) if limit is not None]
    return min(limits, default=None)


def among_possible(step: Step) -> Step:
    """The step with no probability on the two tokens that never follow, so that the others share it all."""

    def step_without(tokens_R: jax.Array, cache: Any) -> tuple[jax.Array, Any]:
        logits_RN, cache = step(tokens_R, cache)
        return logits_RN.at[:, jnp.asarray([PAD, BOS])].set(-jnp.inf), cache

    return step_without


def longest_source(config: ExperimentConfig, decode: DecodeConfig) -> int:
    """Tokens, <eos> included, of the longest source that is not cut."""
    longest = decode.max_source_length or config.data.max_length
    return min(longest, position_limit(config.model) or longest)
