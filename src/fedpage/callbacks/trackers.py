"""`Track`: one callback that shows a progress bar and sends a run to TensorBoard, MLflow or Weights & Biases."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedpage.callbacks.base import Callback
from fedpage.core.errors import InputError
from fedpage.core.types import Vector

if TYPE_CHECKING:
    from fedpage.runs.history import History


class Track(Callback):
    """A progress bar, always; and every record in the trackers that are named.

    sinks: words such as "tensorboard", "mlflow" or "wandb", each with a place if it should not be the usual one
    ("tensorboard:logs", "mlflow:http://host:5000", "wandb:my-project"), or objects like those in this file.
    Weights & Biases is offline unless WANDB_MODE says otherwise. name: the run's; its method and seed by default.
    bar: False where somebody else shows one.

    >>> import fedpage as fp
    >>> problem = fp.LogisticRegression(fp.load("census", rows=200), clients=20)
    >>> history = fp.simulate(problem, fp.FedPAGE(S=2), rounds=10, seed=0, callbacks=[fp.Track()])
    """

    def __init__(self, *sinks: Any, name: str | None = None, bar: bool = True) -> None:
        self.sinks = [sink_of(sink) if isinstance(sink, str) else sink for sink in sinks]
        self.name, self._shown = name, bar
        self._bar: Any = None
        self._task: Any = None
        self._seen = -1.0

    def begin(self, meta: Mapping[str, Any], rounds: int, done: int) -> None:
        """Start the bar and the trackers."""
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
        )

        title = str(meta.get("method", {}).get("name", "run"))
        self._bar = Progress(
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[shown]}"),
            TimeRemainingColumn(compact=True), console=Console(stderr=True), disable=not self._shown,
        )  # fmt: skip
        self._task = self._bar.add_task(title, total=rounds, completed=done, shown="")
        self._bar.start()
        for sink in self.sinks:
            sink.begin(self.name or f"{title} seed {meta.get('seed', 0)}", flat(meta))

    def record(self, row: Mapping[str, float], x: Vector) -> None:
        """Show the newest values, and send the record on."""
        shown = [name for name in row if name.endswith("accuracy")][:2] or ["grad_norm"]
        self._bar.update(
            self._task,
            completed=row["round"],
            shown=" ".join(f"{n} {row[n]:.4g}" for n in ("loss", *shown) if n in row),
        )
        for sink in self.sinks:
            sink.log(
                int(row["round"]),
                {name: float(value) for name, value in row.items() if name != "round"},
            )

    def after_round(self, done: int) -> None:
        """Move the bar."""
        now = time.monotonic()
        if now - self._seen > 0.1:
            self._seen = now
            self._bar.update(self._task, completed=done)

    def end(self, history: History) -> None:
        """Stop the bar, and close the trackers with why the run ended."""
        if self._bar is not None:
            self._bar.stop()
        for sink in self.sinks:
            sink.end(history.stop_text or "interrupted")


def flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """A run's provenance as one level of words.

    >>> flat({"seed": 1, "method": {"S": 2}})
    {'seed': '1', 'method.S': '2'}
    """
    found: dict[str, str] = {}
    for key, value in table.items():
        found |= (
            flat(value, f"{prefix}{key}.")
            if isinstance(value, Mapping)
            else {f"{prefix}{key}": str(value)}
        )
    return found


class TensorBoard:
    """Event files under folder/name, for `tensorboard --logdir folder`."""

    def __init__(self, folder: str | os.PathLike[str] = "tensorboard") -> None:
        with _needs("tensorboard"):
            import tensorboard  # noqa: F401
        self.folder = Path(folder)
        self._writer: Any = None

    def begin(self, name: str, about: Mapping[str, str]) -> None:
        """A directory of its own for the run, with its settings as text."""
        from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
        from tensorboard.compat.proto.tensor_pb2 import TensorProto
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        plain = "".join(c if c.isalnum() or c in "-_." else "-" for c in name)
        place, number = self.folder / plain, 1
        while place.exists():
            number += 1
            place = self.folder / f"{plain}-{number}"
        self._writer = EventFileWriter(str(place))
        table = "\n".join(
            [
                "| setting | value |",
                "|---|---|",
                *(f"| {key} | {value} |" for key, value in about.items()),
            ]
        )
        text = TensorProto(dtype="DT_STRING", string_val=[table.encode("utf-8")])
        kind = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name="text"))
        self._add(0, [Summary.Value(tag="run/text_summary", tensor=text, metadata=kind)])

    def log(self, round: int, row: Mapping[str, float]) -> None:
        """A scalar for each column."""
        from tensorboard.compat.proto.summary_pb2 import Summary

        self._add(
            round, [Summary.Value(tag=name, simple_value=value) for name, value in row.items()]
        )

    def _add(self, round: int, values: list[Any]) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        self._writer.add_event(
            Event(wall_time=time.time(), step=round, summary=Summary(value=values))
        )

    def end(self, why: str) -> None:
        """Everything is on the disk."""
        if self._writer is not None:
            self._writer.close()


class MLflow:
    """A run in the experiment "fedpage" of an MLflow store: an address, or sqlite:///mlflow.db here."""

    def __init__(self, uri: str | None = None) -> None:
        with _needs("mlflow"):
            import mlflow  # noqa: F401
        self.uri = uri or os.environ.get("MLFLOW_TRACKING_URI") or "sqlite:///mlflow.db"
        self._client: Any = None
        self._run = ""

    def begin(self, name: str, about: Mapping[str, str]) -> None:
        """Make the run, with its provenance as parameters."""
        from mlflow import MlflowClient
        from mlflow.entities import Param

        self._client = MlflowClient(tracking_uri=self.uri)
        found = self._client.get_experiment_by_name("fedpage")
        experiment = (
            self._client.create_experiment("fedpage") if found is None else found.experiment_id
        )
        self._run = self._client.create_run(experiment, run_name=name).info.run_id
        self._client.log_batch(
            self._run, params=[Param(key, value[:5000]) for key, value in about.items()]
        )

    def log(self, round: int, row: Mapping[str, float]) -> None:
        """A metric for each column; MLflow takes no infinities."""
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        metrics = [
            Metric(name, value, now, round) for name, value in row.items() if math.isfinite(value)
        ]
        self._client.log_batch(self._run, metrics=metrics)

    def end(self, why: str) -> None:
        """The run is finished, or has failed."""
        if not self._run:
            return
        failed = why.startswith(("interrupted", "gave up"))
        self._client.set_tag(self._run, "stopped", why)
        self._client.set_terminated(self._run, "FAILED" if failed else "FINISHED")


