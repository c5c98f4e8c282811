"""The paper's sinusoids, number by number."""

import math

import numpy as np
import pytest

from transformer_jax import sinusoidal_positions


def test_the_papers_table_number_by_number():
    table = sinusoidal_positions(7, 10)
    for position in range(7):
        for i in range(5):
            angle = position / 10000 ** (2 * i / 10)
            assert table[position, 2 * i] == pytest.approx(math.sin(angle), abs=1e-6)
            assert table[position, 2 * i + 1] == pytest.approx(math.cos(angle), abs=1e-6)


def test_a_shift_of_the_papers_table_is_a_linear_map():
    """Section 3.5: "for any fixed offset k, PE(pos + k) can be represented as a linear function of PE(pos)"."""
    table = np.asarray(sinusoidal_positions(60, 16))
    shift = np.linalg.lstsq(table[:50], table[5:55], rcond=None)[0]
    np.testing.assert_allclose(table[:50] @ shift, table[5:55], atol=1e-3)
