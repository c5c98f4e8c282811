"""What a report says about how the runs were made."""

import dataclasses
import json
import shlex

from tests.support.finished_sweeps import Report, changed, edit, record_file, seed_folder, write
from transformer_jax import cli
from transformer_jax.report.report import report_of
from transformer_jax.report.results import load_sweep
from transformer_jax.sweeps import launch


def test_what_a_sweep_states_that_differs_between_its_seeds(sweep):
    report = Report(changed(sweep, vary=["split"]))
    assert "include: which pairs are for training and which for validation. The same for all seeds" in report.markdown
    everything = Report(changed(sweep, vary=["initialization", "order", "split"])).markdown
    assert "The same for all seeds" not in everything


def test_the_command_of_a_report_defines_the_same_sweep(tmp_path, monkeypatch):
    """That of COGS, which lacked --config.* and --only and could not run."""
    launched = []
    monkeypatch.setattr(launch, "launch", lambda folder, definition, options: launched.append((definition, options)))
    given = ["sweep", "preset:cogs", "--scale=demo", "--seeds=0,1,2", "--only=[spr]*[len]", "--tune=0.5,1"]
    given += ["--config.data.corpus_folder=my COGS/data", "--config.train.steps=100", f"--workdir={tmp_path}"]
    cli.main(given)
    ((definition, options),) = launched
    write(tmp_path / "sweep.json", dataclasses.replace(definition, only=tuple(options.only)).to_json())
    cli.main(shlex.split(report_of(load_sweep(tmp_path)).facts["command"])[1:])
    _, (again, again_options) = launched
    assert dataclasses.replace(again, only=None) == dataclasses.replace(definition, only=None)
    assert again_options.only == options.only == ["[spr]*[len]"]
    assert again.base.data.corpus_folder == "my COGS/data" and again.base.train.steps == 100


def test_tuning_and_joint_training_are_mentioned(sweep):
    changed(sweep, tune=[0.5, 1, 2], vary=["initialization"])
    edit(seed_folder(sweep, "base", 0) / "result.json", together=2)
    report = Report(sweep)
    assert "among 0.5, 1, 2 times that of its config. None is chosen yet." in report.markdown
    assert "trained together in one program" in report.markdown


def test_flops_of_custom_modules_are_not_taken_for_known(sweep):
    assert "FLOPs are those of the built-in modules" not in Report(sweep).markdown
    definition = json.loads((sweep / "sweep.json").read_text())
    definition["variants"][1]["changes"]["model.parts.feed_forward"] = "mine.py:Wide"
    remarks = Report(changed(sweep, variants=definition["variants"])).json["remarks"]
    name = definition["variants"][1]["name"]
    assert any(text.endswith(f"not compared fairly by FLOPs: {name}.") for text in remarks)


def test_runs_by_several_versions_are_named(sweep):
    for seed, version in ((0, "0.10.2"), (1, "0.10.3")):
        edit(seed_folder(sweep, "base", seed) / "result.json", versions={"jax": version})
    report = Report(sweep)
    line = "not all made by the same jax: 0.10.3 in base, seed 1; 0.10.2 in the other 5 runs."
    assert line in report.page and line in report.markdown and line in report.json["mixtures"][0]
    assert report.page.index(line) < report.page.index("BLEU: ")  # at the top
    # Its versions.json is of its training, its result.json of its evaluation.
    assert report.json["mixtures"][1:] == ["base, seed 1: trained by jax 0.10.2, evaluated by jax 0.10.3."]


def test_perplexities_of_texts_with_unknown_words_do_not_compare(sweep):
    """A word tokenizer gives as many tokens whatever its vocabulary, so that the counts of <unk> tell."""
    line = "tokens of the references are unknown to a run's vocabulary"
    files = [record_file(sweep, name, seed) for name in ("base", "A h=1", "A h=4") for seed in (0, 1)]
    for file in files:
        edit(file, unknown_tokens=7)
    assert line not in Report(sweep).markdown  # one vocabulary, which lacks what it lacks for all
    sentences = json.loads(files[0].read_text())["sentences"]
    edit(files[0], sentences={**sentences, "tokens": [2 * count for count in sentences["tokens"]]})
    assert f"7 {line}" in Report(sweep).markdown
    edit(files[0], unknown_tokens=1234, sentences=sentences)
    report = Report(sweep)
    assert f"On `test`, 7 to 1,234 {line}" in " ".join(report.json["remarks"]) and line in report.markdown
