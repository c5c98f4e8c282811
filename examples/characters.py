"""A character model that learns to add: a custom corpus, a custom metric and a tokenizer, each an option.

transformer-jax train --config=examples/characters.py --workdir=runs/sums
transformer-jax evaluate --workdir=runs/sums
echo "17+25" | transformer-jax translate --workdir=runs/sums
"""

from pathlib import Path

from transformer_jax.config import default_config

HERE = Path(__file__).parent


def get_config():
    config = default_config()
    config.data.corpus = f"{HERE}/sums.py:sums"
    config.data.tokenizer = "characters"
    config.data.num_shapes = 1
    config.data.tokens_per_batch = 2048
    config.model.num_encoder_layers = config.model.num_decoder_layers = 2
    config.model.d_model, config.model.d_ff, config.model.num_heads = 64, 256, 4
    config.optimizer.learning_rate, config.optimizer.warmup_steps = 2e-3, 200
    config.train.steps = 2000
    config.train.eval_every = config.train.checkpoint_every = 200
    config.decode.metrics = (f"{HERE}/exact_match.py:exact_match",)
    config.decode.bleu_sentences = 200  # at each validation, to see the measure in metrics.jsonl
    return config
