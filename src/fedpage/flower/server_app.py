"""The ServerApp: wait for the nodes, then run or resume a method over them."""

from __future__ import annotations

import hashlib
import json
import logging
import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import Result, Strategy

from fedpage.callbacks.base import Callback, Event, check_callbacks
from fedpage.callbacks.checkpointing import Checkpointing
from fedpage.core.capabilities import NodeProblem
from fedpage.core.errors import InputError
from fedpage.core.files import put
from fedpage.core.metrics import Metric, describe_metrics, resolve_metrics
from fedpage.core.types import Problem, StopReason, Vector
from fedpage.core.validate import check_sample
from fedpage.engine.aggregation import Aggregation, Mean
from fedpage.engine.loop import Run
from fedpage.engine.privacy import PrivateMean, ReleaseJournal, read_noise_key
from fedpage.engine.round import AnyEngine
from fedpage.engine.stopping import Stop
from fedpage.flower.agreement import Agreement
from fedpage.flower.config import Value, build_method, parse_app_config
from fedpage.flower.engine import FlowerEngine
from fedpage.flower.evaluation import check_stop
from fedpage.flower.exchange import Wait
from fedpage.flower.fit import SiteFit, save_model
from fedpage.flower.gathering import Gathering
from fedpage.flower.metrics import refuse_reference, select_metrics
from fedpage.flower.node_data import class_digest, load_own_problem, problem_digest
from fedpage.flower.nodes import Node, Requirements
from fedpage.flower.operator import make_observers, waiting_for_nodes
from fedpage.flower.run_identity import finish_run, identify_server
from fedpage.flower.schema import count_outputs, parse_schema
from fedpage.inference.result import FitResult
from fedpage.problems import OBJECTIVES
from fedpage.problems.cox import CoxModel
from fedpage.runs.fingerprint import describe_run, method_digest
from fedpage.runs.history import History
from fedpage.runs.spec import StopRule, start_of
from fedpage.runs.store import RunStore

log = logging.getLogger("flwr")
_AGREEMENT = "agreement.json"
"""The file in the run's directory that holds what the sites agreed on."""


