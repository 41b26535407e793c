"""What a torch module must be for its loss to be a mean of rows that depends on nothing but parameters and rows."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import grad, vmap
from torch.utils._pytree import tree_map

from fedpage.core.errors import InputError
from fedpage.problems.torch.deterministic import own_products
from fedpage.problems.torch.gradients import FlatModel


def check_module(module: Any) -> None:
    """Refuse modules whose parameters are not plain, or that are in training mode where that makes a difference."""
    if isinstance(module, type) or not isinstance(module, nn.Module):
        raise InputError(
            f"TorchProblem: model must be a torch.nn.Module such as nn.Linear(64, 10), not {module!r:.80}"
        )
    for name, part in module.named_modules():
        where, kind = f"{name or 'the model'} ({type(part).__name__})", type(part)
        if isinstance(part, nn.modules.lazy.LazyModuleMixin) and part.has_uninitialized_params():
            raise InputError(
                f"TorchProblem: {where} has no shape yet; call the model once on a row, or give its sizes"
            )
        if isinstance(part, nn.modules.batchnorm._BatchNorm) and (
            part.training or part.running_mean is None
        ):
            raise InputError(
                f"TorchProblem: {where} mixes the rows of a batch and keeps statistics that are no parameters; "
                "use nn.GroupNorm or nn.LayerNorm, or freeze a trained one with .eval()"
            )
        if isinstance(part, nn.modules.dropout._DropoutNd) and part.training and part.p > 0:
            raise InputError(
                f"TorchProblem: {where} draws random numbers that no seed of a run decides, so no run repeats; "
                "set p=0, or call .eval() on it"
            )
        if isinstance(part, (nn.Embedding, nn.EmbeddingBag)) and (
            part.max_norm is not None or part.sparse
        ):
            raise InputError(
                f"TorchProblem: {where} changes its weights when it is called, or has sparse gradients; leave out "
                "max_norm and sparse"
            )
        if kind.__name__ in (
            "TopLevelTracedModule",
            "DataParallel",
            "DistributedDataParallel",
            "ScriptModule",
            "RecursiveScriptModule",
        ):
            raise InputError(f"TorchProblem: {where}: give the plain module that is inside")
    free = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
    if not free:
        raise InputError(
            "TorchProblem: the model has no parameter that needs a gradient; there is nothing to train"
        )
    for name, p in module.named_parameters():
        if p.is_inference() or p.device.type == "meta":
            raise InputError(
                f"TorchProblem: parameter {name} was made in inference mode or on 'meta'; make it anew"
            )
        if p.is_complex() or p.layout != torch.strided:
            raise InputError(
                f"TorchProblem: parameter {name} is {p.dtype}, {p.layout}; real dense ones are wanted"
            )
        if not bool(torch.isfinite(p).all()):
            raise InputError(f"TorchProblem: parameter {name} has a NaN or an infinity in it")


def nudged(v: Tensor) -> Tensor:
    """A point near v (d,) that is nothing special, as a network's first parameters may be."""
    return v + 0.05 * torch.sin(torch.arange(1, len(v) + 1, dtype=v.dtype, device=v.device))


def check_rows(
    model: FlatModel, v: Tensor, inputs: tuple[Tensor, ...], targets: Tensor, where: str
) -> Any:
    """The outputs of some rows at v; refuses losses that are no mean over rows, random, or change buffers."""
    kept = {name: value.clone() for name, value in model.module.named_buffers()}
    name, loss_name = type(model.module).__name__, _named(model.loss_fn)
    with torch.no_grad():
        try:
            outputs = model.outputs(v, inputs)
            together, again = (
                model.loss_fn(outputs, targets),
                model.loss_fn(model.outputs(v, inputs), targets),
            )
        except Exception as error:
            shapes = ", ".join(str(tuple(x.shape)) for x in inputs)
            raise InputError(
                f"TorchProblem: {name} and {loss_name} cannot be computed on rows of {where}, inputs of shape {shapes} "
                f"({inputs[0].dtype}) and targets of shape {tuple(targets.shape)} ({targets.dtype}): {_one_line(error)}"
            ) from error
        if not isinstance(together, Tensor) or together.numel() != 1:
            shape = (
                tuple(together.shape) if isinstance(together, Tensor) else type(together).__name__
            )
            raise InputError(
                f"TorchProblem: loss_fn must return one number, the mean over rows, not {shape}; use reduction='mean'"
            )
        for buffer, value in model.free[-1].named_buffers():
            if not torch.equal(value, kept[buffer]):
                raise InputError(
                    f"TorchProblem: {name} changes its buffer {buffer!r} when it is called; "
                    "freeze it with .eval(), or leave it out"
                )
        if not torch.equal(together, again) and not bool(torch.isnan(together)):
            raise InputError(
                f"TorchProblem: {name} gives another loss for the same rows when asked again: it draws random numbers "
                "that no seed of a run decides; take them out, or call .eval()"
            )
        each = _row_losses(model, outputs, targets)
        strange = torch.nonzero(~torch.isfinite(each)).flatten()
        if len(strange):
            raise InputError(
                f"TorchProblem: {where}: the loss of a row is {float(each[strange[0]]):g} near the start, with target "
                f"{str(targets[strange[0]].tolist())[:40]}; every row must have a finite loss of its own"
            )
        both = torch.stack([together.double().reshape(()), each.double().mean()])
        if not _alike(both[0], both[1], v.dtype):
            raise InputError(
                f"TorchProblem: the loss of {len(targets)} rows of {where} is {float(both[0]):.6g}, the mean of their "
                f"own losses {float(both[1]):.6g}: {name} or {loss_name} mixes rows, or sums where the mean is wanted; "
                "give one that takes the mean over rows (no class weights, no batch statistics)"
            )
    return outputs


