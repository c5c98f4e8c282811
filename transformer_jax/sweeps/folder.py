"""A sweep's folder. It contains all that is needed to resume the sweep.

SWEEP/sweep.json                  the definition: base, variants, seeds
SWEEP/data/KEY/                   prepared data, shared by all runs that need the same
SWEEP/runs/SLUG/seed-N/           a run (sweeps/run.py); rate-FACTOR-seed-N where another learning rate was chosen,
                                  setting-NUMBER-seed-N where another setting of a search
SWEEP/runs/SLUG/tuning-FACTOR/    a run that tries a learning rate, or tuning-NUMBER/ a setting of a search;
                                  tuning-FACTOR-again with another seed
SWEEP/proposed.json               the settings of a search that a custom function has proposed, and digests of its code
SWEEP/tuned.json                  the setting chosen for each variant, what was tried and what it cost
SWEEP/looks.json                  the seeds that were planned, and compared, in reports
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from transformer_jax import schema
from transformer_jax.config import ExperimentConfig
from transformer_jax.data.prepare import recipe_of
from transformer_jax.errors import BadInput, Failed
from transformer_jax.files import paths, remote
from transformer_jax.files.atomic import UNFINISHED, Locked, explained, made, write_json
from transformer_jax.files.digests import json_sha256
from transformer_jax.files.record import read_if_sound, read_record, read_typed, typed
from transformer_jax.runs.folder import refuse_patterns
from transformer_jax.sweeps import resolved
from transformer_jax.sweeps.definition import FORMAT, Definition, Look, Looks, Proposal, Tuning, Variant
from transformer_jax.sweeps.resolved import ResolvedSweep
from transformer_jax.sweeps.run import SweepRun
from transformer_jax.sweeps.search import TUNING_SEEDS, chosen


class SweepFolder:
    """A sweep's folder: its definition, its prepared data, its runs."""

    def __init__(self, path: str | Path):
        self.path = Path(paths.expanded(path))
        self.definition_file, self.looks_file = self.path / "sweep.json", self.path / "looks.json"

    def stored(self) -> dict[str, Any]:
        """The content of sweep.json, as `Definition`; BadInput if there is none, or another one."""
        record = read_record(self.definition_file) if self.definition_file.is_file() else {}
        if record.get("format") != FORMAT:
            raise BadInput(
                f"{self.path}: is not a sweep (it has no sweep.json that this version reads); transformer-jax sweep "
                "FILE.py makes one in a new or empty directory"
            )
        if not all(typed(record, Definition, self.definition_file)[key] for key in ("variants", "seeds", "tests")):
            raise BadInput(f"{self.definition_file}: is damaged: it must have variants, seeds and tests")
        return record

    def load(self) -> ResolvedSweep:
        """The sweep in this folder."""
        return resolved.from_json(self.stored())

    def save(self, definition: ResolvedSweep) -> None:
        with explained(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            write_json(self.definition_file, definition.to_json())

    def refuse_removed(self) -> None:
        """Raises Failed if the folder was removed while its runs are trained, so that nothing is made there anew."""
        if not self.definition_file.is_file():
            raise Failed(f"{self.path}: was removed or renamed while its runs were trained")

    @contextlib.contextmanager
    def in_original_directory(self) -> Iterator[SweepFolder]:
        """Changes to the directory where the sweep was started, if it still exists; yields this folder.

        Relative paths in the definition, and in files of the user, then mean what they meant.
        """
        directory = (read_if_sound(self.definition_file, Definition) or {}).get("directory")
        if not isinstance(directory, str) or not os.path.isdir(directory) or os.path.samefile(directory, os.getcwd()):
            yield self
            return
        absolute = SweepFolder(self.path.absolute())
        with contextlib.chdir(directory):
            yield absolute

    def check_place(self) -> None:
        """Raises for a place where no sweep can be, before anything is written there."""
        refuse_patterns(self.path)
        with explained(self.path), contextlib.suppress(FileNotFoundError):
            # What a launcher leaves that was killed before it had written sweep.json.
            unfinished = {name for name in os.listdir(self.path) if name.endswith(UNFINISHED)}
            if set(os.listdir(self.path)) - {".lock", "data", *unfinished}:
                self.load()

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Locks the sweep against a second launcher. A rejected sweep leaves no trace."""
        self.check_place()
        with contextlib.ExitStack() as stack:
            try:
                with explained(self.path):
                    stack.enter_context(made(self.path))
                    stack.enter_context(remote.owned(self.path / ".lock"))
            except Locked as holder:
                raise Failed(
                    f"{self.path}: {holder} is working on this sweep; transformer-jax status shows how far"
                ) from None
            yield

    def data(self, experiment: ExperimentConfig) -> Path:
        """The folder of a run's prepared data, the same for all runs that need the same data."""
        if experiment.data.directory is not None:
            return Path(experiment.data.directory)
        return self.path / "data" / data_key(experiment)

    def looks(self) -> list[Look]:
        """One for each report that was made with other seeds than the one before."""
        file = self.looks_file
        return read_typed(file, Looks)["looks"] if file.is_file() else []

    def tuned(self) -> dict[str, Tuning]:
        """For each variant whose setting was chosen: {"factor": 2.0, "losses": {"1": 3.1, "2": 2.9}, ...}, as
        `search.best` makes it."""
        path = self.path / "tuned.json"
        # A damaged one is an error: runs would be trained again.
        found = read_typed(path, dict[str, Tuning]) if path.is_file() else {}
        for name, tuning in found.items():
            if "setting" in tuning and str(tuning["setting"]) not in tuning.get("settings", {}):
                raise BadInput(f"{path}: is damaged: {name}: the setting {tuning['setting']} is not among the settings")
        return found

    def proposed(self) -> dict[str, list[Proposal]]:
        """The settings that a custom function has proposed for each variant, from number 1 on."""
        path = self.path / "proposed.json"
        return read_typed(path, dict[str, list[Proposal]]) if path.is_file() else {}

    def record_proposed(self, variant: str, proposal: Proposal) -> None:
        known = self.proposed()
        with explained(self.path):
            write_json(self.path / "proposed.json", {**known, variant: [*known.get(variant, ()), proposal]})

    def record_tuned(self, variant: Variant, facts: Mapping[str, Any]) -> None:
        """Records a choice. Runs at a setting that was chosen before stay in their folders."""
        with explained(self.path):
            write_json(self.path / "tuned.json", {**self.tuned(), variant.name: facts})

    def runs(self, definition: ResolvedSweep, variants: Sequence[str] | None = None) -> list[SweepRun]:
        """All runs that are compared."""
        tuned, sweep, runs = self.tuned() if definition.settings else {}, definition.sweep, []
        measured_by = {name: definition.measured_by(name) for name in definition.experiments}
        for seed, variant in itertools.product(definition.seeds, sweep.variants):
            if variants is not None and variant.name not in variants:
                continue
            setting = chosen(tuned.get(definition.tuned_as(variant.name)))
            run = SweepRun(
                self.path / "runs" / variant.slug / f"{setting.prefix}seed-{seed}",
                variant.name,
                seed,
                definition.experiment(variant.name, seed, setting),
                sweep.primary or "bleu",
                tuple(sweep.tests),
                tuple(sweep.analyses),
                measured_by[variant.name],
            )
            runs.append(run)
        return runs

    def tuning_runs(
        self, definition: ResolvedSweep, variants: Sequence[str] | None = None, planned: bool = False
    ) -> list[SweepRun]:
        """The runs that try settings, for variants whose setting is not chosen yet among all of them.

        With `planned` also those of settings that a custom function has not proposed yet, at random values.
        """
        if not definition.settings:
            return []
        names = definition.experiments if variants is None else variants
        needed = {definition.tuned_as(name) for name in names}
        tried = {name: tuning["losses"].keys() for name, tuning in self.tuned().items()}
        proposed, primary, runs = self.proposed(), definition.sweep.primary or "bleu", []
        for variant in definition.sweep.variants:
            settings = definition.settings_of(variant.name, proposed.get(variant.name, []), planned)
            new = {setting.name for setting in settings} - tried.get(variant.name, set())
            if variant.name not in needed or (len(settings) == definition.settings and not new):
                continue
            for seed, setting in itertools.product(TUNING_SEEDS, settings):
                again = "" if seed == TUNING_SEEDS[0] else "-again"
                path = self.path / "runs" / variant.slug / f"tuning-{setting.name}{again}"
                experiment = definition.experiment(variant.name, seed, setting)
                runs.append(SweepRun(path, variant.name, seed, experiment, primary, setting=setting))
        return runs

    def all_runs(
        self, definition: ResolvedSweep, variants: Sequence[str] | None = None, planned: bool = False
    ) -> list[SweepRun]:
        """All runs in the order of their training: runs that tune, then runs that are compared."""
        return self.tuning_runs(definition, variants, planned) + self.runs(definition, variants)

    def by_id(self, definition: ResolvedSweep) -> dict[str, SweepRun]:
        """All runs by their ids."""
        return {run.run_id: run for run in self.all_runs(definition)}


def data_key(experiment: ExperimentConfig) -> str:
    """The name of prepared data, from the options it depends on; `prepare` itself compares the text."""
    corpus = {
        option.path: schema.value_at(experiment.data, option.path)
        for option in schema.options(type(experiment.data))
        if option.affects == "corpus" and option.has_effect(experiment)
    }
    recipe = recipe_of(experiment, corpus)
    return json_sha256(recipe)[:12]
