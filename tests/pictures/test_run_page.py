"""The page of a run."""

import types

import numpy as np

from transformer_jax.pictures.run_page import run_numbers


def test_a_diverged_runs_numbers_are_told():
    """Its perplexity is null: no number at all."""
    lines = [{"step": 1, "valid_perplexity": 7.0}, {"step": 2, "loss": None, "valid_perplexity": None}]
    told = run_numbers(types.SimpleNamespace(params={"a": np.zeros(3)}), lines)
    assert told == {"validation perplexity": "7.000", "updates": "2", "parameters": "3"}
