"""Parameter groups: other settings of the optimizer for the parameters whose path a pattern finds, and Muon's two.

A group is a text such as "embedding/table$: name=adam learning_rate=0.3x weight_decay=0". The first pattern found in a
parameter's path decides; what none finds has the settings of the whole optimizer.
"""

import math
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import optax

from transformer_jax.errors import BadInput
from transformer_jax.update.sharding import path_name

EXAMPLE = '"embedding/table$: learning_rate=0.3x weight_decay=0"'
# Hidden matrices, whose updates Muon orthogonalizes: kernels of the stacks. Embeddings, the output (tied or not) and
# tables of positions are none.
HIDDEN = re.compile(r"(^|/)(encoder|decoder)/(.*/)?kernel$")


class Group(NamedTuple):
    text: str
    pattern: str
    settings: dict[str, str]  # as written

    @classmethod
    def read(cls, text: str) -> "Group":
        pattern, _, after = text.rpartition(": ")
        settings = dict(each.partition("=")[::2] for each in after.split())
        if not pattern or not settings or not all(settings.values()) or len(settings) < len(after.split()):
            start, _, end = text.rpartition(":")
            if not pattern and re.match(r"\w+=", end):
                raise BadInput(f"optimizer.groups: {text!r}: a space must follow the colon: '{start}: {end}'")
            raise BadInput(f"optimizer.groups: {text!r}: must be PATTERN: KEY=VALUE ..., such as {EXAMPLE}")
        try:
            re.compile(pattern)
        except re.error as error:
            raise BadInput(f"optimizer.groups: {pattern!r} is not a regular expression: {error}") from None
        if ".py" in after:
            raise BadInput(f"optimizer.groups: {text!r}: a custom optimizer can only be optimizer.name")
        return cls(text, pattern, settings)

    @property
    def is_idle(self) -> bool:
        """Whether its only setting is a learning rate of 1x, which can only except parameters from later groups."""
        rate = self.settings.get("learning_rate", "")
        return len(self.settings) == 1 and rate.endswith("x") and float(rate[:-1]) == 1

    def finds(self, path: str) -> bool:
        return re.search(self.pattern, path) is not None


def multiple(name: str, text: str, peak: Any) -> Any:
    """A learning rate as a multiple of optimizer.learning_rate, from a multiple such as 0.3x or a peak such as 3e-4."""
    try:
        number = float(text.removesuffix("x"))
    except ValueError:
        number = math.nan
    if not 0 <= number < math.inf:
        raise BadInput(f"{name}={text}: must be a multiple of the main one (0.3x) or a peak (3e-4)")
    if text.endswith("x"):
        return number
    if peak is None:
        raise BadInput(f"{name}={text}: a peak needs optimizer.learning_rate; a multiple (0.3x) does not")
    return number / peak


def by_group(
    groups: Sequence[Group],
    optimizers: Sequence[optax.GradientTransformation],
    rest: optax.GradientTransformation,
    name: str,
) -> optax.GradientTransformation:
    """The groups' optimizers for their parameters, and for all others `rest`, which has a name.

    When it sees the parameters it refuses a group that does nothing, and groups with which optimizer.name does nothing.
    """

    def labels(params: Any) -> Any:
        leaves, structure = jax.tree_util.tree_flatten_with_path(params)
        paths = [path_name(path) for path, _ in leaves]
        found = [next((n for n, group in enumerate(groups) if group.finds(path)), None) for path in paths]
        for number, group in enumerate(groups):
            own = [leaf for leaf, other in zip(leaves, found, strict=True) if other == number]
            if problem := _problem(group, own, paths, groups[number + 1 :]):
                raise BadInput(f"optimizer.groups: {group.text!r}: {problem}")
        named = [
            leaf
            for leaf, number in zip(leaves, found, strict=True)
            if number is None or groups[number].settings.get("name", name) == name
        ]
        if not named:
            raise BadInput(f"optimizer.groups: give each parameter another optimizer than optimizer.name = {name}")
        if name == "muon" and not any(_is_hidden(*leaf) for leaf in named):
            raise BadInput("optimizer.groups: leave optimizer.name = muon no hidden matrix; the rest has adam")
        return jax.tree.unflatten(structure, ["rest" if number is None else f"group_{number}" for number in found])

    members = {f"group_{number}": optimizer for number, optimizer in enumerate(optimizers)}
    return optax.partition({**members, "rest": rest}, labels)


def _problem(group: Group, own: Sequence[Any], paths: Sequence[str], later: Sequence[Group]) -> str | None:
    """Why a group does nothing: `own` are the paths and leaves that are its, `paths` are those of all parameters."""
    hidden = [_is_hidden(*leaf) for leaf in own]
    if not own and any(map(group.finds, paths)):
        return "earlier groups have every parameter that its pattern finds"
    if not own:
        return f"its pattern is found in no parameter's path; one is {paths[0]}"
    if group.settings.get("weight_decay", "0").strip("0.") and all(leaf.ndim < 2 for _, leaf in own):
        return "there is weight decay of matrices only, and its pattern finds none"
    if group.settings.get("name") == "muon" and not any(hidden):
        return "Muon is for hidden matrices, and its pattern finds none"
    if all(hidden) and any(name.startswith("adam_") for name in group.settings):
        return "what begins with adam_ is not for hidden matrices, and its pattern finds nothing else"
    if group.is_idle and not any(other.finds(path_name(path)) for other in later for path, _ in own):
        return "1x is the learning rate without it, so it changes nothing"
    return None


def hidden_and_rest(
    hidden: optax.GradientTransformation, rest: optax.GradientTransformation
) -> optax.GradientTransformation:
    """One optimizer for hidden matrices and another one for all other parameters."""

    def label(path: Any, leaf: Any) -> str:
        return "hidden" if _is_hidden(path, leaf) else "rest"

    return optax.partition(
        {"hidden": hidden, "rest": rest}, lambda params: jax.tree_util.tree_map_with_path(label, params)
    )


def _is_hidden(path: Any, leaf: Any) -> bool:
    return leaf.ndim == 2 and HIDDEN.search(path_name(path)) is not None
