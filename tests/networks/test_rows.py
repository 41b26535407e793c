"""Check the forms in which clients' rows are given, and rows that are read when needed."""

from __future__ import annotations

import collections
import pickle
import subprocess
import sys
import threading
import time
import weakref
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from nets import SIZES, network, rows
from torch import nn
from torch.nn import functional as F
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    StackDataset,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
)

import fedpage as fp
from fedpage.core.random import RoundDraws
from fedpage.problems.torch.rows import read_table
from fedpage.problems.torch.sources import ColumnSource, open_source

CPU = torch.device("cpu")
FEDAVG = fp.FedAvg(S=3, K=3, eta_l=0.1, b=4)
FEDPAGE = fp.FedPAGE(S=3, K=3, eta_l=0.1, p=0.5, b1=4, b2=4, b3=2)


class Words(nn.Module):
    """Classify padded sentences, with the arguments of a model of Hugging Face."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.out = nn.Embedding(10, 4), nn.Linear(4, 3)

    def forward(self, input_ids=None, attention_mask=None):
        words = self.embedding(input_ids) * attention_mask[..., None]
        return {"logits": self.out(words.sum(-2))}


def word_loss(outputs, targets):
    return F.cross_entropy(outputs["logits"], targets)


def word_accuracy(outputs, targets):
    return (outputs["logits"].argmax(1) == targets).double().mean()


def columns(count, seed=0):
    rng = np.random.default_rng(seed)
    return {
        "input_ids": rng.integers(0, 10, (count, 5)),
        "attention_mask": rng.integers(0, 2, (count, 5)),
        "labels": rng.integers(0, 3, count),
    }


class Rows(Dataset):
    """A map-style data set of rows that were made before."""

    def __init__(self, rows):
        self.rows = rows

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, number):
        return self.rows[number]


def dicts(table):
    return [{name: x[j] for name, x in table.items()} for j in range(len(table["labels"]))]


def without_target(table):
    return {name: x for name, x in table.items() if name != "labels"}


def collate(batch):
    """Pad sentences to five words, as a collate function does."""
    padded = [[*row["words"], 0, 0, 0, 0, 0][:5] for row in batch]
    known = [[1] * min(5, len(row["words"])) + [0] * (5 - len(row["words"])) for row in batch]
    return {
        "input_ids": torch.tensor(padded),
        "attention_mask": torch.tensor(known),
        "labels": torch.tensor([row["label"] for row in batch]),
    }


COLUMNS = [columns(n, seed) for seed, n in enumerate((5, 9, 14))]


def word_problem(clients=COLUMNS, **options):
    options = {"target": "labels", "metrics": {"right": word_accuracy}} | options
    return fp.TorchProblem(Words(), word_loss, clients, **options)


FORMS = {
    "dict of tensors": lambda t: {name: torch.as_tensor(x) for name, x in t.items()},
    "dict and targets": lambda t: (without_target(t), t["labels"]),
    "list of dicts": dicts,
    "rows of dicts": lambda t: Rows(dicts(t)),
    "rows of a dict and a target": lambda t: Rows(
        [(without_target(row), row["labels"]) for row in dicts(t)]
    ),
    "rows of lists": lambda t: Rows(
        [{name: x.tolist() for name, x in row.items()} for row in dicts(t)]
    ),
    "torch's StackDataset": lambda t: StackDataset(**t),
    "shuffled loader": lambda t: DataLoader(
        Rows(dicts(t)), batch_size=3, shuffle=True, drop_last=True
    ),
    "loader of a subset": lambda t: DataLoader(Subset(Rows(dicts(t) * 2), range(len(dicts(t))))),
}


@pytest.mark.parametrize("lazy", [False, True], ids=["in memory", "lazy"])
@pytest.mark.parametrize("form", FORMS)
def test_all_forms_of_dicts_give_the_same_bits(form, lazy):
    clients = [FORMS[form](table) for table in COLUMNS]
    problem = word_problem(clients, lazy=lazy, held_out=clients[1], held_out_clients=clients[2:])
    expected = word_problem(held_out=COLUMNS[1], held_out_clients=COLUMNS[2:])
    x = problem.x0 + 0.1
    assert problem.evaluate(x) == expected.evaluate(x)
    assert problem.describe() == expected.describe()
    assert problem.evaluate_on(x, clients[0]) == expected.evaluate_on(x, COLUMNS[0])
    assert problem.mode == "batched"


def test_gradients_over_dicts_are_those_of_autograd():
    module, table = Words().double(), COLUMNS[1]
    problem = word_problem([table], dtype="float64")
    outputs = module(**{name: torch.as_tensor(x) for name, x in without_target(table).items()})
    loss = word_loss(outputs, torch.as_tensor(table["labels"]))
    gradients = torch.autograd.grad(loss, list(module.parameters()))
    expected = torch.cat([part.reshape(-1) for part in gradients])
    np.testing.assert_allclose(problem.grad(problem.x0), expected.numpy(), rtol=0, atol=1e-14)


@pytest.mark.parametrize("options", [{"batched": False}, {"deterministic": True}])
@pytest.mark.parametrize("method", [FEDAVG, FEDPAGE], ids=["FedAvg", "FedPAGE"])
def test_dicts_train_alike_in_all_modes(method, options):
    batched = fp.simulate(word_problem(dtype="float64"), method, rounds=4, seed=0)
    problem = word_problem(dtype="float64", **options)
    found = fp.simulate(problem, method, rounds=4, seed=0)
    assert problem.mode == "sequential"
    np.testing.assert_allclose(found.x, batched.x, rtol=0, atol=1e-13)


@pytest.mark.slow
@pytest.mark.parametrize("batched", [True, False])
def test_dicts_are_compiled(batched, traced):
    eager = fp.simulate(word_problem(dtype="float64"), FEDAVG, rounds=2, seed=0)
    problem = word_problem(dtype="float64", compile=True, batched=batched)
    compiled = fp.simulate(problem, FEDAVG, rounds=2, seed=0)
    np.testing.assert_allclose(compiled.x, eager.x, rtol=0, atol=1e-12)


def test_predict_takes_dicts_and_data_sets():
    problem = word_problem()
    x, table = problem.x0 + 0.1, COLUMNS[0]
    expected = problem.to_module(x)(
        **{name: torch.as_tensor(c) for name, c in without_target(table).items()}
    )["logits"]
    for inputs in (table, without_target(table), Rows(dicts(table))):
        assert torch.equal(problem.predict(x, inputs)["logits"], expected)
    with pytest.raises(fp.InputError, match="Words has no argument 'input_id'; did you mean"):
        problem.predict(x, {"input_id": table["input_ids"]})


@dataclass
class ModelOutput(collections.OrderedDict):
    """An output that is a dict with attributes and leaves out None, as in transformers."""

    logits: torch.Tensor
    hidden: torch.Tensor | None = None

    def __post_init__(self):
        for name in ("logits", "hidden"):
            if getattr(self, name) is not None:
                self[name] = getattr(self, name)


class WithModelOutput(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = Words()

    def forward(self, **inputs):
        return ModelOutput(self.inner(**inputs)["logits"])


def test_outputs_that_are_dicts_with_attributes():
    model = WithModelOutput()
    problem = fp.TorchProblem(
        model,
        lambda outputs, targets: F.cross_entropy(outputs.logits, targets),
        COLUMNS,
        target="labels",
        metrics={"right": word_accuracy},
        batched=False,
    )
    assert problem.evaluate(problem.x0) == word_problem(batched=False).evaluate(problem.x0)
    assert isinstance(problem.predict(problem.x0, COLUMNS[0]), ModelOutput)


# Tuples


TUPLES = {
    "list of rows": lambda x, y: list(zip(x, y, strict=True)),
    "rows": lambda x, y: Rows(list(zip(x, y, strict=True))),
    "loader of tensors": lambda x, y: DataLoader(TensorDataset(*map(torch.as_tensor, (x, y)))),
    "loader of a list": lambda x, y: DataLoader(list(zip(x, y, strict=True))),
    "tuple of one input": lambda x, y: ((x,), y),
    "no torch Dataset": lambda x, y: collections.deque(zip(x, y, strict=True)),
}


@pytest.mark.parametrize("form", TUPLES)
def test_all_forms_of_tuples_give_the_same_bits(form):
    clients = [TUPLES[form](x, y) for x, y in rows(SIZES)]
    problem = fp.TorchProblem(network(), F.cross_entropy, clients)
    expected = fp.TorchProblem(network(), F.cross_entropy, rows(SIZES))
    assert problem.evaluate(problem.x0) == expected.evaluate(problem.x0)
    assert problem.describe() == expected.describe()


def test_numbers_of_rows_keep_their_precision():
    data = [(np.array([1 / 3, 2 / 3]), 1 / 3), (np.array([1.0, 2.0]), 1 / 7)]
    problem = fp.TorchProblem(
        nn.Linear(2, 1).double(), lambda out, y: F.mse_loss(out[:, 0], y), [Rows(data)]
    )
    np.testing.assert_array_equal(problem.mean_labels(), [(1 / 3 + 1 / 7) / 2])


def test_arrays_of_any_kind_of_number_are_read():
    x = np.arange(12.0).reshape(6, 2)
    kinds = [x, x.astype(">f4"), x.astype("f2"), np.asfortranarray(x), x.tolist()]
    kinds.append(np.frombuffer(x.tobytes()).reshape(6, 2))  # read-only
    targets = np.array([0, 1] * 3)
    for values in kinds:
        for own in (targets, targets.astype(np.uint16), targets.tolist()):
            problem = fp.TorchProblem(nn.Linear(2, 2), word_or_plain_loss, [(values, own)])
            found = problem.predict(problem.x0, values)
            expected = problem.to_module(problem.x0)(torch.tensor(x, dtype=torch.float32))
            torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)


def word_or_plain_loss(outputs, targets):
    return F.cross_entropy(outputs, targets.long())


# Loaders


def test_the_collate_function_of_a_loader_makes_rows():
    sentences = [{"words": list(range(1, 2 + j % 5)), "label": j % 3} for j in range(10)]
    plain = collate(sentences)
    for lazy in (False, True):
        loader = DataLoader(sentences, batch_size=4, shuffle=True, collate_fn=collate)
        problem = word_problem([loader], lazy=lazy)
        assert problem.sizes.tolist() == [10]  # all of them, whatever the size of batches
        assert problem.describe() == word_problem([plain]).describe()


# Refusals

X, Y = torch.randn(12, 6), torch.arange(12) % 3
NAMED = {"input": X, "labels": Y}


class Stream(IterableDataset):
    def __iter__(self):
        return iter(zip(X, Y, strict=True))


class NoLength(Dataset):
    def __getitem__(self, number):
        return X[number], Y[number]


def loader(**options):
    return DataLoader(TensorDataset(X, Y), **options)


def ragged_collate(batch):
    return torch.tensor([row[0] for row in batch]), torch.tensor([row[1] for row in batch])


REFUSED: dict[str, Any] = {
    "a loader in place of a list": (
        loader(),
        r"client_datasets must be a list .* not a DataLoader; for a single client give \[rows\]",
    ),
    "a data set in place of a list": (TensorDataset(X, Y), "a list .* not a TensorDataset"),
    "a dict in place of a list": (NAMED, "a list .* not a dict"),
    "a stream": (
        [Stream()],
        r"client 0 \(Stream\) has no row numbers; give a Dataset with __len__",
    ),
    "a loader of a stream": ([DataLoader(Stream())], r"client 0 \(Stream\) has no row numbers"),
    "a generator": ([(row for row in zip(X, Y, strict=True))], r"generator.* list\(rows\)"),
    "no length": ([NoLength()], r"client 0 \(NoLength\) has no __len__"),
    "no length in a loader": ([DataLoader(NoLength(), sampler=[0, 1])], "has no __len__"),
    "a sampler": (
        [loader(sampler=SubsetRandomSampler([1, 2]))],
        r"SubsetRandomSampler of a DataLoader is not used.*\.Subset\(dataset, rows\)",
    ),
    "a sampler of some rows": (
        [loader(sampler=RandomSampler(X, num_samples=3))],
        "RandomSampler of a DataLoader is not used",
    ),
    "a sampler of batches": (
        [loader(batch_sampler=BatchSampler(SubsetRandomSampler([1]), 1, False))],
        "SubsetRandomSampler",
    ),
    "no batches": ([loader(batch_size=None)], "batch_size=None"),
    "no target": ([NAMED], r"client 0 is a dict \(input, labels\).* target='labels'"),
    "another target": ([NAMED], "no column 'label'; did you mean 'labels'", {"target": "label"}),
    "another target of rows": (
        [Rows([{"input": X[0], "labels": 0}])],
        "client 0, row 0 has no column 'label'; did you mean 'labels'",
        {"target": "label"},
    ),
    "a number as target": ([NAMED], "target must be the name of a column", {"target": 1}),
    "targets only": ([{"labels": Y}], "no column but 'labels'", {"target": "labels"}),
    "an unknown argument": (
        [{"inputs": X, "labels": Y}],
        "Linear has no argument 'inputs'; did you mean 'input'",
        {"target": "labels"},
    ),
    "unequal rows": (
        [Rows([(X[0], 0), (X[1], 1), (X[2, :4], 2)])],
        r"client 0, row 2: the input has shape \(4,\), but row 0 has \(6,\); pad",
    ),
    "unequal rows of clients": (
        [Rows([(X[0], 0)]), Rows([(X[0, :4], 0)])],
        r"client 1.*: the input has shape \(4,\), but client 0.* has \(6,\)",
    ),
    "lists of unequal lengths": (
        [{"input": [[1.0, 2.0], [1.0]], "labels": [0, 1]}],
        "column 'input' has lists of unequal lengths; pad",
        {"target": "labels"},
    ),
    "padding of batches": (
        [DataLoader([([1.0] * k, 0) for k in (6, 5)], collate_fn=ragged_collate)],
        r"row 1: the input has shape \(5,\).* in collate_fn",
    ),
    "a collate function without batches": (
        [DataLoader([(X[0], 0)], collate_fn=lambda rows: rows[0])],
        "after collate_fn of one row",
    ),
    "unequal types": ([Rows([(X[0], 0), (X[1], 0.5)])], "row 1: the target has type torch.float64"),
    "unequal columns": (
        [Rows([{"input": X[0], "labels": 0}, {"x": X[0], "labels": 0}])],
        "client 0, row 1 has column 'x', the target, but row 0 has column 'input'",
        {"target": "labels"},
    ),
    "unequal columns of clients": (
        [NAMED, {"x": X, "labels": Y}],
        "client 1.* has column 'x', the target, but client 0.* has column 'input'",
        {"target": "labels"},
    ),
    "text": (
        [Rows([{"input": "a word", "labels": 0}])],
        "client 0, row 0: column 'input' is text; tokenise it",
        {"target": "labels"},
    ),
    "names of classes": ([(X, ["cat"] * 12)], "the target is text; .* number its classes"),
    "missing values": ([(X, [None] * 12)], "the target has missing values"),
    "nested dicts": ([Rows([({"input": {"a": 1}}, 0)])], "column 'input' is a dict"),
    "bytes of images": ([((X * 50).byte(), Y)], r"inputs are uint8; .* x.float\(\) / 255"),
    "rows without targets": ([DataLoader(X)], r"client 0, row 0 must be \(inputs, target\)"),
    "no rows": ([[]], "client 0 has no rows"),
    "nothing": ([None], "client 0 must be .* not a NoneType"),
    "not finite": ([(X, Y), Rows([(X[0] * np.nan, 0)])], "client 1 has a NaN"),
}


@pytest.mark.parametrize("lazy", [False, True], ids=["in memory", "lazy"])
@pytest.mark.parametrize("case", REFUSED)
def test_refused_rows(case, lazy):
    clients, message, *options = REFUSED[case]
    if case == "a generator":
        clients = [(row for row in zip(X, Y, strict=True))]
    with pytest.raises(fp.InputError, match=message) as error:
        fp.TorchProblem(
            nn.Linear(6, 3), F.cross_entropy, clients, lazy=lazy, **(options or [{}])[0]
        )
    assert "\n" not in str(error.value)


def test_refused_images_of_pillow():
    image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    picture = image.fromarray(np.zeros((4, 4, 3), np.uint8))
    with pytest.raises(fp.InputError, match=r"row 0: the input is a PIL image; .*ToTensor\(\)"):
        fp.TorchProblem(nn.Linear(4, 3), F.cross_entropy, [Rows([(picture, 0)])])


class Noisy(Rows):
    def __getitem__(self, number):
        x, y = super().__getitem__(number)
        return x + torch.randn(6), y


def test_random_transforms_are_refused_where_rows_are_read_again():
    clients = [Noisy(list(zip(X, Y, strict=True)))]
    fp.TorchProblem(nn.Linear(6, 3), F.cross_entropy, clients)
    with pytest.raises(fp.InputError, match=r"changes when it is read again.* random transforms"):
        fp.TorchProblem(nn.Linear(6, 3), F.cross_entropy, clients, lazy=True)


# Rows that are read when they are needed


class Counted(Dataset):
    """Rows that say which of them are requested, and how many of them are in memory."""

    def __init__(self, x, y):
        self.x, self.y = x, y
        self.requested, self.live, self.most_live = [], 0, 0

    def __len__(self):
        return len(self.y)

    def __getitem__(self, number):
        row = self.x[number].copy()
        self.requested.append(number)
        self.live += 1
        self.most_live = max(self.most_live, self.live)
        weakref.finalize(row, self._forget)
        return row, self.y[number]

    def _forget(self):
        self.live -= 1


def problems(options):
    """Return the same problem in memory and with rows that are read when needed."""

    def make(data, lazy):
        held_out = {"held_out": data[3], "held_out_clients": data[4:6], "metrics": ["accuracy"]}
        return fp.TorchProblem(network(), F.cross_entropy, data, lazy=lazy, **held_out, **options)

    clients = rows(SIZES)
    return make(clients, False), make([Counted(x, y) for x, y in clients], True)


@pytest.mark.parametrize(
    "options",
    [{}, {"deterministic": True}, {"memory": 3e-6}, {"memory": 3e-6, "deterministic": True}],
    ids=["default", "deterministic", "little memory", "deterministic, little memory"],
)
@pytest.mark.parametrize("method", [FEDAVG, FEDPAGE], ids=["FedAvg", "FedPAGE"])
def test_lazy_rows_give_the_same_bits(method, options):
    whole, lazy = problems(options)
    expected = fp.simulate(whole, method, rounds=5, seed=0)
    found = fp.simulate(lazy, method, rounds=5, seed=0)
    assert found.same(expected)
    assert found.x.tobytes() == expected.x.tobytes()
    assert lazy.describe() == whole.describe()
    x = expected.x
    assert lazy.evaluate_on(x, Rows(list(zip(*rows([50])[0], strict=True)))) == (
        whole.evaluate_on(x, rows([50])[0])
    )
    everyone = np.arange(whole.N)
    a, b = (p.evaluate_clients(everyone, x) for p in (lazy, whole))
    assert (a.losses.tobytes(), a.gradients.tobytes()) == (
        b.losses.tobytes(),
        b.gradients.tobytes(),
    )
    np.testing.assert_array_equal(a.metrics["accuracy"], b.metrics["accuracy"])


def test_lazy_rows_of_several_blocks_are_read_once_to_make_a_problem():
    x, y = rows([400])[0]
    first, second = Counted(x[:250], y[:250]), Counted(x[250:], y[250:])
    problem = fp.TorchProblem(network(), F.cross_entropy, [first, second], lazy=True, memory=2e-5)
    assert problem.describe()["rows"] == 400
    total = len(first.requested) + len(second.requested)
    assert total == 400 + 1 + 2 * 8  # all rows, the first one, and a sample twice


REQUESTED: list[int] = []
"""Numbers of rows that were requested before each call of the model."""


class Watching(nn.Module):
    """A linear layer that notes how many rows were read since its last call."""

    data: ClassVar[list[Counted]] = []

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(6, 3)

    def forward(self, x):
        REQUESTED.append(sum(len(own.requested) for own in self.data))
        for own in self.data:
            own.requested.clear()
        return self.inner(x)


@pytest.mark.parametrize("options", [{}, {"batched": False}], ids=["batched", "sequential"])
def test_lazy_rows_fit_in_the_given_memory(options):
    memory, row_bytes = 2e-5, 6 * 4 + 8
    most = int(memory * 2**30) // row_bytes
    REQUESTED.clear()
    Watching.data = [Counted(*own) for own in rows([2000, 3000, 1500])]
    problem = fp.TorchProblem(
        Watching(), F.cross_entropy, Watching.data, lazy=True, memory=memory, **options
    )
    many, full = (fp.FedAvg(S=3, K=K, eta_l=0.1, b=b) for K, b in ((30, 60), (2, None)))
    for method in (FEDPAGE, many, full):
        fp.simulate(problem, method, rounds=3, seed=0)
    assert 50 < max(REQUESTED) <= most < 1500  # of 6500 rows
    assert max(own.most_live for own in Watching.data) <= 2


def test_slices_and_blocks_of_lazy_rows_are_those_in_memory():
    whole, lazy = (
        read_table([open_source(own, "rows") for own in rows(SIZES)], CPU, torch.float64, is_lazy)
        for is_lazy in (False, True)
    )
    chosen = np.array([[3, 0, 3], [11, 40, 7]])
    for start, end in ((0, 75), (2, 60)):
        a, b = whole.slice(start, end), lazy.slice(start, end)
        assert a.length == b.length == end - start
        assert a.take(chosen).digests() == b.take(chosen).digests()
        for left, right in zip(a.blocks(13), b.blocks(13), strict=True):
            assert left.digests() == right.digests()


def test_only_the_rows_of_a_minibatch_are_read():
    x, y = rows([400])[0]
    data = Counted(x, y)
    problem = fp.TorchProblem(network(), F.cross_entropy, [data], lazy=True)
    data.requested.clear()
    problem.oracle(np.array([0]), RoundDraws(0, 0)).local_sgd(problem.x0, K=3, eta=0.1, b=5)
    assert 5 < len(data.requested) <= 15
    assert len(set(data.requested)) == len(data.requested)


def test_lazy_rows_of_a_file_of_numpy(tmp_path):
    clients = rows(SIZES)
    x = np.concatenate([own for own, _ in clients])
    np.save(tmp_path / "x.npy", x)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    starts = np.concatenate([[0], np.cumsum(SIZES)])
    lazily = [(mapped[starts[i] : starts[i + 1]], y) for i, (_, y) in enumerate(clients)]
    problem = fp.TorchProblem(network(), F.cross_entropy, lazily, lazy=True)
    expected = fp.TorchProblem(network(), F.cross_entropy, clients)
    assert fp.simulate(problem, FEDAVG, rounds=3, seed=0).same(
        fp.simulate(expected, FEDAVG, rounds=3, seed=0)
    )
    source = ColumnSource((mapped,), np.zeros(len(x)), "the file")
    assert np.shares_memory(source._columns[0], mapped)  # nothing is read before it is needed


@pytest.mark.parametrize("lazy", [False, True], ids=["in memory", "lazy"])
def test_problems_of_dicts_and_lazy_rows_can_be_pickled(lazy):
    problem = word_problem([Rows(dicts(table)) for table in COLUMNS], lazy=lazy)
    twin = pickle.loads(pickle.dumps(problem))
    assert twin.describe() == problem.describe()
    found, expected = (fp.simulate(p, FEDAVG, rounds=3, seed=1) for p in (twin, problem))
    assert found.same(expected)


class OneReader(Rows):
    """Rows that only one thread may read at a time, as those of an open file."""

    busy = threading.Lock()

    def __getitem__(self, number):
        assert self.busy.acquire(blocking=False), "two threads read at the same time"
        try:
            time.sleep(1e-5)  # let the other threads run
            return super().__getitem__(number)
        finally:
            self.busy.release()

    def __getstate__(self):
        return {"rows": self.rows}


def test_threads_read_lazy_rows_one_at_a_time():
    clients = [OneReader(list(zip(x, y, strict=True))) for x, y in rows([30] * 8)]
    problem = fp.TorchProblem(network(), F.cross_entropy, clients, lazy=True)
    method = fp.FedAvg(S=8, K=3, eta_l=0.1, b=20)
    options = fp.RunOptions(threads=4, chunk=1)
    found = fp.simulate(problem, method, rounds=5, seed=0, options=options)
    whole = fp.TorchProblem(network(), F.cross_entropy, rows([30] * 8))
    assert found.same(fp.simulate(whole, method, rounds=5, seed=0, options=options))


def test_a_held_out_set_of_a_model_without_clients_has_a_digest():
    about = [word_problem([], held_out=COLUMNS[0], lazy=lazy).describe() for lazy in (False, True)]
    assert about[0] == about[1]
    other = word_problem([], held_out=COLUMNS[1]).describe()
    assert other["held_out"] != about[0]["held_out"]


def test_digests_depend_on_the_names_of_columns():
    class Difference(nn.Linear):
        def forward(self, a, b=0, c=0):
            return super().forward(a - b + c)

    def digest(**inputs):
        model = Difference(4, 3)
        return fp.TorchProblem(model, F.cross_entropy, [(inputs, y)]).describe()["data_digest"]

    x, y = rows([6], (4,))[0]
    assert digest(a=x, b=x) == digest(b=x, a=x) != digest(a=x, c=x)


# Hugging Face


@pytest.fixture(scope="module")
def hf():
    datasets = pytest.importorskip("datasets", reason="the extra `datasets` is not installed")
    datasets.disable_progress_bars()
    return datasets


@pytest.mark.parametrize("lazy", [False, True], ids=["in memory", "lazy"])
@pytest.mark.parametrize("form", [None, "torch", "numpy"])
def test_data_sets_of_hugging_face(hf, form, lazy):
    features = hf.Features(
        {
            "input_ids": hf.List(hf.Value("int32"), length=5),
            "attention_mask": hf.List(hf.Value("int8")),
            "labels": hf.ClassLabel(names=["a", "b", "c"]),
        }
    )
    clients = [
        hf.Dataset.from_dict({k: v.tolist() for k, v in table.items()}, features=features)
        for table in COLUMNS
    ]
    clients = [own.with_format(form) for own in clients]
    problem = word_problem(clients, lazy=lazy, held_out=clients[0])
    expected = word_problem(held_out=COLUMNS[0])
    x = problem.x0 + 0.1
    assert problem.evaluate(x) == expected.evaluate(x)
    assert fp.simulate(problem, FEDAVG, rounds=3, seed=0).same(
        fp.simulate(expected, FEDAVG, rounds=3, seed=0)
    )
    assert problem.evaluate_on(x, DataLoader(clients[1])) == expected.evaluate_on(x, COLUMNS[1])
    assert torch.equal(
        problem.predict(x, clients[1])["logits"], expected.predict(x, COLUMNS[1])["logits"]
    )


@pytest.mark.parametrize("lazy", [False, True], ids=["in memory", "lazy"])
def test_arrays_and_transforms_of_hugging_face(hf, lazy):
    values = np.random.default_rng(0).random((7, 2, 3))
    data = hf.Dataset.from_dict(
        {"input": values.tolist(), "y": [0, 1, 2, 0, 1, 2, 0]},
        features=hf.Features({"input": hf.Array2D((2, 3), "float64"), "y": hf.Value("int64")}),
    )
    model = nn.Sequential(nn.Flatten(), nn.Linear(6, 3)).double()
    options = {"target": "y", "lazy": lazy}
    problem = fp.TorchProblem(model, F.cross_entropy, [data], **options)
    expected = fp.TorchProblem(model, F.cross_entropy, [(values, np.array(data["y"]))])
    assert problem.loss(problem.x0) == expected.loss(problem.x0)

    def double(batch):
        return {"input": [2 * np.array(x) for x in batch["input"]], "y": batch["y"]}

    doubled = fp.TorchProblem(model, F.cross_entropy, [data.with_transform(double)], **options)
    assert (
        doubled.loss(problem.x0)
        == expected.evaluate_on(problem.x0, (2 * values, np.array(data["y"])))["loss"]
    )


@pytest.mark.parametrize("lazy", [False, True], ids=["in memory", "lazy"])
def test_images_of_hugging_face_are_numbers_from_0_to_1(hf, lazy):
    pytest.importorskip("PIL", reason="Pillow is not installed")
    pixels = np.random.default_rng(0).integers(0, 256, (6, 4, 4, 3)).astype(np.uint8)
    data = hf.Dataset.from_dict(
        {"input": list(pixels), "label": [0, 1, 2] * 2},
        features=hf.Features({"input": hf.Image(), "label": hf.Value("int64")}),
    )
    model = nn.Sequential(nn.Flatten(), nn.Linear(48, 3))
    problem = fp.TorchProblem(model, F.cross_entropy, [data], target="label", lazy=lazy)
    plain = np.moveaxis(pixels, 3, 1).astype(np.float32) / np.float32(255)
    expected = fp.TorchProblem(model, F.cross_entropy, [(plain, np.array(data["label"]))])
    assert problem.loss(problem.x0) == expected.loss(problem.x0)


def test_refused_data_sets_of_hugging_face(hf):
    plain = {"input": X.tolist(), "label": Y.tolist()}
    data = hf.Dataset.from_dict(plain)
    cases = [
        (data, "a list with the rows of each client, not a Dataset"),
        ([hf.DatasetDict(train=data)], r"dict of data sets; .* data\['train'\]"),
        ([data.to_iterable_dataset()], r"\(IterableDataset\) has no row numbers"),
        ([data.rename_column("label", "labels")], "no column 'label'; did you mean 'labels'"),
        ([data.add_column("text", ["word"] * 12)], "row 0: column 'text' is text; tokenise it"),
        ([data.rename_column("input", "pixels")], "Linear has no argument 'pixels'"),
        (
            [hf.Dataset.from_dict({"input": [[1.0] * 6, [1.0] * 5], "label": [0, 1]})],
            r"client 0, row 1: column 'input' has shape \(5,\), but row 0 has \(6,\)",
        ),
        (
            [hf.Dataset.from_dict({"input": [1.0, None], "label": [0, 1]})],
            "row 1: column 'input' has missing values",
        ),
    ]
    for clients, message in cases:
        with pytest.raises(fp.InputError, match=message):
            fp.TorchProblem(nn.Linear(6, 3), F.cross_entropy, clients, target="label")


def test_the_package_of_hugging_face_is_not_imported_without_need():
    code = (
        "import sys, torch, fedpage as fp\n"
        "data = [{'input': torch.randn(4, 2), 'y': torch.arange(4) % 2}]\n"
        "fp.TorchProblem(torch.nn.Linear(2, 2), torch.nn.CrossEntropyLoss(), data, target='y')\n"
        "assert 'datasets' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
