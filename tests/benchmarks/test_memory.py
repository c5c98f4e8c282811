"""The comparison of memory runs, and prints both systems."""

import json
import sys

import pytest

from tests.support.places import ROOT

sys.path.append(str(ROOT / "benchmarks"))
import memory


@pytest.mark.drill
def test_it_compares_both_systems(tmp_path, monkeypatch, capsys):
    small = ["--models", "tiny", "--tokens", "64", "--length", "8", "--vocabulary", "100"]
    monkeypatch.setattr(sys, "argv", ["memory.py", *small, "--json", str(tmp_path / "found.json")])
    memory.main()
    found = json.loads((tmp_path / "found.json").read_text())["memory"]["tiny"]
    assert found["transformer_jax"]["temporary"] > 0 and found["flax linen"]["temporary"] > 0
    assert "less memory" in capsys.readouterr().out
