"""The server's side of a run: a Strategy that owns its loop, and the ServerApp."""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from flwr.app import Array, ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import Result, Strategy

from fedpage.core.atomic import put
from fedpage.core.errors import InputError
from fedpage.core.types import StopReason, Vector
from fedpage.engine.loop import Run
from fedpage.engine.policy import Policy
from fedpage.engine.simulate import describe, start_described, versions
from fedpage.engine.simulation import start_of
from fedpage.engine.stopping import Stop
from fedpage.flower.engine import FlowerEngine, Node, Wait, described, one_federation
from fedpage.flower.node import checked, method_of, own_problem, problem_digest
from fedpage.runs.fingerprint import code_digest
from fedpage.runs.history import History
from fedpage.runs.store import RunDirectory

log = logging.getLogger("flwr")


class FedpageStrategy(Strategy):
    """A Strategy that runs a method of fedpage's. It owns its loop, so nothing can wrap it."""

    def __init__(self, config: Mapping[str, Any], *, sleep: Callable[[float], None] = time.sleep,
                 clock: Callable[[], float] = time.monotonic) -> None:  # fmt: skip
        self.config = checked(config)
        self.method = method_of(self.config)
        if self.method.client_state is not None and str(self.config["checkpoint-every"]) != "1":
            raise InputError(
                f"run config: {self.method.name}'s clients remember a few rounds only; checkpoint-every must be '1'"
            )
        self.history: History | None = None
        self._sleep, self._clock = sleep, clock

    def start(
        self, grid: Grid, initial_arrays: ArrayRecord | None = None, num_rounds: int = 0, timeout: float = 0.0,
        train_config: Any = None, evaluate_config: Any = None, evaluate_fn: Any = None,
    ) -> Result:  # fmt: skip
        """Wait for the nodes, run the rounds or go on with them, write the run down. Only `grid` is used."""
        config = self.config
        nodes = self._gather(grid)
        own = (
            own_problem(config["objective"], None, len(nodes))
            if ":" in config["objective"]
            else None
        )
        d = (
            own.d
            if own is not None
            else int(config["features"]) or max(node.features for node in nodes.values())
        )
        if own is not None and {node.features for node in nodes.values()} != {d}:
            raise InputError(
                f"{config['objective']} has {d} parameters on the server, and another number on a node"
            )
        if own is not None and any(
            not node.code.endswith(f" {problem_digest(own)}") for node in nodes.values()
        ):
            raise InputError(
                f"{config['objective']} is another model on a node than on the server, or starts elsewhere"
            )
        policy = Policy(
            retries=config["retries"], full_retries=config["full-retries"], patience=config["patience"],
            lost_after=config["lost-after"],
        )  # fmt: skip
        engine = FlowerEngine(
            grid, nodes, self.method, d, seed=config["seed"], policy=policy, wait=self._wait(),
            weights=config["weights"],
            x0=None if own is None else start_of(own), held_out=None if own is None else partial(_held_out, own),
        )  # fmt: skip
        stop = Stop(grad_norm=config["target"]) if config["target"] > 0 else None
        history = History(self._meta(nodes, d, stop))
        if own is not None:
            history.meta |= start_described(own)
        run = Run(
            engine, history, rounds=config["rounds"], record_every=config["record-every"], stop=stop
        )
        name = json.dumps(
            [history.meta[key] for key in ("method", "problem", "seed", "federation")],
            sort_keys=True,
        )
        engine.transport.run_name = hashlib.sha256(name.encode()).hexdigest()
        with RunDirectory(
            config["out"] or "fedpage-run", every=config["checkpoint-every"], say=log.warning
        ) as directory:
            if directory.exists():
                ended = directory.resume(run)
                if ended is not None:
                    raise InputError(
                        f"{directory.path}: this run is finished; give another out for a new one"
                    )
                log.info("fedpage: going on after round %s", engine.costs.round)
            else:
                put(
                    directory.path / "nodes.json",
                    json.dumps([list(node) for node in nodes.values()]).encode("utf-8"),
                )
                directory.begin(run)
            self.history = directory.finish(run.go(self._progress, directory))
            self.history.to_csv(directory.path / "history.csv")
        log.info("fedpage: %s; %r", self.history.stop_text, self.history)
        return Result(arrays=ArrayRecord({"x": Array(np.ascontiguousarray(engine.x))}))

    def _wait(self) -> Wait:
        return Wait(self.config["deadline"], self.config["poll"], self._sleep, self._clock)

    def _gather(self, grid: Grid) -> dict[int, Node]:
        """All the clients' nodes. A run that goes on does without those that are not there."""
        config, N = self.config, self.config["clients"]
        end = self._clock() + config["wait"]
        code = code_digest(type(self.method))
        before = self._nodes_before()
        found: dict[int, Node] = {}
        while set(found) != set(range(N)):
            late = self._clock() > end
            new = set(grid.get_node_ids()) - {node.node_id for node in found.values()}
            if new and (len(new) + len(found) >= N or late):
                more = described(grid, new, code=code, wait=self._wait())
                twice = sorted(set(found) & set(more))
                if twice:
                    raise InputError(f"two nodes say they are client {twice[0]}")
                found |= more
            missing = [client for client in range(N) if client not in found]
            if missing and late:
                names = f"{', '.join(map(str, missing[:10]))}{' ...' if len(missing) > 10 else ''}"
                if not found or not set(missing) <= set(before):
                    raise InputError(
                        f"waited {config['wait']:g} s for {N} clients; not here: {names}"
                    )
                log.warning("fedpage: going on without clients that are not here: %s", names)
                found |= {client: before[client] for client in missing}
            elif missing:
                self._sleep(config["poll"])
        one_federation(found)
        log.info("fedpage: %s clients with %s rows", N, sum(node.rows for node in found.values()))
        return {client: found[client] for client in range(N)}

    @property
    def _place(self) -> Path:
        return Path(self.config["out"] or "fedpage-run")

    def _nodes_before(self) -> dict[int, Node]:
        """What a run that is taken up knew of its clients."""
        path = self._place / "nodes.json"
        if not path.is_file() or not (self._place / "run.toml").is_file():
            return {}
        try:
            return {
                client: Node(*entry)
                for client, entry in enumerate(json.loads(path.read_text(encoding="utf-8")))
            }
        except (ValueError, TypeError):
            raise InputError(
                f"{path}: not what a run of fedpage's knew of its clients; remove it"
            ) from None

    def _meta(self, nodes: Mapping[int, Node], d: int, stop: Stop | None) -> dict[str, Any]:
        """What the run is, as `fedpage run` says it."""
        config = self.config
        digests = hashlib.sha256(
            " ".join(node.digest for node in nodes.values()).encode()
        ).hexdigest()
        problem = {
            "objective": config["objective"], "data": config["data"] or "the sites' own", "data_digest": digests,
            "N": len(nodes), "d": d, "rows": sum(node.rows for node in nodes.values()), "weights": config["weights"],
            "partition": config["partition"], "alpha": config["alpha"], "code": nodes[0].code,
        }  # fmt: skip
        return {
            "method": describe(self.method), "problem": problem, "seed": config["seed"], "rounds": config["rounds"],
            "record_every": config["record-every"], "x0": "zeros", "stop": {} if stop is None else {"grad_norm": stop.grad_norm},
            "federation": str(config["out"]), "versions": versions(),
            "policy": {name: config[name] for name in ("retries", "full-retries", "patience", "lost-after")},
        }  # fmt: skip

    def _tell(self, run: Run) -> Callable[[int, str, str], None]:
        def tell(round: int, event: str, text: str) -> None:
            log.warning("fedpage: round %s: %s: %s", round, event, text)
            run.happened(round, event, text)

        return tell

    def _progress(self, done: int, rounds: int, row: Mapping[str, float]) -> None:
        log.info(
            "fedpage: round %s of %s: loss %.6g, gradient %.3g", done, rounds, row.get("loss", float("nan")),
            row.get("grad_norm", float("nan")),
        )  # fmt: skip

    def _no(self, *_: Any, **__: Any) -> NoReturn:
        raise RuntimeError(
            "fedpage runs its own rounds and cannot be wrapped: differential-privacy wrappers clip round a model that "
            "its messages are not, and would add noise to some of them only"
        )

    configure_train = aggregate_train = configure_evaluate = aggregate_evaluate = _no

    def summary(self) -> None:
        """What is about to run."""
        log.info("fedpage: %s", self.method)


def _held_out(problem: Any, x: Vector) -> dict[str, float]:
    """What the server's own rows say of a model."""
    return {
        f"held_out_{name}": value
        for name, value in problem.evaluate(x).items()
        if name != "grad_norm"
    }


app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run what the run's configuration says."""
    strategy = FedpageStrategy(context.run_config)
    strategy.summary()
    strategy.start(grid)
    history = strategy.history
    if history is not None and history.stop_reason is StopReason.ROUND_FAILED:
        raise RuntimeError(f"{history.stop_detail}; the same run goes on when it is started again")
