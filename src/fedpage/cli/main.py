"""The command line. Commands import what they need when they run, so `fedpage --help` is fast."""

from __future__ import annotations

import os
import re
import sys
from typing import Annotated, NoReturn, Protocol, runtime_checkable

import typer

from fedpage._version import __version__
from fedpage.cli.choose import choose
from fedpage.cli.compare import compare
from fedpage.cli.data import app as data
from fedpage.cli.demo import demo
from fedpage.cli.deploy import app as deploy
from fedpage.cli.methods import codecs, methods
from fedpage.cli.options import Command
from fedpage.cli.plan import plan
from fedpage.cli.reproduce import reproduce
from fedpage.cli.resume import resume
from fedpage.cli.run import run
from fedpage.cli.study import app as study
from fedpage.cli.tune import tune
from fedpage.cli.watch import watch
from fedpage.core.errors import InputError, did_you_mean, one_line

app = typer.Typer(
    name="fedpage",
    help="Train one model over many clients with as little communication as possible.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
_hyper_parameters = {"allow_extra_args": True, "ignore_unknown_options": True}
app.command(cls=Command, context_settings=_hyper_parameters)(run)
app.command(cls=Command)(choose)
app.command(cls=Command)(compare)
app.command(cls=Command)(resume)
app.command(cls=Command)(demo)
app.command(cls=Command)(methods)
app.command(cls=Command)(codecs)
app.command(cls=Command)(plan)
app.command(cls=Command, context_settings=_hyper_parameters)(tune)
app.command(cls=Command)(reproduce)
app.add_typer(study, name="study")
app.command(cls=Command)(watch)
app.add_typer(data, name="data")
app.add_typer(deploy, name="deploy")


@runtime_checkable
class _UsageError(Protocol):
    """A ClickException. typer has its own copy of click since 0.26, so there is no one class."""

    exit_code: int

    def format_message(self) -> str: ...


def main() -> None:
    """Run the command line; a user's mistake becomes one line on stderr and exit code 2."""
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    if sys.stdout is None:
        _fail("standard output is closed: results cannot be printed", 1)
    try:
        code = app(standalone_mode=False, prog_name="fedpage")
        if code == 130:  # Typer returns the code where Click raises
            raise KeyboardInterrupt
    except (KeyboardInterrupt, typer.Abort):
        _fail("interrupted; unfinished work is not saved", 130)
    except BrokenPipeError:  # the reader of a pipe has gone, such as `head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except InputError as error:
        _fail(str(error), 2)
    except OSError as error:
        path = f"{error.filename}: " if error.filename else ""
        _fail(f"{path}{error.strerror or error}", 1)
    except Exception as error:
        if isinstance(error, _UsageError):
            _fail_usage(error)
        if type(error).__name__ == "Interrupted":  # of the engine, whose import takes a second
            _fail(str(error), 130)
        if isinstance(error, ValueError) and "null byte" in str(error):  # from click's paths
            _fail("the name of a file cannot contain a NUL", 2)
        if os.environ.get("FEDPAGE_DEBUG"):
            raise
        if isinstance(error, MemoryError):
            text = str(error) or "none is left"
            _fail(text if text.startswith("not enough") else f"not enough memory ({text})", 1)
        _fail(
            f"unexpected {type(error).__name__}: {error} "
            "(FEDPAGE_DEBUG=1 shows where; please report it)",
            1,
        )
    sys.exit(code if isinstance(code, int) else 0)


def _fail_usage(error: _UsageError) -> NoReturn:
    """Report a usage error that click has found: an unknown option, command or value."""
    context = getattr(error, "ctx", None)
    if type(error).__name__ == "NoArgsIsHelpError" and context is not None:
        print(context.get_help())
        sys.exit(2)
    text = error.format_message().replace("\n", " ").rstrip(".")
    if type(error).__name__ == "NoSuchOption":
        option = getattr(error, "option_name", "")
        text = f"No such option: {option};"
        text += did_you_mean(option, getattr(error, "possibilities", None) or [])
    unknown = re.match(r"No such command '(.*?)'", text)
    if unknown and context is not None:  # click and typer each add suggestions of their own
        text = f"{unknown[0]};{did_you_mean(unknown[1], getattr(context.command, 'commands', ()))}"
    if not text:  # without arguments, the help has been printed
        sys.exit(error.exit_code)
    command = "fedpage" if context is None else context.command_path
    _fail(f"{text.rstrip(';')}; see `{command} --help`", 2)


def _fail(text: str, code: int) -> NoReturn:
    print("fedpage: " + one_line(text), file=sys.stderr)
    sys.exit(code)


def _print_version(asked: bool) -> None:
    if asked:
        print(f"fedpage {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    pass
