"""Configuration of a federation: `AppConfig` for the whole run, `NodeConfig` for one node.

The keys are the field names with dashes. `AppConfig` is the app's [tool.flwr.app.config], which
`flwr run --run-config` overrides; `NodeConfig` is what `flower-supernode --node-config` gives.
"""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

from fedpage.core.columns import Target
from fedpage.core.errors import InputError, short_repr
from fedpage.core.types import AnyMethod
from fedpage.data.registry import DATASETS
from fedpage.engine.policy import Policy
from fedpage.engine.stopping import Stop
from fedpage.flower.private_files import state_home
from fedpage.runs import build
from fedpage.runs.config import (
    MethodConfig,
    ProblemConfig,
    Settings,
    field_values,
    setting,
    structure,
)

Value = bool | float | int | str
"""A value of Flower's configuration."""
EvaluationLevel = Literal["gradients", "values", "none"]
"""What a site sends when it evaluates a model, ever less: loss, gradient and metrics; loss and
metrics; nothing."""
_SECONDS = 10_000_000.0
FIT_OBJECTIVES = {
    "logistic": "logistic", "gaussian": "squares", "poisson": "poisson", "cox": "squares",
}  # fmt: skip
"""The objective of each family; a Cox model has its own in its place."""


@dataclass(frozen=True, kw_only=True)
class AppConfig:
    """The run's configuration, which the server and every node receive alike.

    `hyper` holds the method's hyper-parameters as words, such as "S=2 K=10 eta_g=0.1". `objective`
    names an objective of fedpage, or a function of the app as "module:function", which returns the
    problem of one client (see `fedpage.flower.node_data.load_own_problem`).
    """

    method: str = setting("fedpage", "method, or file.py@Class")
    hyper: str = setting("", "hyper-parameters, such as S=2 K=10")
    clients: int = setting(help="number of clients", at_least=1)
    rounds: int = setting(help="communication rounds", at_least=1)
    seed: int = setting(0, "seed of all random numbers")
    record_every: Literal["log"] | int = setting(
        10, "rounds between evaluations; 0: only at the end; log: ever fewer", at_least=0
    )
    metrics: str = setting("", "metrics to record, separated by commas")
    evaluation: Literal["gradients", "values", "none"] = setting(
        "gradients", "what sites send when they evaluate a model: gradients, values or none"
    )
    target: str | float = setting(
        "", "stop at this gradient norm, or at column:value such as accuracy:0.9; empty: never"
    )
    budget: str = setting("", "stop when a cost is spent, such as bytes:1e9, seconds:3600")
    early_stopping: int = setting(
        0, "stop after so many records without an improvement of monitor; 0: never", at_least=0
    )
    monitor: str = setting("loss", "the column that early-stopping watches")
    min_delta: float = setting(0.0, "the least change that counts as an improvement", at_least=0)
    best: str = setting("", "save the model with the best value of this column as best.npz in out")
    track: str = setting("", "trackers, such as tensorboard or mlflow:http://host:5000")

    objective: str = setting("logistic-l2", "objective, or module:function")
    alpha: float = setting(0.1, "weight of the regulariser")
    weights: Literal["uniform", "size"] = setting("uniform", "weights of clients")
    family: Literal["", "logistic", "gaussian", "poisson", "cox"] = setting(
        "", "fit this model exactly, with standard errors: logistic, gaussian, poisson or cox"
    )
    event: str = setting("", "column of events of a Cox model, whose label is the time")
    ties: Literal["efron", "breslow"] = setting("efron", "how a Cox model handles equal times")
    reference: str = setting(
        "", "categories that others are compared with, as sex=f; empty: the first of each column"
    )
    data: str = setting("", "data set that every node has; empty: each node's own file")
    partition: str = setting("blocks", "how the data set is divided among clients")
    partition_seed: int = setting(0, "seed of the partition")
    label: str = setting("", "label column of the nodes' tables")
    classes: str = setting("", "labels of a classification, the negative one first, such as 0,1")
    columns: str = setting(
        "", "feature columns in order, as age,bmi; empty: as the nodes have them"
    )
    categories: str = setting(
        "", "columns that hold categories, as sex=f|m; ward; without values the sites agree on them"
    )
    extra_columns: Literal["refuse", "ignore"] = setting(
        "refuse", "columns of a node's table that are not named: refuse the node, or ignore them"
    )
    features: int = setting(
        0, "number of features of files without column names; 0: equal at all", at_least=0
    )
    intercept: bool = setting(False, "whether the linear model has an intercept")
    standardise: bool = setting(
        False, "give number columns of the nodes' tables mean 0 and deviation 1 over all nodes"
    )
    max_rows: int = setting(
        10_000_000, "most rows that a node may claim to have", at_least=1, at_most=2**40
    )

    deadline: float = setting(600.0, "seconds until a reply is late", above=0, at_most=_SECONDS)
    wait: float = setting(120.0, "seconds to wait for all nodes", above=0, at_most=_SECONDS)
    min_clients: int = setting(
        0, "clients that suffice to start when wait is over; 0: all", at_least=0
    )
    poll: float = setting(0.2, "seconds between checks for replies", above=0, at_most=_SECONDS)
    retries: int = setting(2, "retries in a sampled round", at_least=0)
    full_retries: int = setting(6, "retries in a full round", at_least=0)
    patience: int = setting(10, "retries where no fallback exists", at_least=1)
    retry_pause: float = setting(
        1.0, "seconds before the first retry of a silent client; each later pause is twice as long",
        at_least=0, at_most=60,
    )  # fmt: skip
    lost_after: int = setting(3, "missed rounds until a client counts as lost", at_least=1)

    outlier_factor: float = setting(
        1000.0, "how many times the median norm a reply may have; 0: any", at_least=0
    )
    aggregation: str = setting(
        "mean", "mean, trimmed:share=0.1, clipped:bound=1, private:clip=1,noise=1 or secure:bound=9"
    )

    out: str = setting("fedpage-run", "directory of the run on the server")
    checkpoint_every: int | str = setting(1, "rounds (10) or seconds ('10s') between checkpoints")

    @property
    def has_own_problem(self) -> bool:
        """Whether the objective is a function of the app."""
        return ":" in self.objective

    @property
    def metric_names(self) -> tuple[str, ...]:
        """The metrics to record, in the order in which evaluation replies carry their values."""
        config = ProblemConfig(metrics=self.metrics)
        targets = [target.column for target in self._targets]
        for column in filter(None, (*targets, self.monitor, self.best)):
            config = build.record_target(config, Target(column, 1.0))
        return tuple(name.strip() for name in config.metrics.split(",") if name.strip())

    @property
    def _targets(self) -> tuple[Target, ...]:
        """The target, or nothing if there is none."""
        try:
            return () if self.target in ("", 0) else (Target.parse(self.target),)
        except InputError as error:
            raise InputError(f"run config: target: {error}") from None

    @property
    def stop(self) -> Stop | None:
        """When the run ends before its last round."""
        budgets: dict[str, float] = {}
        for word in self.budget.split(","):
            if word.strip():
                cost, _, value = word.rpartition(":")
                try:
                    budgets[cost.strip()] = float(value)
                except ValueError:
                    raise InputError(
                        "run config: budget must be words such as bytes:1e9, "
                        f"not {short_repr(word)}"
                    ) from None
        if not (self._targets or budgets or self.early_stopping):
            return None
        try:
            return Stop(
                target=self._targets,
                budgets=budgets,
                patience=self.early_stopping or None,
                monitor=self.monitor,
                min_delta=self.min_delta,
            )
        except InputError as error:
            raise InputError(f"run config: {error}") from None

    @property
    def policy(self) -> Policy:
        """How the server treats missing clients."""
        return Policy(
            retries=self.retries,
            full_retries=self.full_retries,
            patience=self.patience,
            lost_after=self.lost_after,
            outlier_factor=self.outlier_factor,
        )


