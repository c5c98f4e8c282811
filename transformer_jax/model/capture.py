"""Named activations: `capture` returns them, `patch` changes them, in any function that calls this library's modules.

A name is the path of a module and an ending, from `_RESULTS` or `_OF_SUBMODULES`; docs/activations.md lists them. Both
work by `nn.intercept_methods`: the modules know nothing of it.

XLA rounds differently where it fuses other operations, so two programs may differ in the last digits. To be alike,
both visit all activations, whichever are wanted, behind barriers; XLA for CPUs removes these before it fuses.
"""

import functools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from transformer_jax.errors import did_you_mean
from transformer_jax.model.attention import MultiHeadAttention
from transformer_jax.model.context import Context
from transformer_jax.model.layers import FeedForward, Residual
from transformer_jax.model.stacks import Decoder, DecoderLayer, Encoder, EncoderLayer
from transformer_jax.model.transformer import Transformer

# change(activation, positions) -> activation. The positions of its tokens are [1 or batch, length].
Change = Callable[[jax.Array, jax.Array], Any]
# visit(name, activation, positions) -> activation.
Visit = Callable[[str, jax.Array, jax.Array], jax.Array]
WEIGHTS = "weights"

_STACKS, _LAYERS = (Encoder, Decoder), (EncoderLayer, DecoderLayer)
# The activations that methods return, alone or as the first of a tuple: class, method, end of the name.
_RESULTS: list[tuple[Any, str, str]] = [
    (MultiHeadAttention, "queries", "queries"),
    (MultiHeadAttention, "keys", "keys"),
    (MultiHeadAttention, "values", "values"),
    (MultiHeadAttention, "attend", "heads"),
    (MultiHeadAttention, "with_context", "output"),
    (FeedForward, "__call__", "output"),
    (Residual, "add", ""),
    (_LAYERS, "__call__", "residual"),
    (_STACKS, "pre", "residual"),
    (_STACKS, "__call__", "output"),
    (Transformer, "logits", "logits"),
]
# The activations that submodules return: class of the module that has it, name there, end of the activation's name.
_OF_SUBMODULES: list[tuple[Any, str, str]] = [
    (MultiHeadAttention, "drop", WEIGHTS),
    (FeedForward, "Dropout_0", "inner"),
]


def capture(
    function: Callable[..., Any], names: Collection[str] | None = None
) -> Callable[..., tuple[Any, dict[str, jax.Array]]]:
    """The function that returns what `function` returns, and the activations that it computes on the way by name.

    `capture(model.apply)(variables, source, target)` is (logits, activations). Without `names` these are all. An
    activation that is computed several times is the last one. Put `jax.jit` around the result, not inside.
    """

    if isinstance(names, str):
        raise TypeError(f"names = {names!r}: must be a list of names")

    @functools.wraps(function)
    def captured(*args: Any, **kwargs: Any) -> tuple[Any, dict[str, jax.Array]]:
        found: dict[str, jax.Array] = {}

        def visit(name: str, activation: jax.Array, _: jax.Array) -> jax.Array:
            if names is None or name in names:
                found[name] = activation
            return activation

        return _visited(functools.partial(function, *args, **kwargs), names or (), visit), found

    return captured


def patch(function: Callable[..., Any], changes: Mapping[str, Change]) -> Callable[..., Any]:
    """The function that computes what `function` does with other activations.

    `changes[name](activation, positions)` takes the place of each activation of this name, and has its shape.
    `positions` are its tokens' positions, [1 or batch, length]: in a search, the position of the token that is decoded.
    Put `jax.jit` around the result, not inside. Without changes it is `function` itself.
    """
    if not changes:
        return function

    @functools.wraps(function)
    def patched(*args: Any, **kwargs: Any) -> Any:
        def visit(name: str, activation: jax.Array, positions: jax.Array) -> jax.Array:
            if name not in changes:
                return activation
            changed = jnp.asarray(changes[name](activation, positions), activation.dtype)
            if changed.shape != activation.shape:
                raise ValueError(f"{name}: its change has the shape {changed.shape}: must be {activation.shape}")
            return changed

        return _visited(functools.partial(function, *args, **kwargs), changes, visit)

    return patched


class NoActivation(ValueError):
    """An activation that is not computed."""


