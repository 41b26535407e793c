"""Send a run to TensorBoard, MLflow or Weights & Biases."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast, runtime_checkable

from fedpage.callbacks.base import Callback, RunInfo
from fedpage.core.errors import InputError, short_repr
from fedpage.core.types import StopReason, Vector
from fedpage.runs.history import History
from fedpage.runs.toml import flatten

if TYPE_CHECKING:
    import wandb
    from mlflow import MlflowClient
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.event_file_writer import EventFileWriter


@runtime_checkable
class Tracker(Protocol):
    """An experiment tracker, which stores the records of runs."""

    def start(self, name: str, settings: Mapping[str, str]) -> None:
        """Create a run with a name and its settings."""
        ...

    def log(self, round: int, values: Mapping[str, float]) -> None:
        """Add the values of a record."""
        ...

    def finish(self, reason: StopReason, detail: str) -> None:
        """Close the run, with why it ended."""
        ...


class Track(Callback):
    """Send every record to experiment trackers.

    Weights & Biases works offline unless the variable WANDB_MODE says otherwise.

    Args:
        trackers: Names such as "tensorboard", "mlflow" or "wandb", each with its location if it
            should not be the default ("tensorboard:logs", "mlflow:http://host:5000",
            "wandb:my-project"), or `Tracker` objects.
        name: The run's name; by default its method and seed.

    Raises:
        InputError: If no tracker is given, or one is unknown.
        ImportError: If a tracker's package is not installed.
    """

    def __init__(self, *trackers: str | Tracker, name: str | None = None) -> None:
        if not trackers:
            raise InputError(f"Track: name a tracker: {', '.join(TRACKERS)}")
        self.trackers = [make_tracker(tracker) for tracker in trackers]
        self.name = name
        self._started: list[Tracker] = []

    def __repr__(self) -> str:
        return f"Track({', '.join(type(tracker).__name__ for tracker in self.trackers)})"

    def on_run_start(self, info: RunInfo) -> None:
        """Create the run in every tracker."""
        method, seed = info.meta.get("method", {}).get("name", "run"), info.meta.get("seed", 0)
        settings = {name: str(value) for name, value in flatten(info.meta).items()}
        self._started = []
        for tracker in self.trackers:
            tracker.start(self.name or f"{method} seed {seed}", settings)
            self._started.append(tracker)

    def on_record(self, record: Mapping[str, float], x: Vector) -> None:
        """Send the record."""
        values = {name: float(value) for name, value in record.items() if name != "round"}
        for tracker in self._started:
            tracker.log(int(record["round"]), values)

    def on_run_end(self, history: History) -> None:
        """Close every tracker, even if another one fails."""
        reason = history.stop_reason or StopReason.INTERRUPTED
        with ExitStack() as stack:
            for tracker in self._started:
                stack.callback(tracker.finish, reason, history.stop_detail)


_FAILURES = (StopReason.INTERRUPTED, StopReason.ROUND_FAILED)


class TensorBoard:
    """Write event files to folder/name, for `tensorboard --logdir folder`.

    Args:
        folder: The directory of all runs.
    """

    def __init__(self, folder: str | os.PathLike[str] = "tensorboard") -> None:
        _require("tensorboard")
        self.folder = Path(folder)
        self._writer: EventFileWriter | None = None

    def start(self, name: str, settings: Mapping[str, str]) -> None:
        """Create a new directory for the run, with its settings as a text."""
        from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
        from tensorboard.compat.proto.tensor_pb2 import TensorProto
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        safe = "".join(c if c.isalnum() or c in "-_." else "-" for c in name)
        path, number = self.folder / safe, 1
        while path.exists():
            number += 1
            path = self.folder / f"{safe}-{number}"
        self._writer = EventFileWriter(str(path))
        rows = [f"| {key} | {value} |" for key, value in settings.items()]
        table = "\n".join(["| setting | value |", "|---|---|", *rows])
        text = TensorProto(dtype="DT_STRING", string_val=[table.encode("utf-8")])
        plugin = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name="text"))
        self._add(0, [Summary.Value(tag="run/text_summary", tensor=text, metadata=plugin)])

    def log(self, round: int, values: Mapping[str, float]) -> None:
        """Add a scalar for each column."""
        from tensorboard.compat.proto.summary_pb2 import Summary

        self._add(round, [Summary.Value(tag=name, simple_value=v) for name, v in values.items()])

    def _add(self, round: int, values: list[Summary.Value]) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        assert self._writer is not None
        event = Event(wall_time=time.time(), step=round, summary=Summary(value=values))
        self._writer.add_event(event)

    def finish(self, reason: StopReason, detail: str) -> None:
        """Close the event file."""
        if self._writer is not None:
            self._writer.close()


class MLflow:
    """Create runs in the experiment "fedpage" of an MLflow store.

    Args:
        uri: The store's address; by default MLFLOW_TRACKING_URI, or sqlite:///mlflow.db.
    """

    def __init__(self, uri: str | None = None) -> None:
        _require("mlflow")
        self.uri = uri or os.environ.get("MLFLOW_TRACKING_URI") or "sqlite:///mlflow.db"
        self._client: MlflowClient | None = None
        self._run = ""

    def start(self, name: str, settings: Mapping[str, str]) -> None:
        """Create the run, with its settings as parameters."""
        from mlflow import MlflowClient
        from mlflow.entities import Param

        client = self._client = MlflowClient(tracking_uri=self.uri)
        known = client.get_experiment_by_name("fedpage")
        experiment = client.create_experiment("fedpage") if known is None else known.experiment_id
        self._run = client.create_run(experiment, run_name=name).info.run_id
        client.log_batch(
            self._run, params=[Param(key, value[:5000]) for key, value in settings.items()]
        )

    def log(self, round: int, values: Mapping[str, float]) -> None:
        """Add a metric for each column whose value is finite; MLflow takes no infinities."""
        from mlflow.entities import Metric

        assert self._client is not None
        now = int(time.time() * 1000)
        metrics = [Metric(name, v, now, round) for name, v in values.items() if math.isfinite(v)]
        self._client.log_batch(self._run, metrics=metrics)

    def finish(self, reason: StopReason, detail: str) -> None:
        """Mark the run as finished or failed."""
        if self._client is None or not self._run:
            return
        self._client.set_tag(self._run, "stop_reason", str(reason))
        self._client.set_tag(self._run, "stop_detail", detail)
        self._client.set_terminated(self._run, "FAILED" if reason in _FAILURES else "FINISHED")


class WandB:
    """Create runs of a Weights & Biases project, kept in wandb/ until `wandb sync`.

    Args:
        project: The project's name.
        folder: The directory that wandb/ is created in.
    """

    def __init__(self, project: str = "fedpage", folder: str | os.PathLike[str] = ".") -> None:
        _require("wandb")
        self.project, self.folder = project, Path(folder)
        self._run: wandb.Run | None = None

    def start(self, name: str, settings: Mapping[str, str]) -> None:
        """Start the run, offline unless WANDB_MODE says otherwise."""
        import wandb

        mode = cast(Any, os.environ.get("WANDB_MODE", "offline"))
        self._run = wandb.init(
            project=self.project, name=name, config=dict(settings), dir=str(self.folder),
            mode=mode, settings=wandb.Settings(silent=True), reinit="create_new",
        )  # fmt: skip

    def log(self, round: int, values: Mapping[str, float]) -> None:
        """Add the record under its round."""
        assert self._run is not None
        self._run.log(dict(values), step=round)

    def finish(self, reason: StopReason, detail: str) -> None:
        """Finish the run."""
        if self._run is not None:
            self._run.summary["stop_reason"] = str(reason)
            self._run.summary["stop_detail"] = detail
            self._run.finish(exit_code=int(reason in _FAILURES))


TRACKERS: dict[str, Callable[..., Tracker]] = {
    "tensorboard": TensorBoard,
    "mlflow": MLflow,
    "wandb": WandB,
}


def make_tracker(tracker: str | Tracker) -> Tracker:
    """Return the tracker of a name such as "tensorboard" or "tensorboard:logs"."""
    if isinstance(tracker, Tracker):
        return tracker
    if not isinstance(tracker, str):
        raise InputError(
            f"Track: {short_repr(tracker)} is not a tracker; name one, or give a Tracker"
        )
    name, _, location = tracker.partition(":")
    if name not in TRACKERS:
        raise InputError(f"no tracker {name!r}; known are {', '.join(TRACKERS)}")
    return TRACKERS[name](location) if location else TRACKERS[name]()


def _require(extra: str) -> None:
    """Raise an ImportError that names the extra to install, if its package is missing."""
    if find_spec(extra) is None:
        raise ImportError(f"tracking needs {extra}: pip install 'fedpage[{extra}]'")
