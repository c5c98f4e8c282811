"""The custom code of a run: recorded and copied into its folder, compared on resume, found for inference.

RUN/code/code.json        which code the run was trained with, and from which step; one version, unless it was changed
RUN/code/DIGEST/mine.py   a copy of a custom file, with the Python files that its FILES name
"""

from __future__ import annotations

import dataclasses
import itertools
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TypedDict

from transformer_jax import schema
from transformer_jax.config import ExperimentConfig, with_addresses
from transformer_jax.errors import BadInput
from transformer_jax.extension import (
    PREFIX,
    CustomCode,
    copies,
    file_of,
    imported_files,
    named_files,
    read_code,
    source_digest,
)
from transformer_jax.files.atomic import write_atomically, write_record
from transformer_jax.files.paths import inside
from transformer_jax.files.progress import tell
from transformer_jax.files.record import read_typed

# Custom code by what uses it: "train.loss:z_loss".
Code = Mapping[str, CustomCode]


def code_of(addresses: Iterable[tuple[str, str]]) -> Code:
    """The custom code of options and their addresses, as it is now."""
    return {_key(option, address): read_code(address) for option, address in addresses}


def changes(old: Code, new: Code) -> list[str]:
    """One line for each use of custom code that both have and that differs."""
    return [
        f"{key} ({new[key].main}): {', '.join(names)} changed"
        for key in sorted(old.keys() & new.keys())
        if (names := new[key].changed_since(old[key]))
    ]


class StoredCode(TypedDict):
    main: str
    source: str
    files: dict[str, str]


class StoredVersion(TypedDict):
    step: int
    code: dict[str, StoredCode]


class StoredVersions(TypedDict):
    """The content of code.json."""

    versions: list[StoredVersion]


class CodeSnapshots:
    """RUN/code: the record and the copies."""

    def __init__(self, run: Path):
        self.path = run / "code"
        self.record = self.path / "code.json"

    def versions(self) -> list[tuple[int, Code]]:
        """The code from each step on, oldest first; none if no custom code was recorded."""
        stored = read_typed(self.record, StoredVersions)["versions"] if self.record.is_file() else []
        return [(item["step"], {key: self._read(code) for key, code in item["code"].items()}) for item in stored]

    def latest(self) -> Code:
        versions = self.versions()
        return versions[-1][1] if versions else {}

    def digests(self, addresses: Iterable[tuple[str, str]]) -> dict[str, str]:
        """The digest of the code at each address, as the run was last trained with it."""
        latest = self.latest()
        keys = {address: _key(option, address) for option, address in addresses}
        return {address: latest[key].digest for address, key in keys.items() if key in latest}

    def notes(self) -> list[str]:
        """A warning if the results were made by several versions of the code."""
        return [
            f"custom code was changed at step {step:,}: {line}"
            for (_, before), (step, after) in itertools.pairwise(self.versions())
            for line in changes(before, after)
        ]

    def keep(
        self, addresses: Iterable[tuple[str, str]], code: Code, step: int, noted: Iterable[tuple[str, str]]
    ) -> None:
        """Records and copies the code that a run uses from a step on. Only what is in `noted` makes a new version."""
        known, names = self.versions(), [_key(*use) for use in noted]
        versions = [version for version in known if version[0] < step]
        last = versions[-1][1] if versions else {}
        if versions and all(code[name] == last.get(name) for name in names):
            versions[-1] = versions[-1][0], code
        elif code:
            versions.append((step, code))
        if versions == known:
            return
        for option, address in addresses:
            file, folder = Path(file_of(address)), self.path / code[_key(option, address)].digest[:12]
            for name, original in {**_modules(file), Path(file.name): file}.items():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                write_atomically(folder / name, original.read_bytes())
        stored = [
            {"step": since, "code": {key: dataclasses.asdict(each) for key, each in used.items()}}
            for since, used in versions
        ]
        write_record(self.record, {"versions": stored})

    def found(self, config: ExperimentConfig, config_file: Path, started_in: str | None) -> ExperimentConfig:
        """The config with the address of each file that has the recorded code: in the current directory, in the one
        where training started, or the copy.

        A model without its modules is an error. Other code may be missing: what needs it reports that.
        """
        recorded = self.latest()

        def find(option: schema.Option, address: str) -> str:
            places = dict.fromkeys([address, os.path.join(started_in or "", address)])
            existing = [place for place in places if Path(file_of(place)).is_file()]
            code = recorded.get(_key(option.path, address))
            for place in existing:
                # A metric may be edited after the training: each score has its digest.
                if code is None or option.affects == "output" or code.is_at(place):
                    return place
            why = "has changed since the training" if existing else "is not there"
            if code is not None and (file := self.path / code.digest[:12] / code.main).is_file():
                copy = f"{file}:{address.rpartition(':')[2]}"
                if source_digest(copy) == code.source:
                    if any(name.endswith(".py") for name in code.files):
                        copies.add(file.parent.resolve())
                    tell(f"warning: {file_of(address)} {why}; {option.path} uses the run's copy, {copy}")
                    return copy
            if option.path.startswith("model.parts."):
                raise BadInput(f"{config_file}: {option.path} = {address}: {why}, and RUN/code has no copy of it")
            return address

        return with_addresses(config, find)

    def _read(self, stored: StoredCode) -> CustomCode:
        return CustomCode(inside(self.path, stored["main"], self.record).name, stored["source"], stored["files"])


def _modules(file: Path) -> dict[Path, Path]:
    """The Python files in the FILES of a custom file, and the imported rest of their packages, by where an import
    looks for them."""
    named = [place for place in named_files(str(file)).values() if place.suffix == ".py"]
    names = {place: name for name, place in imported_files().items() if not name.startswith(PREFIX)}
    packages = {names[place.resolve()].partition(".")[0] for place in named if place.resolve() in names}
    found = {}
    for place in named:
        if place.resolve() not in names:
            beside = Path(os.path.relpath(place, file.parent))
            found[Path(place.name) if ".." in beside.parts else beside] = place
    for place, name in names.items():
        if name.partition(".")[0] in packages:
            module = Path(*name.split("."))
            found[module / place.name if place.stem == "__init__" else module.with_suffix(place.suffix)] = place
    return found


def _key(option: str, address: str) -> str:
    return f"{option}:{address.rpartition(':')[2]}"
