"""Do relative positions help on real text, and more on long sentences than on short ones? Multi30k, with seeds.

    for name in train val test_2016_flickr; do
        paste $name.lc.norm.tok.en $name.lc.norm.tok.de | awk -F '\\t' -v name=$name '{
            m = split($1, a, " "); n = split($2, b, " ")
            if (m < 20 && n < 20) part = "short"; else if (m >= 20 && n >= 20) part = "long"; else next
            print $1 > (name "." part ".en"); print $2 > (name "." part ".de") }'
    done
    transformer-jax sweep experiments/sentence_lengths.py --scale=multi30k --workdir=runs/lengths --jobs=2 \\
        --only=sinusoidal --only=relative \\
        --config.data.source=train.short.en --config.data.target=train.short.de \\
        --config.data.valid_source=val.short.en --config.data.valid_target=val.short.de \\
        --config.data.test_source=test_2016_flickr.short.en --config.data.test_target=test_2016_flickr.short.de \\
        --config.data.tests.long.source=train.long.en --config.data.tests.long.target=train.long.de
    transformer-jax report runs/lengths

The files are the data set's, English to German. Training has the 26,406 pairs of at most 19 words in both languages.
The main test set has the 925 pairs of test_2016_flickr that are as short; the test set `long` has the 1,217 training
pairs of at least 20 words in both languages, which are left out of training: no length of these was seen.

Model and search are the recipe's (`configs/multi30k_tiny.py`; BLEU 41.1 on all of test_2016_flickr after 7,140 updates
of twice the size). Here a run has 1,800 updates of packed pairs, about 18 epochs, and a rate that falls to zero instead
of averaged weights. Planned before the first run, from 1.0 s per update of sinusoids and 1.4 s of relative positions on
one core of an AMD EPYC (Zen 4): four seeds of both in 5 core-hours, and rotary positions if hours are left.

Declared before the first run: BLEU on the main test set decides, with a margin of 1; the second question is
answered by each seed's difference on `long` minus its difference on the main test set.

The first seeds had 38 BLEU with relative positions and 18 with sinusoids, so `multi30k` ended with two seeds, and runs
of twice as many updates began. The first of these, with sinusoids, had 22 BLEU and a validation loss of 3.41, where the
recipe has 3.07 after as many tokens: the changed optimizer probably slows sinusoids. `recipe` has the
recipe's optimizer: 8,192 tokens per update, a rate that rises to 0.005 in 2,000 updates, and the mean of ten
checkpoints, 70 updates apart. Only the length of the run differs: 2,450 updates. Declared before its first run: all
else as above, with four seeds; by the costs above 13 core-hours.
"""

from pathlib import Path

from transformer_jax.extension import load_module
from transformer_jax.sweeps import Sweep, Variant

bases = load_module(str(Path(__file__).with_name("bases.py")))
SCALES = ("multi30k", "recipe")


def get_sweep(scale: str) -> Sweep:
    base = bases.multi30k()
    base.data.batching = "packing"
    base.data.max_length = 64
    if scale == "recipe":
        base.train.steps = 2450
        base.train.eval_every = 350
    else:
        base.data.tokens_per_batch = 4096
        base.optimizer.schedule = "linear"
        base.optimizer.learning_rate = 3e-3
        base.optimizer.warmup_steps = 400
        base.train.steps = 1800
        base.train.eval_every = base.train.checkpoint_every = 300
        base.train.keep_latest = 2
    base.train.log_every = 50
    base.train.keep_best = 0
    base.train.tensorboard = False
    base.decode.beam = 5
    base.decode.length_penalty = "average"
    base.decode.alpha = 1.0
    base.decode.max_source_length = 128  # also of sentences longer than in training
    return Sweep(
        name="sentence_lengths",
        question="Do relative positions help on real text, and more on long sentences than on short ones?",
        base=base,
        variants=[
            Variant("sinusoidal"),
            Variant("relative", {"model.positions": "relative"}),
            Variant("rotary", {"model.positions": "rotary"}),
        ],
        seeds=4,
        tests=("test", "long"),
        weights="averaged" if scale == "recipe" else "latest",
        baseline="sinusoidal",
        primary="bleu",
        margin=1.0,
        notes=("Training has sentences of at most 19 words; the test set `long` has sentences of at least 20.",),
    )
