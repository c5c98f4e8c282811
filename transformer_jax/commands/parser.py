"""The command-line parser: argparse, with errors in one line that suggest what a mistyped argument was meant to be."""

import argparse
import difflib
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from transformer_jax import schema
from transformer_jax.config import DecodeConfig, ExperimentConfig
from transformer_jax.errors import BadInput
from transformer_jax.shipped import PRESET


class Parser(argparse.ArgumentParser):
    """An ArgumentParser whose errors are `BadInput`. A mistyped argument is reported before one that is missing."""

    def parse_known_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        self.words = list(args or ())
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        if "required" in message and self._subparsers is None:
            for word in self.words:
                flag = word.partition("=")[0]
                if flag in self._options() or (word.startswith("--") and flag not in self._option_string_actions):
                    raise self.unknown(word)
        raise BadInput(f"{message} (see {self.prog} --help)")

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        sys.stdout.flush()  # the output of --help and --version, while a failure can still be reported
        super().exit(status, message)

    def unknown(self, word: str) -> BadInput:
        """The error about an argument that this command does not have, with what it may mean."""
        flag, separator, value = word.partition("=")
        command = self.prog.partition(" ")[2] or self.prog
        if flag == f"--{PRESET.rstrip(':')}":
            meant = [f"--config={PRESET}{value or 'NAME'}"]
        else:
            meant = self._near(flag, f"{separator}{value}") if flag.startswith("--") or separator else []
        hint = f"did you mean {' or '.join(meant)}?" if meant else f"{self.prog} --help lists them"
        return BadInput(f"{word}: {command} has no such argument; {hint}")

    def _near(self, flag: str, value: str) -> list[str]:
        """The nearest flag, or the nearest options: --num_heads=8 must mean --config.model.num_heads=8."""
        known: dict[str, list[str]] = {}
        for path in self._options():
            for name in {path, path.rpartition(".")[2]}:
                known.setdefault(_plain(name), []).append(f"--config.{path}{value}")
        known |= {_plain(name): [name] for name in self._option_string_actions}
        close = difflib.get_close_matches(_plain(flag), known, n=1)
        return known[close[0]] if close else []

    def _options(self) -> list[str]:
        """The options that --config.PATH=VALUE can set in this command."""
        if self.get_default("overrides") is None:
            return []
        if (used := self.get_default("decode_used")) is not None:
            return [f"decode.{option.path}" for option in schema.options(DecodeConfig) if option.path in used]
        return [option.path for option in schema.options(ExperimentConfig)]


def _plain(name: str) -> str:
    return name.lstrip("-").replace("-", "_").lower()
