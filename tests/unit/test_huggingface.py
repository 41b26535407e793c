"""Check data sets of Hugging Face and partitions of flwr-datasets, all made here."""

import os
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["FLWR_TELEMETRY_ENABLED"] = "0"

import numpy as np
import pytest
from support import refusal

import fedpage as fp

hf = pytest.importorskip("datasets", reason="the extra `datasets` is not installed")
flwr_datasets = pytest.importorskip("flwr_datasets", reason="the extra `datasets` is not installed")
from flwr_datasets.partitioner import (  # noqa: E402
    DirichletPartitioner,
    GroupedNaturalIdPartitioner,
    IidPartitioner,
    NaturalIdPartitioner,
    VerticalEvenPartitioner,
)

# the CSV reader of `datasets` leaves its file open
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
hf.disable_progress_bars()
client_datasets: Any = fp.client_datasets
ROWS = 24
NAMES = ["neg", "neutral", "pos"]


@pytest.fixture(scope="module")
def table():
    """Return rows with numbers, a category, a vector, a matrix, ids and a ClassLabel."""
    rng = np.random.default_rng(0)
    return hf.Dataset.from_dict(
        {
            "age": rng.integers(20, 80, ROWS).tolist(),
            "dose": rng.random(ROWS).tolist(),
            "sex": ["f", "m"] * (ROWS // 2),
            "vector": rng.random((ROWS, 3)).tolist(),
            "tokens": rng.integers(0, 9, (ROWS, 2, 2)).tolist(),
            "hospital": [f"h{i % 4}" for i in range(ROWS)],
            "label": [i % 3 for i in range(ROWS)],
        },
        features=hf.Features(
            {
                "age": hf.Value("int32"),
                "dose": hf.Value("float64"),
                "sex": hf.ClassLabel(names=["f", "m"]),
                "vector": hf.List(hf.Value("float64")),
                "tokens": hf.Array2D((2, 2), "int32"),
                "hospital": hf.Value("string"),
                "label": hf.ClassLabel(names=NAMES),
            }
        ),
    )


def partitions(partitioner, data):
    partitioner.dataset = data
    return partitioner


# Rows for linear models


def test_vectors_ids_and_the_names_of_classes(table):
    data = fp.from_huggingface(table, label="label", client="hospital", columns=["vector"])
    assert (data.rows, data.features, data.is_dense) == (ROWS, 3, True)
    np.testing.assert_array_equal(data.X, np.array(table["vector"][:]))
    assert data.clients.tolist() == table["hospital"][:]
    assert data.classes == tuple(NAMES)
    assert data.y.tolist() == [i % 3 for i in range(ROWS)]


def test_classes_keep_their_order_where_some_do_not_occur(table):
    def read(rows):
        return fp.from_huggingface(table.select(rows), label="label", columns="vector")

    assert read([1, 2]).classes == tuple(NAMES)
    assert read([1, 2, 4]).y.tolist() == [1, 2, 1]
    assert read([0, 1, 3]).y.tolist() == [0, 1, 0]
    assert read([2, 5]).y.tolist() == [2, 2]
    two = hf.Features({"v": hf.List(hf.Value("float32")), "label": hf.ClassLabel(names=["z", "a"])})
    pair = hf.Dataset.from_dict({"v": [[1.0], [2.0], [3.0]], "label": [0, 1, 1]}, features=two)
    data = fp.from_huggingface(pair, label="label")
    assert (data.classes, data.y.tolist()) == (("z", "a"), [-1, 1, 1])
    assert fp.from_huggingface(pair.select([1]), label="label").y.tolist() == [1]


def test_numbers_and_categories_are_encoded_like_a_frame(table):
    data = fp.from_huggingface(
        table, label="label", client="hospital", columns=["age", "dose", "sex"], standardise=True
    )
    frame = table.to_pandas().assign(sex=lambda f: f["sex"].map({0: "f", 1: "m"}))
    expected = fp.Dataset.from_frame(
        frame[["age", "dose", "sex", "hospital", "label"]],
        label="label",
        client="hospital",
        standardise=True,
    )
    np.testing.assert_array_equal(data.to_dense(), expected.to_dense())
    assert data.columns == expected.columns
    assert data.encoding.columns == expected.encoding.columns
    assert data.clients.tolist() == table["hospital"][:]
    assert (data.classes, data.y.tolist()) == (tuple(NAMES), [i % 3 for i in range(ROWS)])


def test_each_partition_is_a_client(table):
    partitioner = partitions(
        DirichletPartitioner(4, "label", alpha=1.0, min_partition_size=1, seed=1), table
    )
    data = fp.from_huggingface(partitioner, label="label", columns=["vector", "dose"])
    sizes = [len(partitioner.load_partition(i)) for i in range(4)]
    assert np.bincount(data.clients).tolist() == sizes
    first = partitioner.load_partition(2)
    own = data[data.clients == 2]
    np.testing.assert_array_equal(own.X[:, :3], np.array(first["vector"][:]))
    np.testing.assert_array_equal(own.X[:, 3], np.array(first["dose"][:]))
    assert "DirichletPartitioner" in data.note
    listed = fp.from_huggingface(
        [partitioner.load_partition(i) for i in range(4)], label="label", columns=["vector", "dose"]
    )
    assert listed.digest == data.digest
    assert listed.clients.tolist() == data.clients.tolist()


def test_natural_ids_are_kept_and_are_no_features(table):
    table = table.select_columns(["dose", "hospital", "label"])
    data = fp.from_huggingface(partitions(NaturalIdPartitioner("hospital"), table), label="label")
    assert sorted(set(data.clients.tolist())) == ["h0", "h1", "h2", "h3"]
    assert data.features == 1
    own = [dose for dose, h in zip(table["dose"], table["hospital"], strict=True) if h == "h2"]
    np.testing.assert_array_equal(data.to_dense()[data.clients == "h2", 0], own)
    grouped = fp.from_huggingface(
        partitions(GroupedNaturalIdPartitioner("hospital", 2), table), label="label"
    )
    assert (grouped.features, set(grouped.clients.tolist())) == (1, {0, 1})


@pytest.fixture
def federated(tmp_path):
    """Return a FederatedDataset that reads a CSV file."""
    text = "".join(f"{i},{i * 0.5},h{i % 3},{'yes' if i % 2 else 'no'}\n" for i in range(12))
    (tmp_path / "rows.csv").write_text("a,b,hospital,outcome\n" + text)

    def make(**partitioners):
        return flwr_datasets.FederatedDataset(
            dataset="csv",
            data_files={split: str(tmp_path / "rows.csv") for split in ("train", "test")},
            cache_dir=str(tmp_path / "cache"),
            partitioners=partitioners,
        )

    return make


def test_a_federated_dataset_of_a_local_file(federated):
    data = fp.from_huggingface(federated(train=NaturalIdPartitioner("hospital")), label="outcome")
    assert (data.rows, data.features, data.classes) == (12, 2, ("no", "yes"))
    assert data.clients.tolist() == ["h0"] * 4 + ["h1"] * 4 + ["h2"] * 4
    several = federated(train=2, test=3)
    assert "give split=, one of train, test" in refusal(
        fp.from_huggingface, several, label="outcome"
    )
    data = fp.from_huggingface(several, label="outcome", split="test", columns=["a", "b"])
    assert len(set(data.clients.tolist())) == 3
    assert "no split 'valid'" in refusal(
        fp.from_huggingface, several, label="outcome", split="valid"
    )


def test_without_a_network_one_line_says_so():
    absent = flwr_datasets.FederatedDataset(dataset="no-such/data", partitioners={"train": 2})
    assert "cannot be loaded: " in refusal(fp.from_huggingface, absent, label="label")


def test_images_are_flat_rows_from_0_to_1():
    image = pytest.importorskip("PIL.Image", reason="pillow is not installed")
    pixels = np.arange(2 * 4 * 5 * 3, dtype=np.uint8).reshape(2, 4, 5, 3)
    features = hf.Features({"image": hf.Image(), "label": hf.ClassLabel(names=["cat", "dog"])})
    data = hf.Dataset.from_dict(
        {"image": [image.fromarray(p) for p in pixels], "label": [0, 1]}, features=features
    )
    flat = fp.from_huggingface(data, label="label")
    expected = np.moveaxis(pixels, 3, 1) / 255.0
    np.testing.assert_allclose(flat.X, expected.reshape(2, -1), rtol=1e-6)
    ((inputs, targets),) = client_datasets([data], label="label")
    assert (inputs.shape, inputs.dtype, targets.tolist()) == ((2, 3, 4, 5), np.float32, [0, 1])
    np.testing.assert_allclose(inputs, expected, rtol=1e-6)
    grey = hf.Dataset.from_dict(
        {"image": [image.fromarray(p[:, :, 0]) for p in pixels], "label": [0, 1]}, features=features
    )
    assert client_datasets([grey], label="label")[0][0].shape == (2, 1, 4, 5)
    mixed = hf.Dataset.from_dict(
        {"image": [image.fromarray(pixels[0]), image.fromarray(pixels[1][:3])], "label": [0, 1]},
        features=features,
    )
    said = refusal(fp.from_huggingface, mixed, label="label")
    assert "column 'image' has images of different sizes" in said


# Rows for networks


def test_client_datasets_keep_shapes_types_and_the_order_of_partitions(table):
    partitioner = partitions(IidPartitioner(12), table)
    clients = client_datasets(
        partitioner, label="label", columns=["tokens", "vector", "age", "dose"]
    )
    assert len(clients) == 12
    for i, ((tokens, vectors, scalars), targets) in enumerate(clients):
        own = partitioner.load_partition(i)
        assert (tokens.dtype, targets.dtype) == (np.int64, np.int64)
        np.testing.assert_array_equal(tokens, np.array(own["tokens"][:]))
        np.testing.assert_array_equal(vectors, np.array(own["vector"][:]))
        np.testing.assert_array_equal(scalars[:, 1], np.array(own["dose"][:]))
        assert targets.tolist() == own["label"][:]


def test_text_labels_and_ids_of_a_column(table):
    rows = hf.Dataset.from_dict(
        {"v": [[1.0], [2.0], [3.0]], "who": [7, 3, 7], "label": ["b", "a", "c"]}
    )
    clients = client_datasets(rows, label="label", client="who")
    assert [(x.tolist(), y.tolist()) for x, y in clients] == [
        ([[2.0]], [0]),
        ([[1.0], [3.0]], [1, 2]),
    ]
    data = fp.Dataset.from_clients([([[1.0], [2.0]], ["no", "yes"]), ([[3.0]], ["yes"])])
    assert [(x.tolist(), y.tolist()) for x, y in client_datasets(data)] == [
        ([[1.0], [2.0]], [0, 1]),
        ([[3.0]], [1]),
    ]


# Mistakes


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"label": "labl"}, "no column 'labl'; did you mean 'label'? the columns are age, dose"),
        ({"label": "label", "client": "hospitals"}, "did you mean 'hospital'?"),
        ({"label": "label", "columns": ["doses"]}, "did you mean 'dose'?"),
        ({"label": "label"}, "which cannot be a feature beside a vector or an image; leave it"),
        ({"label": "vector", "columns": ["dose"]}, "the label 'vector' is of type List"),
    ],
)
def test_columns_that_cannot_be_used(table, options, message):
    assert message in refusal(fp.from_huggingface, table, **options)


