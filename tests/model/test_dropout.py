"""Dropout: its rate, its scale, and the same elements on any devices."""

import contextlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, PartitionSpec

from transformer_jax.model.dropout import Dropout, rows_divided_over

ONES = jnp.ones((400, 1000))


def dropped(rate, x=ONES, seed=0):
    return jax.jit(lambda x, key: Dropout(rate).apply({}, x, False, rngs={"dropout": key}))(x, jax.random.key(seed))


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_the_share_of_zeros_is_the_rate_and_the_mean_is_kept(rate):
    """400,000 draws: five standard deviations are 0.004 for the share. Neighbours are independent."""
    y = np.asarray(dropped(rate))
    assert abs((y == 0).mean() - rate) < 0.004
    assert abs(y.mean() - 1) < 0.004 / (1 - rate)
    assert len(np.unique(y)) == 2, "survivors are all scaled alike"
    np.testing.assert_allclose(y.max(), 1 / (1 - rate), rtol=2e-4)
    for axis in (0, 1):
        equal = np.diff((y == 0).astype(int), axis=axis) == 0
        assert abs(equal.mean() - (1 - 2 * rate * (1 - rate))) < 0.005


def test_dropout_of_edge_cases():
    assert {float(dropped(0.5, jnp.float32(1.0), seed=seed)) for seed in range(20)} == {0.0, 2.0}
    assert Dropout(0.5).apply({}, ONES, True) is ONES and Dropout(0.0).apply({}, ONES, False) is ONES
    assert np.isfinite(dropped(np.nextafter(1.0, 0.0))).all()
    with pytest.raises(ValueError, match="dropout"):
        dropped(2.0)


@pytest.mark.parametrize("rate", [0.1, 0.3])
def test_bfloat16_survivors_are_scaled_by_the_rate_that_was_drawn(rate):
    """Not by 1.109375, which is what 1 / 0.9 is in bfloat16. A million elements: rounding them averages out to 1e-5."""
    x = jax.random.normal(jax.random.key(1), (1000, 1000)).astype(jnp.bfloat16)
    y, pull_back = jax.vjp(lambda x: dropped(rate, x), x)
    wanted = 1 / (1 - round(rate * 2**16) / 2**16)
    before = np.abs(np.asarray(x, np.float64))[np.asarray(y != 0)].sum()
    for after in (y, pull_back(x)[0]):
        assert after.dtype == jnp.bfloat16
        assert abs(np.abs(np.asarray(after, np.float64)).sum() / before / wanted - 1) < 2e-4


def masks_of_devices(axes, check_vma=False):
    """Dropout of two rows over "data", replicated over "model": the survivors on each device, [data, model, width]."""
    mesh = jax.make_mesh((2, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2, devices=jax.devices()[:4])

    def of_device(x_BD):
        with contextlib.nullcontext() if axes is None else rows_divided_over(axes):
            return dropped(0.5, x_BD)[:, None]

    rows, everywhere = PartitionSpec("data"), PartitionSpec("data", None if check_vma else "model")
    divided = jax.shard_map(of_device, mesh=mesh, in_specs=rows, out_specs=everywhere, check_vma=check_vma)
    return np.asarray(jax.jit(divided)(jnp.ones((2, 64))))


def test_replicas_of_a_row_drop_the_same_elements_and_other_rows_others():
    masks = masks_of_devices(("data",))
    np.testing.assert_array_equal(masks[:, 0], masks[:, 1])
    np.testing.assert_array_equal(masks[:, 0], dropped(0.5, jnp.ones((2, 64))))
    assert (masks[0] != masks[1]).any()
    with pytest.raises(ValueError, match="rows_divided_over"):
        masks_of_devices(None)
    # JAX knows that devices along "model" have the same rows, and that their masks are the same.
    np.testing.assert_array_equal(masks_of_devices(None, check_vma=True), masks[:, :1])