class FedpageStrategy(Strategy):
    """A Flower strategy that runs a method of fedpage with its own loop of rounds.

    Args:
        config: Flower's run config; the keys are those of `fedpage.flower.config.AppConfig`.
        sleep: waits for some seconds; tests replace it.
        clock: returns the time in seconds; tests replace it.
        callbacks: observers of the run.

    Raises:
        InputError: the configuration cannot be used.
    """

    def __init__(
        self,
        config: Mapping[str, Value],
        *,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
        callbacks: Sequence[Callback] = (),
    ) -> None:
        self.config = parse_app_config(config)
        self.method = build_method(self.config)
        if self.method.client_state is not None and str(self.config.checkpoint_every) != "1":
            raise InputError(
                f"run config: checkpoint-every must be 1 for {self.method.name}, because nodes "
                "keep the client state of the last rounds only"
            )
        check_stop(self.config.evaluation, self.config.stop, self.config.metric_names)
        S = getattr(self.method, "S", None)
        if isinstance(S, int):
            check_sample(self.method.name, S, self.config.clients)
        self.aggregation = Aggregation.from_text(self.config.aggregation)
        self.aggregation.check(self.method, self.config.clients)
        if isinstance(self.aggregation, PrivateMean) and self.aggregation.cohort == "secret":
            raise InputError(
                "run config: aggregation: nodes receive the seed, so they know the cohort; use "
                "cohort=public"
            )
        if not self.config.has_own_problem:
            OBJECTIVES[self.config.objective]  # refuses an unknown one
            refuse_reference(resolve_metrics(self.config.metric_names, "run config"))
        self.schema = parse_schema(self.config)
        if self.config.min_clients > self.config.clients:
            raise InputError("run config: min-clients is larger than clients")
        if self.config.min_clients and self.config.weights == "size":
            raise InputError(
                "run config: min-clients needs weights = 'uniform', because the rows of a missing "
                "client are not known"
            )
        self.history: History | None = None
        """The run's history once `start` has returned."""
        self.fit: FitResult | None = None
        """The result of a fit with standard errors once `start` has returned."""
        self._wait = Wait(
            self.config.deadline, self.config.poll, sleep, clock, self.config.retry_pause
        )
        self._callbacks = check_callbacks(callbacks)
        self._begun: Mapping[int, Node] = {}
        """The nodes with which the run began, by client; a missing one has no digest."""
        self._out = Path(self.config.out or "fedpage-run")

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord | None = None,
        num_rounds: int = 0,
        timeout: float = 0.0,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Run the method over the nodes, or resume the run that the directory `out` holds.

        Args:
            grid: Flower's connection to the nodes.
            initial_arrays: Ignored, as are all other arguments: the run config says what to run.
            num_rounds: Ignored.
            timeout: Ignored.
            train_config: Ignored.
            evaluate_config: Ignored.
            evaluate_fn: Ignored.

        Returns:
            The final model as the array "x" (d,).

        Raises:
            InputError: a node is missing, or nodes and server do not fit together.
        """
        config = self.config
        own = self._load_own_problem()
        requirements = self._require(own)
        with waiting_for_nodes(self._out, config) as report:
            nodes, agreement = self._gather(grid, requirements, report)
        schema = self.schema.resolve(agreement)
        engine = FlowerEngine(
            grid,
            nodes,
            self.method,
            agreement.d,
            seed=config.seed,
            policy=config.policy,
            wait=self._wait,
            weights=config.weights,
            metrics=self._find_metrics(own),
            x0=None if own is None else start_of(own),
            held_out=partial(_evaluate_held_out, own) if own is not None and own.N else None,
            aggregation=self.aggregation,
            level=config.evaluation,
            minimum=OBJECTIVES[config.objective].minimum if own is None else -math.inf,
            rounds=config.rounds,
        )
        engine.transport.agreement, engine.transport.requirements = agreement, requirements
        stop = config.stop
        fit = None
        if config.family:
            rows = sum(node.rows for node in nodes.values())
            fit = SiteFit(engine, config, schema, agreement, rows, self._out)
        history = History(self._describe_run(own, agreement, requirements, stop))
        name = [history.meta[key] for key in ("method", "problem", "seed", "federation")]
        engine.transport.run_name = hashlib.sha256(
            json.dumps(name, sort_keys=True).encode()
        ).hexdigest()
        observers = [*make_observers(config, self._out, own), *self._callbacks]
        self.history = self._run(engine, history, fit or stop, nodes, agreement, observers)
        log.info("fedpage: %s; %r", self.history.stop_text, self.history)
        if fit is not None and not self.history.ended:
            fit.explain()
        is_whole = self.history.ended and not self.history.diverged
        if is_whole and own is None and not config.data:
            self.fit = None if fit is None else fit.write(schema.labels or None)
            save_model(self._out, engine.x, config, schema, agreement, self.fit)
            if self.fit is not None:
                log.info("fedpage: the fit is in %s\n%s", self._out, self.fit)
        return Result(arrays=ArrayRecord({"x": Array(np.ascontiguousarray(engine.x))}))

    def _run(
        self,
        engine: FlowerEngine[Any, Any, Any, Any],
        history: History,
        stop: StopRule,
        nodes: Mapping[int, Node],
        agreement: Agreement,
        observers: Sequence[Callback],
    ) -> History:
        """Run or resume the rounds, and write them to the run's directory."""
        config = self.config
        run = Run(
            engine, history, rounds=config.rounds, record_every=config.record_every, stop=stop
        )
        with (
            RunStore(
                self._out,
                checkpoint_every=config.checkpoint_every,
                resume_diverged=True,
                changeable=["policy"],
                notify=log.warning,
                advice="the same `flwr run` continues it",
            ) as store,
            ExitStack() as stack,
        ):
            # Before the run is opened, which would begin to extend one that is finished.
            needs_state = store.has_run() and self.method.client_state is not None
            server = identify_server(store.path, needs_state=needs_state)
            engine.transport.run_name = f"{server}-{engine.transport.run_name}"
            if engine.ledger is not None:
                stack.callback(keep_private(store, engine).close)
            if not store.has_run():
                table = json.dumps([list(node) for node in nodes.values()])
                put(store.path / "nodes.json", table.encode("utf-8"))
                put(store.path / _AGREEMENT, agreement.to_text().encode("utf-8"))
            if store.open_run(run, resume=True) is not None:
                raise InputError(
                    f"{store.path}: this run is finished; give another out for a new run"
                )
            for text in store.changes:
                engine.transport.events.append(Event("resumed", run.rounds_done, text))
            finished = run.run([*observers, Checkpointing(store)])
            finished.to_csv(store.path / "history.csv")
            finish_run(store.path, engine.transport, finished.stop_reason)
        return finished

    def _require(self, own: NodeProblem | None) -> Requirements:
        """Return what every node's description must have."""
        config = self.config
        model: type | None = OBJECTIVES[config.objective].model if own is None else None
        model = CoxModel if config.family == "cox" else model
        return Requirements(
            clients=config.clients,
            code=method_digest(self.method),
            problem=problem_digest(own) if model is None else class_digest(model),  # type: ignore[arg-type]
            max_rows=config.max_rows,
            features=self._known_features(),
            outputs=0 if model is None or config.data else count_outputs(config, self.schema),
            intercept=config.intercept,
            d=0 if own is None else own.d,
        )

    def _known_features(self) -> int:
        """Return the number of features that the configuration says; 0 if it says none."""
        if self.schema.columns:
            return self.schema.count_features(self.schema.columns)
        return self.config.features

    def _gather(
        self, grid: Grid, requirements: Requirements, report: Callable[[str], None]
    ) -> tuple[dict[int, Node], Agreement]:
        """Return the node of every client and what they agree on; a resumed run has agreed."""
        config = self.config
        earlier, agreement = self._read_earlier_nodes()
        nodes, agreement = Gathering(
            grid,
            requirements,
            self.schema,
            self._wait,
            config.wait,
            config.min_clients,
            earlier,
            agreement,
            report,
        ).run()
        rows = sum(node.rows for node in nodes.values() if node.digest)
        log.info("fedpage: %s clients with %s rows", len(nodes), rows)
        self._begun = earlier or nodes
        return nodes, agreement

    def _read_earlier_nodes(self) -> tuple[dict[int, Node], Agreement | None]:
        """Return the nodes and the agreement of the run that `out` holds, if there is one."""
        path = self._out / "nodes.json"
        if not path.is_file() or not (self._out / "run.toml").is_file():
            return {}, None
        try:
            table = json.loads(path.read_text(encoding="utf-8"))
            nodes = {client: _read_node(entry) for client, entry in enumerate(table)}
        except (ValueError, TypeError):
            raise InputError(f"{path}: not the list of a run's nodes; remove it") from None
        path = self._out / _AGREEMENT
        try:
            return nodes, Agreement.from_text(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            raise InputError(f"{path}: not what the sites of a run agreed on") from None

    def _load_own_problem(self) -> NodeProblem | None:
        """Load the server's problem of an app with an objective of its own."""
        if not self.config.has_own_problem:
            return None
        return load_own_problem(self.config.objective, None, self.config.clients)

    def _describe_run(
        self,
        own: NodeProblem | None,
        agreement: Agreement,
        requirements: Requirements,
        stop: Stop | None,
    ) -> dict[str, object]:
        """Return the plain values that identify the run, with the keys that `fedpage run` uses."""
        config, nodes = self.config, self._begun
        digests = " ".join(node.digest for node in nodes.values())
        problem = {
            "objective": config.objective,
            "data": config.data or "the nodes' own files",
            "data_digest": hashlib.sha256(digests.encode()).hexdigest(),
            "N": len(nodes),
            "d": agreement.d,
            "agreement": agreement.digest,
            "rows": sum(node.rows for node in nodes.values() if node.digest),
            "weights": config.weights,
            "partition": config.partition,
            "alpha": config.alpha,
            "code": f"{requirements.code} {requirements.problem}",
            "metrics": self._describe_metrics(own),
        }
        policy = config.policy
        x0 = None if own is None else start_of(own)
        ending = {} if stop is None else stop.describe()
        meta = describe_run(self.method, problem, config, x0, ending)
        return meta | {
            "federation": config.out,
            "evaluation": config.evaluation,
            "policy": {
                "retries": policy.retries,
                "full_retries": policy.full_retries,
                "patience": policy.patience,
                "lost_after": policy.lost_after,
                "outlier_factor": float(policy.outlier_factor),
            },
            **({"family": f"{config.family} {config.ties}"} if config.family else {}),
            **({} if self.aggregation == Mean() else {"aggregation": self.aggregation.describe()}),
        }

    def _find_metrics(self, own: NodeProblem | None) -> dict[str, Metric]:
        """Return the metrics to record."""
        names = self.config.metric_names
        return resolve_metrics(names, "run config") if own is None else select_metrics(names, own)

    def _describe_metrics(self, own: NodeProblem | None) -> dict[str, bool | None]:
        """Return the metrics with their directions: whether higher is better, if it is known."""
        names = self.config.metric_names
        if own is None:
            return describe_metrics(resolve_metrics(names, "run config"))
        known = own.describe().get("metrics")
        return {name: known.get(name) if isinstance(known, Mapping) else None for name in names}

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise RuntimeError(
            "fedpage runs its own rounds, so its strategy cannot be wrapped: differential-privacy "
            "wrappers clip a model, which its messages are not, and add noise to some of them only"
        )

    configure_train = aggregate_train = configure_evaluate = aggregate_evaluate = _refuse

    def summary(self) -> None:
        """Log the method and its hyper-parameters."""
        log.info("fedpage: %s", self.method)


def _read_node(entry: list[Any]) -> Node:
    """Return a node as nodes.json has it."""
    node = Node(*entry)
    return node._replace(columns=tuple(node.columns))


def keep_private(store: RunStore, engine: AnyEngine) -> ReleaseJournal:
    """Give a private mean the secret key of its noise, and a journal of what it has released.

    Args:
        store: The run directory, opened, before the run is begun or resumed.
        engine: The engine, whose aggregation is private.

    Returns:
        The journal, to be closed after the run.

    Raises:
        InputError: The journal of an earlier part of the run is missing or damaged.
    """
    key, journal = store.path / "noise.key", store.path / "releases.jsonl"
    if not store.has_run():
        key.unlink(missing_ok=True)
        journal.unlink(missing_ok=True)
    elif not journal.is_file():
        raise InputError(f"{journal}: missing, so the privacy budget is not known; begin a new run")
    assert engine.ledger is not None
    engine.collector.noise_key = read_noise_key(key)
    releases = ReleaseJournal(journal, engine.N)
    engine.ledger.keep(releases)
    return releases


def _evaluate_held_out(problem: Problem, x: Vector) -> dict[str, float]:
    """Return the loss and the metrics of a model on the server's held-out rows."""
    return {
        f"held_out_{name}": value
        for name, value in problem.evaluate(x).items()
        if name != "grad_norm"
    }


app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run or resume the run that Flower's run config describes.

    Args:
        grid: Flower's connection to the nodes.
        context: it holds the run config.

    Raises:
        InputError: the run cannot start; the log says why, in a line for each site.
        RuntimeError: too few clients answered for too long, or the run diverged; it can be resumed.
    """
    try:
        strategy = FedpageStrategy(context.run_config)
        strategy.summary()
        strategy.start(grid)
    except InputError:
        # Flower logs every exception with its traceback, which says nothing about input.
        sys.tracebacklimit = 0
        raise
    history = strategy.history
    if history is not None and history.stop_reason is StopReason.ROUND_FAILED:
        raise RuntimeError(f"{history.stop_detail}; start the same run again to resume it")
    if history is not None and history.diverged:
        raise RuntimeError(
            f"{history.stop_text}; start the same run again to resume it from the last record "
            "before, after you have excluded what was wrong"
        )
