"""Inflection: characters and tags, and what of a test example was seen in the training file that is used."""

from tests.support.prepared_data import decoded
from transformer_jax.config import from_config_dict
from transformer_jax.data.prepare import prepare

ROWS = {
    "xyz_large.train": [("gehen", "ging", "V;PST;3"), ("sehen", "seht ihr", "V;PRS;2"), ("Tag", "Tage", "N;PL")],
    "xyz_small.train": [("gehen", "ging", "V;PST;3")],
    "xyz.dev": [("gehen", "geht ", "V;PRS;2")],
    "xyz.gold": [("gehen", "ging", "V;PST;3"), ("Tag", "sah", "V;PRS"), ("taten", "tatet", "V;PRS;2"), ("a", "b", "X")],
}


def test_a_lemma_and_features_become_a_form(tmp_path):
    for name, rows in ROWS.items():
        (tmp_path / name).write_text("".join("\t".join(row) + "\n" for row in rows))
    task = {"language": "xyz", "size": "large"}
    data = {"corpus": "inflection", "corpus_folder": str(tmp_path), "tokenizer": "characters_and_tags", "task": task}
    prepared = prepare(from_config_dict({"data": data}), tmp_path / "data")
    ids = prepared.pairs("train").source_tokens[: prepared.pairs("train").source_offsets[1]].tolist()
    assert prepared.tokenizer.pieces(ids) == ["g", "e", "h", "e", "n", "\tV", ";PST", ";3"]
    assert decoded(prepared, "train") == [(f"{lemma}\t{tags}", form) for lemma, form, tags in ROWS["xyz_large.train"]]
    assert prepared.texts("valid") == (["gehen\tV;PRS;2"], ["geht"])
    assert prepared.clusters("test") == ["gehen", "Tag", "taten", "a"]
    seen = [("seen", "seen"), ("seen", "unseen"), ("unseen", "seen"), ("unseen", "unseen")]
    assert prepared.groups("test") == [{"lemma": lemma, "features": features} for lemma, features in seen]
    small = {**data, "task": {**task, "size": "small"}}
    groups = prepare(from_config_dict({"data": small}), tmp_path / "small").groups("test")
    assert [(each["lemma"], each["features"]) for each in groups] == [seen[0], seen[3], seen[3], seen[3]]
