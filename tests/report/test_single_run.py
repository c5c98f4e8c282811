"""The report of one run: its scores with signatures, its command, and what to cite."""

import json

from tests.support.finished_sweeps import edit, record_file, seed_folder
from transformer_jax import cli


def test_one_run_has_its_score_signature_command_and_citation(sweep, capsys):
    run = seed_folder(sweep, "A h=1", 1)
    edit(run / "versions.json", command="/usr/bin/transformer-jax train --config.data.source='a b.en' --workdir=run")
    assert cli.main(["report", str(run)]) == 0
    printed, text = capsys.readouterr().out, (run / "report" / "report.md").read_text()
    score = json.loads(record_file(sweep, "A h=1", 1).read_text())["measures"]["bleu"]["score"]
    assert f"| BLEU | {score:.2f} | nrefs:1\\|case:mixed |" in text
    assert "`transformer-jax train --config.data.source='a b.en' --workdir=run`" in text
    assert "@inproceedings{vaswani2017attention" in text and "@software{transformer_jax" in text
    assert "20 sentences; weights: latest, of step 1,000" in text and "jax: `0.10.2`" in text
    assert text.splitlines() == printed.splitlines()[: len(text.splitlines())]
    found = json.loads((run / "report" / "report.json").read_text())
    assert found["evaluations"][0]["scores"]["bleu"] == [score, "nrefs:1|case:mixed"]
    assert cli.main(["report", str(run), f"--output={sweep / 'else'}"]) == 0
    assert cli.main(["report", str(run), f"--output={sweep / 'else'}"]) == 0  # it replaces its own
    assert cli.main(["report", str(run), "--format=latex"]) == 2


def test_a_run_without_scores_says_how_to_evaluate_it(sweep, capsys):
    run = seed_folder(sweep, "base", 0)
    record_file(sweep, "base", 0).unlink()
    assert cli.main(["report", str(run)]) == 0
    assert f"transformer-jax evaluate --workdir={run}" in capsys.readouterr().out


def test_odd_values_in_its_metrics_are_named(sweep, capsys):
    run = seed_folder(sweep, "base", 0)
    with open(run / "metrics.jsonl", "a") as file:
        file.write('{"step": 2000, "valid_loss": "0.5"}\n')
    assert cli.main(["report", str(run)]) == 0
    printed = capsys.readouterr().out
    assert "metrics.jsonl: line 21 has valid\\_loss = " in printed and "2,000 updates" in printed
    assert cli.main(["report", str(sweep)]) == 0
    assert "damaged: " in capsys.readouterr().out


def test_a_damaged_record_hides_no_other(sweep, capsys):
    run = seed_folder(sweep, "base", 0)
    (run / "translations" / "other.latest.json").write_text('{"test_set": "x"}')
    (run / "versions.json").write_text("")
    assert cli.main(["report", str(run)]) == 0
    printed = capsys.readouterr().out
    assert printed.count("\n- damaged: ") == 2 and "| BLEU | " in printed
