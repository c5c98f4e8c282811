"""One of the eight simulated devices: for one, programs compile and run faster than for eight."""

import contextlib
from collections.abc import Iterator
from unittest import mock

import jax


@contextlib.contextmanager
def one_device() -> Iterator[None]:
    """As on a machine with a single one."""
    devices = jax.devices()[:1]
    with mock.patch.multiple(jax, devices=lambda *_: devices, local_devices=lambda *_: devices):
        yield
