"""diff: what differs between two runs."""

import shutil

from transformer_jax import cli
from transformer_jax.files.atomic import write_record
from transformer_jax.files.record import read_record


def section(text, title):
    return text.partition(f"\n{title}\n")[2].partition("\n\n")[0]


def test_options_code_data_and_metrics_side_by_side(folder, tmp_path, capsys):
    other = tmp_path / "other"
    shutil.copytree(folder, other)
    config, versions = other / "config.json", other / "versions.json"
    config.write_text(config.read_text().replace('"num_heads": 2', '"num_heads": 4'))
    write_record(versions, {**read_record(versions), "flax": "0.0.1\x1b[31m"})
    lines = (
        '{"step": 3, "loss": 2.5}',
        '{"step": 4, "loss": 2.0, "valid_loss": null, "exact_match": 5.0, "mine": 0.5}',
        '{"step": 4, "loss": [1]}',
    )
    (other / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    assert cli.main(["diff", str(folder), str(other)]) == 0
    printed = capsys.readouterr().out
    options = [line.split() for line in section(printed, "options").splitlines()]
    assert options == [["A", "B"], ["model.num_heads", "2", "4"]]
    assert r"0.0.1\x1b[31m" in section(printed, "code"), "escaped"
    assert section(printed, "data") == "  the same"
    metrics = [line.split() for line in section(printed, "metrics").splitlines()]
    assert ["step", "none", "4"] in metrics and ["loss", "none", "2"] in metrics
    assert ["exact_match", "none", "5"] in metrics and ["mine", "none", "0.5"] in metrics
    assert not any(row[0] in ("valid_loss", "time") for row in metrics)


def test_scores_come_with_the_sentences_that_they_belong_to(folder, tmp_path, capsys):
    shutil.copytree(folder, tmp_path / "other")
    (tmp_path / "other/translations").mkdir(exist_ok=True)
    record = {"test_set": "test", "test_set_sha256": "0123456789", "n": 1, "weights": "latest", "steps": [4]}
    record |= {"measures": {"bleu": {"score": 31.25, "signature": ""}}, "perplexity": {"per_token": 2.0}}
    write_record(tmp_path / "other/translations/test.latest.json", record)
    (tmp_path / "other/translations/damaged.json").write_text("{")
    assert cli.main(["diff", str(folder), str(tmp_path / "other")]) == 0
    metrics = [line.split() for line in section(capsys.readouterr().out, "metrics").splitlines()]
    assert ["test.latest:", "sentences", "none", "01234567"] in metrics
    assert ["test.latest:", "bleu", "none", "31.25"] in metrics
    assert ["test.latest:", "step", "none", "4"] in metrics
    assert ["test.latest:", "perplexity", "none", "2"] in metrics
