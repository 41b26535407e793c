"""The ServerApp: wait for the nodes, then run or resume a method over them."""

from __future__ import annotations

import hashlib
import json
import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import Result, Strategy

from fedpage.callbacks.base import Callback, check_callbacks
from fedpage.callbacks.checkpointing import Checkpointing
from fedpage.core.atomic import put
from fedpage.core.errors import InputError
from fedpage.core.metrics import Metric, describe_metrics, resolve_metrics
from fedpage.core.types import Problem, StopReason, Vector
from fedpage.engine.loop import Run
from fedpage.engine.simulation import start_of
from fedpage.engine.stopping import Stop
from fedpage.flower.config import Value, build_method, parse_app_config
from fedpage.flower.engine import FlowerEngine
from fedpage.flower.evaluation import check_stop
from fedpage.flower.exchange import Wait
from fedpage.flower.metrics import refuse_reference, select_metrics
from fedpage.flower.node_data import NodeProblem, load_own_problem, problem_digest
from fedpage.flower.nodes import Node, check_nodes, describe_nodes
from fedpage.flower.operator import make_observers, waiting_for_nodes
from fedpage.flower.run_identity import finish_run, identify_server
from fedpage.problems import OBJECTIVES
from fedpage.runs.fingerprint import method_digest
from fedpage.runs.history import History
from fedpage.runs.provenance import describe_run
from fedpage.runs.store import RunStore