def _visited(act: Callable[[], Any], names: Iterable[str], visit: Visit) -> Any:
    """What `act` returns, with a visit to each activation. Raises NoActivation unless these names are among them."""
    visitor = _Visitor(visit)
    with nn.intercept_methods(visitor):
        result = act()
    for name in names:
        if name not in visitor.visited:
            hint = did_you_mean(name, visitor.visited) if visitor.visited else "put jax.jit around the result"
            raise NoActivation(f"{name}: no such activation is computed; {hint}")
    return result


class _Visitor:
    """An interceptor of linen's methods that visits every activation."""

    def __init__(self, visit: Visit):
        self._visit = visit
        self.visited: dict[str, None] = {}  # in order
        self._running: set[tuple[int, str]] = set()  # the methods that are running, by module
        self._applied = 0  # layers of the current stack
        self._layer: tuple[str, ...] = ()  # the path of the current layer
        self._layer_name: tuple[str, ...] = ()  # with its number: layers that share parameters have one path
        self._positions: Any = None  # of the current stack's tokens
        self._memory_positions: Any = None  # of the tokens of the last encoder
        self._key_positions: Any = None  # of the current attention's keys

    def __call__(self, call: Callable[..., Any], args: Any, kwargs: Any, context: nn.module.InterceptorContext) -> Any:
        module, method = context.module, context.method_name
        if method == "shows_weights":
            return True  # so that attention computes them, and a window is not divided into blocks
        if method == "recomputes":
            return False  # inside `nn.remat` an activation could be changed, but not returned
        running = (id(module), method)
        if running in self._running:  # a method of the base class, called by the one that overrides it
            return call(*args, **kwargs)
        self._running.add(running)
        try:
            self._enter(module, method, args, kwargs)
            result = call(*args, **kwargs)
        finally:
            self._running.remove(running)
        if isinstance(module, Encoder) and method == "__call__":
            self._memory_positions = self._positions
        if (place := _place(module, method)) is None:
            return result
        if not isinstance(result, tuple):
            return self._activation(*place, result)
        self._note_positions(result)
        return (self._activation(*place, result[0]), *result[1:])

    def _enter(self, module: nn.Module, method: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        if method != "attend":  # whose blocks, with a window, have positions of their own
            self._note_positions((*args, *kwargs.values()))
        if method == "with_context":
            inputs = {**dict(zip(("query", "key_value"), args, strict=False)), **kwargs}
            is_self_attention = inputs["query"] is inputs["key_value"]
            self._key_positions = self._positions if is_self_attention else self._memory_positions
        elif method in ("__call__", "new_cache"):
            if isinstance(module, _STACKS):
                self._applied = 0
            elif isinstance(module, _LAYERS) and isinstance(module.parent, _STACKS):
                self._layer = module.path
                self._layer_name = (*module.parent.path, f"layers_{self._applied}")
                self._key_positions, self._applied = self._memory_positions, self._applied + 1

    def _note_positions(self, values: Sequence[Any]) -> None:
        for value in values:
            if isinstance(value, Context) and value.positions_BT is not None:
                self._positions = jnp.asarray(value.positions_BT)

    def _activation(self, path: tuple[str, ...], ending: str, activation: jax.Array) -> jax.Array:
        if path[: len(self._layer)] == self._layer:
            path = (*self._layer_name, *path[len(self._layer) :])
        name = "/".join(filter(None, (*path, ending)))
        self.visited[name] = None
        length = activation.shape[2 if ending == WEIGHTS else 1]
        positions = self._key_positions if ending in ("keys", "values") else self._positions
        if positions is None or positions.shape[1] != length or positions.shape[0] not in (1, len(activation)):
            positions = jnp.arange(length)[None]
        return jax.lax.optimization_barrier(self._visit(name, jax.lax.optimization_barrier(activation), positions))


def _place(module: nn.Module, method: str) -> tuple[tuple[str, ...], str] | None:
    """The path of the module of the activation that a method returns, and the end of its name."""
    for kind, known, ending in _RESULTS:
        if method == known and isinstance(module, kind):
            return module.path, ending
    for kind, known, ending in _OF_SUBMODULES:
        if method == "__call__" and module.name == known and isinstance(module.parent, kind):
            return module.parent.path, ending
    return None
