"""Check that a torch model's loss is a mean over rows that depends on parameters and rows only."""

from __future__ import annotations

import inspect
import math
import warnings
from collections.abc import Callable, Mapping
from typing import NoReturn

import numpy as np
import torch
from torch import Tensor, nn

from fedpage.core.errors import InputError, did_you_mean, short_repr
from fedpage.core.metrics import Metric, evaluate_metrics, row_metrics
from fedpage.problems.torch.batch_norm import BatchNormOption, check_layer
from fedpage.problems.torch.gradients import (
    BatchedGradients,
    ClientBatches,
    SequentialGradients,
    check_compiler,
)
from fedpage.problems.torch.inputs import Inputs, list_tensors
from fedpage.problems.torch.model import (
    FlatModel,
    Outputs,
    join_outputs,
    map_tensors,
)
from fedpage.problems.torch.objective import Mode
from fedpage.problems.torch.rows import AnyTable, TensorTable

_WRAPPERS = (
    "TopLevelTracedModule",
    "DataParallel",
    "DistributedDataParallel",
    "ScriptModule",
    "RecursiveScriptModule",
)


def _refuse(message: str, cause: Exception | None = None) -> NoReturn:
    raise InputError(f"TorchProblem: {message}") from cause


def check_module(module: nn.Module | object, batch_norm: BatchNormOption) -> None:
    """Refuse modules that cannot be trained as a function of their parameters.

    Args:
        module: The module.
        batch_norm: Where the statistics of batch normalisation come from.

    Raises:
        InputError: A layer mixes rows or changes state when it is called, or a parameter
            is not a finite dense real tensor.
    """
    if isinstance(module, type) or not isinstance(module, nn.Module):
        _refuse(
            f"model must be a torch.nn.Module such as nn.Linear(64, 10), not {short_repr(module)}"
        )
    for name, layer in module.named_modules():
        where = f"{name or 'the model'} ({type(layer).__name__})"
        _check_layer(layer, where)
        check_layer(layer, where, batch_norm)
    if not any(p.requires_grad for p in module.parameters()):
        _refuse("the model has no parameter that needs a gradient; there is nothing to train")
    for name, p in module.named_parameters():
        _check_parameter(name, p)


def _check_layer(layer: nn.Module, where: str) -> None:
    if isinstance(layer, nn.modules.lazy.LazyModuleMixin) and layer.has_uninitialized_params():
        _refuse(f"{where} has no shape yet; call the model once on a row, or give its sizes")
    if isinstance(layer, (nn.Embedding, nn.EmbeddingBag)) and (
        layer.max_norm is not None or layer.sparse
    ):
        _refuse(
            f"{where} changes its weights when it is called, or has sparse gradients; leave out "
            "max_norm and sparse"
        )
    if type(layer).__name__ in _WRAPPERS:
        _refuse(f"{where} is a wrapper; give the plain module that is inside")


def _check_parameter(name: str, p: Tensor) -> None:
    if p.is_inference() or p.device.type == "meta":
        _refuse(f"parameter {name} was created in inference mode or on 'meta'; create it again")
    if p.is_complex() or p.layout != torch.strided:
        _refuse(f"parameter {name} is {p.dtype}, {p.layout}; it must be real and dense")
    if not bool(torch.isfinite(p).all()):
        _refuse(f"parameter {name} has a NaN or an infinity in it")


def perturb(v: Tensor, count: int) -> Tensor:
    """Return a point near v (d,), because initial parameters (all zero, say) can hide a fault.

    Args:
        v: The initial point.
        count: How many of its coordinates are parameters; statistics, which follow, stay.
    """
    places = torch.arange(1, len(v) + 1, dtype=v.dtype, device=v.device)
    return torch.where(places <= count, v + 0.05 * torch.sin(places), v)


