"""The trackers of docs/training.md that need no other package."""

import re

from tests.docs.test_examples import blocks
from tests.support.places import ROOT
from transformer_jax.config import from_config_dict
from transformer_jax.runs.tracking import Labels, Tracking

LINE = re.compile(r'(transformer_jax_[a-zA-Z_]+)\{run="([^"\\]|\\.)*",id="[0-9a-f]+"\} (\S+)')


def test_prometheus(tmp_path, monkeypatch):
    (code,) = (block.code for block in blocks(ROOT / "docs/training.md") if block.mark == "file: to_prometheus.py")
    assert len(code.strip().splitlines()) <= 20
    (tmp_path / "to_prometheus.py").write_text(code)
    monkeypatch.setenv("PROMETHEUS_FOLDER", str(tmp_path))
    config = from_config_dict({"train": {"tracker": f"{tmp_path}/to_prometheus.py:Prometheus"}})
    tracking = Tracking(tmp_path, config, Labels(name='h = "4"'), has_checkpoint=False)
    tracking.log(5, {"loss": 2.5, "data_wait": 0.1, "mfu": float("nan")})
    tracking.log(10, {"valid_loss": 2.25})
    tracking.finish()
    (file,) = tmp_path.glob("*.prom")
    found = [LINE.fullmatch(line) for line in file.read_text().splitlines()]
    values = {match[1].removeprefix("transformer_jax_"): float(match[3]) for match in found}
    assert values.pop("updated_seconds") > 1e9
    assert values == {"loss": 2.5, "data_wait": 0.1, "valid_loss": 2.25, "step": 10}
