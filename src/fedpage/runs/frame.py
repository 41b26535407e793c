"""Many runs as one table: a row for each record, a column for each setting."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, overload

from fedpage.core.display import format_number, html_table
from fedpage.core.errors import InputError, did_you_mean, short_repr
from fedpage.core.files import put
from fedpage.runs.history import History, make_data_frame
from fedpage.runs.toml import flatten

if TYPE_CHECKING:
    import polars
    from pandas import DataFrame

RunsSource: TypeAlias = str | os.PathLike[str] | History
"""A directory with runs at any depth, a file of a history, or a history."""
_SHOWN = 50
"""The most runs that the HTML lists."""


class Runs(Sequence[History]):
    """Runs with their settings, as a sequence of histories and as one table.

    A run that cannot be read is left out, and a run that has not ended has the records so far;
    `problems` names both.

    Args:
        source: A directory whose runs are read at any depth (a run, a comparison, or `runs/`), a
            history or its file, or a list of these.

    Raises:
        InputError: If there is no run.

    Attributes:
        names: The name of each run: its directory below the source, or its number.
        problems: What is wrong with a run, by its path: damaged, or not ended.

    >>> import fedpage as fp
    >>> problem = fp.LogisticRegression(fp.load("census", rows=200), clients=20)
    >>> methods = [fp.FedPAGE(S=2), fp.FedAvg(S=2)]
    >>> runs = fp.Runs(fp.sweep(problem, methods, rounds=20, seeds=2))
    >>> runs
    Runs(4 runs: FedPAGE x 2, FedAvg x 2)
    >>> [run.meta["seed"] for run in runs.filter(method="FedAvg", S=2)]
    [0, 1]
    """

    def __init__(self, source: RunsSource | Iterable[RunsSource]) -> None:
        self.names: list[str] = []
        self.problems: dict[str, str] = {}
        self._histories: list[History] = []
        for part in [source] if isinstance(source, (str, os.PathLike, History)) else source:
            if isinstance(part, History):
                self._append(str(len(self)), part)
            elif Path(part).is_dir():
                self._add_folder(Path(part))
            else:
                self._append(str(part), History.load(part))
        if not self._histories:
            path, reason = next(iter(self.problems.items()), ("Runs", "the list is empty"))
            reason = reason.removeprefix(f"damaged: {path}: ")
            raise InputError(f"{path}: {reason}; give a directory with runs")

    def _add_folder(self, root: Path) -> None:
        """Add the runs at any depth, and note those that are damaged or have not ended."""
        files = ("run.toml", "history.jsonl")  # a run directory has at least one of them
        folders = sorted({file.parent for name in files for file in root.rglob(name)})
        if not folders:
            self.problems[str(root)] = "there is no run in it"
        for folder in folders:
            try:
                history = History.load(folder, warn=False)
            except InputError as error:
                self.problems[str(folder)] = f"damaged: {error}"
                continue
            name = folder.relative_to(root).as_posix()
            self._append(folder.name if name == "." else name, history)
            if not history.ended:
                done = int(history.rows[-1]["round"]) if history.rows else 0
                of = f" of {history.meta['rounds']}" if "rounds" in history.meta else ""
                self.problems[str(folder)] = f"not ended: records up to round {done}{of}"

    def _append(self, name: str, history: History) -> None:
        self.names.append(name)
        self._histories.append(history)

    def __len__(self) -> int:
        return len(self._histories)

    @overload
    def __getitem__(self, index: int) -> History: ...

    @overload
    def __getitem__(self, index: slice) -> Runs: ...

    def __getitem__(self, index: int | slice) -> History | Runs:
        """Return a run, or the runs of a slice."""
        if isinstance(index, slice):
            return self._select(range(len(self))[index])
        return self._histories[index]

    def _select(self, numbers: Iterable[int]) -> Runs:
        """Return some of the runs, of which there may be none."""
        chosen, numbers = copy(self), list(numbers)
        chosen.names = [self.names[number] for number in numbers]
        chosen._histories = [self._histories[number] for number in numbers]
        return chosen

    def settings(self) -> list[dict[str, object]]:
        """Return the settings of each run by their keys with dots, such as "method.S"."""
        return [
            {
                "run": name,
                **{
                    key: json.dumps(value) if isinstance(value, (list, tuple)) else value
                    for key, value in flatten(history.meta).items()
                },
                "end": None if history.stop_reason is None else history.stop_reason.value,
                "end_detail": history.stop_detail,
            }
            for name, history in zip(self.names, self, strict=True)
        ]

    def filter(self, test: Callable[[History], bool] | None = None, /, **settings: object) -> Runs:
        """Return the runs whose settings have given values.

        Args:
            test: Says of a history whether to keep it.
            settings: Names of settings and their values, or lists of values: `method="FedPAGE"`,
                `seed=[0, 1]`, `S=10`, `problem__data="a9a"`. Two underscores stand for the dot of
                "problem.data". Without a table, a name is looked for in those of the run, the
                method and the problem.

        Returns:
            The runs that match all of them; there may be none.

        Raises:
            InputError: If no run has such a setting.
        """
        tables = self.settings()
        known = list(dict.fromkeys(chain.from_iterable(tables)))
        wanted = {_find_key(name, known): value for name, value in settings.items()}
        return self._select(
            number
            for number, table in enumerate(tables)
            if all(_matches(table.get(key), value) for key, value in wanted.items())
            and (test is None or test(self[number]))
        )

    def to_polars(self) -> polars.DataFrame:
        """Return the table as a polars frame: a row for each record, a column for each setting.

        Settings come first. Missing values are None. If a setting has values of several types, its
        column holds numbers where possible, and otherwise text.
        """
        import polars

        tables = self.settings()
        runs = zip(tables, self, strict=True)
        rows = [{**table, **row} for table, history in runs for row in history.rows]
        frame = polars.DataFrame(rows, infer_schema_length=None)
        settings = dict.fromkeys(chain.from_iterable(tables))
        groups = [*dict.fromkeys(name.partition(".")[0] for name in settings)]
        order = sorted(settings, key=lambda name: groups.index(name.partition(".")[0]))
        return frame.select([*dict.fromkeys((*order, *frame.columns))])

    def to_pandas(self) -> DataFrame:
        """Return the table as a pandas frame (needs `pip install fedpage[pandas]`)."""
        return make_data_frame(self.to_polars().to_dict(as_series=False))

    def to_csv(self, path: str | os.PathLike[str]) -> Path:
        """Write the table to a CSV file. Numbers have all their digits, missing cells are empty."""
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        put(Path(path), self.to_polars().write_csv().encode("utf-8"))
        return Path(path)

    def to_parquet(self, path: str | os.PathLike[str]) -> Path:
        """Write the table to a parquet file."""
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        self.to_polars().write_parquet(Path(path))
        return Path(path)

    def __repr__(self) -> str:
        counts = Counter(history.label for history in self)
        methods = ", ".join(f"{label} x {count}" for label, count in counts.items())
        noted = f"; {len(self.problems)} damaged or not ended" if self.problems else ""
        noun = "run" if len(self) == 1 else "runs"
        return f"Runs({len(self)} {noun}{f': {methods}' if methods else ''}{noted})"

    def _repr_html_(self) -> str:
        head = ("run", "method", "seed", "rounds", "loss", "gradient norm", "end")
        rows = []
        for name, history in zip(self.names[:_SHOWN], self, strict=False):
            last: Mapping[str, float] = history.rows[-1] if history.rows else {}
            numbers = [format_number(last.get(column)) for column in ("round", "loss", "grad_norm")]
            seed = history.meta.get("seed")
            rows.append([name, history.label, seed, *numbers, history.stop_text])
        notes = [f"{path}: {reason}" for path, reason in list(self.problems.items())[:_SHOWN]]
        if len(self) > _SHOWN:
            notes.insert(0, f"and {len(self) - _SHOWN:,} more")
        return html_table(repr(self), head, rows, *notes)


def _find_key(name: str, known: Sequence[str]) -> str:
    """Return the setting that a name stands for."""
    key = name.replace("__", ".")
    for candidate in (f"{key}.name", key, f"method.{key}", f"problem.{key}"):
        if candidate in known:
            return candidate
    short = [each.rpartition(".")[2] for each in known]
    hint = did_you_mean(key, [*known, *short]) or f" there are {', '.join(known)}"
    raise InputError(f"no run has a setting {short_repr(name)};{hint}")


def _matches(value: object, wanted: object) -> bool:
    if isinstance(wanted, (list, tuple, set, frozenset, range)):
        return any(_matches(value, each) for each in wanted)
    return value == wanted
