"""Multi30k, English to German, at the size that does best on its 29,000 sentences (2.6 million parameters).

    transformer-jax train --config=configs/multi30k_tiny.py --workdir=runs/multi30k \\
        --config.data.source=train.lc.norm.tok.en --config.data.target=train.lc.norm.tok.de \\
        --config.data.valid_source=val.lc.norm.tok.en --config.data.valid_target=val.lc.norm.tok.de \\
        --config.data.test_source=test_2016_flickr.lc.norm.tok.en \\
        --config.data.test_target=test_2016_flickr.lc.norm.tok.de
    transformer-jax average --workdir=runs/multi30k --last=10

Published for this recipe: BLEU 41.02 on test_2016_flickr, tokenized and lower-case, with beam 5;
41.1 here (docs/results/multi30k). The files are the data set's.
"""

import dataclasses

from transformer_jax.config import ModelConfig, default_config


def get_config():
    config = default_config()
    config.model.update(dataclasses.asdict(ModelConfig.tiny(10_000)))
    config.data.tokens_per_batch = 8192
    config.data.max_length = 128
    config.optimizer.learning_rate = 5e-3
    config.optimizer.warmup_steps = 2000
    config.optimizer.epsilon = 1e-8
    config.optimizer.clip_norm = 25.0
    config.train.steps = 8000
    # About once an epoch; ten epochs without a better validation loss end the run, the last ten are averaged.
    config.train.eval_every = 70
    config.train.checkpoint_every = 70
    config.train.keep_latest = 10
    config.train.patience = 10
    return config
