"""Inference with a trained run: `load_run(workdir)` translates and scores texts."""

import copy
import dataclasses
import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from transformer_jax.config import DecodeConfig, ExperimentConfig, MeshConfig
from transformer_jax.data.tokenizer import EOS, Tokenizer, load_tokenizer
from transformer_jax.errors import BadInput, did_you_mean
from transformer_jax.files import paths
from transformer_jax.model.build import position_limit
from transformer_jax.model.capture import Change
from transformer_jax.processes.compilation import use_cache
from transformer_jax.runs.export import SavedWeights, Weights, flat, read_export
from transformer_jax.runs.folder import ORIGIN, WEIGHTS, RunFolder
from transformer_jax.translation.log_probabilities import Attention, Captor, Scorer, token_pairs
from transformer_jax.translation.translate import Translation, Translator
from transformer_jax.update.sharding import make_mesh, param_shardings


class Score(NamedTuple):
    """The log-probability of a given translation: of all, and of each of its tokens, which end with <eos>."""

    log_probability: float
    tokens: tuple[int, ...]
    token_log_probabilities: tuple[float, ...]


class Run:
    """A trained model with its tokenizers, on all devices of this process.

    Sentences are divided among the devices. On a mesh with `fsdp` or `tensor` the parameters are, too; a search gathers
    them.
    """

    def __init__(
        self,
        config: ExperimentConfig,
        params: Any,
        tokenizer: Tokenizer,
        target_tokenizer: Tokenizer,
        steps: list[int],
        mesh: MeshConfig | None = None,
    ):
        sizes = config.model.vocab_size, config.model.target_vocab_size or config.model.vocab_size
        for size, side in zip(sizes, (tokenizer, target_tokenizer), strict=True):
            if side.vocab_size != size:
                raise BadInput(f"the model has {size:,} tokens, its tokenizer {side.vocab_size:,}: it is another run's")
        self.config, self.tokenizer, self.target_tokenizer = config, tokenizer, target_tokenizer
        self.steps = steps  # of these weights; several if they are an average
        mesh = mesh or MeshConfig()
        self._mesh = make_mesh(mesh, jax.local_devices())
        self.params = jax.device_put(params, param_shardings(params, self._mesh, config.model, mesh.replicate))
        self._use({})

    def _use(self, changes: Mapping[str, Change]) -> None:
        """Makes the programs of this run, with changed activations."""
        self._changes = changes
        self._translator = Translator(self.config, self.tokenizer, self.target_tokenizer, self._mesh, changes)
        self._scorer = Scorer(self.config.model, self._mesh, changes)
        self._captor = Captor(self.config.model, changes)

    @property
    def weights_sha256(self) -> str:
        """The SHA-256 of all parameters, with names, types and shapes."""
        digest = hashlib.sha256()
        for name, leaf in sorted(flat(self.params).items()):
            array = np.asarray(jax.device_get(leaf))
            digest.update(f"{name} {array.dtype} {array.shape}\n".encode())
            digest.update(array.tobytes())
        return digest.hexdigest()

    def translate(self, texts: Sequence[str], **changes: Any) -> list[str]:
        """The best translation of each text. `changes` are options of decode by name: beam=8, sample=True ..."""
        return [translation.text for translation in self.translations(texts, **changes)]

    def translations(
        self,
        texts: Sequence[str],
        first_id: int = 0,
        decode: DecodeConfig | None = None,
        references: Sequence[str] | None = None,
        whole: bool = False,
        **changes: Any,
    ) -> list[Translation]:
        """Translations with tokens and scores. Samples depend on a text's number, counted from `first_id`.

        `references` are needed if decode.eos is not normal, for their lengths. A text is shortened to
        decode.max_source_length tokens, by default data.max_length or, if `whole`, not at all.
        """
        if isinstance(texts, str):
            raise TypeError("texts is one string: give a list of them")
        texts = list(texts)
        for number, text in enumerate(texts):
            if not isinstance(text, str):
                raise TypeError(f"texts[{number}] is {text!r}: must be a string")
        if references is not None and len(references) != len(texts):
            raise ValueError(f"{len(texts)} texts and {len(references)} references: must be as many")
        if decode is not None and changes:
            raise TypeError(f"decode and {', '.join(changes)}: give one or the other")
        decode = decode or self.decode_config(**changes)
        return self._translator.translate(self.params, texts, decode, first_id, references, whole)

    def decode_config(self, **changes: Any) -> DecodeConfig:
        """config.decode with changes, checked like any config."""
        known = [field.name for field in dataclasses.fields(DecodeConfig)]
        for name in changes.keys() - known:
            raise BadInput(f"{name}: no option of decoding; {did_you_mean(name, known)}")
        return dataclasses.replace(self.config.decode, **changes)

    def score(self, pairs: Iterable[tuple[str, str]]) -> list[Score]:
        """The log-probability of each (source, target), in total and of each target token, <eos> included."""
        pairs = list(pairs)
        for number, pair in enumerate(pairs):
            if isinstance(pair, str) or len(pair) != 2 or not all(isinstance(side, str) for side in pair):
                raise TypeError(f"pairs[{number}] is {pair!r}: must be two strings, a source and a target")
        sources = self.tokenizer.encode_batch([source for source, _ in pairs])
        targets = self.target_tokenizer.encode_batch([target for _, target in pairs])
        scores = self.score_tokens(sources, targets)
        return [
            Score(float(values.sum()), (*target, EOS), tuple(values.tolist()))
            for values, target in zip(scores, targets, strict=True)
        ]

    def score_tokens(self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]) -> list[np.ndarray]:
        """The log-probabilities of pairs of token lists (without special tokens): an array for each pair."""
        config = self.config.model
        limit, sizes = position_limit(config), (config.vocab_size, config.target_vocab_size or config.vocab_size)
        for number, sides in enumerate(zip(sources, targets, strict=True), start=1):
            for side, size in zip(sides, sizes, strict=True):
                if wrong := [token for token in side if not 0 <= token < size]:
                    raise BadInput(f"pair {number} has the id {wrong[0]}: must be between 0 and {size - 1}")
            longest = max(map(len, sides)) + 1
            if limit is not None and longest > limit:
                raise BadInput(f"pair {number} has {longest} tokens on one side; this model's positions end at {limit}")
        return self._scorer.score(self.params, token_pairs(sources, targets), self.config.decode.tokens_per_batch)

    def attention(self, translation: Translation, rank: int = 0) -> Attention:
        """The attention weights of every layer and head, for the source and one of its hypotheses."""
        if not translation.source.tokens:
            raise BadInput(f"{translation.source.text!r}: has no tokens, so there is no attention")
        target = translation.hypotheses[rank].tokens
        return self._captor.attention(self.params, translation.source.tokens, target)

    def capture(self, source: str, target: str, names: Collection[str] | None = None) -> dict[str, np.ndarray]:
        """The activations of the model while it reads `source` and writes `target`, by name (docs/activations.md).

        The first axis is a batch of one. Position t of the decoder reads token t of <bos> and the target, and predicts
        token t of the target and <eos>. Without `names` these are all activations.
        """
        if isinstance(names, str):
            raise TypeError(f"names = {names!r}: must be a list of names")
        read, written = [*self.tokenizer.encode(source), EOS], [*self.target_tokenizer.encode(target), EOS]
        return self._captor.activations(self.params, read, written, names)

    def patched(self, changes: Mapping[str, Change]) -> "Run":
        """This run with changed activations: in its translations, scores, attention, and what it captures.

        `changes[name](activation, positions)` takes the place of each activation of this name; see
        `transformer_jax.patch`.
        """

        def after(name: str, change: Change) -> Change:
            before = self._changes.get(name)
            return change if before is None else lambda x, positions: change(before(x, positions), positions)

        run = copy.copy(self)
        run._use({**self._changes, **{name: after(name, change) for name, change in changes.items()}})
        return run


