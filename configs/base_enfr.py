"""The paper's base model, English to French: WMT 2014, 36 million pairs, a vocabulary of 32,000.

    transformer-jax train   --config=configs/base_enfr.py --workdir=runs/base_enfr
    transformer-jax average --workdir=runs/base_enfr --last=5

The paper: 38.1 BLEU on newstest2014. Not run yet.
"""

from transformer_jax.config import default_config


def get_config():
    config = default_config()
    config.data.corpus = "wmt14_translate/fr-en"
    config.data.source_language = "en"
    config.data.target_language = "fr"
    config.data.num_shapes = 20  # buckets on GPUs and TPUs: see base.py
    config.model.vocab_size = 32_000
    config.train.eval_every = 1500
    config.train.checkpoint_every = 1500
    config.train.keep_latest = 5
    return config
