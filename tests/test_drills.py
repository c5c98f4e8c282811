"""The drills that only `make drill` runs: what may not wait until then."""

from tests.drills.test_seeded_faults import FAULTS
from tests.support.places import ROOT


def test_every_seeded_fault_still_fits_the_code():
    """Code that was edited or moved would leave its fault, and the tests that it checks, unnoticed."""
    texts = {fault.file: (ROOT / "transformer_jax" / fault.file).read_text() for fault in FAULTS}
    assert [fault.name for fault in FAULTS if texts[fault.file].count(fault.old) != 1] == []
    assert [name for fault in FAULTS for name in fault.tests.split() if not (ROOT / "tests" / name).exists()] == []
