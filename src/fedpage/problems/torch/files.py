"""Save torch models to files and load them, without pickle: `.safetensors` or numpy's `.npz`."""

from __future__ import annotations

import io
import json
import os
import zipfile
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

import numpy as np

try:
    import torch
except ImportError as error:
    raise ImportError(
        "save_model and load_model need torch: pip install 'fedpage[torch]'"
    ) from error
from torch import Tensor, nn

from fedpage.core.errors import InputError, short_repr
from fedpage.core.files import put

_METADATA = "__about__"
"""The array of an .npz file that holds the metadata, as JSON in UTF-8."""


def check_path(path: Path) -> None:
    """Refuse a name without a known ending, or one whose package is not installed."""
    if path.suffix not in (".npz", ".safetensors"):
        ending = path.suffix or "without an ending"
        raise InputError(f"{path}: a model is saved as .npz or .safetensors, not {ending}")
    if path.suffix == ".safetensors":
        _import_safetensors()


def save_model(
    path: str | os.PathLike[str], module: nn.Module, about: Mapping[str, str] | None = None
) -> Path:
    """Write a module's parameters and buffers to a file, atomically.

    Args:
        path: A name that ends in `.npz` or `.safetensors`; its directory is created.
        module: The module.
        about: Metadata to store with it.

    Returns:
        The path.

    Raises:
        InputError: The name has another ending, or the module holds something else than tensors.
    """
    path = Path(path)
    check_path(path)
    _check_module(module)
    state = module.state_dict()
    for name, value in state.items():
        if not isinstance(value, Tensor):
            raise InputError(
                f"{path}: {name} of {type(module).__name__} is not a tensor; only tensors can be "
                "saved"
            )
    tensors = {name: value.detach().cpu().contiguous() for name, value in state.items()}
    metadata = {key: str(value) for key, value in (about or {}).items()}
    if path.suffix == ".safetensors":
        # Clones, because safetensors refuses tensors that share memory.
        copies = {name: value.clone() for name, value in tensors.items()}
        data = _import_safetensors().save(copies, metadata=metadata)
    else:
        data = _to_npz(tensors, metadata)
    path.parent.mkdir(parents=True, exist_ok=True)
    put(path, data)
    return path


def _to_npz(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> bytes:
    """Write an .npz archive; names of parameters may clash with the arguments of np.savez."""
    text = json.dumps(metadata).encode("utf-8")
    arrays = {name: value.numpy() for name, value in tensors.items()}
    arrays[_METADATA] = np.frombuffer(text, dtype=np.uint8)
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, value in arrays.items():
            with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w") as entry:
                contiguous = np.asarray(value, order="C")  # which keeps a scalar a scalar
                np.lib.format.write_array(entry, contiguous, allow_pickle=False)
    return buffer.getvalue()


def load_model(path: str | os.PathLike[str], module: nn.Module) -> nn.Module:
    """Load saved parameters and buffers into a module of the same architecture.

    Args:
        path: A file that `save_model` or `fp.Best` wrote.
        module: The module; its parameters and buffers are overwritten.

    Returns:
        The module, in eval mode.

    Raises:
        InputError: The file cannot be read, or holds a model of another architecture.
    """
    path = Path(path)
    _check_module(module)
    saved, _ = read(path)
    own = module.state_dict()
    for name in sorted({*own, *saved}):
        if name not in saved or name not in own:
            where = "in the file" if name not in saved else "in the model"
            raise InputError(
                f"{path}: not a model of this architecture: there is no {name} {where}"
            )
        if saved[name].shape != own[name].shape:
            raise InputError(
                f"{path}: not a model of this architecture: {name} has shape "
                f"{tuple(saved[name].shape)} in the file and {tuple(own[name].shape)} in the model"
            )
    module.load_state_dict(saved)
    return module.eval()


def read(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return the tensors of a file by name, and its metadata; nothing is unpickled."""
    check_path(path)
    try:
        data = path.read_bytes()
        if path.suffix == ".safetensors":
            length = int.from_bytes(data[:8], "little")
            metadata = json.loads(data[8 : 8 + length]).get("__metadata__", {})
            return _import_safetensors().load(data), _check_metadata(metadata)
        with np.load(io.BytesIO(data), allow_pickle=False) as archive:
            arrays = {name: np.array(archive[name]) for name in archive.files}
        text = arrays.pop(_METADATA, np.frombuffer(b"{}", dtype=np.uint8))
        metadata = json.loads(bytes(text).decode("utf-8"))
        tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
        return tensors, _check_metadata(metadata)
    except FileNotFoundError:
        raise InputError(f"{path}: there is no such file") from None
    except Exception as error:  # the readers raise many types for a damaged file
        why = " ".join(str(error).split())[:100] or type(error).__name__
        raise InputError(f"{path}: not a saved model ({why})") from None


def _check_metadata(metadata: object) -> dict[str, str]:
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise ValueError("its metadata is not a table of strings")
    return metadata


def _check_module(module: object) -> None:
    if not isinstance(module, nn.Module):
        raise InputError(f"module must be a torch.nn.Module, not {short_repr(module)}")


def _import_safetensors() -> ModuleType:
    try:
        import safetensors.torch
    except ImportError:
        raise ImportError(
            ".safetensors needs safetensors: pip install 'fedpage[torch]', or save as .npz"
        ) from None
    return safetensors.torch