def load_run(workdir: str | Path, weights: str = "latest", mesh: MeshConfig | None = None) -> Run:
    """The model of a run, or of an exported folder.

    `weights`: "latest" or "best" checkpoint, "ema" (the moving average of optimizer.ema), "averaged" (by
    `transformer-jax average`), or an exported folder.
    `mesh`: how parameters are divided among devices; by default each device has all of them.
    Programs are cached in the run's `train.compile_cache`, unless JAX has a compilation cache already.
    """
    found = read_weights(workdir, weights)
    if not jax.config.values["jax_compilation_cache_dir"]:
        use_cache(found.config.train.compile_cache)
    tokenizer = load_tokenizer(found.tokenizers["source"])
    target_tokenizer = load_tokenizer(found.tokenizers["target"]) if "target" in found.tokenizers else tokenizer
    return Run(found.config, found.params, tokenizer, target_tokenizer, found.steps, mesh)


def read_weights(workdir: str | Path, weights: str = "latest", at_step: int | None = None) -> Weights:
    """The weights that `load_run` loads, or the weights of the checkpoint of one step."""
    folder = RunFolder(workdir)
    if (folder.path / WEIGHTS).is_file():
        if weights != "latest" or at_step is not None:
            raise BadInput(f"{workdir}: is an exported folder with one set of weights, so none can be chosen")
        return read_export(folder.path)
    if weights not in ("latest", "best", "ema"):
        place = folder.averaged if weights == "averaged" else Path(paths.expanded(weights))
        if not (place / ORIGIN).is_file():
            made_by = "transformer-jax average or export makes them"
            raise BadInput(
                f"--weights={weights}: is neither latest, best nor ema, and {place} has no weights; {made_by}"
            )
        return read_export(place)
    saved = SavedWeights(folder, ema=weights == "ema")
    if at_step is not None:
        return saved.average([at_step])
    return saved.average(saved.best_steps(1)) if weights == "best" else saved.newest()
