"""Pose the training of a torch module as a problem that every method and engine accepts."""

from __future__ import annotations

import copy
import hashlib
import math
import os
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np

try:
    import torch
except ImportError as error:
    raise ImportError("TorchProblem needs torch: pip install 'fedpage[torch]'") from error
from torch import nn

from fedpage.core.capabilities import ClientEvaluations
from fedpage.core.errors import InputError, short_repr
from fedpage.core.metrics import (
    Metric,
    MetricsOption,
    ReferenceMetric,
    client_quantiles,
    describe_metrics,
    evaluate_metrics,
    quantile_bases,
    resolve_metrics,
    row_metrics,
)
from fedpage.core.types import ClientDraws, DType, Ints, Smoothness, Vector
from fedpage.problems.base import Weights, client_scale, describe_weights, norm
from fedpage.problems.scores import ClientScoring, ClientTable
from fedpage.problems.torch import batch_norm as batch_norms
from fedpage.problems.torch import checks, files
from fedpage.problems.torch.deterministic import deterministic_algorithms
from fedpage.problems.torch.fingerprint import function_digest, module_digest, table_digest
from fedpage.problems.torch.gradients import bytes_of_row
from fedpage.problems.torch.model import FlatModel, Loss
from fedpage.problems.torch.objective import Computation, Mode, NetworkObjective
from fedpage.problems.torch.oracle import TorchOracle
from fedpage.problems.torch.rows import (
    AnyTable,
    TensorArrays,
    choose_autocast,
    choose_device,
    choose_dtype,
    choose_memory,
    list_datasets,
    read_table,
    sample_rows,
    to_numpy,
)
from fedpage.problems.torch.sources import Source, open_source, to_inputs

ClientData = Any
"""Rows of one client: (inputs, targets) as tensors or arrays with a row per example, where inputs
may be a tuple or a dict of them; a dict of columns; or a `torch.utils.data.Dataset`, `DataLoader`
or `datasets.Dataset` of such rows."""

LARGEST_BATCHED = 2**20
"""Bytes of a parameter vector above which clients are computed one after the other by default: the
arithmetic of one client then takes longer than the calls that batching saves
(benchmarks/torch_speed.py)."""

_CACHED = 2**22
"""Bytes of the replies that are added while they are in the cache."""


