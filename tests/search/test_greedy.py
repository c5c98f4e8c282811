"""Greedy search, written again slowly."""

from tests.support.searches import EOS, LENGTH, A, B, assert_found, greedy, log_probability, node_of, tables_of


def test_greedy_takes_the_most_probable_token_until_the_end():
    tables = tables_of(9)
    result = greedy(tables, length_penalty="average", alpha=1.0)
    for sentence, table in enumerate(tables):
        target = ()
        while EOS not in target:
            logits = table[node_of(target)]
            target += (
                EOS if len(target) == LENGTH - 1 else max((EOS, A, B), key=lambda token, row=logits: row[token]),
            )
        assert_found(result, sentence, [(log_probability(table, target) / len(target), target)])