@dataclass(frozen=True, kw_only=True)
class NodeConfig:
    """A node's own configuration: which client it holds, and where its files are."""

    partition_id: int = setting(help="number of this node's client", at_least=0)
    num_partitions: int = setting(0, "number of clients; set by Flower's simulation, not used")
    data: str = setting("", "this node's own file: .csv, .tsv, .parquet, .npz or LIBSVM")
    share_statistics: bool = setting(
        False, "whether to send the mean and variance of each column, which standardise needs"
    )
    options: str = setting("", "words for the app's own objective, as folder=/images size=64")
    client_state_dir: str = setting("", "the node's state directory; empty: that of the user")
    state_days: int = setting(
        30, "days until the state of an unfinished run is removed", at_least=1
    )
    audit: str = setting("", "the audit log; empty: audit.jsonl in the state directory; off: none")
    allow: str = setting("", "what runs may name beside fedpage's own, separated by commas")
    require_secure: int = setting(
        0, "answer only sums of so many clients by secure aggregation; 0: any run", at_least=0
    )
    evaluation: Literal["gradients", "values", "none"] = setting(
        "gradients", "the most that this site sends when it evaluates a model"
    )
    fits_only: bool = setting(False, "whether to refuse every run without a family")
    hessians: Literal["clear", "secure", "never"] = setting(
        "clear", "whether to send Hessians: clear, secure (only by secure aggregation) or never"
    )
    least_rows: int = setting(50, "fewest rows with which Hessians are sent in clear", at_least=1)
    least_cell: int = setting(
        5, "fewest rows of a category, with and without an event, with which Hessians are sent",
        at_least=1,
    )  # fmt: skip
    most_exchanges: int = setting(
        12, "models at which Hessians of the same columns are sent, over all runs", at_least=1
    )

    @property
    def state_dir(self) -> Path:
        """The directory of the client state and of the audit log."""
        return Path(self.client_state_dir) if self.client_state_dir else state_home()

    @property
    def audit_path(self) -> Path | None:
        """The audit log, or None if the node's owner has turned it off."""
        if self.audit == "off":
            return None
        return Path(self.audit) if self.audit else self.state_dir / "audit.jsonl"

    @property
    def allowed(self) -> frozenset[str]:
        """Methods and objectives that runs may name beside those of fedpage.

        Nodes of Flower's simulation have no configuration of their own; for them, and for others
        that leave it out, the environment variable FEDPAGE_ALLOW has them.
        """
        names = self.allow or os.environ.get("FEDPAGE_ALLOW", "")
        return frozenset(name.strip() for name in names.split(",") if name.strip())


