"""Synthetic sweep folders as the launcher leaves them: quick to write, with scores like those of real runs."""

import csv
import functools
import hashlib
import json
import math

import numpy as np

from tests.support.bleu import bleu_of_statistics
from transformer_jax.evaluation import bleu_statistics
from transformer_jax.report.write import write_report
from transformer_jax.runs.records import texts_sha256

WORDS = (
    *("der", "die", "das", "Hund", "Katze", "liest", "Buch", "alt", "neu", "im", "Haus"),
    *("sieht", "kennt", "rot", "und", "nicht", "sehr", "Wald", "See", "Berg", "über", "für"),
)
SIZES = {"num_encoder_layers": 3, "num_decoder_layers": 3, "d_model": 64, "d_ff": 256, "num_heads": 8}
BASE = {
    "model": {**SIZES, "d_k": None, "d_v": None, "dropout": 0.1, "positions": "sinusoidal"},
    "train": {"steps": 1000, "label_smoothing": 0.1},
}


def variant(name, quality=0.0, parameters=200_000, **facts):
    """A variant; the higher its `quality`, the more words it translates right."""
    slug = "".join(letter if letter.isalnum() else "-" for letter in name) or "x"
    known = {"name": name, "slug": slug, "parameters": parameters, "training_flops": parameters * 1e7}
    return {
        **known,
        "changes": {},
        "group": "",
        "note": "",
        "published": {},
        "baseline": None,
        "same_as": None,
        "quality": quality,
        **facts,
    }


def _heads(number, quality, **published):
    return variant(f"A h={number}", quality, changes={"model.num_heads": number}, group="A: heads", published=published)


LAYERS = ("model.num_encoder_layers", "model.num_decoder_layers")
VARIANTS = (
    variant("base", published={"perplexity": 4.92, "bleu": 25.8, "parameters": 65e6}),
    _heads(1, -1.0, perplexity=5.29, bleu=24.9),
    _heads(4, 0.0, perplexity=5.0, bleu=25.5),
    variant("C N=2", -0.2, 150_000, group="C: size", changes=dict.fromkeys(LAYERS, 2)),
    variant("C d_ff=512", 0.3, 300_000, group="C: size", changes={"model.d_ff": 512}, note="here d_ff = 512"),
)


def make_sweep(path, variants=VARIANTS, seeds=(0, 1, 2), tests=("test",), sentences=40, **definition):
    """A sweep all of whose runs are finished."""
    path.mkdir(parents=True, exist_ok=True)
    facts = [{key: value for key, value in variant.items() if key != "quality"} for variant in variants]
    content = {
        "format": 1,
        "name": "made-up",
        "question": "What differs?",
        "scale": "demo",
        "file": "experiments/made_up.py",
        "command": ["sweep", "experiments/made_up.py", "--scale=demo"],
        "baseline": variants[0]["name"],
        "base": BASE,
        "seeds": list(seeds),
        "tests": list(tests),
        "notes": ["Nothing here was trained."],
        "analyses": {},
        "primary": None,
        "margin": {},
        "tune": None,
        "together": False,
        "vary": ["initialization", "order"],
        "overrides": [],
        "only": None,
        "variants": facts,
        **definition,
    }
    write(path / "sweep.json", content)
    for variant in variants:
        for seed in seeds:
            make_run(path, variant, seed, tests, sentences)
    return path


