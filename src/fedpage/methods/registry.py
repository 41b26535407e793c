"""The registry of methods: names on the command line, and the classes behind them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from typing import TypeVar

from fedpage.codecs import Codec
from fedpage.core.capabilities import measures_step
from fedpage.core.errors import InputError, short_repr
from fedpage.core.optimizers import Optimizer
from fedpage.core.spec import Registry
from fedpage.core.types import AnyMethod, HyperParameter
from fedpage.methods import schedules

M = TypeVar("M", bound=type[AnyMethod])


@dataclass(frozen=True)
class MethodEntry:
    """A method's class, and the hyper-parameters that its name fixes.

    Args:
        cls: The class of the method.
        label: The name as papers print it.
        preset: Hyper-parameters that cannot be changed under this name.
        group: Its family: one of `GROUPS`.
        assumes: What it needs beyond smoothness, in a few words.
        page: Its page in docs/methods, without ".md".
        variant_of: The name of the method that it is a variant of, or "".
    """

    cls: type[AnyMethod]
    label: str
    preset: Mapping[str, object] = field(default_factory=dict)
    group: str = "other"
    assumes: str = ""
    page: str = ""
    variant_of: str = ""

    @property
    def hyper_parameters(self) -> dict[str, HyperParameter]:
        """The hyper-parameters that can be set, with their defaults."""
        return {
            f.name: None if f.default is MISSING else f.default
            for f in fields(self.cls)
            if f.name not in (*self.preset, *getattr(self.cls, "fixed", ()))
        }

    def __call__(self, **hyper_parameters: HyperParameter) -> AnyMethod:
        """Return the method with some hyper-parameters set.

        Raises:
            InputError: A hyper-parameter is fixed, unknown, or has an impossible value.
        """
        for name in hyper_parameters:
            if name in self.preset:
                value = self.preset[name]
                fixed = "all rows" if value is None else repr(value)
                raise InputError(f"{self.label}: {name} is {fixed}; it cannot be set")
        return self.cls(**self.preset, **hyper_parameters)


GROUPS = {
    "local": "Local steps",
    "variance-reduced": "Variance reduction",
    "compressed": "Compression",
    "adaptive": "Adaptive and momentum servers",
    "second-order": "Similarity of clients (second order)",
    "other": "Other",
}
"""The families of methods, in the order of lists, with their titles."""

METHODS: Registry[MethodEntry] = Registry("method")
"""Every method by the name that the command line uses."""


def register(
    name: str,
    presets: Mapping[str, tuple[str, Mapping[str, object]]] | None = None,
    *,
    group: str | None = None,
    assumes: str | None = None,
    page: str = "",
    variant_of: str = "",
) -> Callable[[M], M]:
    """Register the decorated method.

    Args:
        name: Its name on the command line.
        presets: Further names, each with a label and the hyper-parameters it fixes.
        group: Its family: one of `GROUPS`. If None, use its base class's.
        assumes: What it needs beyond smoothness, in a few words. If None, use its base
            class's.
        page: Its page in docs/methods, without ".md", if it is not the name.
        variant_of: The name of the method that it is a variant of. `fedpage choose`
            leaves variants out.
    """
    if group is not None and group not in GROUPS:
        raise InputError(
            f"{name}: group must be one of {', '.join(GROUPS)}, not {short_repr(group)}"
        )

    def decorate(cls: M) -> M:
        known = {entry.cls: entry for entry in METHODS.values()}
        bases = [known[base] for base in cls.__mro__[1:] if base in known]
        base = bases[0] if bases else MethodEntry(cls, cls.name)
        about = (
            base.group if group is None else group,
            base.assumes if assumes is None else assumes,
            page or variant_of or name,
        )
        METHODS.add(name, MethodEntry(cls, cls.name, {}, *about, variant_of))
        for other, (label, preset) in (presets or {}).items():
            METHODS.add(other, MethodEntry(cls, label, preset, *about, name))
        if presets:
            cls.presets = dict(presets.values())  # type: ignore[attr-defined]
        return cls

    return decorate


def describe_method(method: AnyMethod) -> dict[str, object]:
    """Return a method's name, hyper-parameters and effective step, as plain values.

    The step is None if the method measures it in the run. If the method has schedules,
    it is the step at their largest values.
    """
    names = [field.name for field in fields(method)] if is_dataclass(method) else []
    values = {name: getattr(method, name) for name in names}
    texts = (Codec, Optimizer, schedules.Schedule)
    step = None if measures_step(method) else schedules.effective_step(method)
    return {
        "name": method.name,
        "class": type(method).__name__,
        **{name: str(v) if isinstance(v, texts) else v for name, v in values.items()},
        "effective_step": step,
    }
