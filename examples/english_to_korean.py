"""A translator of a tiny grammar: python examples/english_to_korean.py learns to write Korean in seconds.

Korean puts the verb last, and a particle behind each noun says what it is in the sentence: 이 or 가 marks the subject,
을 or 를 the object. The first of each is used after a consonant, the second after a vowel.
"""

import jax
import jax.numpy as jnp
import optax

from transformer_jax import ModelConfig, SearchRules, Transformer, greedy_search, label_smoothed_cross_entropy
from transformer_jax.translation.beam_cache import Stepper

NOUNS = {
    "dog": "개",
    "bear": "곰",
    "cat": "고양이",
    "horse": "말",
    "girl": "소녀",
    "boy": "소년",
    "fox": "여우",
    "king": "왕",
}
VERBS = {"sees": "본다", "finds": "찾는다", "loves": "사랑한다", "follows": "따라간다"}
TOGETHER = [("dog", "bear"), ("cat", "horse"), ("girl", "boy"), ("fox", "king")]  # only in the test sentences
WORDS = ["<pad>", "<bos>", "<eos>", "the", *NOUNS, *VERBS, *"이가을를", *NOUNS.values(), *VERBS.values()]


def with_particle(noun, after_consonant, after_vowel):
    """Unicode has the syllables in groups of 28, one for each final consonant; the first has none."""
    ends_in_vowel = (ord(noun[-1]) - ord("가")) % 28 == 0
    return [noun, after_vowel if ends_in_vowel else after_consonant]


def translated(subject, verb, thing):
    return [*with_particle(NOUNS[subject], "이", "가"), *with_particle(NOUNS[thing], "을", "를"), VERBS[verb]]


def sentences(of_test):
    """Sources and targets of the sentences in which two nouns of TOGETHER stand, or of all others."""
    pairs = [(one, other) for one in NOUNS for other in NOUNS if one != other]
    chosen = [pair for pair in pairs if (pair in TOGETHER or pair[::-1] in TOGETHER) == of_test]
    clauses = [(subject, verb, thing) for subject, thing in chosen for verb in VERBS]
    sources = [["the", subject, verb, "the", thing] for subject, verb, thing in clauses]
    targets = [["<bos>", *translated(*clause), "<eos>"] for clause in clauses]
    return tuple(jnp.array([[*map(WORDS.index, words)] for words in texts]) for texts in (sources, targets))


if __name__ == "__main__":
    config = ModelConfig(
        vocab_size=len(WORDS), num_encoder_layers=1, num_decoder_layers=1, d_model=32, d_ff=64, num_heads=4
    )
    model, optimizer = Transformer(config), optax.adam(3e-3, b2=0.98)
    sources, targets = sentences(of_test=False)

    @jax.jit
    def step(params, state, key):
        def loss(params):
            logits = model.apply(
                {"params": params}, sources, targets[:, :-1], deterministic=False, rngs={"dropout": key}
            )
            total, words = label_smoothed_cross_entropy(logits, targets[:, 1:], targets[:, 1:] != 0)
            return total / words

        changes, state = optimizer.update(jax.grad(loss)(params), state)
        return optax.apply_updates(params, changes), state

    params = jax.jit(model.init)(jax.random.key(0), sources, targets)["params"]
    state = optimizer.init(params)
    for key in jax.random.split(jax.random.key(1), 200):
        params, state = step(params, state, key)

    sources, targets = sentences(of_test=True)
    stepper = Stepper(config, params)
    rules = SearchRules(batch_size=len(sources), max_length=8, bos_id=1, eos_id=2, pad_id=0)
    found = jax.jit(lambda sources: greedy_search(stepper.step, stepper.start(sources, 8), rules))(sources)
    written = found.tokens_BNT[:, 0, :6]
    for source, words in zip(sources[:8:4], written[:8:4], strict=True):
        print(*(WORDS[word] for word in source), "->", *(WORDS[word] for word in words[:5]))
    right = (written == targets[:, 1:]).all(axis=1)
    print(f"{right.sum()} of {len(right)} new sentences are translated without a mistake")
