"""Named activations: captured as the model computes them, and changed where it uses them."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.support.small_models import SOURCE, TARGET, assert_close, built
from transformer_jax import (
    AttentionInputs,
    Context,
    Encoder,
    EncoderLayer,
    FeedForward,
    MultiHeadAttention,
    capture,
    patch,
)
from transformer_jax.translation.beam_cache import Stepper

DEEP = {"num_encoder_layers": 2, "num_decoder_layers": 2}
ATTENTIONS = (
    "encoder/layers_{}/self_attention",
    "decoder/layers_{}/self_attention",
    "decoder/layers_{}/cross_attention",
)


@functools.cache
def captured(**changes):
    """The logits and all activations of a model."""
    model, variables = built(**changes)
    return jax.jit(capture(model.apply))(variables, SOURCE, TARGET)


def patched(changes, **options):
    model, variables = built(**options)
    return jax.jit(patch(model.apply, changes))(variables, SOURCE, TARGET)


def test_every_activation_has_the_axes_of_its_name():
    _, found = captured(**DEEP)
    own = {"queries": 6, "keys": 6, "values": 4, "heads": 4}
    for place in ATTENTIONS:
        for layer in range(2):
            prefix = place.format(layer)
            length, keys = (
                5 if prefix.startswith("encoder") else 4,
                4 if "decoder" in prefix and "self" in prefix else 5,
            )
            for name, width in own.items():
                rows = keys if name in ("keys", "values") else length
                assert found[f"{prefix}/{name}"].shape == (2, rows, 2, width)
            assert found[f"{prefix}/weights"].shape == (2, 2, length, keys)
            assert found[f"{prefix}/output"].shape == found[f"{prefix}_residual"].shape == (2, length, 8)
    for stack, length in (("encoder", 5), ("decoder", 4)):
        for name in ("residual", "layers_0/residual", "layers_1/feed_forward/output", "output"):
            assert found[f"{stack}/{name}"].shape == (2, length, 8)
        assert found[f"{stack}/layers_1/feed_forward/inner"].shape == (2, length, 12)
    assert len(found) == 1 + 2 * 2 + 2 * (6 + 1) * 3 + 2 * 2 * (1 + 3)


def test_activations_are_the_ones_that_the_model_uses():
    """Each is what the next is computed from, by the formulas of the paper."""
    model, variables = built(**DEEP)
    logits, found = captured(**DEEP)
    _, shown = model.apply(variables, SOURCE, TARGET, mutable=["intermediates"])
    (weights,) = shown["intermediates"]["decoder"]["layers_1"]["cross_attention"]["weights"]
    assert_close(found["decoder/layers_1/cross_attention/weights"], weights)
    place, kernels = "encoder/layers_1/self_attention", variables["params"]["encoder"]["layers_1"]
    heads = jnp.einsum("bhts,bshv->bthv", found[f"{place}/weights"], found[f"{place}/values"])
    assert_close(found[f"{place}/heads"], heads)
    assert_close(found[f"{place}/output"], heads.reshape(2, 5, -1) @ kernels["self_attention"]["output"]["kernel"])
    assert_close(found["encoder/output"], model.apply(variables, SOURCE, method="encode"))
    assert_close(found["encoder/layers_1/residual"], found["encoder/output"])
    assert_close(found["logits"], logits)


@pytest.mark.parametrize("changes", [DEEP, {"window": 1, "norm": "sandwich", "norm_kind": "rms"}])
def test_clean_patched_into_clean_changes_no_bit(changes):
    """In one program: each alone, and all at once. Another program is fused differently, and rounds differently."""
    model, variables = built(**changes)
    logits, found = captured(**changes)

    @jax.jit
    def with_clean(chosen, values):
        def change(name, own, _):
            return jnp.where(chosen[name], values[name], own)

        names = {name: functools.partial(change, name) for name in values}
        return capture(patch(model.apply, names))(variables, SOURCE, TARGET)

    clean = with_clean(dict.fromkeys(found, False), found)
    assert_close(clean[0], logits)
    for wanted in [*found, ""]:
        chosen = {name: wanted in (name, "") for name in found}
        jax.tree.map(np.testing.assert_array_equal, with_clean(chosen, clean[1]), clean)
    assert_close(patched({"encoder/residual": lambda *_: found["encoder/residual"]}, **changes), logits)


def test_layers_that_share_parameters_have_their_own_names():
    _, found = captured(share_layers=True, **DEEP)
    assert {f"encoder/layers_{i}/residual" for i in range(2)} < found.keys()
    only_second = patched(
        {"encoder/layers_1/self_attention/heads": lambda heads, _: 0 * heads}, share_layers=True, **DEEP
    )
    both = {f"encoder/layers_{i}/self_attention/heads": lambda heads, _: 0 * heads for i in range(2)}
    assert (only_second != patched(both, share_layers=True, **DEEP)).any()


@pytest.mark.parametrize("stack", ["encoder", "decoder", "cross"])
def test_a_head_that_is_zero_is_a_head_that_is_masked(stack):
    model, variables = built(**DEEP)
    masks = {stack: jnp.ones((2, 2)).at[1, 0].set(0.0)}
    place = {"encoder": ATTENTIONS[0], "decoder": ATTENTIONS[1], "cross": ATTENTIONS[2]}[stack].format(1)
    ours = patched({f"{place}/heads": lambda heads_BTHV, _: heads_BTHV.at[:, :, 0].set(0.0)}, **DEEP)
    assert_close(ours, model.apply(variables, SOURCE, TARGET, head_masks=masks))
    assert (ours != captured(**DEEP)[0]).any()


def test_a_residual_that_is_replaced_at_one_position_acts_from_there_on():
    """The decoder is causal: logits before that position stay as they are, to the bit."""
    logits, _ = captured(**DEEP)

    def at_two(x_BTD, positions_BT):
        return jnp.where(positions_BT[..., None] == 2, 1.0, x_BTD)

    changed = patched({"decoder/layers_0/residual": at_two}, **DEEP)
    np.testing.assert_array_equal(changed[:, :2], logits[:, :2])
    assert (changed[:, 2:] != logits[:, 2:]).any(-1).all()
    assert (patched({"encoder/layers_0/residual": at_two}, **DEEP) != logits).all(-1).all()


def test_the_gradient_with_respect_to_an_activation_is_that_of_what_is_added():
    model, variables = built(**DEEP)
    name = "encoder/layers_0/residual"

    def total(added):
        changes = {name: lambda x_BSD, _: x_BSD + added}
        return jnp.sum(patch(model.apply, changes)(variables, SOURCE, TARGET) ** 2)

    added, small = jnp.zeros((2, 5, 8)), 1e-2
    gradient = jax.jit(jax.grad(total))(added)
    slope = (total(added.at[0, 1, 2].set(small)) - total(added.at[0, 1, 2].set(-small))) / (2 * small)
    assert float(slope) == pytest.approx(float(gradient[0, 1, 2]), rel=1e-2) and abs(slope) > 1e-3


def test_steps_with_a_cache_are_patched_as_the_whole_is():
    """At each step the position is the one that is decoded; keys and values of the memory count from 0."""
    model, variables = built(**DEEP)
    target = np.where(TARGET == 0, 18, TARGET)  # whose padding only the whole would hide
    changes = {
        "decoder/layers_0/residual": lambda x, positions: jnp.where(positions[..., None] == 2, 1.0, x),
        "decoder/layers_1/self_attention/keys": lambda x, at: jnp.where(at[..., None, None] == 1, 0.5, x),
        "decoder/layers_1/cross_attention/values": lambda x, at: jnp.where(at[..., None, None] == 4, -1.0, x),
        "decoder/layers_1/cross_attention/weights": lambda x, at: jnp.where(at[:, None, :, None] == 3, 0.1, x),
        "encoder/layers_1/residual": lambda x, positions: jnp.where(positions[..., None] == 0, 2.0, x),
        "logits": lambda x, positions: x + positions[..., None],
    }

    def by_steps():
        stepper = Stepper(model.config, variables["params"])
        cache = stepper.start(SOURCE, 4, 2)
        found = []
        for position in range(4):
            logits_RN, cache = stepper.step(np.repeat(target[:, position], 2), cache)
            found.append(logits_RN[::2])
        return jnp.stack(found, axis=1)

    whole = jax.jit(patch(model.apply, changes))(variables, SOURCE, target)
    assert_close(jax.jit(patch(by_steps, changes))(), whole)
    assert (jax.jit(by_steps)() != whole).any(-1).all()


def test_single_modules_and_mistakes():
    model, variables = built(**DEEP)
    with pytest.raises(
        ValueError, match=r"layer_0/residual: no such activation is computed; did you mean .*layers_0/residual"
    ):
        patch(model.apply, {"encoder/layer_0/residual": lambda x, _: x})(variables, SOURCE, TARGET)
    jitted = jax.jit(model.apply)
    jitted(variables, SOURCE, TARGET)
    with pytest.raises(ValueError, match=r"put jax\.jit around the result"):
        capture(jitted, ["logits"])(variables, SOURCE, TARGET)
    with pytest.raises(ValueError, match=r"logits: its change has the shape \(2, 4\): must be \(2, 4, 20\)"):
        patched({"logits": lambda x, _: x.sum(-1)})
    attention, x = MultiHeadAttention(2), jnp.ones((1, 3, 8))
    own = attention.init(jax.random.key(0), x, x)
    output, found = capture(attention.apply, ["weights", "output"])(own, x, x)
    assert found["weights"].shape == (1, 2, 3, 3)
    np.testing.assert_array_equal(found["output"], output)


def test_what_is_captured_of_a_patched_function_is_patched():
    model, variables = built(**DEEP)
    place = "decoder/layers_0/cross_attention/"
    halved = patch(model.apply, {place + "weights": lambda x, _: x / 2, place + "heads": lambda x, _: x + 1})
    _, found = jax.jit(capture(halved))(variables, SOURCE, TARGET)
    clean = captured(**DEEP)[1]
    assert_close(found[place + "weights"], clean[place + "weights"] / 2)
    assert_close(found[place + "heads"], clean[place + "heads"] / 2 + 1)


def test_layers_that_are_computed_again_are_captured():
    layer = functools.partial(EncoderLayer, functools.partial(MultiHeadAttention, 2), functools.partial(FeedForward, 8))
    x = jax.random.normal(jax.random.key(1), (2, 3, 8))
    variables = Encoder(layer, 2).init(jax.random.key(0), x, Context())
    for transform in (lambda function: function, jax.jit):
        found = [transform(capture(Encoder(layer, 2, remat=each).apply))(variables, x, Context())[1] for each in (0, 1)]
        assert "layers_1/self_attention/weights" in found[0]
        jax.tree.map(assert_close, *found)


def test_a_context_given_by_name_has_the_positions():
    attention, x = MultiHeadAttention(2), jnp.ones((1, 3, 8))
    variables, seen = attention.init(jax.random.key(0), x, x), []

    def note(activation, positions):
        seen.append(np.asarray(positions).tolist())
        return activation

    context = Context(positions_BT=jnp.array([[4, 5, 6]]))
    changed = patch(attention.apply, {"queries": note, "keys": note})
    changed(variables, query=x, key_value=x, context=context, method="with_context")
    assert seen == [[[4, 5, 6]], [[4, 5, 6]]]


def test_the_memory_has_the_positions_of_its_own_tokens():
    model, variables = built(**DEEP)
    inputs = AttentionInputs(source_segments=np.array([[1, 1, 1, 2, 2]]), target_segments=np.array([[1, 1, 2, 2]]))
    seen = {}

    def noting(name):
        def note(activation, positions):
            seen[name] = np.asarray(positions).tolist()
            return activation

        return note

    names = ["encoder/output", *(f"decoder/layers_0/cross_attention/{name}" for name in ("queries", "keys", "values"))]
    patch(model.apply, {name: noting(name) for name in names})(variables, SOURCE[:1], TARGET[:1], inputs)
    of_source, of_target = [[0, 1, 2, 0, 1]], [[0, 1, 0, 1]]
    assert [seen[name] for name in names] == [of_source, of_target, of_source, of_source]


class Overridden(EncoderLayer):
    def __call__(self, x_BTD, context):
        return super().__call__(x_BTD, context)


class OverriddenAttention(MultiHeadAttention):
    def attend(self, *arguments):
        return super().attend(*arguments)


def test_methods_that_call_those_they_override_are_one_activation():
    x = jax.random.normal(jax.random.key(1), (2, 3, 8))
    changes = {"layers_1/self_attention/heads": lambda heads, _: heads / 2}
    found = []
    for layer, attention in ((EncoderLayer, MultiHeadAttention), (Overridden, OverriddenAttention)):
        parts = functools.partial(attention, 2), functools.partial(FeedForward, 8)
        encoder = Encoder(functools.partial(layer, *parts), 2)
        variables = encoder.init(jax.random.key(0), x, Context())
        output, activations = capture(encoder.apply)(variables, x, Context())
        found.append((output, activations, patch(encoder.apply, changes)(variables, x, Context())))
    assert list(found[0][1]) == list(found[1][1])
    jax.tree.map(assert_close, *found)
