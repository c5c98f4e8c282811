"""What a prepared corpus depends on: the same recipe gives the same bytes, and another one is told apart in words."""

from __future__ import annotations

import dataclasses
import hashlib
from pathlib import Path
from typing import Any

from transformer_jax.config import ExperimentConfig
from transformer_jax.errors import BadInput


def recipe_of(config: ExperimentConfig, corpus_identity: dict[str, Any]) -> dict[str, Any]:
    """The corpus and exactly those options that have a part in preparing it, by their full names."""
    data = config.data
    cleaning = {f"data.cleaning.{name}": value for name, value in dataclasses.asdict(data.cleaning).items()}
    held_out = {f"data.{name}": getattr(data, name) for name in ("valid_size", "test_size", "seed")}
    return {"corpus": corpus_identity, "options": {**cleaning, **held_out, **_tokenizer_options(config)}}


def differences(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """Every difference between two recipes, in words."""
    found = []
    if old["corpus"] != new["corpus"]:
        found += _corpus_differences(old["corpus"], new["corpus"])
    names = dict.fromkeys([*old["options"], *new["options"]])
    for name in names:
        before, now = (recipe["options"].get(name, "left to others") for recipe in (old, new))
        if before != now:
            found.append(f"{name} was {before} and is now {now}")
    return found


def _corpus_differences(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    if old.keys() != new.keys():
        return [f"the corpus was {_named(old)} and is now {_named(new)}"]
    if "files" not in old:
        changed = [name for name in old if old[name] != new[name]]
        return [f"{name} of the corpus was {old[name]} and is now {new[name]}" for name in changed]
    splits = dict.fromkeys([*old["files"], *new["files"]])
    found = [f"the {split} text has changed" for split in splits if old["files"].get(split) != new["files"].get(split)]
    if old["keys"] != new["keys"]:
        found.append(f"the keys of a .jsonl line were {', '.join(old['keys'])} and are now {', '.join(new['keys'])}")
    return found


def _named(identity: dict[str, Any]) -> str:
    return "files" if "files" in identity else ", ".join(f"{name} = {value}" for name, value in identity.items())


def _tokenizer_options(config: ExperimentConfig) -> dict[str, Any]:
    data, model = config.data, config.model
    if data.tokenizer_file is not None:
        if data.target_tokenizer_file is None and model.target_vocab_size is not None:
            raise BadInput(
                f"model.target_vocab_size = {model.target_vocab_size}: asks for a second vocabulary, but "
                "data.tokenizer_file gives only one; give data.target_tokenizer_file, or set the size to none"
            )
        files = {"tokenizer_file": data.tokenizer_file, "target_tokenizer_file": data.target_tokenizer_file}
        return {f"data.{name}": _checksum(path) for name, path in files.items() if path is not None}
    if data.tokenizer in ("words", "characters"):
        # Their size is what the text has; it is no option.
        vocabularies = "one" if model.target_vocab_size is None else "two"
        return {"data.tokenizer": data.tokenizer, "vocabularies": vocabularies}
    names = ("tokenizer", "normalization", "byte_fallback", "character_coverage", "tokenizer_sentences")
    sizes = {f"model.{name}": getattr(model, name) for name in ("vocab_size", "target_vocab_size")}
    return {**{f"data.{name}": getattr(data, name) for name in names}, **sizes}


def _checksum(path: str) -> str:
    if not Path(path).is_file():
        raise BadInput(f"{path}: there is no such tokenizer file")
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()