class WandB:
    """A run of a Weights & Biases project, kept in wandb/ here until `wandb sync`; online with WANDB_MODE=online."""

    def __init__(self, project: str = "fedpage", folder: str | os.PathLike[str] = ".") -> None:
        with _needs("wandb"):
            import wandb  # noqa: F401
        self.project, self.folder = project, Path(folder)
        self._run: Any = None

    def begin(self, name: str, about: Mapping[str, str]) -> None:
        """Start it, offline unless it is asked for."""
        import wandb

        mode: Any = os.environ.get("WANDB_MODE", "offline")
        self._run = wandb.init(
            project=self.project, name=name, config=dict(about), dir=str(self.folder), mode=mode,
            settings=wandb.Settings(silent=True), reinit="create_new",
        )  # fmt: skip

    def log(self, round: int, row: Mapping[str, float]) -> None:
        """The record, under its round."""
        self._run.log(dict(row), step=round)

    def end(self, why: str) -> None:
        """Close it."""
        if self._run is None:
            return
        self._run.summary["stopped"] = why
        self._run.finish(exit_code=1 if why.startswith(("interrupted", "gave up")) else 0)


SINKS = {"tensorboard": TensorBoard, "mlflow": MLflow, "wandb": WandB}


def sink_of(text: str) -> Any:
    """The tracker that a word names: "tensorboard", or with its place "tensorboard:logs"."""
    name, _, place = text.partition(":")
    if name not in SINKS:
        raise InputError(f"no tracker {name!r}; known are {', '.join(SINKS)}")
    kind: Any = SINKS[name]
    return kind(place) if place else kind()


class _needs:
    """Says which extra a tracker wants."""

    def __init__(self, extra: str) -> None:
        self.extra = extra

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None and issubclass(kind, ImportError):
            raise ImportError(
                f"tracking needs {self.extra}: pip install 'fedpage[{self.extra}]'"
            ) from None
