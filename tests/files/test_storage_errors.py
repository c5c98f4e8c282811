"""Errors of storage, as the installed libraries raise them for a bucket whose server answers with an error."""

import errno

import pytest

from tests.support.cloud_storage import failing_bucket
from transformer_jax.files import storage_errors


@pytest.fixture(scope="module")
def reading():
    """What gcsfs and tensorstore say when a server answers with a status; each tries once."""
    with failing_bucket() as (url, proxy):
        tensorstore = pytest.importorskip("tensorstore")
        import fsspec

        place = {"driver": "gcs", "bucket": "bucket", "context": {"gcs_request_retries": {"max_retries": 1}}}
        by_library = {
            "gcsfs": lambda: fsspec.filesystem("gs", use_listings_cache=False).cat_file(f"{url}/object"),
            "tensorstore": lambda: tensorstore.KvStore.open(place).result().read("object").result(),
        }

        def read(library, status):
            proxy.answer = status
            try:
                by_library[library]()
            except Exception as error:
                return error
            return None

        yield read


@pytest.mark.parametrize("library", ["gcsfs", "tensorstore"])
@pytest.mark.parametrize(("status", "name"), [(401, "denied"), (403, "denied"), (503, "does not respond")])
def test_a_server_that_answers_with_an_error(reading, monkeypatch, library, status, name):
    monkeypatch.setattr("asyncio.sleep", lambda *_: _nothing())
    error = reading(library, status)
    assert storage_errors.passing(error) == errno.ETIMEDOUT, repr(error)
    assert name in storage_errors.short(error), repr(error)


def test_an_object_that_is_missing_is_not_a_bucket_that_is_away(reading):
    assert storage_errors.passing(reading("gcsfs", None)) in (None, errno.ENOENT)


def test_full_disks_and_other_errors():
    assert storage_errors.short(ValueError("Failed to write: No space left on device")) == "the disk is full"
    assert storage_errors.short(KeyError("x")) == "KeyError: 'x'"


async def _nothing():
    pass
