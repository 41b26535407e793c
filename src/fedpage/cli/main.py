"""The command line. The module of a command is imported when the command is used."""

from __future__ import annotations

import os
import re
import sys
from importlib import import_module
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperCommand

from fedpage._version import __version__
from fedpage.core.errors import InputError, did_you_mean, one_line

COMMANDS = {
    "run": "Run one method.",
    "choose": "Find the method that reaches a target at the least cost.",
    "compare": "Compare methods on equal terms.",
    "fit": "Fit a model over sites exactly, with standard errors and p-values.",
    "resume": "Continue or extend a run or a comparison.",
    "demo": "Compare four methods on the embedded census data.",
    "methods": "List the methods, or explain one.",
    "codecs": "List the codecs, with what each sends and its size in bits.",
    "plan": "Compare rounds and bytes of methods by their theorems.",
    "tune": "Search a method's hyper-parameters for the least cost.",
    "reproduce": "Run the paper's experiments and check its claims.",
    "watch": "Follow runs in the terminal.",
    "study": "Run studies: problems x methods x grids x seeds.",
    "data": "List, show, fetch, add and verify data sets.",
    "deploy": "Run on a real federation with Flower (needs 'fedpage[flower]').",
}
"""The first line of each command's help, which `fedpage --help` shows without an import."""


class LazyCommand(TyperCommand):
    """Stand for a command, or a group of them, whose module is imported when it is used."""

    def load(self) -> Any:
        """Import the module, and return its click command."""
        command = typer.main.get_command(import_module(f"fedpage.cli.{self.name}").app)
        command.name = self.name
        return command

    def make_context(self, info_name: Any, args: Any, parent: Any = None, **extra: Any) -> Any:
        """Parse the command's words."""
        return self.load().make_context(info_name, args, parent, **extra)


app = typer.Typer(
    help="Train one model over many clients with as little communication as possible.",
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for _name, _help in COMMANDS.items():
    app.command(_name, cls=LazyCommand, help=_help)(lambda: None)


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


def main() -> None:
    """Run the command line; a user's mistake becomes one line on stderr and exit code 2."""
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    if sys.stdout is None:
        _fail("standard output is closed: results cannot be printed", 1)
    try:
        code = typer.main.get_command(app)(standalone_mode=False, prog_name="fedpage")
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
        if hasattr(error, "format_message"):  # a ClickException; typer may have its own click
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


def _fail_usage(error: Any) -> NoReturn:
    """Report a usage error that click has found: an unknown option, command or value."""
    context, text = error.ctx, error.format_message().replace("\n", " ").rstrip(".")
    if type(error).__name__ == "NoArgsIsHelpError":
        print(context.get_help())
        sys.exit(2)
    if type(error).__name__ == "NoSuchOption":
        hint = did_you_mean(error.option_name, error.possibilities or [])
        text = f"No such option: {error.option_name};{hint}"
    unknown = re.match(r"No such command '(.*?)'", text)
    if unknown:  # click and typer each add suggestions of their own
        text = f"{unknown[0]};{did_you_mean(unknown[1], context.command.commands)}"
    command = "fedpage" if context is None else context.command_path
    _fail(f"{text.rstrip(';')}; see `{command} --help`", 2)


def _fail(text: str, code: int) -> NoReturn:
    print("fedpage: " + one_line(text), file=sys.stderr)
    sys.exit(code)
