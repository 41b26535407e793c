"""Write figures to files: fonts that journals accept, sharp pixels, equal bytes for equal runs."""

from __future__ import annotations

import os
from pathlib import Path
from shutil import which
from typing import TYPE_CHECKING, Any

from fedpage.core.errors import InputError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SETTINGS: dict[Any, Any] = {
    "pdf.fonttype": 42,  # TrueType: many journals refuse matplotlib's default, Type 3
    "ps.fonttype": 42,
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "fedpage",  # ids of elements would be random
    "pgf.rcfonts": False,  # the document's fonts
}
_NO_DATE: dict[str, Any] = {".pdf": {"CreationDate": None}, ".svg": {"Date": None}}


def find_tex() -> str | None:
    """Return the TeX program that measures text for PGF files, or None if there is none."""
    return next((name for name in ("xelatex", "lualatex", "pdflatex") if which(name)), None)


def check_figure_path(path: str | os.PathLike[str]) -> Path:
    """Refuse a file that `write_figure` could not write, before any run is made for it.

    Raises:
        InputError: The suffix is unknown, or it is .pgf and there is no TeX.
    """
    from matplotlib.backend_bases import FigureCanvasBase

    path = Path(path)
    suffix = path.suffix.lower()
    if suffix.removeprefix(".") not in FigureCanvasBase.get_supported_filetypes():
        raise InputError(f"{path}: no such format of figures; write .pdf, .svg, .pgf or .png")
    if suffix == ".pgf" and find_tex() is None:
        raise InputError(
            f"{path}: writing .pgf needs xelatex, lualatex or pdflatex; write .pdf or .svg instead"
        )
    return path


def write_figure(figure: Figure, path: str | os.PathLike[str], dpi: int = 300) -> Path:
    """Write a figure.

    PDF and PostScript embed TrueType fonts (Type 42), SVG keeps text as text, and PGF takes the
    fonts of the document. Equal figures give equal bytes in PDF, SVG, PGF and PNG.

    Args:
        figure: The matplotlib Figure.
        path: The file; its suffix chooses PDF, SVG, PGF, PNG or another format of matplotlib.
        dpi: Dots per inch of a PNG.

    Returns:
        The path.

    Raises:
        InputError: The suffix is unknown, or it is .pgf and there is no TeX, or TeX failed.
    """
    from subprocess import SubprocessError

    from matplotlib import rc_context

    path = check_figure_path(path)
    suffix = path.suffix.lower()
    path.parent.mkdir(parents=True, exist_ok=True)
    tex = {"pgf.texsystem": find_tex()} if suffix == ".pgf" else {}
    with rc_context(_SETTINGS | tex):
        try:
            figure.savefig(path, dpi=dpi, metadata=_NO_DATE.get(suffix))
        except (RuntimeError, SubprocessError, OSError) as error:
            if suffix != ".pgf":
                raise
            path.unlink(missing_ok=True)
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise InputError(f"{path}: {find_tex()} failed ({reason})") from None
    return path
