"""SCAN: the commands and their meanings, and the splits, by the figures and examples of the papers."""

import re
from collections import Counter

import pytest

from transformer_jax.config import from_config_dict
from transformer_jax.data.corpora.scan import HELD_OUT, REPEATED, commands, parts
from transformer_jax.data.prepare import prepare

# Lake and Baroni 2018, figure 1 and the examples of their repository.
MEANINGS = {
    "jump": "I_JUMP",
    "jump left": "I_TURN_LEFT I_JUMP",
    "jump around right": "I_TURN_RIGHT I_JUMP I_TURN_RIGHT I_JUMP I_TURN_RIGHT I_JUMP I_TURN_RIGHT I_JUMP",
    "turn left twice": "I_TURN_LEFT I_TURN_LEFT",
    "turn around left": "I_TURN_LEFT I_TURN_LEFT I_TURN_LEFT I_TURN_LEFT",
    "jump opposite left and walk thrice": "I_TURN_LEFT I_TURN_LEFT I_JUMP I_WALK I_WALK I_WALK",
    "run opposite left after look right": "I_TURN_RIGHT I_LOOK I_TURN_LEFT I_TURN_LEFT I_RUN",
}
# Published sizes of training and test set: Lake and Baroni 2018; Loula et al. 2018; at cutoff 26 counted in the data.
SIZES = {
    ("simple", 22): (16_728, 4_182),
    ("length", 22): (16_990, 3_920),
    ("length", 26): (18_286, 2_624),
    ("addprim_jump", 22): (14_670, 7_706),
    ("addprim_turn_left", 22): (21_890, 1_208),
    ("template_right", 22): (15_225, 4_476),
    ("template_opposite_right", 22): (15_225, 4_476),
    ("template_around_right", 22): (15_225, 4_476),
    ("template_jump_around_right", 22): (18_528, 1_173),
}


def test_every_command_has_its_meaning():
    meanings = dict(commands())
    assert len(meanings) == len(commands()) == 20_910
    assert {command: meanings[command] for command in MEANINGS} == MEANINGS
    assert max(actions.count(" ") for actions in meanings.values()) == 47
    assert len({word for command in meanings for word in command.split()}) == 13


@pytest.mark.parametrize(("split", "cutoff"), SIZES)
def test_splits_have_their_published_sizes(split, cutoff):
    train, test = parts(split, cutoff=cutoff)
    assert (len(train), len(test)) == SIZES[split, cutoff]
    assert set(train).isdisjoint(test)
    # No word is new in a test command: what is new is how they are combined.
    words = [{word for command, _ in part for word in command.split()} for part in (train, test)]
    assert words[1] <= words[0]


def test_what_is_held_out_is_in_every_test_command_and_in_no_training_command_but_the_primitive():
    for split, held_out in HELD_OUT.items():
        train, test = parts(split)
        holds = re.compile(rf"\b({'|'.join(held_out)})\b(?! (left|right|opposite|around))")
        assert all(holds.search(command) for command, _ in test)
        assert {command for command, _ in train if holds.search(command)} == set(filter(None, [REPEATED.get(split)]))
    train, test = parts("length", cutoff=30)
    assert max(actions.count(" ") + 1 for _, actions in train) == 30
    assert min(actions.count(" ") + 1 for _, actions in test) == 32


def test_the_primitive_is_a_tenth_of_training_and_is_never_held_out(tmp_path):
    train, _ = parts("addprim_jump")
    assert Counter(train)["jump", "I_JUMP"] * 10 == len(train)
    seed = 2615  # by its digest, the primitive would be among the first three to be held out
    data = {"corpus": "scan", "tokenizer": "words", "valid_size": 100, "seed": seed, "task": {"split": "addprim_jump"}}
    prepared = prepare(from_config_dict({"data": data}), tmp_path / "data")
    assert len(prepared.texts("valid")[0]) == 100 and "jump" not in prepared.texts("valid")[0]
    assert len(prepared.pairs("train")) == len(train) - 100
