"""The command line. Heavy imports happen inside the commands, so that `fedpage --help` answers at once."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from fedpage._version import __version__
from fedpage.cli import compare, data, deploy, plan, reproduce, run

app = typer.Typer(
    name="fedpage",
    help="Train one model over many clients with as little communication as possible.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
_free_options = {
    "allow_extra_args": True,
    "ignore_unknown_options": True,
}  # a method's hyper-parameters
app.command(context_settings=_free_options)(run.run)
app.command()(compare.compare)
app.command()(run.resume)
app.command()(compare.demo)
app.command(name="methods")(run.list_methods)
app.command()(plan.plan)
app.command(context_settings=_free_options)(plan.tune)
app.command()(reproduce.reproduce)
app.add_typer(data.app, name="data")
app.add_typer(deploy.app, name="deploy")


def main() -> None:
    """Run the command line; whatever the user got wrong becomes one line on stderr and exit code 2."""
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    if sys.stdout is None:
        _fail("standard output is closed: there is nowhere to answer to", 1)
    try:
        code = app(standalone_mode=False, prog_name="fedpage")
    except KeyboardInterrupt:
        _fail("interrupted; what was not finished is not written", 130)
    except BrokenPipeError:  # the reader of a pipe has gone, such as `head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except Exception as error:
        if type(error).__name__ == "Abort":
            _fail("interrupted; what was not finished is not written", 130)
        if type(error).__name__ == "Interrupted":
            _fail(str(error), 130)
        if hasattr(error, "format_message"):  # a usage error of typer's
            context = getattr(error, "ctx", None)
            if type(error).__name__ == "NoArgsIsHelpError" and context is not None:
                print(context.get_help())
                sys.exit(2)
            command = getattr(context, "command_path", "fedpage")
            text = (
                str(error.format_message())
                .replace("\n", " ")
                .replace(". Did you", ": did you")
                .rstrip(".")
            )
            near = getattr(error, "possibilities", None)
            if near and hasattr(error, "option_name"):
                text = f"No such option: {error.option_name}; did you mean {near[0]}?"
            if text:
                _fail(f"{text}; see `{command} --help`", 2)
            sys.exit(int(getattr(error, "exit_code", 2)))  # no arguments: the help was shown
        from fedpage.core.errors import InputError

        if isinstance(error, InputError):
            _fail(str(error), 2)
        if isinstance(error, OSError):
            where = f"{error.filename}: " if error.filename else ""
            _fail(f"{where}{error.strerror or error}", 1)
        if isinstance(error, ValueError) and "null byte" in str(
            error
        ):  # some versions of click look at paths first
            _fail("a file's name cannot have a NUL in it", 2)
        if os.environ.get("FEDPAGE_DEBUG"):
            raise
        if isinstance(error, MemoryError):
            _fail(f"not enough memory for this ({error or 'none is left'})", 1)
        _fail(
            f"unexpected {type(error).__name__}: {error} (FEDPAGE_DEBUG=1 shows where; please report it)",
            1,
        )
    sys.exit(code if isinstance(code, int) else 0)


def _fail(text: str, code: int) -> None:
    print("fedpage: " + " ".join(text.splitlines()), file=sys.stderr)
    sys.exit(code)


def _version(asked: bool) -> None:
    if asked:
        print(f"fedpage {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Say which.")
    ] = False,
) -> None:
    pass
