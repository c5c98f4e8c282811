"""Translation data sets of TensorFlow Datasets, read without TensorFlow."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

from transformer_jax.config import NAMED, TASKS, DataConfig
from transformer_jax.data.corpora.corpus import Chunk, Corpus, Pair
from transformer_jax.errors import BadInput, did_you_mean
from transformer_jax.extras import require

SPLIT_NAMES = {"train": ("train",), "valid": ("validation", "valid", "dev"), "test": ("test",)}


class TfdsCorpus(Corpus):
    """A prepared TFDS data set in either direction, in the format array_record."""

    def __init__(self, config: DataConfig):
        self._name = config.corpus
        self._builder = _open(config.corpus, config.tfds_data_dir)
        self._source, self._target = self._languages(config.source_language, config.target_language)
        if not self._builder.is_prepared():
            directory = config.tfds_data_dir or "the data directory of TFDS"
            place = f" --data_dir={config.tfds_data_dir}" if config.tfds_data_dir else ""
            raise BadInput(
                f"data.corpus = {self._name!r}: is not prepared in {directory}; "
                f"once, with TensorFlow installed: tfds build {self._name} --file_format=array_record{place}"
            )
        # Ours and theirs: the first of the names that the data set has.
        found = self._builder.info.splits
        self._names = {split: name for split, names in SPLIT_NAMES.items() for name in names[::-1] if name in found}
        if "train" not in self._names:
            raise BadInput(f"data.corpus = {self._name!r}: has no split train; there are: {', '.join(found) or 'none'}")
        self.splits = tuple(self._names)

    def identity(self) -> dict[str, Any]:
        infos = {split: self._info(split) for split in self.splits}
        return {
            "data set": self._builder.info.full_name,
            "direction": f"{self._source} to {self._target}",
            "splits": {split: [info.num_examples, int(info.num_bytes)] for split, info in infos.items()},
        }

    def chunks(self, split: str, size: int) -> Iterator[Chunk]:
        name, count = self._names[split], self._info(split).num_examples
        try:
            examples = self._builder.as_data_source(name)
            for start in range(0, count, size):
                batch = examples.__getitems__(range(start, min(start + size, count)))
                yield Chunk.of(map(self._pair, batch), f"{self._name}/{name}", start)
        except (RuntimeError, IndexError, OSError) as error:  # of a damaged file, or of another format
            raise BadInput(f"{self._builder.data_path}: {name} cannot be read: {error}") from None

    def _info(self, split: str) -> Any:
        return self._builder.info.splits[self._names[split]]

    def _languages(self, source: str, target: str) -> tuple[str, str]:
        """The source and target language; if a data set of two languages is given one, the other follows."""
        from tensorflow_datasets.core.features import FeaturesDict, Text

        features = self._builder.info.features
        features = features if isinstance(features, FeaturesDict) else {}
        found = [name for name, feature in features.items() if isinstance(feature, Text)]
        if not source and not target:
            source, target = (self._builder.info.supervised_keys or (*found, "", ""))[:2]
        elif len(found) == 2:
            source = source or next(language for language in found if language != target)
            target = target or next(language for language in found if language != source)
        if source not in found or target not in found or source == target:
            raise BadInput(
                f"data.corpus = {self._name!r}: which text is translated into which? "
                f"Set data.source_language and data.target_language (there are: {', '.join(found) or 'none'})"
            )
        return source, target

    def _pair(self, example: dict[str, bytes]) -> Pair:
        source, target = (example[name].decode(errors="surrogateescape") for name in (self._source, self._target))
        return source, target


def _open(name: str, data_dir: str | None) -> Any:
    """TFDS's builder for a name, from its code or from the files in `data_dir`."""
    ours = [*TASKS, *NAMED]
    require(f"data.corpus = {name!r} ({did_you_mean(name, ours)}): a TFDS data set", "tfds")
    # TFDS logs each directory that it searches and finds empty.
    logging.getLogger("absl").setLevel(logging.ERROR)
    import tensorflow_datasets as tfds
    import tensorflow_datasets.translate  # importing it registers wmt14_translate and its like

    try:
        builder = tfds.builder(name, data_dir=data_dir)
    except (ValueError, OSError):  # an unknown name, an unknown configuration, or no name at all
        builder = None
    if builder is None or ("/" not in name and len(builder.builder_configs) > 1):
        known = tfds.list_builders(with_community_datasets=False) + ours
        if (alone := name.partition("/")[0]) in known:
            known = [f"{alone}/{pair}" for pair in tfds.builder_cls(alone).builder_configs]
        place = f" in {data_dir}" if data_dir else ""
        raise BadInput(f"data.corpus = {name!r}: TFDS has no such data set{place}; {did_you_mean(name, known)}")
    return builder
