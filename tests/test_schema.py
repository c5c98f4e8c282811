"""The schema's machinery, on a small schema: types, bounds, nearest names, the command line's text."""

import dataclasses
import json
from typing import Literal

import numpy as np
import pytest

from transformer_jax import schema
from transformer_jax.errors import ConfigError
from transformer_jax.schema import Condition, Section, group, option


@dataclasses.dataclass(frozen=True)
class Oven(Section):
    heat: float = option(180.0, "degrees", at_least=0, below=300)
    mode: Literal["fan", "grill"] = option("fan", "how")
    trays: int | None = option(None, "how many", above=0)
    light: Literal["warm", "cold"] | None = option(None, "its colour")
    program: schema.Settings = option({}, "arguments of the timer")
    rules: schema.Groups = option((), "settings of the dishes whose name has a pattern")
    menus: schema.NamedTexts = option({}, "cards in both languages")


@dataclasses.dataclass(frozen=True)
class Kitchen(Section, largest=1000):
    open: bool = option(True, "to guests")
    cooks: int = option(2, "people", at_least=1)
    dishes: tuple[str, ...] = option((), "names")
    staff: tuple[schema.Pattern, ...] = option((), "of names")
    oven: Oven = group(Oven)

    def contradictions(self):
        if self.dishes and len(self.dishes) < self.cooks:
            yield f"cooks = {self.cooks} need as many dishes"


def problems(values: dict) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as caught:
        schema.build(Kitchen, values)
    return caught.value.problems


def test_defaults_and_round_trip():
    kitchen = schema.build(Kitchen, {"oven": {"heat": 200, "light": "warm"}, "dishes": ["soup", "bread"]})
    assert kitchen == Kitchen(dishes=("soup", "bread"), oven=Oven(heat=200.0, light="warm"))
    assert schema.build(Kitchen, dataclasses.asdict(kitchen)) == kitchen


def test_settings_from_a_config_and_from_a_command_line():
    values = {"oven": {"program": {"start": [1, 2]}, "rules": [["soup$", {"salt": 0.5}]]}}
    oven = schema.build(Kitchen, values).oven
    assert oven.program == {"start": (1, 2)}
    assert oven.rules == (("soup$", {"salt": 0.5}),)
    as_json = [("oven.program", '{"start": 3}'), ("oven.rules", '[["bread", {}]]')]
    assert schema.lay_over(Kitchen, values, as_json) == []
    assert schema.build(Kitchen, values).oven == Oven(program={"start": 3}, rules=(("bread", {}),))
    assert schema.build(Kitchen, json.loads(json.dumps(dataclasses.asdict(Kitchen(oven=oven))))).oven == oven


def test_named_texts_from_a_config_and_from_a_command_line(monkeypatch):
    monkeypatch.setenv("HOME", "/home/ada")
    values = {"oven": {"menus": {"lunch": {"source": "~/a.en", "target": ["a.de"]}}}}
    typed = [("oven.menus.dinner.source", "b.en,c.en"), ("oven.menus.dinner.target", "b.de,c.de")]
    assert schema.lay_over(Kitchen, values, typed) == []
    oven = schema.build(Kitchen, values).oven
    assert oven.menus == {
        "lunch": {"source": ("/home/ada/a.en",), "target": ("a.de",)},
        "dinner": {"source": ("b.en", "c.en"), "target": ("b.de", "c.de")},
    }
    assert schema.build(Kitchen, json.loads(json.dumps(dataclasses.asdict(Kitchen(oven=oven))))).oven == oven
    louder = schema.with_texts(oven, lambda option, text: text.upper() if option.is_path else text)
    assert louder.menus["lunch"] == {"source": ("/HOME/ADA/A.EN",), "target": ("A.DE",)} and louder.mode == "fan"
    values = {}
    assert schema.lay_over(Kitchen, values, [("oven.menus", '{"lunch": {"source": "a.tsv"}}')]) == []
    assert schema.build(Kitchen, values).oven.menus == {"lunch": {"source": ("a.tsv",)}}
    assert schema.lay_over(Kitchen, values, [("oven.menus.dinner.source", "b.en,")]) == []
    assert schema.build(Kitchen, values).oven.menus == {
        "lunch": {"source": ("a.tsv",)},
        "dinner": {"source": ("b.en",)},
    }
    for wrong in ({"lunch": "a.tsv"}, {"lunch": {"sorce": "a.tsv"}}, {"lunch": {"source": 3}}):
        assert "oven.menus" in problems({"oven": {"menus": wrong}})[0]