def check_gradients(
    model: FlatModel, v: Tensor, inputs: tuple[Tensor, ...], targets: Tensor
) -> None:
    """Refuse modules whose gradient over a batch is not the mean of its rows' gradients, though their loss is."""

    def at(rows: slice) -> tuple[Tensor, Tensor]:
        point = v.clone().requires_grad_(True)
        loss = model.mean(point, tuple(x[rows] for x in inputs), targets[rows])
        (made,) = torch.autograd.grad(loss, point, allow_unused=True)
        return loss.detach(), torch.zeros_like(v) if made is None else made

    name = type(model.module).__name__
    try:
        with torch.enable_grad():
            loss, together = at(slice(None))
            rows = [at(slice(j, j + 1)) for j in range(len(targets))]
    except Exception as error:
        raise InputError(
            f"TorchProblem: {name} has no gradient here: {_one_line(error)}"
        ) from error
    mean = torch.stack([one for one, _ in rows]).double().mean()
    if not _alike(loss.double(), mean, v.dtype):
        raise InputError(
            f"TorchProblem: the loss of {len(targets)} rows is {float(loss):.6g}, the mean of what they have alone "
            f"{float(mean):.6g}: {name} or {_named(model.loss_fn)} mixes rows; use no statistics of a batch"
        )
    each = torch.stack([one for _, one in rows]).mean(0)
    scale = float(each.abs().max())
    if float((together - each).abs().max()) > (1e-8 if v.dtype == torch.float64 else 1e-3) * max(
        scale, 1e-30
    ):
        raise InputError(
            f"TorchProblem: the gradient of {len(targets)} rows is not the mean of their own gradients: {name} treats "
            "a row by what else is in the batch (such as scale_grad_by_freq)"
        )


def _row_losses(model: FlatModel, outputs: Any, targets: Tensor) -> Tensor:
    """(w,) each row's own loss; by vmap where that can be done."""
    try:
        return model.row_losses(outputs, targets)
    except Exception:
        rows = range(len(targets))
        return torch.stack([
            model.loss_fn(tree_map(lambda part, j=j: part[j : j + 1], outputs), targets[j : j + 1]).reshape(())
            for j in rows
        ])  # fmt: skip


def _alike(a: Tensor, b: Tensor, dtype: torch.dtype) -> bool:
    slack = 1e-9 if dtype == torch.float64 else 1e-3
    return abs(float(a) - float(b)) <= slack * max(abs(float(a)), abs(float(b)), 1e-30)


def way_to_compute(
    model: FlatModel, v: Tensor, inputs: tuple[Tensor, ...], targets: Tensor, steady: bool
) -> str:
    """ "together" where vmap takes the module; "alone", one client at a time, where steady bits need it; or "plain".

    A warning names the part of the module that stopped vmap. What is computed alone has the bits that it has alone on
    a node, whatever the node finds here.
    """
    model.free.clear()  # so that a copy with the hooks is called
    entered: list[str] = []
    hooks = []
    for name, part in model.module.named_modules():
        label = f"{name or 'the model'} ({type(part).__name__})"
        hooks.append(part.register_forward_pre_hook(lambda *_, label=label: entered.append(label)))
        hooks.append(part.register_forward_hook(lambda *_: entered.pop() and None))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            same = _same_bits(model, v, inputs, targets, steady)
    except Exception as error:
        if "random" in str(error):
            raise InputError(
                f"TorchProblem: {entered[-1] if entered else 'the loss'} draws random numbers that no seed of a run "
                "decides; take them out, or call .eval()"
            ) from error
        guilty = entered[-1] if entered else f"the loss ({_named(model.loss_fn)})"
        warnings.warn(
            f"TorchProblem: {guilty} cannot be batched over clients ({_one_line(error)[:160]}); clients are computed "
            "one after the other, which is slower",
            UserWarning,
            stacklevel=4,
        )
        return "plain"
    finally:
        model.free.clear()
        for hook in hooks:
            hook.remove()
    if same:
        return "together"
    warnings.warn(
        f"TorchProblem: gradients of {type(model.module).__name__} have other bits in company than alone; "
        "clients are computed one after the other, which is slower (steady=False: never mind the bits)",
        UserWarning,
        stacklevel=4,
    )
    return "alone"


def _same_bits(
    model: FlatModel, v: Tensor, inputs: tuple[Tensor, ...], targets: Tensor, steady: bool
) -> bool:
    """Whether gradients have the same bits in companies of several sizes as alone; vmap's errors go through."""
    batched = vmap(grad(model.weighted))
    points = torch.stack([v * (1 + 0.1 * k) for k in range(5)])
    for width in {min(3, len(targets)), len(targets)}:
        share = torch.full((5, width), 1.0 / width, dtype=v.dtype, device=v.device)
        rows = tuple(torch.stack([x[:width]] * 5) for x in inputs)
        goals = torch.stack([targets[:width]] * 5)
        with own_products(steady):
            whole = batched(points, rows, goals, share)
            if not steady:
                return True
            for k in (1, 2, 3):
                for first in range(0, 5, k):
                    some = slice(first, first + k)
                    part = batched(
                        points[some].clone(),
                        tuple(x[some].clone() for x in rows),
                        goals[some],
                        share[some],
                    )
                    if not torch.equal(whole[some], part):
                        return False
    return True


def _named(loss_fn: Callable[..., Any]) -> str:
    return str(getattr(loss_fn, "__name__", type(loss_fn).__name__))


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
