"""Morphological inflection, as in SIGMORPHON 2022 (task 0): a lemma and features to the inflected form.

    transformer-jax train --config=configs/inflection.py --workdir=runs/kor \\
        --config.data.corpus_folder=2022InflectionST/part1/development_languages \\
        --config.data.task.language=kor --config.data.task.size=large
    transformer-jax evaluate --workdir=runs/kor --weights=best

The recipe of the organisers' Transformer (Wu, Cotterell and Hulden 2021). They take batches of 400 pairs; here a
batch is of 4,096 tokens of each side, padding included: on average 318 pairs of Korean (438 with
--config.data.tokens_per_batch=5120) and 175 of Turkish, whose forms are longer (350 with 10240). They keep the
checkpoint with the best accuracy on the validation set; so does this. Theirs has features without positions before the
lemma, and no translation of more than 32 characters.

On a CPU, a reduced variant, whose figures differ from the recipe's: --config.data.num_shapes=2
--config.data.tokens_per_batch=2048 --config.model.num_encoder_layers=2 --config.model.num_decoder_layers=2
--config.model.d_model=128 --config.model.d_ff=512 --config.optimizer.warmup_steps=1000 --config.train.steps=5000
"""

from transformer_jax.config import default_config


def get_config():
    config = default_config()
    config.data.corpus = "inflection"
    config.data.tokenizer = "characters_and_tags"
    config.data.tokens_per_batch = 4096
    config.model.vocab_size = 1000
    config.model.target_vocab_size = 1000  # two vocabularies; sized by the training text
    config.model.tie_embeddings = "none"
    config.model.num_encoder_layers = 4
    config.model.num_decoder_layers = 4
    config.model.d_model = 256
    config.model.d_ff = 1024
    config.model.num_heads = 4
    config.model.norm = "pre"
    config.model.norm_epsilon = 1e-5
    config.model.dropout = 0.3
    config.model.attention_dropout = 0.3
    config.model.activation_dropout = 0.3
    config.optimizer.learning_rate = 1e-3
    config.optimizer.warmup_steps = 4000
    config.optimizer.epsilon = 1e-8
    config.optimizer.clip_norm = 1.0
    config.train.steps = 20_000
    config.train.eval_every = 400
    config.train.checkpoint_every = 400
    config.train.best_metric = "exact_match"
    config.decode.bleu_sentences = 1000
    config.decode.beam = 1
    return config
