"""`python -m transformer_jax` is `transformer-jax`."""

from transformer_jax.cli import entry

if __name__ == "__main__":
    entry()
