"""Make the bits of a client's gradient independent of everything but its rows and its parameters.

Measured on CPUs, torch's own operations do not have this property:

- The last bits of a matrix product by MKL depend on the number of matrices in a batch and on where
  they lie in memory; those of oneDNN also depend on the number of threads.
- `vmap` merges the convolutions of all clients into one grouped convolution, whose bits depend on
  the number of clients.
- Functions such as the sigmoid are computed by one formula in whole vector registers and by another
  in the rest of an array, so the bits of an element depend on its position.

Here matrix products are computed by a kernel that adds in a fixed order, at about half of MKL's
speed. Convolutions become matrix products, elementwise functions are computed on arrays padded to
whole vector registers, and torch uses one thread.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, TypeAlias

import torch
from torch import Tensor, fx
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from fedpage.problems import kernels

Outputs: TypeAlias = Any
"""What an operation of torch returns: a tensor, or a structure of tensors."""
Arguments: TypeAlias = tuple[Any, ...]
Options: TypeAlias = Mapping[str, Any]
Operation: TypeAlias = Callable[..., Outputs]

_FLOATS = (torch.float32, torch.float64)


# Threads and oneDNN


class _Settings:
    """Count the users of `single_threaded`, and remember torch's settings before the first."""

    lock = threading.Lock()
    users = 0
    before: tuple[int, bool] = (1, True)


@contextmanager
def single_threaded() -> Iterator[None]:
    """Run torch on one thread and without oneDNN, and restore its settings afterwards."""
    with _Settings.lock:
        if _Settings.users == 0:
            _Settings.before = (torch.get_num_threads(), torch.backends.mkldnn.enabled)
            torch.backends.mkldnn.set_flags(False, _fp32_precision=None)
        _Settings.users += 1
    if torch.get_num_threads() != 1:  # each thread has a setting of its own
        torch.set_num_threads(1)
    try:
        yield
    finally:
        with _Settings.lock:
            _Settings.users -= 1
            if _Settings.users == 0:
                torch.set_num_threads(_Settings.before[0])
                torch.backends.mkldnn.set_flags(_Settings.before[1], _fp32_precision=None)


def guard(device: torch.device, deterministic: bool) -> AbstractContextManager[None]:
    """Return `single_threaded` where it is requested and the device is a CPU."""
    return single_threaded() if deterministic and device.type == "cpu" else nullcontext()


# Convolutions


class ConvolutionsAsProducts(TorchFunctionMode):  # type: ignore[misc]
    """Compute convolutions in one and two dimensions as matrix products, inside this context."""

    def __torch_function__(
        self,
        func: Operation,
        types: Sequence[type],
        args: Arguments = (),
        kwargs: Options | None = None,
    ) -> Outputs:
        kwargs = kwargs or {}
        if func is torch.conv2d:
            return _conv2d(*args, **kwargs)
        if func is torch.conv1d:
            return _conv1d(*args, **kwargs)
        return func(*args, **kwargs)


_Size = int | tuple[int, ...] | list[int]
"""A stride, dilation or padding: one number for every axis, or a number each."""


def _conv1d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: _Size = 1,
    padding: _Size | str = 0,
    dilation: _Size = 1,
    groups: int = 1,
) -> Tensor:
    """Convolve along one axis, as along two axes of which the first has length 1."""

    def two_axes(size: _Size, first: int) -> tuple[int, int]:
        return first, size if isinstance(size, int) else size[0]

    pad = padding if isinstance(padding, str) else two_axes(padding, 0)
    steps = two_axes(stride, 1), pad, two_axes(dilation, 1)
    return _conv2d(x.unsqueeze(-2), weight.unsqueeze(-2), bias, *steps, groups).squeeze(-2)