def test_sources_that_cannot_be_used(table):
    def refused(source, word, **options):
        options = {"label": "label", "columns": "vector"} | options
        assert word in refusal(client_datasets, source, **options)

    refused(table, "nothing says whose rows these are; give client=")
    refused([table, table.select([])], "client 1 of 2 has no rows")
    refused([], "list is empty")
    refused([table], "client='hospital' is for a single data set", client="hospital")
    refused({"train": table}, "not a dict")
    refused(hf.DatasetDict(train=table, test=table), "several splits")
    refused(table.to_iterable_dataset(), "not a IterableDataset")
    refused(IidPartitioner(3), "IidPartitioner: The dataset field should be set")
    refused(partitions(VerticalEvenPartitioner(2), table), "there is no column")
    refused(table, "name the column of targets", label=None)


@pytest.mark.parametrize(
    ("columns", "word"),
    [
        ({"text": [f"sentence {i}" for i in range(300)]}, "'text' has 300 different texts"),
        ({"meta": [{"a": 1}, {"a": 2}]}, "column 'meta' is of type"),
        ({"v": [[1.0], [1.0, 2.0]]}, "'v' has vectors of different sizes"),
    ],
)
def test_free_text_and_other_types_are_refused(columns, word):
    (cells,) = columns.values()
    rows = hf.Dataset.from_dict({**columns, "label": [0, 1] * (len(cells) // 2)})
    assert word in refusal(fp.from_huggingface, rows, label="label")
    if word.startswith("'v'"):
        parts = [rows.select([0]), rows.select([1])]
        assert word in refusal(fp.from_huggingface, parts, label="label")


def test_dropped_rows_take_their_class_labels_with_them(table):
    doses = [None if row in (1, 5) else float(row) for row in range(ROWS)]
    gaps = table.remove_columns("dose").add_column("dose", doses)
    data = fp.from_huggingface(
        gaps, label="label", client="hospital", columns=["dose", "sex"], missing="drop"
    )
    kept = [row for row in range(ROWS) if row not in (1, 5)]
    assert data.X[:, 0].tolist() == kept
    assert (data.classes, data.y.tolist()) == (tuple(NAMES), [row % 3 for row in kept])
    assert data.clients.tolist() == [f"h{row % 4}" for row in kept]
    two = (
        gaps.select([0, 1, 3, 4, 7])
        .remove_columns("label")
        .add_column("label", [1, 0, 0, 1, 1], feature=hf.ClassLabel(names=["z", "a"]))
    )
    data = fp.from_huggingface(two, label="label", columns=["dose"], missing="drop")
    assert (data.classes, data.y.tolist()) == (("z", "a"), [1, -1, 1, 1])


@pytest.mark.parametrize("absent", [None, -1])
def test_rows_without_a_label_are_refused(absent):
    features = hf.Features({"v": hf.Value("float64"), "label": hf.ClassLabel(names=["a", "b"])})
    rows = hf.Dataset.from_dict({"v": [1.0, 2.0], "label": [0, absent]}, features=features)
    assert "row 2 has no label in column 'label'" in refusal(
        fp.from_huggingface, rows, label="label"
    )
