"""Training several runs of one shape together, in one program. A failing run harms no other.

They may differ in what is only a number to the program: the seed, the rates of dropout, label smoothing, the learning
rate's schedule, the optimizer's numbers. They see the same batches in the same order, with independent random numbers.
Each keeps its folder as if it had trained alone.
"""

import contextlib
import os
from collections.abc import Sequence

import jax

from transformer_jax import schema
from transformer_jax.config import ExperimentConfig
from transformer_jax.data.prepared import Prepared
from transformer_jax.errors import BadInput
from transformer_jax.files.progress import tell
from transformer_jax.processes.signals import StopSignals
from transformer_jax.runs.checkpoint import DamagedCheckpoint
from transformer_jax.runs.folder import RunFolder
from transformer_jax.training.ending import Ending
from transformer_jax.training.journal import Evaluator, Journal
from transformer_jax.training.setup import RunSetup
from transformer_jax.training.steps import CompiledSteps
from transformer_jax.training.together_journal import TogetherJournal, isolated
from transformer_jax.training.together_programs import OPTIONS, VmappedSteps, differing
from transformer_jax.training.train import take_steps
from transformer_jax.update.step import TrainState


def incompatible(configs: Sequence[ExperimentConfig]) -> list[str]:
    """The options whose differences forbid training these runs together, a line each; none if nothing does."""
    problems = []
    for path, values in differing(configs).items():
        listed = ", ".join(map(str, dict.fromkeys(values)))
        option = OPTIONS[path]
        if schema.is_path(option.kind) and option.affects == "environment":
            continue  # where the data is: what was prepared is compared instead
        if option.together is None:
            problems.append(f"{path} = {listed}: must be the same for all")
        elif option.together == "number or none" and not all(values) and any(values):
            problems.append(f"{path} = {listed}: all have one, or none has")
    return problems


def refuse_incompatible(configs: Sequence[ExperimentConfig]) -> None:
    problems = incompatible(configs)
    if len(configs) > 1 and configs[0].train.keep_latest < 2:
        problems.append("train.keep_latest = 1: must be at least 2, or a kill while they save leaves no common step")
    if jax.process_count() > 1:
        problems.append(f"they train in one process, here are {jax.process_count()}")
    if problems:
        raise BadInput("runs that cannot train together:\n  " + "\n  ".join(problems))


def train_together(
    configs: Sequence[ExperimentConfig],
    prepared: Prepared,
    folders: Sequence[RunFolder],
    evaluators: Sequence[Evaluator] = (),
) -> list[Ending]:
    """Trains runs, or resumes them, until each has ended; returns how each ended."""
    inputs = RunSetup(configs[0], prepared, has_evaluators=bool(evaluators))
    above = os.path.commonpath([folder.path.absolute().parent for folder in folders])
    journals = [
        Journal(
            CompiledSteps(config, inputs.schedule(config), inputs.mesh),
            folder,
            evaluators,
            inputs,
            os.path.relpath(folder.path, above),
        )
        for config, folder in zip(configs, folders, strict=True)
    ]  # before any folder is made: what cannot be trained leaves nothing behind
    with StopSignals() as signals, contextlib.ExitStack() as opened:
        for journal in journals:
            with isolated(journal):
                opened.enter_context(journal.folder.held())
                opened.enter_context(journal.open())
                _end_if_complete(journal)
                if not journal.is_new:
                    journal.record_config()
        while active := [journal for journal in journals if journal.ending is None]:
            group, step = common_step(active)
            _train_group(inputs, group, step, signals)
    return [journal.ending for journal in journals if journal.ending is not None]


def common_step(journals: Sequence[Journal]) -> tuple[list[Journal], int]:
    """The runs that continue together, and the newest step that all of them have; all have step 0.

    A kill while they were saving leaves some with the step before the leader's. A run that is further behind has failed
    earlier, and is finished alone.
    """
    steps = {journal: [0, *journal.checkpoints.steps] for journal in journals}
    *_, before, newest = [0, *max(steps.values(), key=max)]
    at_newest, at_before = ([journal for journal in journals if step in steps[journal]] for step in (newest, before))
    return (at_before, before) if set(at_newest) < set(at_before) else (at_newest, newest)


def _train_group(inputs: RunSetup, group: Sequence[Journal], step: int, signals: StopSignals) -> None:
    """Trains runs that can continue from one step to their ends. Returns without training where a checkpoint turns out
    to be damaged or of another model: the caller then chooses another group."""
    states = []
    for journal in group:
        with isolated(journal), contextlib.suppress(DamagedCheckpoint):
            states.append(_restore(journal, step))
    if len(states) < len(group):
        return
    for journal in group:
        with isolated(journal):
            journal.checkpoints.drop_after(step)
            journal.folder.drop_metrics_after(step or -1)
    if len(group) == 1:
        [journal], [state] = group, states
        with isolated(journal):
            take_steps(state, step, inputs, journal.programs, journal, signals)
        return
    configs = [journal.config for journal in group]
    programs = VmappedSteps(configs, [journal.programs.schedule for journal in group], inputs.mesh)
    tell(f"{'together':>11}: {describe(configs)}")
    restored = [state for state in states if state is not None]
    take_steps(
        programs.join(restored) if restored else None, step, inputs, programs, TogetherJournal(group, programs), signals
    )


def _restore(journal: Journal, step: int) -> TrainState | None:
    """The state of a checkpoint; None at step 0, where the run starts. Raises DamagedCheckpoint."""
    if step == 0:
        journal.reset()
        return None
    try:
        state, notes = journal.checkpoints.restore(step, journal.programs.plan)
    except DamagedCheckpoint as damage:
        if journal.checkpoints.steps == [step]:
            raise BadInput(f"{journal.checkpoints.directory}: every checkpoint is damaged ({damage})") from damage
        journal.set_aside(step, str(damage))
        raise
    journal.resume(step, notes)
    return state


def _end_if_complete(journal: Journal) -> None:
    """A run that was completed by an earlier process, with an undamaged checkpoint, is not trained again."""
    with contextlib.suppress(DamagedCheckpoint):
        for step in journal.checkpoints.steps[-1:]:
            journal.resume(step, journal.checkpoints.record(step)["notes"])
            if journal.complete(step) is not None and (state := _restore(journal, step)) is not None:
                journal.end_if_due(state, step, None)


def describe(configs: Sequence[ExperimentConfig]) -> str:
    """How many runs these are, and in what they differ."""
    values = {path: ", ".join(map(str, each)) for path, each in differing(configs).items()}
    return f"{len(configs)} runs; " + "; ".join(f"{path}: {each}" for path, each in values.items())
