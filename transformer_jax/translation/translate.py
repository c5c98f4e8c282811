"""Translates texts: tokenized, decoded in groups of similar length, and returned in their order."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from transformer_jax.config import DecodeConfig, ExperimentConfig
from transformer_jax.data.tokenizer import BOS, EOS, PAD, Tokenizer
from transformer_jax.errors import BadInput
from transformer_jax.model import build
from transformer_jax.model.build import position_limit
from transformer_jax.model.capture import Change, patch
from transformer_jax.model_config import ModelConfig
from transformer_jax.processes import watchdog
from transformer_jax.processes.compilation import unfused_if_custom
from transformer_jax.schema import with_values
from transformer_jax.search.beam import beam_search
from transformer_jax.search.loop import Stage
from transformer_jax.search.sampling import sample_search
from transformer_jax.search.targets import SearchResult, SearchRules, Step
from transformer_jax.translation.beam_cache import Stepper

# Replaces characters that a line of a file cannot contain by a space.
NO_LINE = str.maketrans("\n\r\0", "   ")


MIN_TAIL = 8  # sentences on each device: a smaller tail saves less than it takes to compile


class Source(NamedTuple):
    """A text as the model reads it: its tokens with <eos>; none for a blank text, which the model never sees."""

    text: str
    tokens: tuple[int, ...]
    full_length: int  # more than there are tokens: the text was cut


class Hypothesis(NamedTuple):
    """One translation of a text."""

    text: str
    tokens: tuple[int, ...]  # with <eos>
    score: float  # log-probability / length penalty
    log_probability: float
    at_limit: bool  # it ended because it may not be longer

    @property
    def line(self) -> str:
        """The text as one line of a file: a model that spells bytes can write a line end or a NUL."""
        return self.text.translate(NO_LINE)


class Translation(NamedTuple):
    """A text and its translations, best first. A blank text has an empty translation."""

    source: Source
    hypotheses: tuple[Hypothesis, ...]

    @property
    def text(self) -> str:
        return self.hypotheses[0].text

    @property
    def line(self) -> str:
        return self.hypotheses[0].line

    @property
    def is_empty(self) -> bool:
        """Whether a text that is not blank has a blank translation."""
        return bool(self.source.tokens) and not self.text.strip()


BLANK = Hypothesis("", (), 0.0, 0.0, at_limit=False)


class Rows(NamedTuple):
    """The sentences of one search, by row."""

    source_BS: Any
    limits_B: Any  # the greatest length of each translation
    ids_B: Any  # the number of each text, which decides what is sampled


class Group(NamedTuple):
    """Sentences of similar length, and the shape of their array; rows beyond the members are empty."""

    members: np.ndarray
    rows: int
    source: int  # room for tokens in a row
    target: int


class Translator:
    """Tokenizers, devices, and the compiled searches of one model."""

    def __init__(
        self,
        config: ExperimentConfig,
        tokenizer: Tokenizer,
        target_tokenizer: Tokenizer,
        mesh: Mesh,
        changes: Mapping[str, Change] | None = None,
    ):
        self._config, self._mesh, self._model = config, mesh, build.with_loaded_modules(config.model)
        self._tokenizer, self._target_tokenizer = tokenizer, target_tokenizer
        self._search = compiled_search(self._model, mesh, changes)

    def translate(
        self,
        params: Any,
        texts: Sequence[str],
        decode: DecodeConfig,
        first_id: int = 0,
        references: Sequence[str] | None = None,
        whole: bool = False,
    ) -> list[Translation]:
        """The translation of every text, in order. Samples depend on a text's number, counted from `first_id`.

        Texts are shortened to the length of training pairs (data.max_length) unless `whole`, as test sets are.
        A `decode.eos` other than normal uses the references' numbers of tokens.
        """
        if decode.eos != "normal" and references is None:
            raise BadInput(f"decode.eos = {decode.eos} needs references, which only evaluation has; normal needs none")
        longest = decode.max_source_length or (None if whole else self._config.data.max_length)
        sources = self._sources(texts, min(filter(None, (longest, position_limit(self._config.model))), default=None))
        encoded = [] if decode.eos == "normal" else self._target_tokenizer.encode_batch(references or [])
        lengths = [len(tokens) + 1 for tokens in encoded]  # with <eos>
        is_oracle = decode.eos == "oracle_length"
        compiled_for, traced = without_numbers(decode)
        translations = [Translation(source, (BLANK,)) for source in sources]
        shown = [number for number, source in enumerate(sources) if source.tokens]
        rooms = [len(sources[number].tokens) for number in shown]
        targets = [lengths[number] for number in shown] if is_oracle else None
        for group in groups_of(self._config.model, decode, self._mesh, rooms, targets):
            rows = Rows(
                np.full((group.rows, group.source), PAD, np.int32),
                np.ones(group.rows, np.int32),  # an empty row is one token long: it never delays the others
                np.zeros(group.rows, np.int32),
            )
            numbers = [shown[member] for member in group.members]
            for row, number in enumerate(numbers):
                length = len(sources[number].tokens)
                limit = lengths[number] if is_oracle else max(length + decode.extra_length, decode.min_length)
                rows.source_BS[row, :length] = sources[number].tokens
                rows.limits_B[row], rows.ids_B[row] = min(limit, group.target), first_id + number
            # Every process has all rows; each device takes its share of them.
            placed = jax.device_put(rows, rows_sharding(self._mesh))
            options = {"mesh": self._mesh, "model": self._model, "decode": compiled_for, "max_length": group.target}
            found = self._search(params, placed, traced, **options, tail=tail_of(group.rows, self._mesh))
            with watchdog.waiting():
                found = jax.device_get(found)
            for row, number in enumerate(numbers):
                limit, cut = int(rows.limits_B[row]), lengths[number] if decode.eos == "ignored" else None
                translations[number] = Translation(sources[number], self._hypotheses(found, row, limit, cut))
        return translations

    def _sources(self, texts: Sequence[str], longest: int | None) -> list[Source]:
        """The texts in tokens, at most `longest` with <eos>."""
        sources = []
        for text, tokens in zip(texts, self._tokenizer.encode_batch(texts), strict=True):
            kept = (*tokens[: longest and longest - 1], EOS) if text.strip() and tokens else ()
            sources.append(Source(text, kept, len(tokens) + 1 if kept else 0))
        return sources

    def _hypotheses(self, found: SearchResult, row: int, limit: int, cut: int | None) -> tuple[Hypothesis, ...]:
        """The n best of a row, each of at most `cut` tokens, <eos> included, with the scores of the whole."""
        hypotheses = []
        for rank, length in enumerate(found.lengths_BN[row].tolist()):
            if length == 0:  # there are fewer translations than were asked for
                break
            tokens = tuple(found.tokens_BNT[row, rank, :length].tolist())
            if cut is not None and cut < length:
                tokens = (*tokens[: cut - 1], EOS)
            score, log_probability = float(found.scores_BN[row, rank]), float(found.log_probabilities_BN[row, rank])
            text = self._target_tokenizer.decode(tokens)
            hypotheses.append(Hypothesis(text, tokens, score, log_probability, length == limit))
        return tuple(hypotheses)


def groups_of(
    model: ModelConfig, decode: DecodeConfig, mesh: Mesh, lengths: Sequence[int], targets: Sequence[int] | None = None
) -> Iterator[Group]:
    """Groups with every sentence once, the longest first, so that too little memory shows at once.

    decode.tokens_per_batch limits rows x target. Similar lengths in a group need little padding, and end at about the
    same time. Every shape takes seconds to compile, so a group has the shape of the one before, until half of its room
    is enough for as many sentences. Where the lengths of their targets are known (`targets`), these count, and all
    groups have room for the longest source. Only the last group has empty rows, apart from those that make rows a
    multiple of devices.
    """
    order = np.argsort(-np.asarray(lengths if targets is None else targets), kind="stable")
    limit = position_limit(model)
    longest = min(filter(None, (decode.max_length, limit)), default=None)
    begin, rows, room = 0, 0, 0
    while begin < len(order):
        left, needed = len(order) - begin, rounded_up((lengths if targets is None else targets)[order[begin]])
        if not rows or (2 * needed <= room and left >= rows):
            room = needed
            source = room if targets is None else rounded_up(max(lengths))
            target = max(room + decode.extra_length, decode.min_length) if targets is None else room
            source, target = min(source, limit or source), min(target, longest or target)
            rows = mesh.size
            while rows < left and 2 * rows * target <= decode.tokens_per_batch:
                rows *= 2
        yield Group(order[begin : begin + rows], rows, source, target)
        begin += rows


def rounded_up(length: int) -> int:
    """The next of 8, 12, 16, 24, 32, 48 ..., each at most 1.5 times the one before."""
    size = 8
    while size < length:
        size = size * 3 // 2 if size & (size - 1) == 0 else size * 4 // 3
    return size


def rows_sharding(mesh: Mesh) -> NamedSharding:
    """The sentences of a batch divided among all devices."""
    return NamedSharding(mesh, PartitionSpec(mesh.axis_names))


def compiled_search(model: ModelConfig, mesh: Mesh, changes: Mapping[str, Change] | None = None) -> Any:
    """`search_on`, with changed activations, as a jitted function, whose results every device has whole."""
    return jax.jit(
        patch(search_on, changes or {}),
        static_argnames=("mesh", "model", "decode", "max_length", "tail"),
        out_shardings=NamedSharding(mesh, PartitionSpec()),
        compiler_options=unfused_if_custom(mesh, model),
    )


def tail_of(rows: int, mesh: Mesh) -> int | None:
    """A quarter of each device's sentences, where that is worth compiling.

    It saves a fifth of decoding's CPU time (benchmarks/tail.py); on Multi30k no other share saved more.
    On CPUs only: an accelerator takes about as long for a quarter of the rows, and turns would then cost time.
    """
    quarter = rows // mesh.size // 4
    is_cpu = mesh.devices.flat[0].platform == "cpu"
    return quarter if is_cpu and quarter >= MIN_TAIL else None


# The options of decode that choose the program of a search. It takes others as numbers, or they act outside of it.
CHOOSE_PROGRAM = (
    "beam", "length_penalty", "min_length", "n_best", "eos", "renormalize", "sample", "top_k",
)  # fmt: skip


def without_numbers(decode: DecodeConfig) -> tuple[DecodeConfig, dict[str, Any]]:
    """The options that a search is compiled for, and the numbers that it takes as arguments."""
    numbers = {"alpha": decode.alpha, "temperature": decode.temperature, "seed": np.uint32(decode.seed)}
    if decode.top_p < 1:  # 1 is another program, without sorting the vocabulary
        numbers["top_p"] = decode.top_p
    chosen = {name: getattr(decode, name) for name in CHOOSE_PROGRAM}
    return with_values(DecodeConfig(), chosen | dict.fromkeys(numbers)), numbers


def search_on(
    params: Any,
    rows: Rows,
    numbers: Any = None,
    *,
    mesh: Mesh,
    model: ModelConfig,
    decode: DecodeConfig,
    **options: Any,
) -> SearchResult:
    """`search` over a batch divided among the devices of the mesh; `numbers` are options of `decode` that are traced.

    Each device searches its own sentences, with all parameters: sharded ones are gathered once, before the search.
    """

    def searched(params: Any, rows: Rows, numbers: dict[str, Any]) -> SearchResult:
        return search(params, rows, model=model, decode=with_values(decode, numbers), **options)

    by_row, whole = rows_sharding(mesh).spec, PartitionSpec()
    specs: dict[str, Any] = {"in_specs": (whole, by_row, whole), "out_specs": by_row}
    return jax.shard_map(searched, mesh=mesh, check_vma=False, **specs)(params, rows, numbers or {})


def search(
    params: Any,
    rows: Rows,
    *,
    model: ModelConfig,
    decode: DecodeConfig,
    max_length: int,
    tail: int | None = None,
) -> SearchResult:
    """The search that `decode` describes, over one batch. Pure; to be jitted."""
    stepper = Stepper(model, params)
    # Few translations need all the room that they may have, and attention pays for all the room there is.
    expected = min(max(rows.source_BS.shape[1] * 5 // 4 + 6, decode.min_length), max_length)
    rooms = sorted({max(expected // 2, 1), expected, max_length})
    stages = [Stage(end, partial(stepper.grow, length=room)) for end, room in pairwise(rooms)]
    if tail and expected == max_length:  # otherwise the tail would begin in the first stage, when nearly all are live
        stages.append(Stage(max_length, lambda cache: cache))
    rules = SearchRules(
        batch_size=rows.source_BS.shape[0],
        max_length=max_length,
        bos_id=BOS,
        eos_id=EOS,
        pad_id=PAD,
        length_penalty=decode.length_penalty,
        alpha=decode.alpha,
        min_length=min(decode.min_length, max_length) if decode.eos == "normal" else rows.limits_B,
        max_lengths=rows.limits_B,
        stages=stages,
        tail=tail,
    )
    step = _renormalized(stepper.step) if decode.renormalize else stepper.step
    if decode.sample:
        keys_B = jax.vmap(jax.random.fold_in, (None, 0))(jax.random.key(decode.seed), rows.ids_B)
        cache = stepper.start(rows.source_BS, rooms[0])
        return sample_search(step, cache, rules, keys_B, decode.temperature, decode.top_k, decode.top_p)
    cache = stepper.start(rows.source_BS, rooms[0], decode.beam)
    return beam_search(step, cache, rules, decode.beam, decode.n_best, reorder=stepper.reorder)


def _renormalized(step: Step) -> Step:
    """The step without the two tokens that never follow, so that the others share all of the probability."""

    def step_without(tokens_R: jax.Array, cache: Any) -> tuple[jax.Array, Any]:
        logits_RN, cache = step(tokens_R, cache)
        tokens_N = jnp.arange(logits_RN.shape[1])
        return jnp.where(((tokens_N == PAD) | (tokens_N == BOS))[None], -jnp.inf, logits_RN), cache

    return step_without
