"""The paper's base model, English to German.

transformer-jax inspect --config=configs/base.py
"""

from transformer_jax.config import default_config


def get_config():
    return default_config()
