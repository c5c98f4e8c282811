"""Drill: every mesh of 1, 2, 4 or 8 devices trains as one device does, and those of 8 translate as one does.

Some of them are in tests/update/test_sharding.py and tests/translation/test_meshes.py."""

import itertools
import math

import pytest

from tests.support.small_runs import batches, trainer, worst_difference
from tests.translation.test_meshes import assert_decoded_alike, decoded, on_one_device, small_run
from tests.update.test_sharding import WITHIN
from transformer_jax.config import MeshConfig

SIZES = (1, 2, 4, 8)
HEADS = 4
MESHES = [mesh for mesh in itertools.product(SIZES, SIZES, SIZES) if math.prod(mesh) in SIZES and mesh[2] <= HEADS]


@pytest.fixture(scope="module")
def on_one():
    return trainer().train(batches())


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("mesh", MESHES, ids=str)
def test_trains_as_one_device(mesh, accumulate, on_one):
    data, fsdp, tensor = mesh
    sizes = {"mesh__data": data, "mesh__fsdp": fsdp, "mesh__tensor": tensor, "train__accumulate": accumulate}
    state = trainer(devices=math.prod(mesh), **sizes).train(batches())
    assert worst_difference(state, on_one) < (WITHIN,)
    assert float(state.sums.loss) == pytest.approx(float(on_one.sums.loss), rel=1e-5)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return small_run(tmp_path_factory.mktemp("meshes") / "run")


@pytest.fixture(scope="module")
def translated_by_one(folder):
    return on_one_device(folder)


@pytest.mark.parametrize("mesh", [mesh for mesh in MESHES if math.prod(mesh) == 8], ids=str)
def test_translates_as_one_device(mesh, folder, translated_by_one):
    assert_decoded_alike(decoded(folder, MeshConfig(*mesh)), translated_by_one)
