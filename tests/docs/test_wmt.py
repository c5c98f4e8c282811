"""The paper's own four configs, and what docs/wmt.md says of them."""

import re

import pytest

from tests.support.places import ROOT
from transformer_jax import cli
from transformer_jax.commands import configuration
from transformer_jax.model.size import parameter_counts

DOCUMENT = (ROOT / "docs/wmt.md").read_text()
# As the paper has them: d_model, d_ff, heads, dropout, vocabulary, updates, checkpoints averaged; the rest is shared.
PAPER = {
    "base": (512, 2048, 8, 0.1, 37_000, 100_000, 5),
    "big": (1024, 4096, 16, 0.3, 37_000, 300_000, 20),
    "base_enfr": (512, 2048, 8, 0.1, 32_000, 100_000, 5),
    "big_enfr": (1024, 4096, 16, 0.1, 32_000, 300_000, 20),
}
by_name = pytest.mark.parametrize("name", PAPER)


def loaded(name, *changes):
    return configuration.load(str(ROOT / f"configs/{name}.py"), list(changes))


@by_name
def test_the_config_is_the_papers(name):
    config = loaded(name)
    model, optimizer, data, decode = config.model, config.optimizer, config.data, config.decode
    sizes = model.d_model, model.d_ff, model.num_heads, model.dropout, model.vocab_size
    assert (*sizes, config.train.steps, config.train.keep_latest) == PAPER[name]
    assert (model.num_encoder_layers, model.num_decoder_layers, model.key_size, model.value_size) == (6, 6, 64, 64)
    assert (model.norm, model.activation, model.positions) == ("post", "relu", "sinusoidal")
    assert (model.tie_embeddings, model.scale_embeddings, model.target_vocab_size) == ("all", True, None)
    assert (model.attention_dropout, model.activation_dropout, config.train.label_smoothing) == (0, 0, 0.1)
    assert (optimizer.name, optimizer.beta1, optimizer.beta2, optimizer.epsilon) == ("adam", 0.9, 0.98, 1e-9)
    assert (optimizer.schedule, optimizer.warmup_steps, optimizer.learning_rate) == ("inverse_sqrt", 4000, None)
    assert (data.tokens_per_batch, data.tokenizer) == (25_000, "bpe")
    assert (decode.beam, decode.length_penalty, decode.alpha, decode.extra_length) == (4, "gnmt", 0.6, 50)
    assert config.train.checkpoint_every == config.train.eval_every  # the best checkpoint is one that was validated


@by_name
def test_it_reads_wmt_14_from_english(name):
    data = loaded(name).data
    other = "fr" if name.endswith("enfr") else "de"
    assert (data.corpus, data.source_language, data.target_language) == (f"wmt14_translate/{other}-en", "en", other)


@by_name
def test_the_documents_table_of_the_four(name):
    (row,) = re.findall(rf"^\| `configs/{name}\.py` \|.*$", DOCUMENT, re.MULTILINE)
    _, language, _, *cells = (cell.strip() for cell in row.strip("|").split("|"))
    config = loaded(name)
    train, parameters = config.train, sum(parameter_counts(config.model).values())
    numbers = (config.model.vocab_size, parameters, config.model.dropout, train.steps)
    message = [f"{number:,}" for number in (*numbers, train.checkpoint_every, train.keep_latest)]
    assert cells[:-1] == message
    assert language == {"fr": "French", "de": "German"}[config.data.target_language]


def test_what_an_update_costs_is_what_inspect_says(capsys):
    assert cli.main(["inspect", f"--config={ROOT / 'configs/base.py'}"]) == 0
    (cost,) = re.findall(r"batch of 25,000 \+ 25,000 tokens (.* TFLOP)", capsys.readouterr().out)
    assert f"An update of base has {cost} " in DOCUMENT
