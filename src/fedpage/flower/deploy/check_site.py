"""Check a site before it connects: its node configuration, its file, its directories."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

from fedpage.core.errors import InputError
from fedpage.flower import site_files
from fedpage.flower.allowed import check_allowed
from fedpage.flower.config import AppConfig, NodeConfig, parse_node_config
from fedpage.flower.deploy.findings import CheckFailed, CheckResult, require_file, run_check
from fedpage.flower.disclosure import check_description
from fedpage.flower.node_data import load_node_data
from fedpage.flower.node_errors import Code, NodeError, describe_columns
from fedpage.flower.node_evaluation import check_evaluation
from fedpage.flower.schema import parse_schema
from fedpage.flower.secure_aggregation.protocol import find_settings


def check_data(path: Path, run: AppConfig | None = None) -> str:
    """Check that a data file can be read, whatever the run needs of it.

    Args:
        path: The file.
        run: The run's configuration, if it is known; its extra columns may have missing cells.
    """
    require_file(path)
    schema = None if run is None else parse_schema(run)
    if schema is None or not schema.ignores_extra or not schema.columns:
        return site_files.describe_file(path)
    return site_files.describe_file(path, {*schema.columns, schema.label, schema.event})


def read_node_config(text: str) -> NodeConfig:
    """Read what `flower-supernode --node-config` will be given.

    Raises:
        CheckFailed: It cannot be read, or a key or a value is wrong.
    """
    from flwr.common.config import parse_config_args

    try:
        return parse_node_config(parse_config_args([text]))
    except InputError as error:
        raise CheckFailed(str(error), "docs/deploy.md has an example") from None
    except Exception:  # flwr raises errors of typer and of its TOML reader
        raise CheckFailed(
            "--node-config: cannot be read",
            'write words such as partition-id=0, and text in quotes: data="/data/site.csv"',
        ) from None


def check_site(node: NodeConfig, run: AppConfig | None) -> Iterator[CheckResult]:
    """Check a node's configuration: its data, its state directory and its audit log.

    Args:
        node: The node's configuration.
        run: The run's configuration, with which the site is compared; None: it is not known.

    Yields:
        The result of each check.
    """
    allowed = ", ".join(sorted(node.allowed)) or "nothing"
    yield CheckResult(
        True,
        f"node config: client {node.partition_id}; runs may name {allowed} beside fedpage's own; "
        f"evaluations send at most {node.evaluation}"
        + "; statistics of columns are shared"
        * node.share_statistics,
    )
    if node.data:
        yield run_check(lambda: check_data(Path(node.data), run))
    if run is not None and (not node.data or Path(node.data).is_file()):
        yield run_check(lambda: _compare_site(node, run))
    yield run_check(lambda: _check_state_dir(node.state_dir))
    yield run_check(lambda: _check_audit(node.audit_path))


def _compare_site(node: NodeConfig, run: AppConfig) -> str:
    """Check that a site fits a run, by the code with which its node answers the server."""
    try:
        check_allowed(run, node.allowed, fits_only=node.fits_only)
        check_evaluation(run, node)
        if node.require_secure and find_settings(run.aggregation) is None:
            raise NodeError(Code.NOT_ALLOWED, "the run has no secure aggregation (require-secure)")
        if run.has_own_problem:
            return f"the app's {run.objective} is allowed; this check does not call it"
        found = load_node_data(node, run)
        check_description(node, run, found)
    except NodeError as error:
        if error.code is not Code.COLUMNS:
            raise CheckFailed(str(error), "the server would refuse this site") from None
        raise CheckFailed(
            f"{node.data}: its columns are not those of the app"
            f"{describe_columns(error.missing, error.extra)}",
            "correct the file, or agree on columns, label and extra-columns in the app",
        ) from None
    rows = int(found.problem.sizes[0])
    if rows > run.max_rows:
        raise CheckFailed(f"{rows:,} rows, but the app has max-rows = {run.max_rows}", "raise it")
    labels = ", ".join(parse_schema(run).classes) or "numbers"
    text = f"fits the app: {rows:,} rows, {found.features:,} features, labels {labels}"
    if found.columns and not run.columns:
        text += "; the app names no columns, so every site needs the same ones"
    return text


def _check_state_dir(folder: Path) -> str:
    """Check that the node's state directory is private, and can be written or created."""
    if not folder.exists():
        parent = next(path for path in folder.absolute().parents if path.exists())
        if not os.access(parent, os.W_OK | os.X_OK):
            raise CheckFailed(f"{folder}: cannot be created in {parent}", "create it for this user")
        return f"{folder}: will be created for client states"
    if not folder.is_dir() or not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        raise CheckFailed(f"{folder}: not a directory that this user can write", "choose another")
    if sys.platform != "win32" and stat.S_IMODE(folder.stat().st_mode) & 0o077:
        raise CheckFailed(f"{folder}: other users can enter it", f"chmod 700 {folder}")
    return f"{folder}: private, for client states"


def _check_audit(path: Path | None) -> str:
    """Check that the audit log can be written."""
    if path is None:
        raise CheckFailed("the audit log is off", 'remove audit="off" unless that is meant')
    folder = path if path.is_file() else path.parent
    folder = next(each for each in (folder, *folder.absolute().parents) if each.exists())
    if not os.access(folder, os.W_OK):
        raise CheckFailed(f"{path}: cannot be written", "name another file with audit=")
    return f"{path}: the audit log; `fedpage deploy audit` reads it"
