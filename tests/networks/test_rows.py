"""Check the forms in which clients' rows are given, and rows that are read when needed."""

import collections
import pickle
import sys
import threading
import time
import weakref
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from nets import SIZES, network, plain_gradient, refuse, rows
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

FEDAVG = fp.FedAvg(S=3, K=3, eta_l=0.1, b=4)
FEDPAGE = fp.FedPAGE(S=3, K=3, eta_l=0.1, p=0.5, b1=4, b2=4, b3=2)
lazily = pytest.mark.parametrize("lazy", [False, True], ids=["in memory", "lazy"])


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


def pairs(x, y):
    return list(zip(x, y, strict=True))


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


# Forms


DICTS = {
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


@lazily
@pytest.mark.parametrize("form", DICTS)
def test_all_forms_of_dicts_give_the_same_bits(form, lazy):
    clients = [DICTS[form](table) for table in COLUMNS]
    problem = word_problem(clients, lazy=lazy, held_out=clients[1], held_out_clients=clients[2:])
    expected = word_problem(held_out=COLUMNS[1], held_out_clients=COLUMNS[2:])
    x = problem.x0 + 0.1
    assert problem.evaluate(x) == expected.evaluate(x)
    assert problem.describe() == expected.describe()
    assert problem.evaluate_on(x, clients[0]) == expected.evaluate_on(x, COLUMNS[0])
    assert problem.mode == "batched"


TUPLES = {
    "list of rows": pairs,
    "rows": lambda x, y: Rows(pairs(x, y)),
    "loader of tensors": lambda x, y: DataLoader(TensorDataset(*map(torch.as_tensor, (x, y)))),
    "loader of a list": lambda x, y: DataLoader(pairs(x, y)),
    "tuple of one input": lambda x, y: ((x,), y),
    "no torch Dataset": lambda x, y: collections.deque(pairs(x, y)),
    "big-endian": lambda x, y: (x.astype(">f4"), y.astype(np.uint8).astype(int)),
    "in another order": lambda x, y: (np.asfortranarray(x), y.tolist()),
    "read-only": lambda x, y: (np.frombuffer(x.tobytes(), np.float32).reshape(-1, 6), y),
    "lists": lambda x, y: (x.tolist(), y.tolist()),
}


@pytest.mark.parametrize("form", TUPLES)
def test_all_forms_of_tuples_give_the_same_bits(form):
    clients = [TUPLES[form](x, y) for x, y in rows(SIZES)]
    problem = fp.TorchProblem(network(), F.cross_entropy, clients)
    expected = fp.TorchProblem(network(), F.cross_entropy, rows(SIZES))
    assert problem.evaluate(problem.x0) == expected.evaluate(problem.x0)
    assert problem.describe() == expected.describe()


def test_gradients_over_dicts_are_those_of_autograd_in_all_modes():
    module, table = Words().double(), COLUMNS[1]
    inputs = {name: torch.as_tensor(x) for name, x in without_target(table).items()}
    expected = plain_gradient(word_loss(module(**inputs), torch.as_tensor(table["labels"])), module)
    found = []
    for options in ({}, {"batched": False}, {"deterministic": True}):
        problem = word_problem([table], dtype="float64", **options)
        np.testing.assert_allclose(problem.grad(problem.x0), expected, rtol=0, atol=1e-14)
        problem = word_problem(dtype="float64", **options)
        assert problem.mode == ("sequential" if options else "batched")
        found.append(fp.simulate(problem, FEDPAGE, rounds=4, seed=0).x)
    np.testing.assert_allclose(found[1:], [found[0]] * 2, rtol=0, atol=1e-13)


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
    inputs = {name: torch.as_tensor(c) for name, c in without_target(table).items()}
    expected = problem.to_module(x)(**inputs)["logits"]
    for given in (table, without_target(table), Rows(dicts(table))):
        assert torch.equal(problem.predict(x, given)["logits"], expected)
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
    problem = fp.TorchProblem(
        WithModelOutput(), lambda outputs, targets: F.cross_entropy(outputs.logits, targets),
        COLUMNS, target="labels", metrics={"right": word_accuracy}, batched=False,
    )  # fmt: skip
    assert problem.evaluate(problem.x0) == word_problem(batched=False).evaluate(problem.x0)
    assert isinstance(problem.predict(problem.x0, COLUMNS[0]), ModelOutput)


def test_numbers_of_rows_keep_their_precision():
    data = [(np.array([1 / 3, 2 / 3]), 1 / 3), (np.array([1.0, 2.0]), 1 / 7)]
    model = nn.Linear(2, 1).double()
    problem = fp.TorchProblem(model, lambda out, y: F.mse_loss(out[:, 0], y), [Rows(data)])
    np.testing.assert_array_equal(problem.mean_labels(), [(1 / 3 + 1 / 7) / 2])


@lazily
def test_the_collate_function_of_a_loader_makes_rows(lazy):
    sentences = [{"words": list(range(1, 2 + j % 5)), "label": j % 3} for j in range(10)]
    loader = DataLoader(sentences, batch_size=4, shuffle=True, collate_fn=collate)
    problem = word_problem([loader], lazy=lazy)
    assert problem.sizes.tolist() == [10]  # all of them, whatever the size of batches
    assert problem.describe() == word_problem([collate(sentences)]).describe()


# Refusals

X, Y = torch.randn(12, 6), torch.arange(12) % 3
NAMED = {"input": X, "labels": Y}
TARGET = {"target": "labels"}


class Stream(IterableDataset):
    def __iter__(self):
        return iter(pairs(X, Y))


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
    "a pair in place of a list": ((X.numpy(), Y.numpy()), "client 0 must be"),
    "an array": (X.numpy(), "list with"),
    "a client without rows": ([(X, Y), (X[:0], Y[:0])], "client 1 has no rows"),
    "unequal lengths": ([(X, Y[:-1])], "same number of rows"),
    "unequal types of clients": ([(X, Y), (X, Y.double())], "client 1.*: the target has type"),
    "a generator": ([], r"generator.* list\(rows\)"),
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
    "targets only": ([{"labels": Y}], "no column but 'labels'", TARGET),
    "an unknown argument": (
        [{"inputs": X, "labels": Y}],
        "Linear has no argument 'inputs'; did you mean 'input'",
        TARGET,
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
        TARGET,
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
        TARGET,
    ),
    "unequal columns of clients": (
        [NAMED, {"x": X, "labels": Y}],
        "client 1.* has column 'x', the target, but client 0.* has column 'input'",
        TARGET,
    ),
    "text": (
        [Rows([{"input": "a word", "labels": 0}])],
        "client 0, row 0: column 'input' is text; tokenise it",
        TARGET,
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


@lazily
@pytest.mark.parametrize("case", REFUSED)
def test_refused_rows(case, lazy):
    clients, message, *options = REFUSED[case]
    if case == "a generator":
        clients = [(row for row in pairs(X, Y))]
    refuse(message, nn.Linear(6, 3), F.cross_entropy, clients, lazy=lazy, **(options or [{}])[0])


def test_refused_images_of_pillow():
    image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    picture = image.fromarray(np.zeros((4, 4, 3), np.uint8))
    message = r"row 0: the input is a PIL image; .*ToTensor\(\)"
    refuse(message, nn.Linear(4, 3), F.cross_entropy, [Rows([(picture, 0)])])


class Noisy(Rows):
    def __getitem__(self, number):
        x, y = super().__getitem__(number)
        return x + torch.randn(6), y


def test_random_transforms_are_refused_where_rows_are_read_again():
    clients = [Noisy(pairs(X, Y))]
    fp.TorchProblem(nn.Linear(6, 3), F.cross_entropy, clients)
    message = r"changes when it is read again.* random transforms"
    refuse(message, nn.Linear(6, 3), F.cross_entropy, clients, lazy=True)


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


@pytest.mark.parametrize("memory", [None, 3e-6])
@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("method", [FEDAVG, FEDPAGE], ids=["FedAvg", "FedPAGE"])
def test_lazy_rows_give_the_same_bits(method, deterministic, memory):
    options = {"deterministic": deterministic} | ({"memory": memory} if memory else {})

    def make(data, lazy):
        held_out = {"held_out": data[3], "held_out_clients": data[4:6], "metrics": ["accuracy"]}
        return fp.TorchProblem(network(), F.cross_entropy, data, lazy=lazy, **held_out, **options)

    whole, lazy = make(rows(SIZES), False), make([Counted(x, y) for x, y in rows(SIZES)], True)
    expected = fp.simulate(whole, method, rounds=5, seed=0)
    assert fp.simulate(lazy, method, rounds=5, seed=0).same(expected)
    assert lazy.describe() == whole.describe()
    x, others = expected.x, rows([50])[0]
    assert lazy.evaluate_on(x, Rows(pairs(*others))) == whole.evaluate_on(x, others)
    a, b = (p.evaluate_clients(np.arange(whole.N), x) for p in (lazy, whole))
    assert a.losses.tobytes() == b.losses.tobytes()
    assert a.gradients.tobytes() == b.gradients.tobytes()
    np.testing.assert_array_equal(a.metrics["accuracy"], b.metrics["accuracy"])


def test_only_the_rows_that_are_needed_are_read():
    x, y = rows([400])[0]
    parts = Counted(x[:250], y[:250]), Counted(x[250:], y[250:])
    problem = fp.TorchProblem(network(), F.cross_entropy, parts, lazy=True, memory=2e-5)
    assert problem.describe()["rows"] == 400
    total = sum(len(part.requested) for part in parts)
    assert total == 400 + 1 + 2 * 8  # all rows, the first one, and a sample twice
    parts[0].requested.clear()
    problem.oracle(np.array([0]), RoundDraws(0, 0)).local_sgd(problem.x0, K=3, eta=0.1, b=5)
    found = parts[0].requested
    assert 5 < len(found) == len(set(found)) <= 15


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
    Watching.data = [Counted(*own) for own in rows([1000, 1500, 800])]
    problem = fp.TorchProblem(
        Watching(), F.cross_entropy, Watching.data, lazy=True, memory=memory, **options
    )
    many, full = (fp.FedAvg(S=3, K=K, eta_l=0.1, b=b) for K, b in ((30, 60), (2, None)))
    for method in (FEDPAGE, many, full):
        fp.simulate(problem, method, rounds=2, seed=0)
    assert 50 < max(REQUESTED) <= most < 800  # of 3300 rows
    assert max(own.most_live for own in Watching.data) <= 2


def test_lazy_rows_of_a_file_of_numpy(tmp_path):
    clients = rows(SIZES)
    np.save(tmp_path / "x.npy", np.concatenate([own for own, _ in clients]))
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    starts = np.concatenate([[0], np.cumsum(SIZES)])
    parts = [(mapped[starts[i] : starts[i + 1]], y) for i, (_, y) in enumerate(clients)]
    problem = fp.TorchProblem(network(), F.cross_entropy, parts, lazy=True)
    expected = fp.TorchProblem(network(), F.cross_entropy, clients)
    found, whole = (fp.simulate(p, FEDAVG, rounds=3, seed=0) for p in (problem, expected))
    assert found.same(whole)


@lazily
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
    clients = [OneReader(pairs(x, y)) for x, y in rows([30] * 8)]
    problem = fp.TorchProblem(network(), F.cross_entropy, clients, lazy=True)
    method, options = fp.FedAvg(S=8, K=3, eta_l=0.1, b=20), fp.RunOptions(threads=4, chunk=1)
    found = fp.simulate(problem, method, rounds=5, seed=0, options=options)
    whole = fp.TorchProblem(network(), F.cross_entropy, rows([30] * 8))
    assert found.same(fp.simulate(whole, method, rounds=5, seed=0, options=options))


class Difference(nn.Linear):
    def forward(self, a, b=0, c=0):
        return super().forward(a - b + c)


def test_digests_depend_on_held_out_rows_and_on_the_names_of_columns():
    about = [word_problem([], held_out=COLUMNS[0], lazy=lazy).describe() for lazy in (False, True)]
    assert about[0] == about[1]
    assert word_problem([], held_out=COLUMNS[1]).describe()["held_out"] != about[0]["held_out"]
    x, y = rows([6], (4,))[0]

    def digest(**inputs):
        problem = fp.TorchProblem(Difference(4, 3), F.cross_entropy, [(inputs, y)])
        return problem.describe()["data_digest"]

    assert digest(a=x, b=x) == digest(b=x, a=x) != digest(a=x, c=x)


# Hugging Face


@pytest.fixture(scope="module")
def hf():
    datasets = pytest.importorskip("datasets", reason="the extra `datasets` is not installed")
    datasets.disable_progress_bars()
    return datasets


@lazily
@pytest.mark.parametrize("form", [None, "torch", "numpy"])
def test_data_sets_of_hugging_face(hf, form, lazy):
    features = hf.Features({
        "input_ids": hf.List(hf.Value("int32"), length=5),
        "attention_mask": hf.List(hf.Value("int8")),
        "labels": hf.ClassLabel(names=["a", "b", "c"]),
    })  # fmt: skip
    clients = [
        hf.Dataset.from_dict(
            {k: v.tolist() for k, v in table.items()}, features=features
        ).with_format(form)
        for table in COLUMNS
    ]
    problem = word_problem(clients, lazy=lazy, held_out=clients[0])
    expected = word_problem(held_out=COLUMNS[0])
    x = problem.x0 + 0.1
    assert problem.evaluate(x) == expected.evaluate(x)
    found, whole = (fp.simulate(p, FEDAVG, rounds=3, seed=0) for p in (problem, expected))
    assert found.same(whole)
    assert problem.evaluate_on(x, DataLoader(clients[1])) == expected.evaluate_on(x, COLUMNS[1])
    logits = [problem.predict(x, own)["logits"] for own in (clients[1], COLUMNS[1])]
    assert torch.equal(*logits)


@lazily
def test_arrays_transforms_and_images_of_hugging_face(hf, lazy):
    """Images are numbers from 0 to 1."""
    pytest.importorskip("PIL", reason="Pillow is not installed")
    rng, labels = np.random.default_rng(0), [0, 1, 2, 0, 1, 2, 0]

    def loss(data, size):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Flatten(), nn.Linear(size, 3)).double()
        options = {"target": "y", "lazy": lazy} if isinstance(data, hf.Dataset) else {}
        problem = fp.TorchProblem(model, F.cross_entropy, [data], **options)
        return problem.loss(problem.x0)

    def double(batch):
        return {"input": [2 * np.array(x) for x in batch["input"]], "y": batch["y"]}

    def make(values, kind):
        features = hf.Features({"input": kind, "y": hf.Value("int64")})
        return hf.Dataset.from_dict({"input": values, "y": labels}, features=features)

    values, pixels = rng.random((7, 2, 3)), rng.integers(0, 256, (7, 4, 4, 3)).astype(np.uint8)
    data = make(values.tolist(), hf.Array2D((2, 3), "float64"))
    assert loss(data, 6) == loss((values, labels), 6)
    assert loss(data.with_transform(double), 6) == loss((2 * values, labels), 6)
    plain = np.moveaxis(pixels, 3, 1).astype(np.float32) / np.float32(255)
    assert loss(make(list(pixels), hf.Image()), 48) == loss((plain, labels), 48)


HF_REFUSED = {
    "not in a list": (lambda d: d, "a list with the rows of each client, not a Dataset"),
    "a dict": (lambda d: [{"train": d}], r"dict of data sets; .* data\['train'\]"),
    "a stream": (lambda d: [d.to_iterable_dataset()], r"\(IterableDataset\) has no row numbers"),
    "target": (lambda d: [d.rename_column("label", "labels")], "did you mean 'labels'"),
    "text": (lambda d: [d.add_column("text", ["word"] * 12)], "row 0: column 'text' is text"),
    "lengths": (
        lambda d: [d.from_dict({"input": [[1.0] * 6, [1.0] * 5], "label": [0, 1]})],
        r"client 0, row 1: column 'input' has shape \(5,\), but row 0 has \(6,\)",
    ),
}


@pytest.mark.parametrize("case", HF_REFUSED)
def test_refused_data_sets_of_hugging_face(hf, case):
    make, message = HF_REFUSED[case]
    clients = make(hf.Dataset.from_dict({"input": X.tolist(), "label": Y.tolist()}))
    if case == "a dict":
        clients = [hf.DatasetDict(**clients[0])]
    refuse(message, nn.Linear(6, 3), F.cross_entropy, clients, target="label")


def test_the_package_of_hugging_face_is_not_imported_without_need(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)  # importing it fails
    assert word_problem([Rows(dicts(COLUMNS[0]))]).loss(word_problem().x0) > 0
