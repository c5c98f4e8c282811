"""Trains a model; the same command again resumes a run that was stopped or killed.

  transformer-jax train --config=configs/demo.py --workdir=runs/demo
  transformer-jax train --config=configs/text.py --workdir=runs/mine --config.data.source=a.en --config.data.target=a.de
  transformer-jax train --config=configs/text.py --workdir=runs/finer --init-from=runs/mine ...

With --init-from the model starts with another run's weights, architecture (model.*) and tokenizers, whatever the config
file says; options on the command line still count.

Everything about the run is in its folder: config.json, versions.json, metrics.jsonl, tensorboard/, checkpoints/.
SIGTERM, SIGUSR1, SIGHUP or Ctrl-C saves and ends, and a later one ends at once. Exit status: 0 finished, 75 saved and
not finished, 1 failed, 2 bad input.
"""

import argparse
import dataclasses
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformer_jax.commands import configuration
from transformer_jax.commands.arguments import WEIGHTS, add_accept_changed_code, add_run, at_least, path, refuse_alone
from transformer_jax.config import ExperimentConfig, ModelConfig
from transformer_jax.errors import EXIT_UNFINISHED
from transformer_jax.files.progress import logged, tell
from transformer_jax.files.remote import name_of


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(prints_results=False)
    configuration.add_arguments(parser)
    add_run(parser)
    about = "a run, or an exported or imported folder, whose weights, model and tokenizers a new run starts with"
    parser.add_argument("--init-from", type=path, metavar="OTHER", help=about)
    parser.add_argument("--init-weights", type=path, metavar="WHICH", help=f"of OTHER: {WEIGHTS}")
    add_accept_changed_code(parser, "resume the run")
    about = "fail if RUN has no checkpoint (for example because its file system is not mounted)"
    parser.add_argument("--must-resume", action="store_true", help=about)

    looking = parser.add_argument_group("debugging and profiling", "docs/performance.md")
    about = "trace STEPS steps from step START (counted from 1) into RUN/profile (TensorBoard, Perfetto)"
    looking.add_argument("--profile", type=span, metavar="START:STEPS", help=about)
    about = "stop at the first non-finite gradient, and name the line of code that it comes from"
    looking.add_argument("--debug-nans", action="store_true", help=about)
    about = "detected on SLURM, TPU pods, Kubernetes, Open MPI; elsewhere give these to each process (docs/scaling.md)"
    processes = parser.add_argument_group("several processes", about)
    processes.add_argument("--coordinator", metavar="HOST:PORT", help="the host of process 0, and a free port there")
    processes.add_argument("--processes", type=int, metavar="N", help="number of processes; 1 = do not look for others")
    processes.add_argument("--process-id", type=int, metavar="I", help="number of this process, from 0")


def run(arguments: argparse.Namespace) -> int:
    refuse_alone(arguments, "init_from", "init_weights")
    experiment = configuration.load(arguments.config, arguments.overrides)
    params = None

    # Slow to import: --help and a mistyped option should not wait.
    from transformer_jax.experiment import train_run
    from transformer_jax.processes.distributed import joined, processes
    from transformer_jax.runs.folder import RunFolder

    workdir = Path(arguments.workdir)
    flags = (arguments.coordinator, arguments.processes, arguments.process_id)
    with (
        joined(*flags, experiment.mesh, lambda: what_must_agree(arguments, experiment)),
        logged(workdir / "logs" / f"process-{processes().number}.txt", after=workdir / "metrics.jsonl"),
    ):
        if arguments.init_from is not None:
            experiment, params = initialised(arguments)
        debugging = None
        if arguments.profile or arguments.debug_nans:
            from transformer_jax.training.debugging import Debugging

            debugging = Debugging(arguments.profile, arguments.debug_nans)
        folder = RunFolder(
            arguments.workdir,
            processes().is_first,
            arguments.accept_changed_code,
            init_from=arguments.init_from and str(Path(arguments.init_from).absolute()),
            must_resume=arguments.must_resume,
        )
        ending = train_run(experiment, folder, params, debugging)
        if ending.final and processes().is_first:
            tell(f"next: transformer-jax evaluate --workdir={shlex.quote(name_of(arguments.workdir))}")
    return 0 if ending.final else EXIT_UNFINISHED


def what_must_agree(arguments: argparse.Namespace, experiment: ExperimentConfig) -> dict[str, Any]:
    """What is the same in all processes of a run: software, flags, options, custom code. Paths may differ."""
    from transformer_jax.runs.folder import facts_of

    names = ("init_weights", "accept_changed_code", "must_resume", "profile", "debug_nans")
    flags = {f"--{name.replace('_', '-')}": getattr(arguments, name) for name in names}
    return {**facts_of(experiment), **flags, "--init-from": arguments.init_from is not None}


def span(text: str) -> tuple[int, int]:
    """START:STEPS, both at least 1."""
    numbers = text.split(":")
    if len(numbers) != 2:
        raise argparse.ArgumentTypeError(f"{text!r}: must be START:STEPS, as in 50:5")
    start, steps = map(at_least(1), numbers)
    return start, steps


def initialised(arguments: argparse.Namespace) -> tuple[ExperimentConfig, Any]:
    """The experiment with another run's model and tokenizers, and that run's parameters.

    A run that is resumed has them itself: the other one may have been deleted.
    """
    from transformer_jax.data.prepared import MANIFEST, Prepared
    from transformer_jax.processes.distributed import processes
    from transformer_jax.runs.folder import INIT_FROM, RunFolder
    from transformer_jax.translation.load import read_weights

    def loaded(model: ModelConfig, tokenizers: Mapping[str, Path]) -> ExperimentConfig:
        files = {side: str(path.absolute()) for side, path in tokenizers.items()}
        data = {"tokenizer_file": files["source"], "target_tokenizer_file": files.get("target")}
        replaced = {"model": dataclasses.asdict(model), "data": data}
        return configuration.load(arguments.config, arguments.overrides, replaced)

    folder = RunFolder(arguments.workdir)
    began_with = folder.versions().get(INIT_FROM)
    if folder.saved_steps() and began_with not in (None, str(Path(arguments.init_from).absolute())):
        tell(f"warning: --init-from={arguments.init_from} is not read: the run goes on, which began with {began_with}")
    if folder.saved_steps() and (folder.data(stored := folder.load_config()) / MANIFEST).exists():
        return loaded(stored.model, Prepared.open(folder.data(stored)).tokenizer_files), None  # resumed without OTHER
    found = read_weights(arguments.init_from, arguments.init_weights or "latest")
    experiment = loaded(found.config.model, found.tokenizers)
    rate, before = (config.optimizer.peak_rate(config.model.base_d_model) for config in (experiment, found.config))
    if experiment.optimizer.has_known_peak and rate > before / 3 and processes().is_first:
        change = f"--config.optimizer.learning_rate={before / 10:.1g}"
        tell(f"warning: --init-from: the peak learning rate is {rate:.2g}; a tenth of that model's is usual: {change}")
    return experiment, found.params