class TorchProblem(ClientScoring):
    """Minimise f(x) = mean over clients of f_i(x), where x are the parameters of a torch module.

    f_i is the mean loss over client i's rows. Runs start at the module's own parameters, `x0`.

    The gradients of all called clients are computed in one call. Runs repeat bit for bit with the
    same seed on the same machine with the same settings, and to rounding elsewhere. With
    `deterministic=True` a client's bits depend on nothing but its rows and its parameters, so that
    they are the same for any chunks, threads and engine on a CPU.

    Args:
        model: Any `torch.nn.Module` with dense parameters. It is copied. Buffers and parameters
            that need no gradient are constants.
        loss_fn: loss_fn(outputs, targets), the mean loss over the rows of a batch.
        client_datasets: For each client (inputs, targets), tensors or arrays with a row per
            example; or a dict of them; or a `torch.utils.data.Dataset`, a `DataLoader` or a
            `datasets.Dataset` of such rows. If inputs is a tuple, the model is called with all of
            its entries, and if it is a dict, with keyword arguments. An empty list makes a model
            without rows, which the server of a federation needs.
        metrics: Names of registered metrics such as "accuracy", or a table of name ->
            function(outputs, targets). Records have them over all clients' rows.
        held_out: Rows that no client has; records have `held_out_loss` and `held_out_METRIC`.
        held_out_clients: Rows of clients that are never called; records have the means over these
            clients, `held_out_clients_loss` and `held_out_clients_METRIC`.
        target: The name of the targets in rows that are dicts; all other columns are inputs.
        lazy: Read rows when a minibatch or an evaluation needs them, instead of all at the start.
            The results are the same, to the bit. For rows that do not fit in memory.
        weights: The clients' weights: "uniform", "size", or N positive numbers.
        device: Where to compute.
        dtype: "float32" or "float64"; by default the model's own. Vectors outside are numpy arrays
            of this type.
        batched: Compute all called clients in one call (True), or one after the other (False). By
            default large models are computed one after the other, where one call is no faster.
        compile: Compile the gradient by `torch.compile`, which takes a while at first and pays in
            long runs. It needs a C++ compiler.
        deterministic: Compute clients one at a time, on one thread, with torch's deterministic
            algorithms. It is slower, and proves that a deployed run is the simulated one.
        batch_norm: What becomes of BatchNorm in training mode, which normalises by the statistics
            of a batch. None: it is refused. "aggregated": the means and variances for evaluations
            are the last coordinates of x, and are averaged as parameters are. "silobn": a client's
            rows are evaluated by their own statistics, which never leave the client.
        autocast: "bfloat16": the model computes under `torch.autocast`, with products of this type.
            Parameters, outputs, losses, gradients and messages stay float32.
        memory: Gigabytes that one call may take, about; more clients or rows are divided. By
            default 1 on a CPU, and half of the free memory of another device.
        model_name: A name for descriptions; by default that of the model's class.

    Raises:
        InputError: The model, the loss, the rows or an option cannot be used; the message says why.
    """

    name = "torch model"

    def __init__(
        self,
        model: nn.Module,
        loss_fn: Loss,
        client_datasets: Sequence[ClientData],
        *,
        metrics: MetricsOption = (),
        held_out: ClientData | None = None,
        held_out_clients: Sequence[ClientData] = (),
        target: str | None = None,
        lazy: bool = False,
        weights: Weights = "uniform",
        device: str | torch.device = "cpu",
        dtype: str | torch.dtype | DType | type | None = None,
        batched: bool | None = None,
        compile: bool = False,
        deterministic: bool = False,
        batch_norm: batch_norms.BatchNormOption = None,
        autocast: str | torch.dtype | None = None,
        memory: float | None = None,
        model_name: str | None = None,
    ) -> None:
        model = getattr(model, "_orig_mod", model)  # the module that torch.compile wraps
        self.batch_norm = batch_norms.check_option(batch_norm)
        checks.check_module(model, self.batch_norm)
        if not callable(loss_fn):
            raise InputError(
                "TorchProblem: loss_fn must be a function of outputs and targets, "
                f"not {short_repr(loss_fn)}"
            )
        self.model_name = model_name or type(model).__name__
        self.device = choose_device(device)
        self.deterministic = bool(deterministic)
        self.compiled = bool(compile)
        if self.deterministic and (compile or batched):
            raise InputError(
                "TorchProblem: deterministic=True computes clients one at a time and as torch "
                f"does; leave out {'compile' if compile else 'batched'}=True"
            )
        self._memory = choose_memory(memory, self.device)
        self._torch_dtype = choose_dtype(model, dtype)
        self.dtype: DType = np.dtype(
            np.float32 if self._torch_dtype == torch.float32 else np.float64
        )
        self.autocast = choose_autocast(autocast, self.device, self._torch_dtype)
        self._flat = FlatModel(
            self._copy_to_device(model), loss_fn, self.batch_norm, autocast=self.autocast
        )
        self.x0: Vector = to_numpy(self._flat.vector(self._flat.module))
        self.metrics = resolve_metrics(metrics, "TorchProblem")
        for entry in self.metrics.values():
            if isinstance(entry, ReferenceMetric):
                raise InputError(
                    f"TorchProblem: metric {entry.name!r} needs a reference solution, which a "
                    "network does not have; record 'loss', which is always there, instead"
                )

        if not (target is None or isinstance(target, str)):
            raise InputError(
                f"TorchProblem: target must be the name of a column, not {short_repr(target)}"
            )
        self.lazy, self._target = bool(lazy), target
        data = list_datasets(client_datasets, "client_datasets", minimum=0)
        sources = [open_source(own, f"client {i}", target) for i, own in enumerate(data)]
        rows = self._read(*sources) if sources else None
        others = list_datasets(held_out_clients, "held_out_clients", minimum=0)
        self._held_out = (
            None if held_out is None else self._read(open_source(held_out, "held_out", target))
        )
        self._held_out_clients = [
            self._read(open_source(own, f"held-out client {i}", target))
            for i, own in enumerate(others)
        ]
        sizes = np.array([source.length for source in sources], dtype=np.int64)
        scale = client_scale(weights, sizes) if sources else np.empty(0)
        self.weights = weights if isinstance(weights, str) else "given"

        self._sizes = sizes
        self._of_rows: NetworkObjective | None = None
        if rows is not None:
            how = self._check(rows, batched)
            self._of_rows = NetworkObjective(
                self._flat, rows, sizes, scale, self.dtype, self.device, how
            )

    # The problem

    @property
    def N(self) -> int:
        """Number of clients; 0 for a model without rows."""
        return len(self._sizes)

    @property
    def d(self) -> int:
        """Number of trainable parameters, and of statistics with batch_norm="aggregated"."""
        return self._flat.d

    @property
    def sizes(self) -> Ints:
        """(N,) rows of each client."""
        return self._sizes

    @property
    def _objective(self) -> NetworkObjective:
        if self._of_rows is None:
            raise InputError(
                "TorchProblem: client_datasets is empty, so that there is a model but no rows; "
                "give (inputs, targets) for each client"
            )
        return self._of_rows

    @property
    def mode(self) -> Mode:
        """How clients' gradients are computed.

        "batched": all called clients in one call of `vmap`. "sequential": one client after the
        other, because this was asked for or because `vmap` cannot transform the model.
        """
        return self._objective.how.mode

    @property
    def device_arrays(self) -> TensorArrays | None:
        """How rounds keep their vectors on the device; None on a CPU, whose memory is the host's.

        A tensor on a CPU and numpy's array share memory, so that nothing is copied there.
        """
        if self.device.type == "cpu":
            return None
        return TensorArrays(self.device, self._torch_dtype)

    @property
    def clients_at_once(self) -> int:
        """How many clients a simulator should compute at once.

        Clients that are batched need `memory` for their vectors. Others are computed one after the
        other, and their replies are added while they are in the cache.
        """
        if self._of_rows is None or self.mode == "batched":
            return max(1, self._memory // (8 * self.d * self.dtype.itemsize))
        return max(1, _CACHED // (self.d * self.dtype.itemsize))

    def oracle(self, clients: Ints, draws: ClientDraws) -> TorchOracle:
        """Return the oracle of the called clients (n,) in this round."""
        return TorchOracle(self._objective, clients, draws)

    def loss(self, x: Vector) -> float:
        """Return f(x)."""
        return self._objective.evaluate_pooled(x, want_outputs=False).loss

    def grad(self, x: Vector) -> Vector:
        """Return the gradient (d,) of f at x (d,)."""
        return self._objective.evaluate_pooled(x, want_outputs=False).gradient.astype(self.dtype)

    def evaluate(self, x: Vector, threads: int = 1) -> dict[str, float]:
        """Evaluate x (d,) on all clients' rows and on what is held out.

        Args:
            x: Parameters (d,).
            threads: Ignored; torch uses its own threads (`torch.set_num_threads`).

        Returns:
            "loss", "grad_norm", the metrics, and `evaluate_held_out(x)`.
        """
        wanted = bool(row_metrics(self.metrics))
        pooled = self._objective.evaluate_pooled(x, want_outputs=wanted)
        record = {"loss": pooled.loss, "grad_norm": norm(pooled.gradient)}
        targets = self._objective.table.targets
        record |= evaluate_metrics(self.metrics, pooled.outputs, targets, "the clients")
        return record | self._client_columns(x) | self.evaluate_held_out(x)

    def evaluate_held_out(self, x: Vector) -> dict[str, float]:
        """Evaluate x (d,) on the held-out rows and clients; {} where there are none.

        Returns:
            `held_out_loss` and `held_out_METRIC` over the held-out rows, and the means over
            held-out clients, `held_out_clients_loss` and `held_out_clients_METRIC`, with their
            quantiles.
        """
        record: dict[str, float] = {}
        if self._held_out is not None:
            values = self._evaluate_rows(x, self._held_out, "held_out")
            record |= {f"held_out_{name}": value for name, value in values.items()}
        if self._held_out_clients:
            each = [self._evaluate_rows(x, t, "held-out clients") for t in self._held_out_clients]
            for name in each[0]:
                mean = math.fsum(values[name] for values in each) / len(each)
                record[f"held_out_clients_{name}"] = mean
            columns = {
                name: np.array([values[name] for values in each])
                for name in quantile_bases(self.metrics)
            }
            for name, value in client_quantiles(self.metrics, columns).items():
                record[f"held_out_clients_{name}"] = value
        return record

    def evaluate_on(self, x: Vector, data: ClientData) -> dict[str, float]:
        """Evaluate x (d,) on other rows.

        Args:
            x: Parameters (d,).
            data: Rows in any form that clients may have.

        Returns:
            "loss" and the metrics.
        """
        rows = self._read(open_source(data, "data", self._target))
        return self._evaluate_rows(x, rows, "data")

    def predict(self, x: Vector, inputs: Any) -> Any:
        """Compute the model's outputs for new rows.

        Args:
            x: Parameters (d,).
            inputs: A tensor or an array with a row per example, or a tuple or a dict of them; or a
                data set such as clients have, whose targets are not used.

        Returns:
            The outputs, with a row per example: a tensor, or a structure of tensors.

        Raises:
            InputError: x or the inputs have a wrong shape.
        """
        if np.shape(x) != (self.d,):
            raise InputError(f"predict: x must have shape ({self.d},), not {np.shape(x)}")
        if isinstance(inputs, Mapping):
            inputs = {name: value for name, value in inputs.items() if name != self._target}
        if isinstance(inputs, (torch.Tensor, np.ndarray, tuple, list, dict)):
            parts = to_inputs(inputs)
            checks.check_names(self._flat.module, parts)
            first = next(iter(parts.values() if isinstance(parts, dict) else parts), ())
            inputs = (parts, np.zeros(len(first)))
        rows = self._read(open_source(inputs, "inputs", self._target))
        return self._objective.outputs(self._objective.tensor(x), rows)

    def evaluate_clients(self, clients: Ints, x: Vector) -> ClientEvaluations:
        """Evaluate x (d,) on each client's own rows.

        Returns:
            N w_i f_i(x) (n,), its gradients (n, d), and each metric (n,) of the clients.
        """
        losses, gradients = self._objective.evaluate_clients(clients, x)
        metrics = self._client_metrics(clients, x, row_metrics(self.metrics))
        return ClientEvaluations(losses, gradients, metrics)

    def _client_metrics(
        self, clients: Ints, x: Vector, metrics: Mapping[str, Metric]
    ) -> dict[str, Vector]:
        values: dict[str, list[float]] = {name: [] for name in metrics}
        if metrics:
            point = self._objective.tensor(x)
            for client in clients.tolist():
                rows = self._objective.client_rows(client)
                outputs = self._objective.outputs(point, rows)
                own = evaluate_metrics(metrics, outputs, rows.targets, f"client {client}")
                for name, value in own.items():
                    values[name].append(value)
        return {name: np.array(column) for name, column in values.items()}

    @property
    def client_factors(self) -> Vector:
        """(N,) the factors N w_i by which the clients' objectives are multiplied."""
        return self._objective.scale

    def _client_table(
        self, x: Vector, bases: Mapping[str, Metric], outputs: Vector | None = None
    ) -> ClientTable:
        everyone = np.arange(self.N, dtype=np.int64)
        values = self._client_metrics(everyone, x, row_metrics(bases))
        if "loss" in bases:  # a client at a time, because gradients (N, d) may not fit in memory
            each = [self._objective.evaluate_clients(everyone[i : i + 1], x) for i in everyone]
            values["loss"] = np.concatenate([losses for losses, _ in each]) / self.client_factors
        return ClientTable(range(self.N), self.sizes, values)

    def rescale(self, factor: float) -> TorchProblem:
        """Return the same problem with every client's objective times a factor."""
        twin = copy.copy(self)
        twin._of_rows = self._objective.rescale(factor)
        return twin

    def mean_labels(self) -> Vector:
        """Return the mean target (N,) of each client."""
        return self._objective.mean_targets()

    def smoothness(self) -> Smoothness:
        """Refuse: Lipschitz constants of a network are not known.

        Raises:
            InputError: Always.
        """
        raise InputError(
            f"{self.model_name}: the smoothness of a torch model is not known, so theory gives no "
            "step sizes; choose them by tune"
        )

    # Modules and files

    def to_module(self, x: Vector, client: int | None = None) -> nn.Module:
        """Return a copy of the model with parameters x (d,).

        With batch_norm="aggregated" its running statistics are those in x. With "silobn" they are
        the statistics of the clients' rows at x.

        Args:
            x: Parameters (d,).
            client: With batch_norm="silobn", the client whose rows' statistics the model gets;
                None: the means over clients, with their weights.

        Raises:
            InputError: x has another shape, or there is no such client.
        """
        if np.shape(x) != (self.d,):
            raise InputError(f"to_module: x must have shape ({self.d},), not {np.shape(x)}")
        if client is not None and (self.batch_norm != "silobn" or client not in range(self.N)):
            raise InputError(
                f"to_module: client must be in 0..{self.N - 1}, with batch_norm='silobn', not "
                f"{short_repr(client)}"
            )
        module = self._flat.to_module(self._objective.tensor(x))
        if self.batch_norm == "silobn":
            self._objective.set_statistics(module, client)
        return module

    def from_module(self, module: nn.Module) -> Vector:
        """Return the vector (d,) of a module of this architecture.

        Raises:
            InputError: A parameter is missing or has another shape.
        """
        return to_numpy(self._flat.vector(module).to(self._torch_dtype))

    def save(
        self, path: str | os.PathLike[str], x: Vector, about: Mapping[str, str] | None = None
    ) -> None:
        """Write the model with parameters x (d,) to a file that `load_model` reads.

        Args:
            path: A name that ends in `.npz` or `.safetensors`.
            x: Parameters (d,).
            about: Metadata to store with the model.
        """
        files.save_model(path, self.to_module(x), about)

    def about(self, path: str | os.PathLike[str]) -> dict[str, str]:
        """Read the metadata of a saved model."""
        return files.read(Path(path))[1]

    def check_model_path(self, path: Path) -> None:
        """Refuse a file name that no model can be saved under."""
        files.check_path(path)

    # Fingerprints

    @property
    def start_digest(self) -> str:
        """Digest of what must be equal at every node: x0, the model, the loss, the precision."""
        words = [
            str(self.dtype),
            module_digest(self._flat.module, self._flat.names),
            function_digest(self._flat.loss_fn),
            *([f"batch_norm={self.batch_norm}"] if self.batch_norm else []),
            *(["autocast=bfloat16"] if self.autocast else []),
        ]
        return hashlib.sha256(self.x0.tobytes() + " ".join(words).encode()).hexdigest()

    @property
    def code(self) -> dict[str, type]:
        """Classes of the model and the loss, by name, whose code decides what is computed."""
        classes = {type(layer) for layer in self._flat.module.modules()}
        if isinstance(self._flat.loss_fn, nn.Module):
            classes.add(type(self._flat.loss_fn))
        return {c.__qualname__: c for c in classes if not c.__module__.startswith("torch.")}

    def __repr__(self) -> str:
        about = [self.model_name, self.dtype.name, str(self.device)]
        return self._repr(about)

    def describe(self) -> dict[str, object]:
        """Describe the model, the rows and the options, with digests."""
        loss = self._flat.loss_fn
        rows = () if self._of_rows is None else (self._of_rows.table,)
        about: dict[str, object] = {
            "objective": f"{self.name} {self.model_name}",
            "loss": getattr(loss, "__name__", type(loss).__name__),
            "data_digest": table_digest(self.sizes, *rows),
            "model_digest": module_digest(self._flat.module, self._flat.names),
            "loss_digest": function_digest(loss),
            "N": self.N,
            "d": self.d,
            "rows": int(self.sizes.sum()),
            "dtype": str(self.dtype),
            "device": self.device.type,
            "deterministic": self.deterministic,
            "compiled": self.compiled,
        }
        if self.batch_norm:
            about["batch_norm"] = self.batch_norm
        if self.autocast:
            about["autocast"] = "bfloat16"
        if self.metrics:
            digests = {name: function_digest(m.function) for name, m in self.metrics.items()}
            about |= {"metrics": describe_metrics(self.metrics), "metric_digests": digests}
        if self._held_out is not None:
            about["held_out"] = table_digest(self.sizes, self._held_out)
        if self._held_out_clients:
            about["held_out_clients"] = table_digest(self.sizes, *self._held_out_clients)
        scale = np.empty(0) if self._of_rows is None else self._of_rows.scale
        return about | describe_weights(self.weights, scale)

    # Construction

    def _copy_to_device(self, model: nn.Module) -> nn.Module:
        try:
            return copy.deepcopy(model).to(self.device, self._torch_dtype)
        except Exception as error:  # for example the old weight_norm keeps tensors with a graph
            why = " ".join(str(error).split())[:160]
            raise InputError(
                f"TorchProblem: {self.model_name} cannot be copied to {self.device} ({why})"
            ) from error

    def _read(self, *sources: Source) -> AnyTable:
        return read_table(sources, self.device, self._torch_dtype, self.lazy)

    def _evaluate_rows(self, x: Vector, rows: AnyTable, where: str) -> dict[str, float]:
        outputs = self._objective.outputs(self._objective.tensor(x), rows)
        with torch.no_grad():
            loss = float(self._flat.loss_fn(outputs, rows.targets))
        return {"loss": loss} | evaluate_metrics(self.metrics, outputs, rows.targets, where)

    def _check(self, rows: AnyTable, batched: bool | None) -> Computation:
        """Check all rows and a sample of gradients, and choose how to compute gradients."""
        tables = {"the clients": rows}
        if self._held_out is not None:
            tables["held_out"] = self._held_out
        for i, table in enumerate(self._held_out_clients):
            tables[f"held-out client {i}"] = table
        start, sample = torch.tensor(self.x0, device=self.device), sample_rows(rows)
        near, flat = checks.perturb(start, self._flat.trainable), self._flat.for_checks()
        checks.check_names(self._flat.module, sample.inputs)
        with deterministic_algorithms() if self.deterministic else nullcontext():
            checks.check_rows(flat, near, sample, "the clients")
            checks.check_gradients(flat, near, sample)
            if self._flat.batch_norm:
                i = int(np.argmin(self._sizes))
                first = int(self._sizes[:i].sum())
                batches = {f"client {i}": rows.slice(first, first + int(self._sizes[i]))}
                if self.batch_norm == "silobn":
                    batches |= {w: t for w, t in tables.items() if t is not rows}
                checks.check_batches(self._flat, near, batches)
            how = Computation(
                mode="sequential",
                is_compiled=self.compiled,
                is_deterministic=self.deterministic,
                memory=self._memory,
                vector_bytes=self.d * self.dtype.itemsize,
                row_bytes=bytes_of_row(flat, start, *sample),
            )
            for where, table in tables.items():
                checks.check_table(flat, near, table, self.metrics, where, how.block_rows())
            if self.autocast:
                checks.check_autocast(self._flat, near, sample)
            if batched is None:
                batched = not self.deterministic and how.vector_bytes <= LARGEST_BATCHED
            if batched:
                how = how._replace(mode=checks.choose_mode(self._flat, start, sample))
            if self.compiled:
                checks.check_compiled(self._flat, start, sample, how.mode)
            return how