log = logging.getLogger("flwr")


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
        self.config.stop  # noqa: B018  # refuses what cannot be used before any node is asked
        if not self.config.has_own_problem:
            refuse_reference(resolve_metrics(self.config.metric_names, "run config"))
        self.history: History | None = None
        """The run's history once `start` has returned."""
        self._wait = Wait(
            self.config.deadline, self.config.poll, sleep, clock, self.config.retry_pause
        )
        self._callbacks = check_callbacks(callbacks)
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
        with waiting_for_nodes(self._out, config):
            nodes = self._wait_for_nodes(grid)
        own = self._load_own_problem(nodes)
        d = own.d if own is not None else config.features or max(n.features for n in nodes.values())
        engine = FlowerEngine(
            grid,
            nodes,
            self.method,
            d,
            seed=config.seed,
            policy=config.policy,
            wait=self._wait,
            weights=config.weights,
            metrics=self._find_metrics(own),
            x0=None if own is None else start_of(own),
            held_out=None if own is None else partial(_evaluate_held_out, own),
            level=config.evaluation,
            minimum=OBJECTIVES[config.objective].minimum if own is None else -math.inf,
            rounds=config.rounds,
        )
        stop = config.stop
        check_stop(config.evaluation, stop)
        history = History(self._describe_run(nodes, own, d, stop))
        name = [history.meta[key] for key in ("method", "problem", "seed", "federation")]
        engine.transport.run_name = hashlib.sha256(
            json.dumps(name, sort_keys=True).encode()
        ).hexdigest()
        observers = [*make_observers(config, self._out, own), *self._callbacks]
        self.history = self._run(engine, history, stop, nodes, observers)
        log.info("fedpage: %s; %r", self.history.stop_text, self.history)
        return Result(arrays=ArrayRecord({"x": Array(np.ascontiguousarray(engine.x))}))

    def _run(
        self,
        engine: FlowerEngine[Any, Any, Any, Any],
        history: History,
        stop: Stop | None,
        nodes: Mapping[int, Node],
        observers: Sequence[Callback],
    ) -> History:
        """Run or resume the rounds, and write them to the run's directory."""
        config = self.config
        run = Run(
            engine, history, rounds=config.rounds, record_every=config.record_every, stop=stop
        )
        with RunStore(
            self._out, checkpoint_every=config.checkpoint_every, notify=log.warning
        ) as store:
            # Before the run is opened, which would begin to extend one that is finished.
            needs_state = store.has_run() and self.method.client_state is not None
            server = identify_server(store.path, needs_state=needs_state)
            engine.transport.run_name = f"{server}-{engine.transport.run_name}"
            if not store.has_run():
                table = json.dumps([list(node) for node in nodes.values()])
                put(store.path / "nodes.json", table.encode("utf-8"))
            if store.open_run(run, resume=True) is not None:
                raise InputError(
                    f"{store.path}: this run is finished; give another out for a new run"
                )
            finished = run.run([*observers, Checkpointing(store)])
            finished.to_csv(store.path / "history.csv")
            finish_run(store.path, engine.transport, finished.stop_reason)
        return finished

    def _wait_for_nodes(self, grid: Grid) -> dict[int, Node]:
        """Return the node of every client; a resumed run may start without some of them."""
        config, N = self.config, self.config.clients
        end = self._wait.clock() + config.wait
        code = method_digest(self.method)
        earlier = self._read_earlier_nodes()
        found: dict[int, Node] = {}
        while set(found) != set(range(N)):
            late = self._wait.clock() > end
            new = set(grid.get_node_ids()) - {node.node_id for node in found.values()}
            if new and (len(new) + len(found) >= N or late):
                more = describe_nodes(grid, new, code=code, wait=self._wait)
                twice = sorted(set(found) & set(more))
                if twice:
                    raise InputError(f"two nodes say they hold client {twice[0]}")
                found |= more
            missing = [client for client in range(N) if client not in found]
            if missing and late:
                names = f"{', '.join(map(str, missing[:10]))}{' ...' if len(missing) > 10 else ''}"
                if not found or not set(missing) <= set(earlier):
                    raise InputError(
                        f"waited {config.wait:g} s for {N} clients; no node for clients {names}"
                    )
                log.warning("fedpage: resuming without a node for clients %s", names)
                found |= {client: earlier[client] for client in missing}
            elif missing:
                self._wait.sleep(config.poll)
        check_nodes(found)
        log.info("fedpage: %s clients with %s rows", N, sum(node.rows for node in found.values()))
        return {client: found[client] for client in range(N)}

    def _read_earlier_nodes(self) -> dict[int, Node]:
        """Return the nodes of the run that the directory `out` holds, if there is one."""
        path = self._out / "nodes.json"
        if not path.is_file() or not (self._out / "run.toml").is_file():
            return {}
        try:
            table = json.loads(path.read_text(encoding="utf-8"))
            return {client: Node(*entry) for client, entry in enumerate(table)}
        except (ValueError, TypeError):
            raise InputError(f"{path}: not the list of a run's nodes; remove it") from None

    def _load_own_problem(self, nodes: Mapping[int, Node]) -> NodeProblem | None:
        """Load the server's problem of an app with an objective of its own."""
        objective = self.config.objective
        if not self.config.has_own_problem:
            return None
        own = load_own_problem(objective, None, len(nodes))
        for client, node in nodes.items():
            if node.features != own.d:
                raise InputError(
                    f"{objective} has {own.d} parameters on the server, but {node.features} on the "
                    f"node of client {client}"
                )
            if not node.code.endswith(f" {problem_digest(own)}"):
                raise InputError(
                    f"{objective}: the node of client {client} has another model than the server, "
                    "or other initial parameters"
                )
        return own

    def _describe_run(
        self, nodes: Mapping[int, Node], own: NodeProblem | None, d: int, stop: Stop | None
    ) -> dict[str, object]:
        """Return the plain values that identify the run, with the keys that `fedpage run` uses."""
        config = self.config
        digests = " ".join(node.digest for node in nodes.values())
        problem = {
            "objective": config.objective,
            "data": config.data or "the nodes' own files",
            "data_digest": hashlib.sha256(digests.encode()).hexdigest(),
            "N": len(nodes),
            "d": d,
            "rows": sum(node.rows for node in nodes.values()),
            "weights": config.weights,
            "partition": config.partition,
            "alpha": config.alpha,
            "code": nodes[0].code,
            "metrics": self._describe_metrics(own),
        }
        policy = config.policy
        meta = describe_run(
            self.method,
            problem,
            seed=config.seed,
            rounds=config.rounds,
            record_every=config.record_every,
            x0=None if own is None else start_of(own),
            stop={} if stop is None else stop.describe(),
        )
        return meta | {
            "federation": config.out,
            "evaluation": config.evaluation,
            "policy": {
                "retries": policy.retries,
                "full_retries": policy.full_retries,
                "patience": policy.patience,
                "lost_after": policy.lost_after,
            },
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
        RuntimeError: too few clients answered for too long; the run can be resumed.
    """
    strategy = FedpageStrategy(context.run_config)
    strategy.summary()
    strategy.start(grid)
    history = strategy.history
    if history is not None and history.stop_reason is StopReason.ROUND_FAILED:
        raise RuntimeError(f"{history.stop_detail}; start the same run again to resume it")
