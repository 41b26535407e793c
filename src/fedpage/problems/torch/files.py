"""Models in files without pickle: `.safetensors`, or numpy's `.npz`."""

from __future__ import annotations

import io
import json
import os
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

try:
    import torch
except ImportError as error:
    raise ImportError(
        "save_model and load_model need torch: pip install 'fedpage[torch]'"
    ) from error
from torch import nn

from fedpage.core.atomic import put
from fedpage.core.errors import InputError

_ABOUT = "__about__"


def check_path(path: Path) -> None:
    """Refuse names that say no format, or one whose package is missing."""
    if path.suffix not in (".npz", ".safetensors"):
        raise InputError(
            f"{path}: a model is saved as .npz or .safetensors, not {path.suffix or 'without an ending'}"
        )
    if path.suffix == ".safetensors":
        _safetensors()


def save_model(
    path: str | os.PathLike[str], module: nn.Module, about: Mapping[str, str] | None = None
) -> Path:
    """Write a module's parameters and buffers, whole or not at all; about: words that are kept with them."""
    path = Path(path)
    check_path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    _a_module(module)
    found = module.state_dict()
    odd = [name for name, value in found.items() if not isinstance(value, torch.Tensor)]
    if odd:
        raise InputError(
            f"{path}: {odd[0]} of {type(module).__name__} is no tensor, and only tensors can be saved"
        )
    state = {name: value.detach().cpu().contiguous() for name, value in found.items()}
    words = {key: str(value) for key, value in (about or {}).items()}
    if path.suffix == ".safetensors":
        tied = {
            name: value.clone() for name, value in state.items()
        }  # it refuses tensors that share memory
        data = _safetensors().save(tied, metadata=words)
    else:
        box = io.BytesIO()
        arrays = {name: value.numpy() for name, value in state.items()}
        arrays[_ABOUT] = np.frombuffer(json.dumps(words).encode("utf-8"), dtype=np.uint8)
        with zipfile.ZipFile(
            box, "w"
        ) as archive:  # np.savez has names that a parameter must not have
            for name, value in arrays.items():
                with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w") as entry:
                    np.lib.format.write_array(
                        entry, np.ascontiguousarray(value), allow_pickle=False
                    )
        data = box.getvalue()
    put(path, data)
    return path


def load_model(path: str | os.PathLike[str], module: nn.Module) -> nn.Module:
    """Put saved parameters and buffers into a module of the same architecture, which is returned, in eval mode."""
    path = Path(path)
    _a_module(module)
    state, _ = read(path)
    own = module.state_dict()
    for name in sorted({*own, *state}):
        if name not in state or name not in own:
            where = "in the file" if name not in state else "in the model"
            raise InputError(
                f"{path}: not a model of this architecture: there is no {name} {where}"
            )
        if state[name].shape != own[name].shape:
            raise InputError(
                f"{path}: not a model of this architecture: {name} is {tuple(state[name].shape)} in the file and "
                f"{tuple(own[name].shape)} in the model"
            )
    module.load_state_dict(state)
    return module.eval()


def _a_module(module: object) -> None:
    if not isinstance(module, nn.Module):
        raise InputError(f"a torch.nn.Module is wanted, not {module!r:.60}")


def read(path: Path) -> tuple[dict[str, Any], dict[str, str]]:
    """The tensors in a file by name, and the words about them. Nothing is unpickled."""
    check_path(path)
    try:
        if path.suffix == ".safetensors":
            data = path.read_bytes()
            state = _safetensors().load(data)
            size = int.from_bytes(data[:8], "little")
            return state, _words(json.loads(data[8 : 8 + size]).get("__metadata__", {}))
        with np.load(io.BytesIO(path.read_bytes()), allow_pickle=False) as box:
            words = (
                _words(json.loads(bytes(box[_ABOUT]).decode("utf-8")))
                if _ABOUT in box.files
                else {}
            )
            return {
                name: torch.from_numpy(np.array(box[name])) for name in box.files if name != _ABOUT
            }, words
    except FileNotFoundError:
        raise InputError(f"{path}: there is no such file") from None
    except Exception as error:  # whatever bytes that are no such file make of the readers
        why = " ".join(str(error).split())[:100] or type(error).__name__
        raise InputError(f"{path}: not a model that was saved here ({why})") from None


def _words(found: Any) -> dict[str, str]:
    if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
        raise ValueError("strange words about it")
    return found


def _safetensors() -> Any:
    try:
        import safetensors.torch
    except ImportError:
        raise ImportError(
            ".safetensors needs safetensors: pip install 'fedpage[torch]', or save as .npz"
        ) from None
    return safetensors.torch
