"""Prints sample pairs as the table of docs/grammar.md: `python -m tests.support.grammar_samples`."""

from __future__ import annotations

from transformer_jax.data.corpora.tasks import generate

_SAMPLES = (("test", 34), ("test_long", 6), ("test_compositional", 10))


def sample_table() -> str:
    """Fifty pairs of the three test splits, seed 0, as a Markdown table."""
    rows = ["| English | German |", "|---|---|"]
    for split, size in _SAMPLES:
        rows.append(f"| *{split}* | |")
        rows += [f"| {source} | {target} |" for source, target in generate("grammar", split, size=size, seed=0)]
    return "\n".join(rows)


if __name__ == "__main__":
    print(sample_table())
