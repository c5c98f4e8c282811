"""The three sections of the corpus: streams, lengths, held-out combinations, documented samples."""

from __future__ import annotations

import ast
import sys
from itertools import islice
from pathlib import Path

import pytest

from transformer_jax import grammar
from transformer_jax.grammar import MAX_TOKENS, CorpusSection, german, sentence_pairs
from transformer_jax.grammar.corpus import HELD_OUT, Construction, dictionary_form, is_held_out, pairs
from transformer_jax.grammar.lexicon import ADJECTIVES, VERBS
from transformer_jax.grammar.tree import Sentence


@pytest.mark.parametrize("section", list(CorpusSection))
def test_sections_are_streams_that_only_grow(section: CorpusSection) -> None:
    assert list(islice(sentence_pairs(section, "x"), 40))[:15] == list(islice(sentence_pairs(section, "x"), 15))
    assert next(sentence_pairs(section, "x")) != next(sentence_pairs(section, "y"))


def test_held_out_words_and_constructions_are_common_apart(sampled: list[tuple[Sentence, str, str]]) -> None:
    kept = [sentence for sentence, _, _ in sampled if not is_held_out(sentence)]
    assert 0.6 * len(sampled) < len(kept) < len(sampled)
    seen = [pair for sentence in kept for pair in pairs(sentence)]
    assert not HELD_OUT & set(seen)
    for construction in Construction:
        assert sum(found is construction for _, found in seen) > 100
    text = " ".join(german.render(sentence) for sentence in kept)
    verbs = {dictionary_form(word.german): word.german for word in VERBS}
    stems = {word.german: word.stem for word in ADJECTIVES if word.stem}
    for word, _ in HELD_OUT:
        forms = (verbs[word].third, verbs[word].past) if word in verbs else (stems.get(word, word),)
        assert sum(text.count(f" {form}") for form in forms) > 4, word


def test_length_limit_is_on_both_sides() -> None:
    for section, is_long in ((CorpusSection.COMMON, False), (CorpusSection.LONG, True)):
        for pair in islice(sentence_pairs(section, "length"), 30):
            assert all((len(text.split()) > MAX_TOKENS) is is_long for text in pair)


def test_the_standard_library_suffices() -> None:
    for path in Path(grammar.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            for name in names:
                assert name.split(".")[0] in sys.stdlib_module_names or name.startswith("transformer_jax.grammar")
