"""Folders of somebody else: whatever their records say, reading them ends in a line and writes nothing elsewhere."""

import hashlib
import json
import random
import shutil

import pytest

from tests.support.finished_sweeps import VARIANTS, make_sweep, seed_folder
from tests.support.sweep_runs import defined, pretend_finished
from tests.support.translating_runs import made_run
from transformer_jax import cli
from transformer_jax.data.prepared import Prepared
from transformer_jax.errors import EXIT_UNFINISHED, BadInput
from transformer_jax.files.record import SEAL, sealed
from transformer_jax.sweeps.folder import SweepFolder
from transformer_jax.sweeps.resolved import ResolvedSweep

ODD = (None, True, -1, 10**400, 1e999, "3.0", "", "../x", "a\n\n<script>$\\frac", [], [[]], {}, {"a": 1})
EACH = 1  # odd values in each record, in `make test`


def places(content, path=()):
    """The paths of all values of a JSON file."""
    yield path
    if isinstance(content, (dict, list)):
        pairs = content.items() if isinstance(content, dict) else list(enumerate(content))[:2]
        for key, value in pairs:
            yield from places(value, (*path, key))


def spoilt(content, path, value):
    """A copy of the content with another value at a path."""
    if not path:
        return value
    copy = json.loads(json.dumps(content))
    inner = copy
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return copy


def read_with(folder, file, commands, capsys, dice, count):
    """Runs commands on a folder with each of some odd values in one of its files."""
    whole = file.read_bytes()
    content = json.loads(whole)
    content.pop(SEAL, None)
    choices = [(path, value) for path in places(content) for value in ODD]
    for path, value in dice.sample(choices, min(count, len(choices))):
        written = spoilt(content, path, value)
        file.write_text(json.dumps(sealed(written) if isinstance(written, dict) else written))
        for command in commands:
            status = cli.main(command)
            told = capsys.readouterr().err
            assert status in (0, 1, 2, EXIT_UNFINISHED) and "This is a bug" not in told, (
                command,
                file.name,
                path,
                value,
                told,
            )
    file.write_bytes(whole)


COUNTS = pytest.mark.parametrize("count", [EACH, pytest.param(10**6, marks=pytest.mark.drill)])


@COUNTS
def test_odd_values_in_the_records_of_a_sweep(tmp_path, capsys, count):
    sweep, dice = make_sweep(tmp_path / "sweep", VARIANTS[:2], seeds=(0,), sentences=5), random.Random(0)
    (sweep / "looks.json").write_text('{"looks": [{"seeds": [0], "compared": [0], "when": "now"}]}')
    tuned = {"factor": 2.0, "lowest": 2.0, "losses": {"1": 3.0, "2": 2.0}, "cost": {"runs": 2}, "seeds": [100]}
    (sweep / "tuned.json").write_text(json.dumps({VARIANTS[1]["name"]: {**tuned, "factor": 1.0}}))
    run = seed_folder(sweep, "base", 0)
    (run / "analysis").mkdir()
    (run / "analysis/a.json").write_text(json.dumps({"table": {"columns": ["x"], "rows": [["y", 1.0]]}}))
    report = ["report", str(sweep), "--format=latex"]
    records = ["versions.json", "attempt.json", "result.json", "analysis/a.json", "translations/test.latest.json"]
    for file in (*(run / name for name in records), *(sweep / f"{name}.json" for name in ("sweep", "tuned", "looks"))):
        read_with(sweep, file, [report], capsys, dice, count)


@COUNTS
def test_odd_values_in_the_records_of_a_run(tmp_path, capsys, count):
    folder, dice = shutil.copytree(made_run(), tmp_path / "run"), random.Random(1)
    sweep = make_sweep(tmp_path / "sweep", VARIANTS[:1], seeds=(0,), sentences=5)
    shutil.copytree(seed_folder(sweep, "base", 0) / "translations", folder / "translations", dirs_exist_ok=True)
    commands = [["status", str(folder)], ["diff", str(folder), str(folder)]]
    for name in ("versions.json", "translations/test.latest.json", "data/manifest.json"):
        read_with(folder, folder / name, commands, capsys, dice, count)


@COUNTS
def test_odd_values_in_the_status_of_a_sweep(tmp_path, capsys, count):
    folder, dice = SweepFolder(tmp_path / "sweep"), random.Random(2)
    definition: ResolvedSweep = defined()
    folder.save(definition)
    (run,) = folder.runs(definition)
    pretend_finished(run)
    run.record_attempt(state="failed", error="no room", host="here", pid=1, tries=1)
    (run.path / "versions.json").write_text('{"last_step": 12, "commit": "abc"}')
    commands = [
        ["status", str(folder.path)],
        ["status", "--json", str(folder.path)],
    ]
    records = [run.path / name for name in ("attempt.json", "result.json", "versions.json")]
    for file in (*records, folder.definition_file):
        read_with(folder.path, file, commands, capsys, dice, count)


def test_a_report_follows_no_link(tmp_path, capsys):
    sweep = make_sweep(tmp_path / "sweep", VARIANTS[:2], seeds=(0,), sentences=5)
    mine = tmp_path / "mine"
    mine.write_text('{"looks": []}')
    (sweep / "report").mkdir()
    for name in ("report.md", "report.json", "table.csv", "index.html"):
        (sweep / "report" / name).symlink_to(mine)
    (sweep / "looks.json").symlink_to(mine)
    assert cli.main(["report", str(sweep)]) == 0
    assert mine.read_text() == '{"looks": []}' and not (sweep / "report" / "report.md").is_symlink()
    shutil.rmtree(sweep / "report")
    (sweep / "report").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere").mkdir()
    assert cli.main(["report", str(sweep)]) == 2
    assert "report: is a link; it must be a folder" in capsys.readouterr().err
    assert not any((tmp_path / "elsewhere").iterdir())


def test_names_that_lead_out_of_a_sweep_are_not_followed(tmp_path, capsys):
    sweep = make_sweep(tmp_path / "sweep", VARIANTS[:2], seeds=(0,), sentences=5)
    definition = json.loads((sweep / "sweep.json").read_text())
    definition["variants"][1]["slug"] = "../../../elsewhere"
    (sweep / "sweep.json").write_text(json.dumps(definition))
    assert cli.main(["report", str(sweep)]) == 2
    assert "'../../../elsewhere' is not the name of a file in this folder" in capsys.readouterr().err


def test_arrays_of_other_types_than_ours_are_not_mapped(tmp_path, capsys):
    """An array of objects would be one of pointers, which numpy follows."""
    folder = shutil.copytree(made_run(), tmp_path / "run")
    manifest, tokens = folder / "data/manifest.json", folder / "data/train.source.tokens"
    content = json.loads(manifest.read_text())
    content.pop(SEAL)
    tokens.write_bytes(bytes(range(64)))
    facts = content["splits"]["train"]["arrays"]["source.tokens"]
    facts |= {"dtype": "object", "count": 8, "sha256": hashlib.sha256(tokens.read_bytes()).hexdigest()}
    manifest.write_text(json.dumps(sealed(content)))
    with pytest.raises(BadInput, match=r"train.source.tokens: is an array of object; must be of uint16 or int32"):
        Prepared.open(folder / "data").verify()
    facts |= {"dtype": "uint16", "count": 32}
    manifest.write_text(json.dumps(sealed(content)))
    with pytest.raises(BadInput, match=r"train.source.offsets: is missing or damaged"):
        Prepared.open(folder / "data")
