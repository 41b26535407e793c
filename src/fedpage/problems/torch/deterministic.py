"""What makes a client's gradient its own to the last bit, whoever else is called: steadiness, paid for in speed.

The products of matrices that torch leaves to MKL depend, in the last bits, on how many there are in a batch and on
where in memory they lie; those of oneDNN on the number of threads as well; and `vmap` makes one grouped convolution of
all clients' convolutions, whose bits depend on their number. (All of it measured.) So products are computed by a kernel
of ours that adds in one order, at about half of MKL's speed; convolutions become such products; and torch has one
thread. Functions such as the sigmoid are computed in whole vectors of the processor's, and the rest of an array by
another formula, so that a number's bits depend on its place; those arrays are filled up to whole vectors.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from fedpage.problems import kernels


class _Depth:
    """Who is within `steady`, and what was set before."""

    lock = threading.Lock()
    count = 0
    before: tuple[int, bool] = (1, True)


@contextmanager
def steady() -> Iterator[None]:
    """One thread of torch's and no oneDNN: the bits of a client's gradient are then its own. Puts back what was set."""
    with _Depth.lock:
        if _Depth.count == 0:
            _Depth.before = (torch.get_num_threads(), torch.backends.mkldnn.enabled)
            torch.backends.mkldnn.set_flags(False, _fp32_precision=None)
        _Depth.count += 1
    if torch.get_num_threads() != 1:  # a setting of each thread's own
        torch.set_num_threads(1)
    try:
        yield
    finally:
        with _Depth.lock:
            _Depth.count -= 1
            if _Depth.count == 0:
                torch.set_num_threads(_Depth.before[0])
                torch.backends.mkldnn.set_flags(_Depth.before[1], _fp32_precision=None)


class Unfolded(TorchFunctionMode):  # type: ignore[misc]
    """Convolutions in one and two dimensions as products of matrices, so that a client's bits are its own."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.conv2d:
            return _conv2d(*args, **kwargs)
        if func is torch.conv1d:
            return _conv1d(*args, **kwargs)
        return func(*args, **kwargs)


def _conv1d(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1,
    groups: int = 1,
) -> Tensor:  # fmt: skip
    """A convolution along one axis is one along two, of which the first has length 1."""

    def two(value: Any, other: int) -> Any:
        return (
            value
            if isinstance(value, str)
            else (other, value if isinstance(value, int) else value[0])
        )

    padded = two(padding, 0)
    made = _conv2d(
        x.unsqueeze(-2),
        weight.unsqueeze(-2),
        bias,
        two(stride, 1),
        padded,
        two(dilation, 1),
        groups,
    )
    return made.squeeze(-2)


