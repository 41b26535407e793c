"""`fedpage deploy`: keys, a Flower app, checks, a federation on this machine, and its status."""

from __future__ import annotations

import signal
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedpage.callbacks.progress import progress_bars, summarise_record
from fedpage.cli import options
from fedpage.cli.common import prepare_out
from fedpage.cli.options import Document
from fedpage.cli.output import print_summary
from fedpage.cli.watch import watch
from fedpage.core.columns import Target
from fedpage.core.errors import InputError
from fedpage.report import summary
from fedpage.report.watch import FollowedRun
from fedpage.runs.config import setting
from fedpage.runs.history import History
from fedpage.runs.lock import DirectoryLock

if TYPE_CHECKING:
    from fedpage.flower.deploy.local_federation import LocalFederation

app = options.make_app("Run on a real federation with Flower (needs 'fedpage[flower]').")
_DEMO = Path("flower-demo")


def _needs_flower() -> None:
    try:
        import flwr  # noqa: F401
    except ImportError:
        raise InputError("this needs Flower: pip install 'fedpage[flower]'") from None


@options.command(app, "init")
def init(
    folder: Annotated[Path, typer.Argument(help="A new directory for the app.")],
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", help="A setting, such as rounds=50 or method=scaffold; repeatable."),
    ] = None,
) -> None:
    """Write a Flower app that explains its settings."""
    path = folder / "pyproject.toml"
    if path.exists():
        raise InputError(f"{path}: exists already; choose another directory")
    from fedpage.flower.config import app_template, change_app, read_app

    text = app_template()
    if changes:
        _needs_flower()
        from fedpage.flower.server_app import FedpageStrategy

        text = change_app(changes)
        FedpageStrategy(read_app(text))  # as `deploy check --app` and a run check it
    prepare_out(folder, force=True)
    path.write_text(text, encoding="utf-8")
    print(f"{path} is written. Check it with `fedpage deploy check --app {folder}`.")


@options.command(app, "keys")
def keys(
    folder: Annotated[Path, typer.Argument(help="A new directory.")],
    host: Annotated[
        list[str] | None,
        typer.Option("--host", help="A name or address of the server; may be repeated."),
    ] = None,
    nodes: Annotated[int, typer.Option("--nodes", help="Number of nodes.")] = 1,
    days: Annotated[
        int, typer.Option("--days", help="Days for which certificates are valid.")
    ] = 365,
) -> None:
    """Create certificates and keys.

    They are a certificate authority, the server's certificate and a key pair for each node.
    """
    _needs_flower()
    from fedpage.flower.deploy.keys import create_keys

    for path in create_keys(
        folder, hosts=host or ["localhost", "127.0.0.1"], nodes=nodes, days=days
    ):
        print(path)
    print("Give each node ca.pem and its own nodeN, nothing else. Keep ca.key secret.")


@dataclass(frozen=True)
class CheckConfig:
    """Describe what `deploy check` checks; settings that are not given are skipped."""

    app: Path | None = setting(None, "The app's directory.")
    ca: Path | None = setting(None, "The authority's certificate.")
    cert: Path | None = setting(None, "The server's certificate.")
    key: Path | None = setting(None, "The server's private key.")
    node_key: Path | None = setting(None, "Private key of a node.")
    address: str | None = setting(None, "host:port of the server.")
    superlink: str | None = setting(None, "A name in Flower's config.toml.")
    data: Path | None = setting(None, "Data file of a node.")
    node_config: str | None = setting(None, "What flower-supernode will be given.")


@options.command(app, "check")
def check(config: CheckConfig) -> Document:
    """Check a deployment before a run.

    Versions, certificates, keys, an address, data and a node's configuration are checked, as far as
    they are given. With --app and --node-config the site's file is compared with the columns and
    labels of the run.
    """
    _needs_flower()
    from fedpage.flower.deploy.preflight import run_checks

    found = []
    for finding in run_checks(**vars(config)):
        found.append(finding)
        advice = f"; {finding.advice}" if finding.advice else ""
        print(f"{finding.word:7s} {finding.text}{advice}")
    document = {"checks": [finding._asdict() for finding in found]}
    if not all(finding.ok for finding in found):
        raise options.Failed(document)
    return document


options.command(app, "status")(watch)


