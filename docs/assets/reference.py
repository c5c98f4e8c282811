"""An extension of griffe, which extracts the API reference from the code, for conventions of this code.

- An option of a config says its default and its meaning in `option(default, meaning, ...)`: a table for each group.
- A Flax module and a named tuple have their annotated fields as arguments.
- In docstrings `<bos>` is a token, and not HTML.
"""

import ast
import importlib
import re
from typing import Any

import griffe

from transformer_jax import schema

TOKEN = re.compile(r"(?<!`)<(\w+)>(?!`)")


class Reference(griffe.Extension):
    """What `mkdocs.yml` names."""

    def on_attribute_instance(self, *, attr: griffe.Attribute, agent: Any, **_: Any) -> None:
        call = str(attr.value or "")
        if call.startswith("option("):
            attr.value = ast.unparse(ast.parse(call, mode="eval").body.args[0])  # type: ignore[attr-defined]
            section = getattr(importlib.import_module(agent.current.parent.path), agent.current.name)
            option = next(option for option in schema.options(section) if option.path == attr.name)
            attr.extra["reference"]["meaning"] = option.meaning
        elif call.startswith("group("):
            attr.value = call.removeprefix("group(").removesuffix(")") + "()"

    def on_class_members(self, *, cls: griffe.Class, **_: Any) -> None:
        meanings = {name: member.extra["reference"].get("meaning") for name, member in cls.members.items()}
        rows = [f"| `{name}` | {meaning} |" for name, meaning in meanings.items() if meaning]
        if rows and cls.docstring is not None:
            cls.docstring.value += "\n\n" + "\n".join(["| field | meaning |", "|---|---|", *rows])
        if str(next(iter(cls.bases), "")) not in ("nn.Module", "Positions", "NamedTuple") or "__init__" in cls.members:
            return
        fields = [
            griffe.Parameter(
                member.name,
                annotation=member.annotation,
                kind=griffe.ParameterKind.positional_or_keyword,
                default=str(member.value) if member.value is not None else None,
            )
            for member in cls.members.values()
            if isinstance(member, griffe.Attribute)
            and member.annotation is not None
            and "ClassVar" not in str(member.annotation)
        ]
        if fields:
            cls.set_member("__init__", griffe.Function("__init__", parameters=griffe.Parameters(*fields), parent=cls))

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = TOKEN.sub(r"`<\1>`", obj.docstring.value)