def test_all_problems_are_reported_at_once():
    message = problems({"coks": 3, "open": 1, "oven": {"heat": 300, "mode": "gril", "trays": 0}})
    assert message == (
        "coks: no such option; did you mean cooks?",
        "oven.heat = 300.0: must be at least 0 and below 300",
        "oven.mode = 'gril': must be fan | grill",
        "oven.trays = 0: must be above 0",
        "open = 1: must be true or false",
    )


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"cooks": 2.5}, "cooks = 2.5: must be a whole number"),
        ({"cooks": 10**30}, "cooks = 1000000000000000000000000000000: must be at most 1,000"),
        ({"oven": {"heat": float("nan")}}, "oven.heat = nan: must be 0 or a finite number"),
        ({"oven": {"heat": 10**400}}, "oven.heat = 1000000"),
        ({"oven": {"heat": 1e-46}}, "oven.heat = 1e-46: must be 0 or a finite number"),
        ({"oven": 3}, "oven = 3: is a group of options, not a value"),
        ({"dishes": [1]}, "dishes = 1: must be a text (several with commas)"),
        ({"zzz": 1}, "zzz: no such option; there are: open, cooks, dishes, staff, oven"),
        ({"oven": {"program": {"start": float("nan")}}}, "oven.program = {'start': nan}: must be names and values"),
        ({"oven": {"program": "start=3"}}, "oven.program = 'start=3': must be names and values"),
        ({"oven": {"rules": [["soup", 3]]}}, "oven.rules = [['soup', 3]]: must be regular expressions and settings"),
        ({"staff": ["(cook"]}, "staff = '(cook': must be a regular expression"),
        ({"oven": {"light": "hot"}}, "oven.light = 'hot': must be warm | cold | none"),
        ({"dishes": ["soup"]}, "cooks = 2 need as many dishes"),
    ],
)
def test_one_wrong_value(values, message):
    (problem,) = problems(values)
    assert problem.startswith(message)


@dataclasses.dataclass(frozen=True)
class Bakery(Section, affects="output", condition=Condition(lambda bakery: bakery.ovens > 0, "ovens")):
    ovens: int = option(0, "how many", affects="result")
    bread: int = option(1, "loaves")


def test_what_an_option_affects_and_when_is_declared_with_it_or_with_its_section():
    ovens, bread = schema.options(Bakery)
    assert (ovens.affects, bread.affects) == ("result", "output")
    assert not bread.has_effect(Bakery()) and bread.has_effect(Bakery(ovens=1))
    assert {(option.affects, option.condition) for option in schema.options(Kitchen)} == {("result", None)}


def test_an_instance_that_exists_is_valid():
    with pytest.raises(ConfigError, match="heat = -1"):
        Oven(heat=-1)
    with pytest.raises(ConfigError, match="did you mean heat"):
        Oven(haet=1)


@dataclasses.dataclass(frozen=True)
class Kinds(Section):
    whole: int | None = option(None, "")
    number: float = option(0.0, "")
    truth: bool = option(False, "")
    text: str = option("", "")
    texts: tuple[str, ...] = option((), "")
    choice: Literal["fan"] | schema.Address | None = option(None, "")
    path: schema.FilePath | None = option(None, "")


@pytest.mark.parametrize(
    ("path", "text", "value"),
    [
        ("whole", "1e3", 1000),
        ("whole", str(2**60 + 1), 2**60 + 1),
        ("whole", "none", None),
        ("number", "1e-3", 0.001),
        ("truth", "True", True),
        ("truth", "0", False),
        ("texts", "a,b", ("a", "b")),
        ("texts", "none", ()),
        ("choice", "a.py:B", "a.py:B"),
        ("choice", "", None),
        ("path", "17", "17"),
    ],
)
def test_a_text_of_a_command_line_is_read_as_its_kind(path, text, value):
    values: dict = {}
    assert schema.lay_over(Kinds, values, [(path, text)]) == []
    found = getattr(schema.build(Kinds, values), path)
    assert found == value and type(found) is type(value)


@pytest.mark.parametrize(
    ("path", "text"), [("whole", "2.5"), ("number", "x"), ("number", ""), ("truth", "maybe"), ("choice", "grill")]
)
def test_a_text_that_cannot_be_read_is_reported_where_the_section_is_built(path, text):
    values: dict = {}
    assert schema.lay_over(Kinds, values, [(path, text)]) == []
    with pytest.raises(ConfigError, match=f"^{path} = "):
        schema.build(Kinds, values)


def test_arrays_and_endless_lists_are_values_of_another_kind():
    (line,) = problems({"oven": {"heat": np.array([180, 200])}})
    assert line.endswith("must be a number")
    (line,) = problems({"oven": {"program": "[" * 200_000}})
    assert "names and values as in JSON" in line


def test_names_of_texts_are_texts():
    (line,) = problems({"oven": {"menus": {2014: {"source": "a.en", "target": "a.de"}}}})
    assert line.startswith("oven.menus = ") and "must be names and files" in line