def check_names(module: nn.Module, inputs: Mapping[str, object] | tuple[object, ...]) -> None:
    """Refuse inputs by name that the module has no argument for.

    Raises:
        InputError: There is none.
    """
    known = inspect.signature(module.forward).parameters.values()
    if isinstance(inputs, tuple) or any(p.kind == p.VAR_KEYWORD for p in known):
        return
    arguments = [p.name for p in known if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    for name in inputs:
        if name not in arguments:
            _refuse(
                f"{type(module).__name__} has no argument {name!r};{did_you_mean(name, arguments)} "
                f"it has {', '.join(arguments)}; rename the column, or leave it out"
            )


def check_rows(model: FlatModel, v: Tensor, rows: TensorTable, where: str) -> Outputs:
    """Check the loss of some rows at v (d,).

    Returns:
        The model's outputs for the rows.

    Raises:
        InputError: The loss cannot be computed, is random, changes buffers, is not finite for a
            row, or is not the mean over rows.
    """
    buffers = {name: value.clone() for name, value in model.working.named_buffers()}
    name, loss_name = type(model.module).__name__, _name_of(model.loss_fn)
    targets = rows.targets
    with torch.no_grad():
        try:
            outputs = model.outputs(v, rows.inputs)
            loss = model.loss_fn(outputs, targets)
            repeated = model.loss_fn(model.outputs(v, rows.inputs), targets)
        except Exception as error:
            if any(x.dtype == torch.uint8 for x in list_tensors(rows.inputs)):
                _refuse(
                    f"{name} and {loss_name} cannot be computed on rows of {where}, whose inputs "
                    "are uint8; convert images by x.float() / 255, and token numbers by x.long()",
                    error,
                )
            _refuse(
                f"{name} and {loss_name} cannot be computed on rows of {where}, inputs "
                f"{_describe(rows.inputs)}, targets {_describe((targets,))}: "
                f"{_one_line(error)}",
                error,
            )
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            found = tuple(loss.shape) if isinstance(loss, Tensor) else type(loss).__name__
            _refuse(
                f"loss_fn must return one number, the mean over rows, not {found}; "
                "use reduction='mean'"
            )
        for buffer, value in model.buffers_after_call().items():
            if not torch.equal(value, buffers[buffer]):
                _refuse(
                    f"{name} changes its buffer {buffer!r} when it is called; "
                    "freeze it with .eval(), or remove it"
                )
        if not torch.equal(loss, repeated) and not bool(torch.isnan(loss)):
            _refuse(
                f"{name} gives another loss for the same rows at a second call: it draws random "
                "numbers that do not depend on the run's seed; remove them, or call .eval()"
            )
        each = _row_losses(model, outputs, targets)
        invalid = torch.nonzero(~torch.isfinite(each)).flatten()
        if len(invalid):
            _refuse(
                f"{where}: the loss of a row is {float(each[invalid[0]]):g} near the start, with "
                f"target {str(targets[invalid[0]].tolist())[:40]}; every row needs a finite loss"
            )
        mean = each.double().mean()
        if not _is_close(loss.double().reshape(()), mean, v.dtype):
            _refuse(
                f"the loss of {len(targets)} rows of {where} is {float(loss):.4g}, but the mean of "
                f"their own losses is {float(mean):.4g}; {_advise(model)}"
            )
    return outputs


def check_table(
    model: FlatModel,
    v: Tensor,
    table: AnyTable,
    metrics: Mapping[str, Metric],
    where: str,
    block: int,
) -> None:
    """Compute the loss and the metrics of every row once, so that no run fails on them later.

    Raises:
        InputError: See `check_rows`; or a metric cannot be computed.
    """
    outputs, is_wanted = [], bool(row_metrics(metrics))
    for rows in table.blocks(block):
        own = check_rows(model, v, rows, where)
        if is_wanted:
            outputs.append(own)
    if is_wanted:
        evaluate_metrics(metrics, join_outputs(outputs), table.targets, where)


def check_gradients(model: FlatModel, v: Tensor, rows: TensorTable) -> None:
    """Refuse modules whose gradient over a batch is not the mean of its rows' gradients.

    Raises:
        InputError: There is no gradient, or it depends on the other rows of the batch.
    """

    def loss_and_gradient(part: TensorTable) -> tuple[Tensor, Tensor]:
        point = v.clone().requires_grad_(True)
        loss = model.mean_loss(point, part.inputs, part.targets)
        (gradient,) = torch.autograd.grad(loss, point, allow_unused=True)
        return loss.detach(), torch.zeros_like(v) if gradient is None else gradient

    name, count = type(model.module).__name__, len(rows.targets)
    try:
        with torch.enable_grad():
            loss, gradient = loss_and_gradient(rows)
            singles = [loss_and_gradient(row) for row in rows.blocks(1)]
    except Exception as error:
        _refuse(f"{name} has no gradient here: {_one_line(error)}", error)
    mean_loss = torch.stack([own for own, _ in singles]).double().mean()
    if not _is_close(loss.double(), mean_loss, v.dtype):
        _refuse(
            f"the loss of {count} rows is {float(loss):.6g}, but the mean of their single losses "
            f"is {float(mean_loss):.6g}: {name} or {_name_of(model.loss_fn)} mixes rows; "
            "use no batch statistics"
        )
    mean_gradient = torch.stack([own for _, own in singles]).mean(0)
    tolerance = 1e-8 if v.dtype == torch.float64 else 1e-3
    scale = max(float(mean_gradient.abs().max()), 1e-30)
    if float((gradient - mean_gradient).abs().max()) > tolerance * scale:
        _refuse(
            f"the gradient of {count} rows is not the mean of their single gradients: {name} "
            "treats a row differently by what else is in the batch (such as scale_grad_by_freq)"
        )


def _describe(inputs: Inputs) -> str:
    names = [f"{name} " for name in inputs] if isinstance(inputs, dict) else [""] * len(inputs)
    return ", ".join(
        f"{name}{tuple(x.shape)} {str(x.dtype).removeprefix('torch.')}"
        for name, x in zip(names, list_tensors(inputs), strict=True)
    )


def _row_losses(model: FlatModel, outputs: Outputs, targets: Tensor) -> Tensor:
    """Return each row's loss (w,), by vmap where the loss allows it."""
    try:
        return model.row_losses(outputs, targets)
    except Exception:
        losses = []
        for j in range(len(targets)):
            output = map_tensors(lambda part, j=j: part[j : j + 1], outputs)
            losses.append(model.loss_fn(output, targets[j : j + 1]).reshape(()))
        return torch.stack(losses)


def _is_close(a: Tensor, b: Tensor, dtype: torch.dtype) -> bool:
    tolerance = 1e-9 if dtype == torch.float64 else 1e-3
    return abs(float(a) - float(b)) <= tolerance * max(abs(float(a)), abs(float(b)), 1e-30)


def choose_mode(model: FlatModel, v: Tensor, rows: TensorTable) -> Mode:
    """Choose how clients' gradients are computed, and warn where that is slow.

    Returns:
        "batched" where vmap can transform the module, "sequential" where it cannot.

    Raises:
        InputError: The module draws random numbers.
    """
    gradients = BatchedGradients(model)
    active: list[str] = []
    for name, layer in gradients.model.working.named_modules():
        label = f"{name or 'the model'} ({type(layer).__name__})"
        layer.register_forward_pre_hook(lambda *_, label=label: active.append(label))
        layer.register_forward_hook(lambda *_: active.pop() and None)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try_gradients(model, gradients, v, rows)
    except Exception as error:
        where = active[-1] if active else f"the loss ({_name_of(model.loss_fn)})"
        if "random" in str(error):
            _refuse(
                f"{where} draws random numbers that do not depend on the run's seed; "
                "remove them, or call .eval()",
                error,
            )
        warnings.warn(
            f"TorchProblem: {where} cannot be batched over clients ({_one_line(error)[:160]}); "
            "clients are computed one after the other, which is slower",
            UserWarning,
            stacklevel=4,
        )
        return "sequential"
    return "batched"


def check_batches(model: FlatModel, v: Tensor, tables: Mapping[str, AnyTable]) -> None:
    """Compute the outputs of tables as one batch each, by the statistics of the batch.

    Raises:
        InputError: A table has too few rows, or the outputs are not finite.
    """
    key = torch.zeros((), dtype=torch.int64, device=v.device) if model.key_names else None
    for where, table in tables.items():
        rows = table.take(np.arange(len(table.targets)))
        try:
            with torch.no_grad():
                model.outputs(v, rows.inputs, key)
        except InputError as error:
            why = str(error).removeprefix("TorchProblem: ")
            _refuse(f"{where} has {len(table.targets)} rows, but {why}", error)


def check_autocast(model: FlatModel, v: Tensor, rows: TensorTable) -> None:
    """Refuse models that cannot be computed under autocast.

    Raises:
        InputError: A layer cannot, or the loss of its outputs is not finite.
    """
    name = type(model.module).__name__
    try:
        with torch.no_grad():
            loss = float(model.mean_loss(v, *rows))
    except InputError:
        raise
    except Exception as error:
        _refuse(f"{name} cannot be computed with autocast ({_one_line(error)[:100]})", error)
    if not math.isfinite(loss):
        _refuse(f"the loss of {name} is {loss:g} with autocast; leave it out")


def try_gradients(
    model: FlatModel,
    gradients: BatchedGradients | SequentialGradients,
    v: Tensor,
    rows: TensorTable,
) -> None:
    """Compute the gradients of two clients.

    Raises:
        Exception: Whatever torch raises where it cannot.
    """
    inputs = map_tensors(lambda x: torch.stack([x, x]), rows.inputs)
    targets = torch.stack([rows.targets, rows.targets])
    weights = torch.ones(targets.shape[:2], dtype=v.dtype, device=v.device)
    keys = torch.zeros(2, dtype=torch.int64, device=v.device) if model.key_names else None
    sizes = np.full(2, len(rows.targets))
    gradients(torch.stack([v, v]), ClientBatches(inputs, targets, weights, sizes, keys))


def check_compiled(model: FlatModel, v: Tensor, rows: TensorTable, mode: Mode) -> None:
    """Refuse models that torch cannot compile.

    Raises:
        InputError: It cannot, or there is no compiler.
    """
    check_compiler()
    if model.batch_norm:  # batches are not padded, and torch compiles few shapes of a function
        _refuse(
            "compile=True is not possible with batch_norm; leave out compile, or convert the model "
            "by fp.to_group_norm"
        )
    if model.has_dropout:  # what inductor made of the masks of torch 2.13 damaged the heap
        _refuse("compile=True is not possible with dropout; leave out one of the two")
    kind = BatchedGradients if mode == "batched" else SequentialGradients
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of torch's own modules
            try_gradients(model, kind(model, is_compiled=True), v, rows)
    except Exception as error:
        _refuse(
            f"{type(model.module).__name__} cannot be compiled ({_one_line(error)[:100]}); "
            "leave out compile",
            error,
        )


def _advise(model: FlatModel) -> str:
    """Say what to do with a loss that is not a mean over rows."""
    loss = model.loss_fn
    if isinstance(loss, nn.CrossEntropyLoss | nn.NLLLoss) and loss.reduction == "mean":
        return "with weight or ignore_index use its reduction='sum' divided by len(targets)"
    return (
        f"{type(model.module).__name__} or {_name_of(loss)} mixes rows, or sums over them; use the "
        "mean over rows"
    )


def _name_of(function: Callable[..., object]) -> str:
    return str(getattr(function, "__name__", type(function).__name__))


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