@options.command(app, "predict")
def predict(
    run: Annotated[Path, typer.Argument(help="The run's directory on the server, or model.json.")],
    rows: Annotated[Path, typer.Argument(help="A table of new rows: .csv, .tsv or .parquet.")],
    out: Annotated[Path | None, typer.Option(help="Write a CSV file instead of printing.")] = None,
) -> Document:
    """Predict new rows with the linear model of a federation.

    The table has the columns of the sites' tables; it may have the label, too.
    """
    import polars as pl

    from fedpage.inference import load_federated

    model = load_federated(run)
    columns = {"prediction": model.predict(rows)}
    if model.has_probabilities:
        probabilities = model.predict_proba(rows)
        columns |= {f"p({c})": probabilities[:, i] for i, c in enumerate(model.classes)}
    table = pl.DataFrame(columns)
    if out is None:
        print(table.write_csv(), end="")
    else:
        table.write_csv(out)
        print(f"{table.height:,} predictions are in {out}.")
    return {"rows": table.height, "predictions": table.to_dict(as_series=False)}


@options.command(app, "audit")
def audit(
    log: Annotated[Path, typer.Argument(help="A node's audit log, audit.jsonl.")],
) -> Document:
    """Verify a node's audit log and list what left the node.

    A line that was edited, removed or inserted is named. Lines missing at the end show only if the
    last digest was noted before.
    """
    from fedpage.flower.audit import show, verify

    found = verify(log)
    print(show(found.entries))
    for problem in found.problems:
        print(f"{log}, {problem}")
    sent = sum(entry.bytes for entry in found.entries)
    count = len(found.entries)
    noun = "reply" if count == 1 else "replies"
    print(f"{count:,} {noun}, {sent:,} bytes; last digest {found.last}")
    document = {
        "entries": [asdict(entry) for entry in found.entries],
        "problems": found.problems,
        "last": found.last,
    }
    if found.problems:
        raise options.Failed(document)
    return document


@dataclass(frozen=True)
class FederationConfig:
    """Describe the run of `deploy demo`."""

    method: str = setting("fedpage", "See `fedpage methods`.")
    hyper: str = setting("S=2 K=10 eta_g=0.5", "Hyper-parameters of the method.")
    nodes: int = setting(4, "Number of SuperNodes.", at_least=1, at_most=100_000)
    rounds: int = setting(20, "Communication rounds.", at_least=1, at_most=10_000_000)


@options.command(app, "demo")
def demo(
    config: FederationConfig,
    out: Annotated[
        Path, typer.Option("--out", help="New directory for keys, logs and the run.")
    ] = _DEMO,
) -> Document:
    """Run a method on a small federation on this machine.

    A SuperLink and SuperNodes with TLS are started, and stopped after the run.
    """
    _needs_flower()
    from fedpage.flower.config import app_template
    from fedpage.flower.deploy.local_federation import LocalFederation

    prepare_out(out, force=out == _DEMO)  # its own directory is written again

    def stop(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, stop)
    home = out.resolve()
    own = [
        {"partition-id": i, "client-state-dir": str(home / "client-state"), "allow": config.method}
        for i in range(config.nodes)
    ]
    with DirectoryLock(out) as lock, tempfile.TemporaryDirectory() as folder:
        lock.clear()
        (Path(folder) / "pyproject.toml").write_text(app_template(), encoding="utf-8")
        with LocalFederation(home, own) as federation:
            print(
                f"A SuperLink at {federation.address} and {config.nodes} SuperNodes with TLS and "
                f"registered keys; logs are in {out}."
            )
            settings = vars(config) | {"clients": config.nodes, "out": str(home / "run")}
            del settings["nodes"]
            run = federation.submit(Path(folder), **settings)
            _watch(federation, run, home / "run", config)
    history = History.load(home / "run" / "history.jsonl")
    print_summary([history], Target(value=0.1))
    print(f"All processes are stopped. The run is in {out / 'run'}.")
    return {**summary.document([history], Target(value=0.1)), "out": out / "run"}


def _watch(federation: LocalFederation, run: str, place: Path, config: FederationConfig) -> None:
    """Show a progress bar from the run's directory until the run has ended."""
    followed, asked = FollowedRun(place), time.monotonic()
    with progress_bars() as bars:
        task = bars.add_task(config.method, total=config.rounds, note="nodes are starting")
        while not followed.history.ended:
            time.sleep(0.5)
            if time.monotonic() - asked > 15:  # asking Flower takes two seconds
                status, why = federation.status(run)
                followed.poll()
                if status.startswith("finished") and not followed.history.ended:
                    raise InputError(
                        f"the run is {status} ({why}); see {federation.home / 'superlink.log'}"
                    )
                asked = time.monotonic()
            followed.poll()
            if followed.history.rows:
                newest = summarise_record(followed.history.rows[-1])
                bars.update(task, completed=followed.round, note=newest)
