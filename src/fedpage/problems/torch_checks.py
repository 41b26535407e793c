"""What a torch module must be for its loss to be a mean of rows that depends on nothing but parameters and rows."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import grad, vmap

from fedpage.problems.torch_grads import FlatModel
from fedpage.problems.torch_steady import own_products
from fedpage.types import InputError


def check_module(module: Any) -> None:
    """Refuse modules whose parameters are not plain, or that are in training mode where that makes a difference."""
    if isinstance(module, type) or not isinstance(module, nn.Module):
        raise InputError(f"TorchProblem: model must be a torch.nn.Module such as nn.Linear(64, 10), not {module!r:.80}")
    for name, part in module.named_modules():
        where, kind = f"{name or 'the model'} ({type(part).__name__})", type(part)
        if isinstance(part, nn.modules.lazy.LazyModuleMixin) and part.has_uninitialized_params():
            raise InputError(f"TorchProblem: {where} has no shape yet; call the model once on a row, or give its sizes")
        if isinstance(part, nn.modules.batchnorm._BatchNorm) and (part.training or part.running_mean is None):
            raise InputError(
                f"TorchProblem: {where} mixes the rows of a batch and keeps statistics that are no parameters; "
                "use nn.GroupNorm or nn.LayerNorm, or freeze a trained one with .eval()"
            )
        if isinstance(part, nn.modules.dropout._DropoutNd) and part.training and part.p > 0:
            raise InputError(
                f"TorchProblem: {where} draws random numbers that no seed of a run decides, so no run repeats; "
                "set p=0, or call .eval() on it"
            )
        if kind.__name__ in ("DataParallel", "DistributedDataParallel", "ScriptModule", "RecursiveScriptModule"):
            raise InputError(f"TorchProblem: {where}: give the plain module that is inside")
    free = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
    if not free:
        raise InputError("TorchProblem: the model has no parameter that needs a gradient; there is nothing to train")
    for name, p in module.named_parameters():
        if p.is_complex() or p.layout != torch.strided:
            raise InputError(f"TorchProblem: parameter {name} is {p.dtype}, {p.layout}; real dense ones are wanted")
        if not bool(torch.isfinite(p).all()):
            raise InputError(f"TorchProblem: parameter {name} has a NaN or an infinity in it")


def check_rows(model: FlatModel, v: Tensor, inputs: tuple[Tensor, ...], targets: Tensor) -> None:
    """Refuse losses that are no mean over rows, that are random, or that change buffers; a few rows show it."""
    kept = {name: value.clone() for name, value in model.module.named_buffers()}
    name, loss_name = type(model.module).__name__, _named(model.loss_fn)
    with torch.no_grad():
        try:
            together, again = (model.loss_fn(model.outputs(v, inputs), targets) for _ in range(2))
        except Exception as error:
            raise InputError(
                f"TorchProblem: {name} and {loss_name} cannot be computed on client 0's first rows, inputs of shape "
                f"{', '.join(str(tuple(x.shape)) for x in inputs)} and targets of shape {tuple(targets.shape)}: "
                f"{_one_line(error)}"
            ) from error
        if not isinstance(together, Tensor) or together.numel() != 1:
            shape = tuple(together.shape) if isinstance(together, Tensor) else type(together).__name__
            raise InputError(
                f"TorchProblem: loss_fn must return one number, the mean over rows, not {shape}; use reduction='mean'"
            )
        for buffer, value in model.free[-1].named_buffers():
            if not torch.equal(value, kept[buffer]):
                raise InputError(
                    f"TorchProblem: {name} changes its buffer {buffer!r} when it is called; "
                    "freeze it with .eval(), or leave it out"
                )
        if not torch.equal(together, again):
            raise InputError(
                f"TorchProblem: {name} gives another loss for the same rows when asked again: it draws random numbers "
                "that no seed of a run decides; take them out, or call .eval()"
            )
        each = [
            model.loss_fn(model.outputs(v, tuple(x[j : j + 1] for x in inputs)), targets[j : j + 1]).reshape(())
            for j in range(len(targets))
        ]
        mean = torch.stack(each).double().mean()
        slack = 1e-9 if v.dtype == torch.float64 else 1e-3
        if not torch.isclose(together.double().reshape(()), mean, rtol=slack, atol=slack):
            raise InputError(
                f"TorchProblem: the loss of {len(targets)} rows is {float(together):.6g}, the mean of their own losses "
                f"{float(mean):.6g}: {name} or {loss_name} mixes rows, or sums where the mean is wanted; give one that "
                "takes the mean over rows (no class weights, no batch statistics)"
            )


def can_be_batched(model: FlatModel, v: Tensor, inputs: tuple[Tensor, ...], targets: Tensor, steady: bool) -> bool:
    """Whether vmap takes the module; if not, a warning names the part of it that stopped it.

    steady: and whether a client's gradient has the same bits in company as alone, as far as a few rows show.
    """
    model.free.clear()  # so that a copy with the hooks is called
    entered: list[str] = []
    hooks = []
    for name, part in model.module.named_modules():
        label = f"{name or 'the model'} ({type(part).__name__})"
        hooks.append(part.register_forward_pre_hook(lambda *_, label=label: entered.append(label)))
        hooks.append(part.register_forward_hook(lambda *_: entered.pop() and None))
    weights = torch.full((2, len(targets)), 1.0 / len(targets), dtype=v.dtype, device=v.device)
    try:
        stacked = tuple(torch.stack([x, x]) for x in inputs)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            batched = vmap(grad(model.weighted))
            points = torch.stack([v, v * 0.75])
            with own_products(steady):
                both = batched(points, stacked, torch.stack([targets, targets]), weights)
                alone = batched(points[1:], tuple(x[1:] for x in stacked), targets[None], weights[1:])
        if steady and not torch.equal(both[1:], alone):
            warnings.warn(
                f"TorchProblem: gradients of {type(model.module).__name__} have other bits in company than alone; "
                "clients are computed one after the other, which is slower (steady=False: never mind the bits)",
                UserWarning,
                stacklevel=4,
            )
            return False
        return True
    except Exception as error:
        guilty = entered[-1] if entered else f"the loss ({_named(model.loss_fn)})"
        warnings.warn(
            f"TorchProblem: {guilty} cannot be batched over clients ({_one_line(error)[:160]}); clients are computed "
            "one after the other, which is slower",
            UserWarning,
            stacklevel=4,
        )
        return False
    finally:
        model.free.clear()
        for hook in hooks:
            hook.remove()


def _named(loss_fn: Callable[..., Any]) -> str:
    return str(getattr(loss_fn, "__name__", type(loss_fn).__name__))


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
