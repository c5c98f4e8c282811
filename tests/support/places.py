"""Where the repository and the recorded numbers of other implementations lie."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests/golden"
