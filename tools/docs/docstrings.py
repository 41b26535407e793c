"""Render the docstrings and signatures of classes, functions and modules as Markdown."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import griffe

ROOT = Path(__file__).resolve().parents[2]
WIDTH = 84
"""Columns that a signature may take before each parameter gets a line of its own."""
_DOCTEST = re.compile(
    r"(?:^[ ]*>>> .*\n?(?:^[ ]*\S.*\n?)*)(?:\n?^[ ]*>>> .*\n?(?:^[ ]*\S.*\n?)*)*",
    flags=re.MULTILINE,
)
_TITLES = {
    griffe.DocstringSectionKind.parameters: "Args",
    griffe.DocstringSectionKind.attributes: "Attributes",
    griffe.DocstringSectionKind.returns: "Returns",
    griffe.DocstringSectionKind.yields: "Yields",
    griffe.DocstringSectionKind.raises: "Raises",
}


@cache
def package() -> griffe.Module:
    """Read the source of fedpage; nothing is imported."""
    module = griffe.load(
        "fedpage",
        search_paths=[str(ROOT / "src")],
        docstring_parser="google",
        docstring_options={"warnings": False},
    )
    assert isinstance(module, griffe.Module)
    return module


def render(path: str, name: str | None = None) -> str:
    """Return the Markdown of an object and of its documented public members.

    Args:
        path: A dotted path below `fedpage`, such as `methods.FedPAGE`. A heading's anchor is
            `fedpage.` and this path, also where the object is defined in another module.
        name: The heading, such as `fp.FedPAGE`; by default `fedpage.` and the path.

    Raises:
        LookupError: There is no such object.
    """
    try:
        value = package()[path]
    except KeyError:
        raise LookupError(
            f"fedpage.{path}, which a page of the reference lists, does not exist"
        ) from None
    value = value.final_target if isinstance(value, griffe.Alias) else value
    return "\n\n".join(_render(value, f"fedpage.{path}", name or f"fedpage.{path}")) + "\n"


def fence_doctests(text: str) -> str:
    """Return a docstring with its doctests in fences; Markdown would make quotations of them."""
    return _DOCTEST.sub(lambda match: f"```pycon\n{match[0].rstrip()}\n```\n", text)


def _render(value: griffe.Object, path: str, name: str, level: int = 2) -> list[str]:
    parts = [f"{'#' * level} `{name}` {{ #{path} .api }}"]
    if isinstance(value, (griffe.Class, griffe.Function)):
        parts.append(f"```python\n{_signature(value)}\n```")
    elif isinstance(value, griffe.Attribute) and value.annotation is not None:
        parts.append(f"```python\n{value.name}: {value.annotation}\n```")
    parts += _docstring(value)
    if isinstance(value, (griffe.Class, griffe.Module)) and level < 4:
        for member in _members(value):
            parts += _render(member, f"{path}.{member.name}", member.name, level + 1)
    return parts


def _members(value: griffe.Class | griffe.Module) -> list[griffe.Object]:
    found: list[griffe.Object] = []
    for name, member in value.members.items():
        if (
            isinstance(member, griffe.Alias)
            and member.is_imported
            and name in (value.exports or ())
        ):
            member = member.final_target
        if isinstance(member, griffe.Alias) or name.startswith(("_", "test")):
            continue
        if member.docstring is not None and not member.is_module:
            found.append(member)
    return sorted(found, key=lambda member: member.lineno or 0)


def _signature(value: griffe.Class | griffe.Function) -> str:
    parameters = [
        parameter for parameter in value.parameters if parameter.name not in ("self", "cls")
    ]
    words = _with_separators(parameters)
    returns = ""
    if isinstance(value, griffe.Function) and value.returns is not None:
        returns = f" -> {value.returns}"
    line = f"{value.name}({', '.join(words)}){returns}"
    if isinstance(value, griffe.Class) and not words:
        return f"class {value.name}"
    if len(line) <= WIDTH:
        return line
    return f"{value.name}(\n" + "".join(f"    {word},\n" for word in words) + f"){returns}"


def _with_separators(parameters: list[griffe.Parameter]) -> list[str]:
    """Return parameters as they are written, with the `/` and the `*` between their kinds."""
    words: list[str] = []
    kinds = [parameter.kind for parameter in parameters]
    for number, parameter in enumerate(parameters):
        kind = parameter.kind
        before = kinds[:number]
        if kind is griffe.ParameterKind.keyword_only and not {
            griffe.ParameterKind.keyword_only, griffe.ParameterKind.var_positional,
        } & set(before):  # fmt: skip
            words.append("*")
        if before and before[-1] is griffe.ParameterKind.positional_only is not kind:
            words.append("/")
        stars = "*" if kind is griffe.ParameterKind.var_positional else ""
        stars = "**" if kind is griffe.ParameterKind.var_keyword else stars
        word = stars + parameter.name
        if parameter.annotation is not None:
            word += f": {parameter.annotation}"
        if parameter.default is not None and not stars:
            word += f" = {parameter.default}" if parameter.annotation else f"={parameter.default}"
        words.append(word)
    return words


def _docstring(value: griffe.Object) -> list[str]:
    if value.docstring is None:
        return []
    parts = []
    for section in value.docstring.parse("google", warnings=False):
        if section.kind is griffe.DocstringSectionKind.text:
            parts.append(fence_doctests(section.value))
        elif section.kind is griffe.DocstringSectionKind.examples:
            parts += ["**Examples**", *(_example(text) for _, text in section.value)]
        elif section.kind in _TITLES:
            lines = [_item(item) for item in section.value]
            parts.append(f"**{_TITLES[section.kind]}**\n\n" + "\n".join(lines))
        else:
            title = section.title or section.kind.value.capitalize()
            parts.append(f"**{title}**\n\n{section.value.contents}")
    return parts


def _example(text: str) -> str:
    return f"```pycon\n{text}\n```" if text.lstrip().startswith(">>>") else text


def _item(item: griffe.DocstringElement) -> str:
    name = getattr(item, "name", "") or ""
    annotation = "" if name else str(item.annotation or "")
    head = f"`{name or annotation}`: " if name or annotation else ""
    return f"- {head}" + " ".join(item.description.split())
