"""Run configurations: their keys, and those that are refused before round 0, in one line."""

import dataclasses
import tomllib
from importlib.resources import files
from pathlib import Path

import pytest
from faults import OWN_FILES, SECURE
from support import refusal

from fedpage.flower.config import AppConfig, parse_app_config
from fedpage.flower.schema import parse_schema

BASES = {"OWN": OWN_FILES, "SECURE": SECURE, "PRIVATE": {"method": "fedavg", "hyper": "S=3 K=2"}}
LINES = Path(__file__).with_name("refused_configs.txt").read_text(encoding="utf-8").splitlines()
"""Settings in TOML, after the name of a base if there is one, and the words that matter."""


@pytest.mark.parametrize("line", LINES)
def test_run_configs_that_cannot_be_used_are_refused(federate, line):
    given, _, words = line.partition(" -> ")
    name, _, rest = given.partition(" ")
    settings = tomllib.loads(f"given = {{ {rest if name in BASES else given} }}")["given"]
    text = refusal(federate, **BASES.get(name, {}) | settings)
    assert words in text
    assert len(text) <= 200


def test_app_toml_has_exactly_the_keys_of_the_dataclass():
    table = tomllib.loads(files("fedpage.flower").joinpath("app.toml").read_text(encoding="utf-8"))
    keys = {field.name.replace("_", "-") for field in dataclasses.fields(AppConfig)}
    assert set(table["tool"]["flwr"]["app"]["config"]) == keys


def test_names_with_commas_and_spaces(config):
    names = {"columns": 'age, "height, cm" ,bmi', "classes": " no, yes"}
    schema = parse_schema(parse_app_config(config | OWN_FILES | names))
    assert schema.columns == ("age", "height, cm", "bmi")
    assert schema.classes == ("no", "yes")