def make_run(path, variant, seed, tests=("test",), sentences=40):
    run = path / "runs" / variant["slug"] / f"seed-{seed}"
    digest = int(hashlib.sha256(f"{variant['name']} {seed}".encode()).hexdigest()[:8], 16)
    rng = np.random.default_rng(digest)
    skill = 1.5 + variant["quality"] + 0.1 * rng.standard_normal()
    write(run / "config.json", {"data": {"directory": None}})
    write(run / "versions.json", {"python": "3.11.7", "jax": "0.10.2", "command": "worker", "init_from": None})
    write(run / "attempt.json", {"state": "finished", "tries": 1, "host": "here", "pid": 1, "error": None})
    steps = range(100, 1001, 100)
    losses = {step: 4 * math.exp(-step / 300) + 2 - skill for step in steps}
    curve = [{"step": step, "loss": 2.0, "seconds": 6.0} for step in steps]
    curve += [{"step": step, "valid_loss": loss, "valid_perplexity": math.exp(loss)} for step, loss in losses.items()]
    curve.sort(key=lambda line: line["step"])
    write_text(run / "metrics.jsonl", "".join(json.dumps(line) + "\n" for line in curve))
    scores = {}
    for split in tests:
        record = evaluation(split, skill, rng, sentences)
        write(run / "translations" / f"{split}.latest.json", record)
        scores[split] = {"file": f"translations/{split}.latest.json", "bleu": record["measures"]["bleu"]["score"]}
    result = {
        "variant": variant["name"],
        "seed": seed,
        "steps": 1000,
        "target_tokens": 10**6,
        "train_seconds": 60.0 + seed,
        "tokens_per_second": 16000.0,
        "parameters": variant["parameters"],
        "learning_rate": 1e-3,
        "tests": scores,
        "training_flops": variant["training_flops"],
        "together": 1,
        "devices": "2 cpu",
        "valid": {"loss": 1.0},
    }
    write(run / "result.json", result)
    return run


@functools.cache
def texts(split, sentences):
    """Sources and references."""
    rng = np.random.default_rng(len(split))
    lines = [" ".join(rng.choice(WORDS, rng.integers(5, 12))) for _ in range(2 * sentences)]
    return tuple(zip(lines[:sentences], lines[sentences:], strict=True))


def evaluation(split, skill, rng, sentences):
    """The record of an evaluation; the skill gives the probability that a word is right."""
    references = [target for _, target in texts(split, sentences)]
    right = 1 / (1 + math.exp(-skill))
    lines = [
        " ".join(word if rng.random() < right else str(rng.choice(WORDS)) for word in reference.split())
        for reference in references
    ]
    statistics = bleu_statistics(lines, references)
    tokens = [len(reference.split()) + 1 for reference in references]
    log_probabilities = [round(count * (math.log(right) - 0.1 * abs(rng.standard_normal())), 5) for count in tokens]
    bleu = bleu_of_statistics(np.sum(statistics, axis=0))
    perplexity = math.exp(-sum(log_probabilities) / sum(tokens))
    return {
        "test_set": f"{split} of made-up",
        "test_set_sha256": texts_sha256(*zip(*texts(split, sentences), strict=True)),
        "n": sentences,
        "weights": "latest",
        "steps": [1000],
        "measures": {"bleu": {"score": bleu, "signature": "nrefs:1|case:mixed"}},
        "perplexity": {"per_token": perplexity, "per_word": perplexity, "words": sum(tokens)},
        "exact_match": {},
        "sentences": {
            "bleu_statistics": statistics,
            "log_probabilities": log_probabilities,
            "tokens": tokens,
            "exact_match": [0] * sentences,
        },
    }


class Report:
    """A report of a sweep, written and read again."""

    def __init__(self, sweep, output=None):
        self.content, files = write_report(sweep, output)
        self.directory = files[0].parent
        self.page = (self.directory / "index.html").read_text(encoding="utf-8")
        self.markdown = (self.directory / "report.md").read_text(encoding="utf-8")
        self.json = json.loads((self.directory / "report.json").read_text(encoding="utf-8"))
        with open(self.directory / "table.csv", newline="", encoding="utf-8") as file:
            self.lines = list(csv.DictReader(file))
        self.words = " ".join(self.content.tests[0].words)


def seed_folder(sweep, name, seed):
    """The folder of a run of one of VARIANTS."""
    slug = next(variant["slug"] for variant in VARIANTS if variant["name"] == name)
    return sweep / "runs" / slug / f"seed-{seed}"


def record_file(sweep, name, seed, split="test"):
    """The record of a run's evaluation."""
    return seed_folder(sweep, name, seed) / "translations" / f"{split}.latest.json"


def edit(file, **changes):
    """Replaces values of a JSON file."""
    write(file, {**json.loads(file.read_text()), **changes})


def changed(sweep, **definition):
    """The sweep with other values in its sweep.json."""
    edit(sweep / "sweep.json", **definition)
    return sweep


def write(file, content):
    write_text(file, json.dumps(content, ensure_ascii=False))


def write_text(file, text):
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")
