"""Your own text: two files, aligned line by line.

    transformer-jax train --config=configs/text.py --workdir=runs/mine \\
        --config.data.source=train.en --config.data.target=train.de

A small model for one machine, from a hundred pairs to millions. What must fit the text is said in relative terms: the
length of the run in epochs, with early stopping; the warmup as a share of it; the number of validations; the vocabulary
as an upper limit (docs/data.md). 1,000 pairs each are held out for validation and testing, but at most a tenth of all,
unless separate files are given (data.valid_source, data.valid_target, data.test_source, data.test_target).
"""

from transformer_jax.config import default_config


def get_config():
    config = default_config()
    config.model.vocab_size = 8000
    config.model.num_encoder_layers = 4
    config.model.num_decoder_layers = 4
    config.model.d_model = 256
    config.model.d_ff = 1024
    config.model.num_heads = 4
    config.data.tokens_per_batch = 8192
    config.data.hard_vocab_limit = False
    config.optimizer.warmup_share = 0.1
    config.optimizer.learning_rate = 2e-3
    config.train.epochs = 200
    config.train.steps = 20_000
    config.train.validations = 20
    config.train.eval_every = 500
    config.train.checkpoint_every = 500
    config.train.patience = 10
    return config
