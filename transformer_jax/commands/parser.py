"""The command-line parser: errors are one line, and suggest what a mistyped argument was meant to be."""

import argparse
import difflib
import sys
from typing import Any, NoReturn

from transformer_jax import schema
from transformer_jax.config import DecodeConfig, ExperimentConfig
from transformer_jax.errors import BadInput
from transformer_jax.shipped import PRESET


class Parser(argparse.ArgumentParser):
    """An ArgumentParser with one-line errors, which reports a mistyped flag rather than the one that is missing."""

    given: tuple[str, ...] = ()

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        self.given = tuple(args or ())
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        if "required" in message and self._subparsers is None:
            options = self._options()  # without --config. before them
            for word in self.given:
                flag, separator, _ = word.partition("=")
                if (separator and flag in options) or (
                    flag.startswith("--") and flag not in self._option_string_actions
                ):
                    raise self.unknown(word)
        raise BadInput(f"{message} (see {self.prog} --help)")

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        sys.stdout.flush()  # the output of --help and --version, while a failure can still be reported
        super().exit(status, message)

    def unknown(self, word: str) -> BadInput:
        """The error about an argument that this command does not have."""
        command = self.prog.partition(" ")[2] or self.prog
        return BadInput(f"{word}: {command} has no such argument; {self._meant(word)}")

    def _meant(self, word: str) -> str:
        """A suggestion: the nearest flag or option; --num_heads=8 must mean --config.model.num_heads=8."""
        flag, separator, value = word.partition("=")
        if flag == f"--{PRESET.rstrip(':')}" and "--config" in self._option_string_actions:
            return f"did you mean --config={PRESET}{value or 'NAME'}?"
        known: dict[str, list[str]] = {}
        for path in self._options():
            for short in {path, path.rpartition(".")[2]}:
                known.setdefault(_plain(short), []).append(f"--config.{path}{separator}{value}")
        known |= {_plain(known_flag): [known_flag] for known_flag in self._option_string_actions}
        close = (
            difflib.get_close_matches(_plain(flag), known, n=1, cutoff=0.6)
            if flag.startswith("--") or separator
            else []
        )
        if not close:
            return f"{self.prog} --help lists them"
        return f"did you mean {' or '.join(known[close[0]])}?"

    def _options(self) -> list[str]:
        """The options that --config.PATH=VALUE can set in this command."""
        if self.get_default("overrides") is None:
            return []
        if (used := self.get_default("decode_used")) is not None:
            return [f"decode.{option.path}" for option in schema.options(DecodeConfig) if option.path in used]
        return [option.path for option in schema.options(ExperimentConfig)]


def _plain(name: str) -> str:
    return name.lstrip("-").replace("-", "_").lower()
