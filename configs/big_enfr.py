"""The paper's big model, English to French, with a dropout of 0.1.

    transformer-jax train   --config=configs/big_enfr.py --workdir=runs/big_enfr
    transformer-jax average --workdir=runs/big_enfr --last=20

The paper: 41.8 BLEU on newstest2014. Not run yet.
"""

from transformer_jax.config import default_config
from transformer_jax.table3 import TABLE_3


def get_config():
    config = default_config()
    config.update_from_flattened_dict(TABLE_3["big"])
    config.data.corpus = "wmt14_translate/fr-en"
    config.data.source_language = "en"
    config.data.target_language = "fr"
    config.data.num_shapes = 20  # buckets on GPUs and TPUs: see base.py
    config.model.vocab_size = 32_000
    config.model.dropout = 0.1
    config.train.eval_every = 600
    config.train.checkpoint_every = 600
    config.train.keep_latest = 20
    return config
