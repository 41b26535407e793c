"""fedpage: federated optimisation with as little communication as possible.

>>> import fedpage as fp
>>> problem = fp.LogisticRegression(fp.load("census", rows=300), clients=30)
>>> history = fp.simulate(problem, fp.FedPAGE(S=3, K=5, eta_g=0.2), rounds=20, seed=0)
>>> history
History(FedPAGE, 20 rounds, ...)

Names are imported when they are first used, so that `import fedpage` costs next to nothing.
`__init__.pyi` lists them.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any


def _read_stub() -> dict[str, str]:
    """Return the module of each public name, from the lines `from MODULE import NAME as NAME`."""
    with open(f"{__path__[0]}/__init__.pyi", encoding="utf-8") as stub:
        words = [line.split() for line in stub if line.startswith("from ") and " as " in line]
    return {name: module for _, module, _, name, *_ in words}


_MODULE_OF = _read_stub()
"""The module of each public name; "fedpage" for its subpackages."""
__all__ = sorted(_MODULE_OF)


def __getattr__(name: str) -> Any:
    module = _MODULE_OF.get(name)
    if module is None:
        value = _find_method(name)
    elif module == "fedpage":
        value = import_module(f"fedpage.{name}")
    else:
        value = getattr(__import__(module, fromlist=[name]), name)
    globals()[name] = value
    return value


def _find_method(name: str) -> Any:
    """Return the registered method of that class name: one in a file that was added to methods/.

    Raises:
        AttributeError: There is none; it suggests a name.
    """
    if not name.startswith("_"):
        from fedpage.methods import METHODS

        for entry in METHODS.values():
            if entry.cls.__name__ == name:
                return entry.cls
    from fedpage.core.errors import attribute_error

    raise attribute_error("fedpage", name, () if name.startswith("_") else __dir__())


def __dir__() -> list[str]:
    from fedpage.methods import METHODS

    return sorted({*_MODULE_OF, *(entry.cls.__name__ for entry in METHODS.values())})