def _conv2d(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1,
    groups: int = 1,
) -> Tensor:  # fmt: skip
    """x (w, C, H, W), weight (O, C/groups, kh, kw): patches as columns, times the weights as a matrix."""
    alone = x.dim() == 3
    x = x.unsqueeze(0) if alone else x
    kernel = tuple(weight.shape[-2:])
    stride, dilation = (
        tuple(v) if isinstance(v, (tuple, list)) else (v, v) for v in (stride, dilation)
    )
    if padding == "same":
        reach = [step * (size - 1) for step, size in zip(dilation, kernel, strict=True)]
        x = F.pad(
            x, (reach[1] // 2, reach[1] - reach[1] // 2, reach[0] // 2, reach[0] - reach[0] // 2)
        )
        padding = 0
    elif padding == "valid":
        padding = 0
    padding = tuple(padding) if isinstance(padding, (tuple, list)) else (padding, padding)
    width, channels = x.shape[0], weight.shape[0]
    size = [
        (x.shape[2 + k] + 2 * padding[k] - dilation[k] * (kernel[k] - 1) - 1) // stride[k] + 1
        for k in range(2)
    ]
    patches = F.unfold(x, kernel, dilation, padding, stride)  # (w, C kh kw, places)
    columns = patches.transpose(0, 1).reshape(groups, -1, width * size[0] * size[1])
    rows = weight.reshape(groups, channels // groups, -1)
    out = torch.matmul(rows, columns).reshape(channels, width, size[0], size[1]).transpose(0, 1)
    if bias is not None:
        out = out + bias.reshape(1, -1, 1, 1)
    return out.squeeze(0) if alone else out


def _bmm(a: Tensor, b: Tensor) -> Tensor:
    """(n, m, p) of a (n, m, k) and b (n, k, p)."""
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


def _var_mean(
    x: Tensor, dim: Any = None, *, correction: Any = 1, keepdim: bool = False
) -> tuple[Tensor, Tensor]:
    """By sums, whose order is a row's own; torch's variance in one pass has another for each place."""
    dims = [dim] if isinstance(dim, int) else list(range(x.dim())) if not dim else list(dim)
    count = 1
    for one in dims:
        count *= x.shape[one]
    mean = x.sum(dims, keepdim=True) / count
    away = x - mean
    var = (away * away).sum(dims, keepdim=keepdim) / max(
        count - (1 if correction is None else correction), 0
    )
    return var, mean if keepdim else mean.squeeze(dims)


def _var(x: Tensor, dim: Any = None, *, correction: Any = 1, keepdim: bool = False) -> Tensor:
    return _var_mean(x, dim, correction=correction, keepdim=keepdim)[0]


def _std(x: Tensor, dim: Any = None, *, correction: Any = 1, keepdim: bool = False) -> Tensor:
    return torch.sqrt(_var(x, dim, correction=correction, keepdim=keepdim))


_OWN: dict[Any, Any] = {
    torch.ops.aten.var_mean.correction: _var_mean,
    torch.ops.aten.var.correction: _var,
    torch.ops.aten.std.correction: _std,
    torch.ops.aten.bmm.default: _bmm,
    torch.ops.aten.mm.default: _mm,
    torch.ops.aten.addmm.default: _addmm,
    torch.ops.aten.baddbmm.default: _baddbmm,
    torch.ops.aten.mv.default: _mv,
    torch.ops.aten.dot.default: _dot,
}
_KINDS = (torch.float32, torch.float64)
_VECTOR = 64
"""Numbers that fill any processor's vectors, unrolled as torch unrolls them."""
_BY_ELEMENT = (
    "sigmoid", "sigmoid_backward", "silu", "silu_backward", "gelu", "gelu_backward", "elu", "elu_backward",
    "softplus", "softplus_backward", "mish", "mish_backward", "log_sigmoid_forward", "log_sigmoid_backward", "tanh",
    "tanh_backward", "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tan", "asin", "acos",
    "atan", "sinh", "cosh", "asinh", "acosh", "atanh", "erf", "erfc", "erfinv", "lgamma", "digamma", "rsqrt", "sqrt",
    "pow.Tensor_Scalar", "pow.Tensor_Tensor", "pow.Scalar", "atan2", "hypot", "logaddexp", "sinc",
)  # fmt: skip
"""Operations whose whole vectors and rests are computed by different formulas."""


def _filled(operation: Any) -> Any:
    """An operation by element, on arrays that are filled up to whole vectors."""

    def whole_vectors(*args: Any, **kwargs: Any) -> Any:
        tensors = [one for one in args if isinstance(one, Tensor)]
        if not tensors or tensors[0].dtype not in _KINDS:
            return operation(*args, **kwargs)
        shape = torch.broadcast_shapes(*(one.shape for one in tensors))
        count = shape.numel()
        if count % _VECTOR == 0 and all(
            one.shape == shape and one.is_contiguous() for one in tensors
        ):
            return operation(*args, **kwargs)
        room = -(-max(count, 1) // _VECTOR) * _VECTOR

        def fill(one: Any) -> Any:
            if not isinstance(one, Tensor):
                return one
            wide = torch.ones(room, dtype=one.dtype)
            wide[:count] = one.expand(shape).reshape(-1)
            return wide

        made = operation(*(fill(one) for one in args), **kwargs)
        if isinstance(made, Tensor):
            return made[:count].reshape(shape)
        return type(made)(
            one[:count].reshape(shape) if one.numel() == room else one for one in made
        )

    return whole_vectors


for _name in _BY_ELEMENT:
    _packet, _, _overload = _name.partition(".")
    if hasattr(torch.ops.aten, _packet):
        _operation = getattr(getattr(torch.ops.aten, _packet), _overload or "default", None)
        if _operation is not None:
            _OWN[_operation] = _filled(_operation)


class _OwnProducts(TorchDispatchMode):  # type: ignore[misc]
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        own = _OWN.get(func)
        if own is None:
            return func(*args, **(kwargs or {}))
        kinds = {one.dtype for one in args if isinstance(one, Tensor)}
        return (own if kinds <= set(_KINDS) else func)(*args, **(kwargs or {}))


def own_products(wanted: bool) -> Any:
    """Products of matrices by our kernel, wherever they come from, while this lasts."""
    return _OwnProducts() if wanted else nullcontext()


def with_own_products(graph: Any) -> None:
    """The same for a traced function."""
    for node in graph.graph.nodes:
        if node.op == "call_function" and node.target in _OWN:
            given = [
                one.meta["val"].dtype
                for one in node.args
                if hasattr(one, "meta") and "val" in one.meta
            ]
            if all(dtype in _KINDS for dtype in given):
                node.target = _OWN[node.target]


def guard(device: torch.device, wanted: bool) -> Any:
    """`steady` where it is wanted and means something."""
    return steady() if wanted and device.type == "cpu" else nullcontext()
