"""The smallest task: copying strings of letters.

transformer-jax train --config=configs/copy.py --workdir=runs/copy

Measured on two busy CPU cores: 49 s in total (half of it compilation), token accuracy 99.9 % on unseen strings.
"""

from transformer_jax.config import default_config


def get_config():
    config = default_config()
    config.data.corpus = "copy"
    config.data.tokenizer = "words"
    config.data.task.train_size = 20_000
    config.data.tokens_per_batch = 2048
    config.data.num_shapes = 1
    config.model.d_model = 64
    config.model.d_ff = 128
    config.model.num_heads = 4
    config.model.num_encoder_layers = 1
    config.model.num_decoder_layers = 1
    config.model.dropout = 0.0
    config.optimizer.warmup_steps = 100
    config.optimizer.learning_rate = 3e-3
    config.train.steps = 400
    config.train.log_every = 50
    config.train.eval_every = 100
    config.train.checkpoint_every = 100
    return config
