"""Corpora: text files, TFDS data sets, embedded and published tasks, custom functions, behind one interface.

A new corpus is a class of `corpus.py` in a new file, and an entry of `PUBLISHED` and `NAMED` (config.py). A generated
one of symbols, such as `reverse`, is a rule in tasks.py and a name in `TASKS`.
"""

from transformer_jax import schema
from transformer_jax.config import TASKS, DataConfig
from transformer_jax.data.corpora.corpus import Corpus, CustomCorpus
from transformer_jax.data.corpora.files import CogsCorpus, FileCorpus, InflectionCorpus
from transformer_jax.data.corpora.scan import ScanCorpus
from transformer_jax.data.corpora.tasks import TaskCorpus
from transformer_jax.data.corpora.tfds import TfdsCorpus
from transformer_jax.errors import BadInput
from transformer_jax.files import remote
from transformer_jax.schema import is_meant_as_address

PUBLISHED: dict[str, type[Corpus]] = {"scan": ScanCorpus, "cogs": CogsCorpus, "inflection": InflectionCorpus}


def open_corpus(config: DataConfig) -> Corpus:
    """The corpus that these options name. Its text is not read yet, but fetched if it is in a bucket."""
    if config.corpus_folder and remote.is_remote(config.corpus_folder):
        raise BadInput(f"data.corpus_folder = {config.corpus_folder}: must be a local folder")
    config = schema.with_texts(config, lambda _, text: remote.fetched(text) if remote.is_remote(text) else text)
    if config.corpus in PUBLISHED:
        return PUBLISHED[config.corpus](config)
    if config.corpus in TASKS:
        return TaskCorpus(config)
    if is_meant_as_address(config.corpus):
        return CustomCorpus(config)
    return TfdsCorpus(config) if config.corpus else FileCorpus(config)
