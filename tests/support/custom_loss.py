"""A custom loss in a file, for tests of the identity of custom code."""

LOSS = "import jax.numpy as jnp\n\ndef loss(a, b, w):\n    return jnp.sum(a[..., 0] * w), w.sum()\n"


def in_folder_with_loss(folder, monkeypatch):
    """The folder as the current directory, with mine.py in it."""
    monkeypatch.chdir(folder)
    (folder / "mine.py").write_text(LOSS)
    return folder