def _conv2d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: _Size = 1,
    padding: _Size | str = 0,
    dilation: _Size = 1,
    groups: int = 1,
) -> Tensor:
    """Multiply the weights (O, C/groups, kh, kw) by the patches of x (w, C, H, W) as columns."""
    unbatched = x.dim() == 3
    x = x.unsqueeze(0) if unbatched else x
    kernel = weight.shape[-2], weight.shape[-1]
    stride, dilation = _pair(stride), _pair(dilation)
    if padding == "same":
        high, wide = (step * (size - 1) for step, size in zip(dilation, kernel, strict=True))
        x = F.pad(x, (wide // 2, wide - wide // 2, high // 2, high - high // 2))
    pad = (0, 0) if isinstance(padding, str) else _pair(padding)
    width, channels = x.shape[0], weight.shape[0]
    height, length = (
        (x.shape[2 + k] + 2 * pad[k] - dilation[k] * (kernel[k] - 1) - 1) // stride[k] + 1
        for k in range(2)
    )
    patches = F.unfold(x, kernel, dilation, pad, stride)  # (w, C kh kw, places)
    columns = patches.transpose(0, 1).reshape(groups, -1, width * height * length)
    rows = weight.reshape(groups, channels // groups, -1)
    out = torch.matmul(rows, columns).reshape(channels, width, height, length).transpose(0, 1)
    if bias is not None:
        out = out + bias.reshape(1, -1, 1, 1)
    return out.squeeze(0) if unbatched else out


def _pair(size: _Size) -> tuple[int, int]:
    return (size, size) if isinstance(size, int) else (size[0], size[1])


# Matrix products


def _bmm(a: Tensor, b: Tensor) -> Tensor:
    """Multiply a (n, m, k) by b (n, k, p)."""
    out = torch.empty(a.shape[0], a.shape[1], b.shape[2], dtype=a.dtype)
    if b.stride(2) != 1:
        b = b.contiguous()
    kernels.products(a.detach().numpy(), b.detach().numpy(), out.numpy())
    return out


def _mm(a: Tensor, b: Tensor) -> Tensor:
    return _bmm(a[None], b[None])[0]


def _addmm(c: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    return beta * c + alpha * _mm(a, b)


def _baddbmm(c: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    return beta * c + alpha * _bmm(a, b)


def _mv(a: Tensor, b: Tensor) -> Tensor:
    return _mm(a, b[:, None])[:, 0]


def _dot(a: Tensor, b: Tensor) -> Tensor:
    return _mm(a[None, :], b[:, None])[0, 0]


# Variances


def _var_mean(
    x: Tensor,
    dim: int | Sequence[int] | None = None,
    *,
    correction: float | None = 1,
    keepdim: bool = False,
) -> tuple[Tensor, Tensor]:
    """Compute variance and mean by sums; torch's one-pass variance depends on the position."""
    dims = [dim] if isinstance(dim, int) else list(range(x.dim())) if not dim else list(dim)
    count = 1
    for axis in dims:
        count *= x.shape[axis]
    mean = x.sum(dims, keepdim=True) / count
    away = x - mean
    degrees = max(count - (1 if correction is None else correction), 0)
    var = (away * away).sum(dims, keepdim=keepdim) / degrees
    return var, mean if keepdim else mean.squeeze(dims)


def _var(x: Tensor, dim: int | Sequence[int] | None = None, **options: Any) -> Tensor:
    return _var_mean(x, dim, **options)[0]


def _std(x: Tensor, dim: int | Sequence[int] | None = None, **options: Any) -> Tensor:
    return torch.sqrt(_var(x, dim, **options))


# Elementwise functions

_VECTOR = 64
"""A multiple of the elements that torch computes at once on any processor."""
_ELEMENTWISE = (
    "sigmoid", "sigmoid_backward", "silu", "silu_backward", "gelu", "gelu_backward", "elu",
    "elu_backward", "softplus", "softplus_backward", "mish", "mish_backward",
    "log_sigmoid_forward", "log_sigmoid_backward", "tanh", "tanh_backward", "exp", "exp2", "expm1",
    "log", "log2", "log10", "log1p", "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh",
    "asinh", "acosh", "atanh", "erf", "erfc", "erfinv", "lgamma", "digamma", "rsqrt", "sqrt",
    "pow.Tensor_Scalar", "pow.Tensor_Tensor", "pow.Scalar", "atan2", "hypot", "logaddexp", "sinc",
)  # fmt: skip
"""Operations that torch computes by one formula in whole registers and by another in the rest."""


def _pad_arguments(operation: Operation) -> Operation:
    """Return an elementwise operation that computes on arrays padded to whole registers."""

    def padded(*args: object, **kwargs: object) -> Outputs:
        tensors = [arg for arg in args if isinstance(arg, Tensor)]
        if not tensors or tensors[0].dtype not in _FLOATS:
            return operation(*args, **kwargs)
        shape = torch.broadcast_shapes(*(tensor.shape for tensor in tensors))
        count = shape.numel()
        whole = count % _VECTOR == 0
        if whole and all(tensor.shape == shape and tensor.is_contiguous() for tensor in tensors):
            return operation(*args, **kwargs)
        length = -(-max(count, 1) // _VECTOR) * _VECTOR

        def pad(arg: object) -> object:
            if not isinstance(arg, Tensor):
                return arg
            wide = torch.ones(length, dtype=arg.dtype)
            wide[:count] = arg.expand(shape).reshape(-1)
            return wide

        result = operation(*(pad(arg) for arg in args), **kwargs)
        if isinstance(result, Tensor):
            return result[:count].reshape(shape)
        return type(result)(
            part[:count].reshape(shape) if part.numel() == length else part for part in result
        )

    return padded


# Replacing torch's kernels


def _find_elementwise() -> dict[Operation, Operation]:
    """Return the padded form of every operation in `_ELEMENTWISE` that this torch has."""
    found = {}
    for name in _ELEMENTWISE:
        packet, _, overload = name.partition(".")
        operation = getattr(getattr(torch.ops.aten, packet, None), overload or "default", None)
        if operation is not None:
            found[operation] = _pad_arguments(operation)
    return found


_REPLACEMENTS: dict[Operation, Operation] = {
    torch.ops.aten.var_mean.correction: _var_mean,
    torch.ops.aten.var.correction: _var,
    torch.ops.aten.std.correction: _std,
    torch.ops.aten.bmm.default: _bmm,
    torch.ops.aten.mm.default: _mm,
    torch.ops.aten.addmm.default: _addmm,
    torch.ops.aten.baddbmm.default: _baddbmm,
    torch.ops.aten.mv.default: _mv,
    torch.ops.aten.dot.default: _dot,
    **_find_elementwise(),
}


class _DeterministicKernels(TorchDispatchMode):  # type: ignore[misc]
    def __torch_dispatch__(
        self,
        func: Operation,
        types: Sequence[type],
        args: Arguments = (),
        kwargs: Options | None = None,
    ) -> Outputs:
        kwargs = kwargs or {}
        replacement = _REPLACEMENTS.get(func)
        if replacement is None:
            return func(*args, **kwargs)
        floats = all(arg.dtype in _FLOATS for arg in args if isinstance(arg, Tensor))
        return (replacement if floats else func)(*args, **kwargs)


def deterministic_kernels(deterministic: bool) -> AbstractContextManager[object]:
    """Return a context in which torch's kernels are replaced, where `deterministic`."""
    return _DeterministicKernels() if deterministic else nullcontext()


def replace_kernels(module: fx.GraphModule) -> None:
    """Replace torch's kernels in a traced function."""
    for node in module.graph.nodes:
        if node.op == "call_function" and node.target in _REPLACEMENTS:
            values = [arg.meta["val"] for arg in node.args if _has_value(arg)]
            if all(value.dtype in _FLOATS for value in values):
                node.target = _REPLACEMENTS[node.target]


def _has_value(arg: object) -> bool:
    return isinstance(arg, fx.Node) and "val" in arg.meta
