"""An exported Marian folder, in the hands of others: transformers' `generate` and CTranslate2 find the same texts.

By hand, in two environments: this library makes the folder and translates; one with torch, transformers, sentencepiece
and ctranslate2 (2.13.0, 5.23.0, 0.2.3 and 4.8.5 were used) looks at it. docs/marian.md has what was found.

    transformer-jax export --workdir=RUN --output=folder --format=marian
    transformer-jax translate --workdir=RUN --json --beam=4 --config.decode.length_penalty=average \\
        --config.decode.alpha=1 --config.decode.renormalize=true in.txt > ours.jsonl
    transformer-jax translate (the same) --beam=1 in.txt > greedy.jsonl
    python benchmarks/check_marian_export.py folder ours.jsonl greedy.jsonl
"""

import json
import sys
import tempfile
from pathlib import Path

import ctranslate2
from transformers import MarianMTModel, MarianTokenizer


def main(folder: str, *files: str) -> None:
    tokenizer = MarianTokenizer.from_pretrained(folder)
    model = MarianMTModel.from_pretrained(folder).eval()
    with tempfile.TemporaryDirectory() as place:
        converted = str(Path(place) / "converted")
        ctranslate2.converters.TransformersConverter(folder).convert(converted)
        translator = ctranslate2.Translator(converted, compute_type="float32")
        for file, beam in zip(files, (4, 1), strict=True):
            compare(file, beam, tokenizer, model, translator)


def compare(
    file: str, beam: int, tokenizer: MarianTokenizer, model: MarianMTModel, translator: ctranslate2.Translator
) -> None:
    records = [json.loads(line) for line in Path(file).read_text().splitlines()]
    sources = [record["source"] for record in records]
    ours = [record["translations"][0]["text"].strip() for record in records]
    scores = [record["translations"][0]["score"] for record in records]

    batch = tokenizer(sources, return_tensors="pt", padding=True)
    search = {"num_beams": beam, "length_penalty": 1.0, "early_stopping": "never" if beam > 1 else False}
    found = model.generate(**batch, **search, return_dict_in_generate=True, output_scores=True)
    theirs = tokenizer.batch_decode(found.sequences, skip_special_tokens=True)
    tell("transformers", beam, ours, theirs)
    if beam > 1:
        pairs = zip(scores, found.sequences_scores.tolist(), strict=True)
        print(f"  largest difference of scores: {max(abs(a - b) for a, b in pairs):.1e}")

    cut = [tokenizer.convert_ids_to_tokens(tokenizer.encode(source)) for source in sources]
    results = translator.translate_batch(cut, beam_size=beam, length_penalty=1.0, patience=8 if beam > 1 else 1)
    ids = [tokenizer.convert_tokens_to_ids(result.hypotheses[0]) for result in results]
    tell("CTranslate2", beam, ours, tokenizer.batch_decode(ids, skip_special_tokens=True))


def tell(who: str, beam: int, ours: list[str], theirs: list[str]) -> None:
    same = sum(a == b for a, b in zip(ours, theirs, strict=True))
    print(f"{who}, beam {beam}: {same} of {len(ours)} texts are the same, {len(set(ours))} different ones among them")
    for a, b in zip(ours, theirs, strict=True):
        if a != b:
            print(f"  {a!r}\n  {b!r}")


if __name__ == "__main__":
    main(*sys.argv[1:])
