"""Refuses custom modules that ignore other custom modules or options of the model, before anything is trained."""

from collections.abc import Iterable, Iterator
from typing import Any, get_args

import jax
import jax.numpy as jnp
from flax import linen as nn

from transformer_jax.errors import BadInput
from transformer_jax.model import custom_modules
from transformer_jax.model.attention import MultiHeadAttention
from transformer_jax.model.layers import FeedForward, attention_of, feed_forward_of
from transformer_jax.model.norm import norm_of
from transformer_jax.model.position_interface import METHODS, Positions
from transformer_jax.model.residual import Residual, Stack
from transformer_jax.model.transformer import Transformer
from transformer_jax.model_config import ModelConfig

# Each call of a module's method: the module's path, the module, and the name of the method.
Calls = list[tuple[str, nn.Module, str]]
BUILT_IN = {"attention": MultiHeadAttention, "feed_forward": FeedForward}
# The options that are fields of the modules which attention_of and feed_forward_of make.
OPTIONS = {
    "num_key_value_heads": "num_key_value_heads",
    "softcap": "attention_softcap",
    "qk_norm": "qk_norm",
    "scale": "mup_base_d_model",
    "gain": "norm",
}


def refuse_ignored(config: ModelConfig) -> None:
    """Raises BadInput for the first option or custom module that a layer of a stack ignores; traces a forward pass."""
    calls = _calls(config)
    for stack in get_args(Stack):
        # Norms of queries and keys are the attention's: they say nothing about those of residual connections.
        paths = [each for each in calls if not each[0].endswith(("query_norm", "key_norm"))]
        in_layers = {path: module for path, module, _ in paths if path.startswith(f"{stack}/layers_")}
        for option, how in _ignored(config, stack, in_layers):
            raise _refusal(config, stack, option, how)
        if config.is_pre_norm and not _has(in_layers, norm_of(config)):
            norm = type(norm_of(config)).__name__
            problem = f"its layers have no {norm}, but model.norm = {config.norm} ends the {stack} with one: "
            remedy = (
                "set model.parts.norm to the class of the layers' norm, or model.norm = post, which has no final norm"
            )
            raise custom_modules.unfit(config, f"{stack}_layer", problem + remedy)
        if unused := _unused_methods(calls, stack):
            option = "positions" if config.parts.positions is None else "parts.positions"
            raise _refusal(config, stack, option, f"call the {unused[0]} of the context's positions, as attend does")


def _calls(config: ModelConfig) -> Calls:
    calls: Calls = []

    def record(call: Any, arguments: Any, options: Any, context: Any) -> Any:
        calls.append(("/".join(context.module.path), context.module, context.method_name))
        return call(*arguments, **options)

    tokens = jnp.ones((1, 1), jnp.int32)
    with nn.intercept_methods(record):
        jax.eval_shape(Transformer(config).init, jax.random.key(0), tokens, tokens)
    return calls


def _ignored(config: ModelConfig, stack: Stack, modules: dict[str, nn.Module]) -> Iterator[tuple[str, str]]:
    """The options that a module of these, by their paths, lacks, and what would have them."""
    made = {"attention": attention_of(config, stack), "feed_forward": feed_forward_of(config, stack)}
    for role, expected in made.items():
        kinds = BUILT_IN[role], type(expected)
        alike = _outermost({path: module for path, module in modules.items() if isinstance(module, kinds)})
        if getattr(config.parts, role) is not None and not _all(isinstance(each, kinds[1]) for each in alike):
            yield f"parts.{role}", f"{role}_of(config, '{stack}') makes it"
        for field, option in OPTIONS.items():
            value, default = (getattr(where, field, None) for where in (expected, kinds[1]))
            if value != default and not _all(_same(getattr(each, field), value) for each in alike):
                yield option, f"{role}_of(config, '{stack}') has it"
    if config.parts.norm is not None and not _has(modules, norm_of(config)):
        yield "parts.norm", "norm_of(config) makes it"
    elif config.norm_kind != "layer" and not _has(modules, norm_of(config)):
        yield "norm_kind", "norm_of(config) has it"
    if config.norm in ("sandwich", "deepnorm") and not any(isinstance(each, Residual) for each in modules.values()):
        yield "norm", f"Residual(config, '{stack}') has it"


def _has(modules: dict[str, nn.Module], expected: nn.Module) -> bool:
    """Whether one of them is of exactly this class: a class derived from it may be another norm."""
    return any(type(module) is type(expected) for module in modules.values())


def _outermost(modules: dict[str, nn.Module]) -> list[nn.Module]:
    """Without those that are a part of another one, which does with them as it likes."""
    return [each for path, each in modules.items() if not any(path.startswith(f"{other}/") for other in modules)]


def _all(found: Iterable[bool]) -> bool:
    """Whether there are any, and all are true."""
    found = list(found)
    return bool(found) and all(found)


def _same(found: Any, value: Any) -> bool:
    return found is not None if callable(value) else bool(found == value)


def _unused_methods(calls: Calls, stack: Stack) -> list[str]:
    """The methods of the position encoding that do something and are not called."""
    encodings = [(module, method) for path, module, method in calls if path == f"{stack}/positions_0"]
    called = {method for _, method in encodings}
    kind = type(encodings[0][0])
    return [method for method in METHODS if custom_modules.overrides(kind, Positions, method) and method not in called]


def _refusal(config: ModelConfig, stack: Stack, option: str, how: str) -> BadInput:
    """The blame is on the custom layer, or else on the custom attention."""
    role = f"{stack}_layer" if getattr(config.parts, f"{stack}_layer") is not None else "attention"
    value: Any = config
    for name in option.split("."):
        value = getattr(value, name)
    value = value.__name__ if isinstance(value, type) else value
    return custom_modules.unfit(config, role, f"ignores model.{option} = {value} in the {stack}: {how} (docs/parts.md)")
