"""Texts of codecs, schedules, optimisers, means, devices, costs and partitions that are refused.

Every line of refused_texts.txt is a kind of text, the text, and after " -> " the words that matter.
"""

from pathlib import Path

import numpy as np
import pytest
from support import refusal

import fedpage as fp
from fedpage.codecs import as_codec
from fedpage.core.columns import Cost
from fedpage.core.optimizers import Optimizer
from fedpage.data.partition import partition_from_text
from fedpage.engine.aggregation import Aggregation
from fedpage.methods.schedules import Schedule

READERS = {
    "codec": as_codec,
    "cost": Cost.parse,
    "devices": fp.Devices.from_text,
    "mean": Aggregation.from_text,
    "optimizer": Optimizer.from_text,
    "partition": lambda text: partition_from_text(text, np.arange(60) % 2, 5),
    "schedule": Schedule.from_text,
}
LINES = Path(__file__).with_name("refused_texts.txt").read_text(encoding="utf-8").splitlines()


@pytest.mark.parametrize("line", LINES)
def test_a_text_is_refused_in_one_line(line):
    call, _, words = line.partition(" -> ")
    kind, text = call.split(" ", 1)
    said = refusal(READERS[kind], "" if text == '""' else text.replace("BIG", "9" * 5000))
    assert words in said
    assert len(said) < 250


@pytest.mark.parametrize(
    ("read", "value", "words"),
    [
        (as_codec, 3, "a codec is a text such as 'randk:12', not 3"),
        (Cost.parse, None, "a cost must be text"),
        (lambda value: fp.LocalTraining(client_optimizer=value), 0.9, "must be one such as"),
        (lambda value: Optimizer(clip=value), 1.0, "write one as text"),
        (lambda value: fp.LocalTraining(epochs=2, K=value), 5, "give K or epochs, not both"),
    ],
)
def test_what_is_no_text_is_refused(read, value, words):
    assert words in refusal(read, value)
