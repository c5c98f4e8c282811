"""The custom code of a run: recorded and copied into its folder, compared on resume, found for inference.

RUN/code/code.json        which code the run was trained with, and from which step; one version, unless it was changed
RUN/code/DIGEST/mine.py   a copy of a custom file, with the modules that it imports
"""

from __future__ import annotations

import dataclasses
import itertools
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from transformer_jax import schema
from transformer_jax.code_digest import CustomCode, code_digest, module_digests, module_files, read_code
from transformer_jax.config import ExperimentConfig, with_addresses
from transformer_jax.errors import BadInput
from transformer_jax.extension import file_of
from transformer_jax.files.atomic import write_atomically, write_record
from transformer_jax.files.progress import tell
from transformer_jax.files.record import plain_name, read_record


@dataclasses.dataclass(frozen=True)
class Version:
    """The custom code that a run was trained with from a step on, by what uses it: "train.loss:z_loss"."""

    step: int
    code: Mapping[str, CustomCode]


def code_of(addresses: Iterable[tuple[str, str]]) -> dict[str, CustomCode]:
    """The custom code of options and their addresses, as it is now."""
    return {_key(option, address): read_code(file_of(address)) for option, address in addresses}


def changes(old: Mapping[str, CustomCode], new: Mapping[str, CustomCode]) -> list[str]:
    """One line for each use of custom code that both have and that differs."""
    lines = []
    for key in old.keys() & new.keys():
        if names := new[key].changed_since(old[key]):
            lines.append(f"{key} ({new[key].main}): {', '.join(names)} changed")
    return sorted(lines)


class CodeSnapshots:
    """RUN/code: the record and the copies."""

    def __init__(self, run: Path):
        self.path = run / "code"
        self.record = self.path / "code.json"

    def versions(self) -> list[Version]:
        """Oldest first; none if no custom code was recorded."""
        if not self.record.is_file():
            return []
        try:
            return [
                Version(int(item["step"]), {key: self._read(stored) for key, stored in item["code"].items()})
                for item in read_record(self.record)["versions"]
            ]
        except (KeyError, TypeError, ValueError, AttributeError):
            raise BadInput(f"{self.record}: is damaged: it is not a record of custom code") from None

    def _read(self, stored: dict[str, Any]) -> CustomCode:
        plain_name(stored["main"], self.record)
        return CustomCode(**stored)

    def latest(self) -> Mapping[str, CustomCode] | None:
        versions = self.versions()
        return versions[-1].code if versions else None

    def notes(self) -> list[str]:
        """What a reader of the results must know: that they were made by several versions of the code."""
        versions = self.versions()
        notes = []
        if versions and versions[0].step:
            notes.append(f"the code of the steps before {versions[0].step:,} was not recorded")
        for before, after in itertools.pairwise(versions):
            notes += [
                f"custom code was changed at step {after.step:,}: {line}" for line in changes(before.code, after.code)
            ]
        return notes

    def keep(self, addresses: Iterable[tuple[str, str]], code: Mapping[str, CustomCode], step: int) -> None:
        """Records and copies the code that a run uses from a step on."""
        versions = [version for version in self.versions() if version.step < step]
        if code == (versions[-1].code if versions else {}):
            return
        self.path.mkdir(exist_ok=True)
        for option, address in addresses:
            self._copy(file_of(address), code[_key(option, address)])
        stored = [
            {"step": version.step, "code": {key: dataclasses.asdict(code) for key, code in version.code.items()}}
            for version in [*versions, Version(step, code)]
        ]
        write_record(self.record, {"versions": stored})

    def _copy(self, file: str, code: CustomCode) -> None:
        for name, original in module_files(file).items():
            content = original.read_bytes()
            if code_digest(content) != code.modules.get(name):
                raise BadInput(f"{original}: was edited while the run started; start it again")
            copy = self._folder(code) / name
            copy.parent.mkdir(parents=True, exist_ok=True)
            with write_atomically(copy) as opened:
                opened.write(content)

    def _folder(self, code: CustomCode) -> Path:
        return self.path / code.digest[:12]

    def found(self, config: ExperimentConfig, config_file: Path, started_in: str | None) -> ExperimentConfig:
        """The config with the address of each file that has the recorded code: in the current directory, in the one
        where training started, or the copy.

        A run is of no use without the modules of its model. Other code may be missing: what needs it reports that.
        """
        recorded = self.latest() or {}

        def find(option: schema.Option, address: str) -> str:
            places = dict.fromkeys([address, os.path.join(started_in or "", address)])
            existing = [place for place in places if Path(file_of(place)).is_file()]
            code = recorded.get(_key(option.path, address))
            for place in existing:
                # A metric may be edited after the training: each score has its digest.
                if code is None or option.affects == "output" or module_digests(file_of(place)) == code.modules:
                    return place
            if code is not None and (copy := self._folder(code) / code.main).is_file():
                if module_digests(copy) != code.modules:
                    raise BadInput(f"{copy}: is not what was recorded, or imports another module than was recorded")
                why = "has changed since the training" if existing else "is not there"
                tell(f"warning: {file_of(address)} {why}; {option.path} is the copy that the run has kept, {copy}")
                return f"{copy}:{address.rpartition(':')[2]}"
            if option.path.startswith("model.parts."):
                where = " nor in ".join(str(place) for place in dict.fromkeys((os.getcwd(), started_in)) if place)
                why = "has changed since the training" if existing else f"there is no such file in {where}"
                raise BadInput(
                    f"{config_file}: {option.path} = {address}: {why}; "
                    "put the file of the training where the config names it"
                )
            return address

        return with_addresses(config, find)


def _key(option: str, address: str) -> str:
    return f"{option}:{address.rpartition(':')[2]}"
