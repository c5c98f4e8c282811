"""Corpora: text files, TFDS data sets, embedded tasks and custom functions, all behind one interface (`corpus.py`)."""

from transformer_jax.config import DataConfig
from transformer_jax.data.corpora.corpus import Corpus
from transformer_jax.data.corpora.custom import CustomCorpus
from transformer_jax.data.corpora.files import FileCorpus
from transformer_jax.data.corpora.tasks import TaskCorpus
from transformer_jax.data.corpora.tfds import TfdsCorpus
from transformer_jax.data_config import TASKS
from transformer_jax.schema import is_meant_as_address


def open_corpus(config: DataConfig) -> Corpus:
    """The corpus that these options name. Refuses whatever can be refused without reading all of it."""
    if config.corpus in TASKS:
        return TaskCorpus(config)
    if is_meant_as_address(config.corpus):
        return CustomCorpus(config)
    return TfdsCorpus(config) if config.corpus else FileCorpus(config)
