"""Run configurations: their keys, and those that are refused before round 0, in one line."""

import dataclasses
import tomllib
from importlib.resources import files

import pytest
from faults import OWN_FILES, SECURE
from support import refusal

from fedpage.flower.config import AppConfig, parse_app_config
from fedpage.flower.schema import parse_schema

PRIVATE = {"method": "fedavg", "hyper": "S=3 K=2"}
REFUSED = [
    ({"clients": 0}, "clients must be a whole number of at least 1"),
    ({"deadline": 0.0}, "deadline must be a finite number above 0"),
    ({"weights": "rows"}, "weights must be 'uniform' or 'size'"),
    ({"hyper": "S"}, "hyper must be words such as S=2"),
    ({"hyper": "Z=2"}, "FedPAGE: unknown key 'Z'"),
    ({"method": "fedpag"}, "did you mean 'fedpage'"),
    ({"bogus": 1}, "unknown key 'bogus'"),
    ({"metrics": "acuracy"}, "did you mean 'accuracy'"),
    ({"metrics": "f_minus_fstar"}, "needs the reference solution, which takes all clients'"),
    ({"rounds": "many"}, "rounds must be a whole number"),
    (
        {"method": "scaffold", "hyper": "S=2", "checkpoint-every": 10},
        "checkpoint-every must be 1 for SCAFFOLD",
    ),
    # rules that end a run, and what is kept of it
    ({"target": "accuracy"}, "target: expected a number or column:number"),
    ({"budget": "bytes"}, "budget must be words such as bytes:1e9, not 'bytes'"),
    ({"budget": "apples:3"}, "run config: stop: "),
    ({"early-stopping": -1}, "early-stopping must be a whole number of at least 0"),
    ({"track": "notes"}, "run config: no tracker 'notes'"),
    ({"best": "score"}, "run config: Best: "),
    ({"retry-pause": 61.0}, "retry-pause must be a finite number from 0 to 60"),
    # what sites do not send
    ({"evaluation": "values", "target": 0.1}, "does not measure"),
    ({"evaluation": "none", "target": 0.1}, "does not measure"),
    ({"evaluation": "none", "target": "accuracy:0.9", "objective": "logistic"}, "does not measure"),
    # the sites' own files
    (OWN_FILES | {"columns": "a,b,a", "label": "y"}, "columns has 'a' twice"),
    (OWN_FILES | {"columns": "a,,b", "label": "y"}, "columns has an empty name"),
    (OWN_FILES | {"columns": "a,b", "label": "b"}, "the label 'b' cannot be a feature too"),
    (OWN_FILES | {"columns": "a,b", "label": ""}, "columns are named, but not the label column"),
    (OWN_FILES | {"classes": "1"}, "classes must be two or more labels"),
    (OWN_FILES | {"classes": ""}, "name the labels for logistic-l2"),
    (OWN_FILES | {"classes": "0,1,2"}, "logistic-l2 takes two classes, not 3; use softmax"),
    (
        OWN_FILES | {"columns": "a,b", "categories": "c=1|2"},
        "categories names 'c', which is not a column",
    ),
    (OWN_FILES | {"categories": "sex"}, "categories must be as in 'sex=f|m; ward=a|b'"),
    (OWN_FILES | {"categories": "sex=f|f"}, "categories must be as in"),
    (
        OWN_FILES | {"standardise": True, "data": "census"},
        "standardise is for the sites' own files",
    ),
    (OWN_FILES | {"extra-columns": "ignore", "columns": ""}, "needs the names of the columns"),
    (OWN_FILES | {"extra-columns": "keep"}, "extra-columns must be 'refuse' or 'ignore'"),
    (OWN_FILES | {"min-clients": 4}, "min-clients is larger than clients"),
    (OWN_FILES | {"min-clients": 2, "weights": "size"}, "min-clients needs weights = 'uniform'"),
    # runs that secure aggregation or a private mean cannot protect
    (SECURE | {"hyper": "S=1 K=2"}, "FedAvg adds up 1 replies"),
    (SECURE | {"hyper": "S=2 K=2"}, "at least 3 are required"),
    (SECURE | {"method": "fedpage", "hyper": "S=4 up=float32"}, "use up=none"),
    (SECURE | {"metrics": "accuracy_worst", "objective": "logistic"}, "accuracy_worst"),
    (SECURE | {"evaluation": "gradients"}, 'set evaluation = "values"'),
    (
        PRIVATE | {"aggregation": "private:clip=1,noise=1,cohort=secret"},
        "nodes receive the seed",  # who is called follows from it
    ),
]


@pytest.mark.parametrize(("changes", "words"), REFUSED, ids=lambda value: str(value)[-60:])
def test_run_configs_that_cannot_be_used_are_refused(federate, changes, words):
    text = refusal(federate, **changes)
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
