"""Corpora: text files, TFDS data sets, embedded and published tasks, custom functions, behind one interface.

A new corpus is a class of `corpus.py` in a file of its own, a line in `NAMED`, and one in `OWN_SPLITS`
(data_config.py).
"""

from transformer_jax.config import DataConfig
from transformer_jax.data.corpora.corpus import Corpus, CustomCorpus
from transformer_jax.data.corpora.files import CogsCorpus, FileCorpus, InflectionCorpus
from transformer_jax.data.corpora.scan import ScanCorpus
from transformer_jax.data.corpora.tasks import TaskCorpus
from transformer_jax.data.corpora.tfds import TfdsCorpus
from transformer_jax.data_config import TASKS
from transformer_jax.schema import is_meant_as_address

NAMED: dict[str, type[Corpus]] = {
    "": FileCorpus,
    "scan": ScanCorpus,
    "cogs": CogsCorpus,
    "inflection": InflectionCorpus,
    **dict.fromkeys(TASKS, TaskCorpus),
}


def open_corpus(config: DataConfig) -> Corpus:
    """The corpus that these options name, checked as far as that is possible without reading all of it."""
    return _class(config)(config)


def named_files(config: DataConfig) -> set[str]:
    """The text files that these options name, whether or not they exist."""
    return _class(config).paths(config)


def _class(config: DataConfig) -> type[Corpus]:
    return NAMED.get(config.corpus, CustomCorpus if is_meant_as_address(config.corpus) else TfdsCorpus)
