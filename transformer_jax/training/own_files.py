"""The files of a user's own that a run's config names, found again when one is no longer where its training began."""

import os
from pathlib import Path
from typing import Any

from transformer_jax import config as configuration
from transformer_jax import schema
from transformer_jax.config import ExperimentConfig
from transformer_jax.errors import BadInput
from transformer_jax.extension import file_of
from transformer_jax.schema import is_address


def with_files_found(config: ExperimentConfig, config_file: Path, started_in: str | None) -> ExperimentConfig:
    """The config with every file where it is: below the directory one is in, else below that of the training's start.

    Without the parts of its model a run is of no use, so that their files must be there. Of the others one may do
    without, and who cannot says so.
    """
    values: dict[str, Any] = schema.to_dict(config)
    moved = False
    for option in schema.options(ExperimentConfig):
        given = schema.value_at(config, option.path)
        found = (
            tuple(_found(item, started_in) for item in given) if isinstance(given, tuple) else _found(given, started_in)
        )
        if found != given:
            schema.put(values, option.path, found)
            moved = True
        elif option.path.startswith("model.parts.") and _is_missing(given):
            where = " nor in ".join(str(place) for place in dict.fromkeys((os.getcwd(), started_in)) if place)
            raise BadInput(
                f"{config_file}: {option.path} = {given}: there is no such file in {where}; put it where the config "
                "names it, or go to where it is"
            )
    return configuration.from_config_dict(values) if moved else config


def _found(given: Any, started_in: str | None) -> Any:
    """An address with its file where it is, if that is where the training was started and not here."""
    if started_in is None or not _is_missing(given):
        return given
    there = os.path.join(started_in, given)
    return there if Path(file_of(there)).is_file() else given


def _is_missing(given: Any) -> bool:
    return isinstance(given, str) and is_address(given) and not Path(file_of(given)).is_file()
