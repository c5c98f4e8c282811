"""The paper's big model, English to German: WMT 2014, 4.5 million pairs, 300,000 updates.

    transformer-jax train   --config=configs/big.py --workdir=runs/big
    transformer-jax average --workdir=runs/big --last=20

The paper: 3.5 days on 8 P100 GPUs, 28.4 BLEU on newstest2014. Not run yet.
"""

from transformer_jax.config import default_config
from transformer_jax.table3 import TABLE_3


def get_config():
    config = default_config()
    config.update_from_flattened_dict(TABLE_3["big"])
    config.data.corpus = "wmt14_translate/de-en"
    config.data.source_language = "en"
    config.data.target_language = "de"
    config.data.num_shapes = 20  # see base.py
    # Every ten minutes, 600 updates of 1.0 s; the paper averages the last twenty.
    config.train.eval_every = 600
    config.train.checkpoint_every = 600
    config.train.keep_latest = 20
    return config