def parse_app_config(table: Mapping[str, Value]) -> AppConfig:
    """Build the run's configuration from Flower's run config.

    Args:
        table: `Context.run_config`, or [tool.flwr.app.config] of an app.

    Returns:
        The configuration.

    Raises:
        InputError: a key is unknown or missing, or a value is of another type or out of range.
    """
    config = structure(AppConfig, table, "run config")
    return _settle_fit(config) if config.family else config


def _settle_fit(config: AppConfig) -> AppConfig:
    """Return the configuration of a fit with what follows from its family."""
    is_cox = config.family == "cox"
    if config.data or not config.label or is_cox != bool(config.event):
        raise InputError(
            "run config: a fit needs data = '' (the sites' own tables) and the label column; for "
            "cox the label is the time, and event another column"
        )
    if config.aggregation.partition(":")[0] not in ("mean", "secure") or config.min_clients:
        raise InputError(
            "run config: a fit adds up all sites: set aggregation to mean or secure, and "
            "min-clients to 0"
        )
    return replace(
        config, method="newton", hyper="", objective=FIT_OBJECTIVES[config.family],
        weights="size", evaluation="none", metrics="", target="", budget="", early_stopping=0,
        best="", intercept=not is_cox, record_every=1, classes="" if is_cox else config.classes,
    )  # fmt: skip


