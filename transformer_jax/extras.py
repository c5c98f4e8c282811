"""The optional dependencies: what is needed beyond jax, flax and numpy, and which extra installs it."""

import importlib.util

from transformer_jax.errors import BadInput

DATA = ("ml_collections", "sentencepiece", "tqdm")
# For each extra of pyproject.toml, the modules that must be importable.
MODULES = {
    "data": DATA,
    "tfds": (*DATA, "importlib_resources", "tensorflow_datasets"),
    "train": (*DATA, "optax", "orbax", "sacrebleu", "safetensors", "tensorboardX", "zstandard"),
    "tokenizers": (*DATA, "tokenizers"),
    "wandb": ("wandb",),
    "slurm": ("submitit",),
    "gcs": ("fsspec", "gcsfs"),
    "report": ("jinja2", "markupsafe", "matplotlib", "scipy", "tqdm"),
}


class MissingPackages(BadInput, ImportError):
    """Optional dependencies that are not installed; the message has the command that installs them."""


def missing(*extras: str) -> list[str]:
    """Which modules of these extras cannot be imported."""
    needed = {module for extra in extras for module in MODULES[extra]}
    return sorted(module for module in needed if importlib.util.find_spec(module) is None)


def require(what: str, *extras: str) -> None:
    """Raises `MissingPackages` unless all that the extras install can be imported."""
    if names := missing(*extras):
        raise MissingPackages(f"{what} needs {', '.join(names)}: pip install 'transformer_jax[{','.join(extras)}]'")
