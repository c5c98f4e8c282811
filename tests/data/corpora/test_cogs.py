"""COGS: its four splits, and the categories of the generalization set as groups."""

from transformer_jax.config import from_config_dict
from transformer_jax.data.prepare import prepare

ROWS = {
    "train.tsv": [("A rose slept .", "rose ( x _ 1 ) AND sleep . agent ( x _ 2 , x _ 1 )", "in_distribution")] * 2
    + [("shark", "LAMBDA a . shark ( a )", "primitive")],
    "dev.tsv": [("A shark slept .", "shark ( x _ 1 ) AND sleep . agent ( x _ 2 , x _ 1 )", "in_distribution")],
    "test.tsv": [("shark", "LAMBDA a . shark ( a )", "in_distribution")],
    "gen.tsv": [("A .", "( )", "cp_recursion"), ("A rose .", "AND", "prim_to_subj_common"), (".", "x", "pp_recursion")],
}


def test_the_generalization_set_is_a_test_set_with_groups(tmp_path):
    for name, rows in ROWS.items():
        (tmp_path / name).write_text("".join("\t".join(row) + "\n" for row in rows))
    data = {"corpus": "cogs", "corpus_folder": str(tmp_path), "tokenizer": "words"}
    config = from_config_dict({"data": data})
    prepared = prepare(config, tmp_path / "data")
    assert prepared.splits == ("train", "valid", "test", "test_gen") and len(prepared.pairs("train")) == 3
    assert prepared.texts("valid") == tuple([text] for text in ROWS["dev.tsv"][0][:2])
    assert prepared.texts("test_gen")[1] == ["( )", "AND", "x"]
    assert prepared.groups("test") is prepared.groups("train") is None
    assert prepared.clusters("test_gen") == ["cp_recursion", "prim_to_subj_common", "pp_recursion"]
    assert prepared.groups("test_gen") == [
        {"category": "cp_recursion", "kind": "structural"},
        {"category": "prim_to_subj_common", "kind": "lexical"},
        {"category": "pp_recursion", "kind": "structural"},
    ]
    (tmp_path / "gen.tsv").unlink()
    assert prepare(config, tmp_path / "data").groups("test_gen") == prepared.groups("test_gen")  # not read again