def parse_node_config(table: Mapping[str, Value]) -> NodeConfig:
    """Build a node's configuration from Flower's node config.

    Args:
        table: `Context.node_config`.

    Returns:
        The configuration.

    Raises:
        InputError: a key is unknown or missing, or a value is of another type or out of range.
    """
    return structure(NodeConfig, table, "node config")


_NOT_IN_APP = (
    "client_column", "standardise", "missing", "drop", "categorical", "min_rows", "held_out",
    "held_out_by",
)  # fmt: skip
"""Settings of a problem that an app does not have: a node reads its own file of numbers."""


def app_of_problem(problem: ProblemConfig, **given: Any) -> AppConfig:
    """Return the configuration of an app for a problem of the command line.

    Args:
        problem: The problem. A file is left out, because each node of a federation has its own.
        **given: The other settings, such as method and rounds.
    """
    is_file = problem.data.partition(":")[0] not in DATASETS
    return AppConfig(
        metrics=problem.metrics,
        objective=str(problem.objective),
        alpha=0.1 if problem.alpha is None else problem.alpha,
        weights=problem.weights,
        data="" if is_file else problem.data,
        partition="blocks" if is_file else str(problem.partition),
        label=problem.label or "",
        partition_seed=problem.partition_seed,
        **given,
    )


def not_in_app(problem: ProblemConfig) -> list[str]:
    """Return the options of a problem's settings that its app leaves out."""
    default = ProblemConfig()
    return [
        f"--{name.replace('_', '-')}"
        for name in _NOT_IN_APP
        if getattr(problem, name) != getattr(default, name)
    ]


def app_template() -> str:
    """Return the pyproject.toml of an app with the default settings and their explanations."""
    return files("fedpage.flower").joinpath("app.toml").read_text(encoding="utf-8")


def read_app(text: str) -> Settings:
    """Return the settings in an app's pyproject.toml."""
    config: Settings = tomllib.loads(text)["tool"]["flwr"]["app"]["config"]
    return config


def write_app(config: AppConfig) -> str:
    """Write the pyproject.toml of an app with a configuration, with the template's explanations.

    Args:
        config: The run's configuration.

    Returns:
        The text, whose [tool.flwr.app.config] `parse_app_config` reads as `config`.
    """
    text = app_template()
    for entry in fields(config):
        key, value = entry.name.replace("_", "-"), getattr(config, entry.name)
        line = f"{key} = {json.dumps(value)}"
        text = re.sub(
            rf"^{key} = (\"[^\"]*\"|[^ #\n]*)",
            lambda _, line=line: line,  # type: ignore[misc]
            text,
            count=1,
            flags=re.MULTILINE,
        )
    return text


def change_app(changes: Sequence[str]) -> str:
    """Return the template of an app with changes such as "rounds=50".

    Raises:
        InputError: a setting is unknown, or has a value that cannot be used.
    """
    words: dict[str, str] = {}
    for change in changes:
        name, equals, value = change.partition("=")
        if not equals:
            raise InputError(f"--set: expected a setting such as rounds=50, not {change!r}")
        words[name.strip()] = value
    given = field_values(AppConfig, read_app(app_template()), "app")
    return write_app(AppConfig(**{**given, **field_values(AppConfig, words, "--set", words=True)}))


@lru_cache(maxsize=16)
def build_method(config: AppConfig) -> AnyMethod:
    """Build the method that `method` and `hyper` of the run's configuration describe.

    Raises:
        InputError: the method or a hyper-parameter is unknown, or a value cannot be used.
    """
    words: dict[str, str] = {}
    for word in config.hyper.split():
        name, equals, value = word.partition("=")
        if not equals or not value:
            raise InputError(
                f"run config: hyper must be words such as S=2 K=10, not {short_repr(word)}"
            )
        words[name] = value
    return build.build_method(MethodConfig(config.method, words))
