"""A run's folder read back, also when somebody has been at it: one clear line, and no line of metrics made up."""

import json

import pytest
from translating_runs import make_run

from transformer_jax import cli, load_run
from transformer_jax.errors import BadInput
from transformer_jax.training.run_folder import RunFolder, read_metrics


def test_only_lines_of_metrics_are_read(tmp_path):
    lines = [
        b'{"step": 1, "loss": 2.0}',
        b"5",
        b'{"loss": 1.0}',
        b"\xff\xfe",
        b"[1]",
        b'{"step": 2}',
        b'{"step": 3, "lo',
    ]
    (tmp_path / "metrics.jsonl").write_bytes(b"\n".join(lines))
    assert read_metrics(tmp_path / "metrics.jsonl") == [{"step": 1, "loss": 2.0}, {"step": 2}]


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"{", "config.json:1: is no JSON"),
        (b"\xff", "config.json: is no UTF-8 text (byte 0)"),
        (b'{"modle": {}}', "config.json: modle: no such option; did you mean model?"),
    ],
)
def test_a_damaged_config_is_named(tmp_path, content, told):
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(BadInput) as caught:
        RunFolder(tmp_path).load_config()
    assert told in str(caught.value)


@pytest.mark.parametrize("name", ["x" * 300, "file/run"])
def test_a_folder_that_cannot_be_made(tmp_path, name):
    (tmp_path / "file").touch()
    with pytest.raises(BadInput, match=r"the name is too long|is a file"), RunFolder(tmp_path / name).held():
        pass


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("runs") / "run")


def test_an_exported_folder_has_only_one_set_of_weights(run):
    with pytest.raises(BadInput, match=r"--weights=best: .* is an exported folder"):
        load_run(RunFolder(run).averaged, "best")


def test_a_manifest_without_tokenizers_is_damaged(run, tmp_path):
    manifest = json.loads((run / "data/manifest.json").read_text())
    (tmp_path / "manifest.json").write_text(json.dumps({**manifest, "tokenizers": {}}))
    from transformer_jax.data.prepared import Prepared

    with pytest.raises(BadInput, match="is damaged"):
        Prepared.open(tmp_path)


@pytest.mark.parametrize(
    ("command", "told"),
    [
        (["evaluate", "--n-best=2"], "--n-best=2: evaluate has no such argument"),
        (["evaluate", "--config.decode.n_best=2"], "evaluate makes no use of it"),
        (["score", "a", "b", "--config.decode.beam=2"], "score makes no use of it"),
    ],
    ids=str,
)
def test_options_that_would_be_ignored_are_refused(run, capsys, command, told):
    assert cli.main([*command, f"--workdir={run}"]) == 2
    assert told in capsys.readouterr().err
