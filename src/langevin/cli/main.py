"""The command `langevin`, and one-line errors, which `langevin-paper` shares.

`--debug` shows the traceback. Exit codes: 0 success, 1 failure, 2 invalid usage, 130 Ctrl-C.
Commands import what they need when they run, so `--help` does not load torch.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

from typing_extensions import override

__all__ = ["main", "one_line", "one_line_errors"]

USAGE_ERRORS = (ValueError, TypeError, OSError, ImportError)
"""Errors caused by invalid usage."""

_ABOUT = """\
Stochastic gradient MCMC with adaptive drifts, for PyTorch.

  langevin doctor           check the installation
  langevin doctor --fill    also compile ahead of the first run

`pip install langevin-paper` adds `langevin-paper demo`, a tour, and
`langevin-paper check`, tests against exact distributions."""
_CODES = "Exit codes: 0 success, 1 failure, 2 invalid usage, 130 Ctrl-C."
_DOCTOR = """\
Check versions, compilers and caches, and run a few seconds of tests and timings.

Each problem comes with advice. Attach the output to bug reports:

  langevin doctor > doctor.txt

The exit code is 1 if something is broken."""


@contextmanager
def one_line_errors(*, debug: bool, passing: tuple[type[Exception], ...] = ()) -> Iterator[None]:
    """Print an error as one line and leave with its exit code; `passing` errors are raised."""
    try:
        yield
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        raise SystemExit(130) from None
    except BrokenPipeError:  # the reader has left, as in `langevin doctor | head -1`
        # Discard what is left, or Python reports the closed pipe at exit.
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(1) from None
    except Exception as error:
        if debug or isinstance(error, passing):
            raise
        is_usage = isinstance(error, USAGE_ERRORS)
        text = one_line(error)
        if not is_usage and not isinstance(error, RuntimeError):
            text = f"{type(error).__name__}: {text}; use --debug to see where"
        print(f"error: {text}", file=sys.stderr)
        raise SystemExit(2 if is_usage else 1) from error


def one_line(error: BaseException) -> str:
    r"""Return the text of an error as one line, or its type if it has no text.

    Example:
        >>> one_line(ValueError("a\n  b")), one_line(ValueError())
        ('a b', 'ValueError')
    """
    return " ".join(str(error).split()) or type(error).__name__


class _Parser(argparse.ArgumentParser):
    """Reports wrong usage in one line."""

    @override
    def error(self, message: str) -> NoReturn:
        raise ValueError(f"{message}. {self.format_usage().capitalize()}")


def _parser() -> _Parser:
    import langevin

    style = argparse.RawDescriptionHelpFormatter
    debug = _Parser(add_help=False)
    debug.add_argument("--debug", action="store_true", help="show the full traceback of an error")
    parser = _Parser("langevin", None, _ABOUT, _CODES, [debug], style)
    parser.add_argument("--version", action="version", version=f"langevin {langevin.__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", parser_class=_Parser)
    doctor = commands.add_parser(
        "doctor", help="check the installation", description=_DOCTOR, formatter_class=style,
        parents=[debug],
    )  # fmt: skip
    doctor.add_argument(
        "--fill", action="store_true", help="compile what the first run would compile, and cache it"
    )
    return parser


def main() -> None:
    """Run the command."""
    with one_line_errors(debug="--debug" in sys.argv):
        parser = _parser()
        arguments = parser.parse_args()
        if arguments.command is None:
            parser.print_help()
            return
        from langevin.cli.doctor import examine

        if examine(fill=arguments.fill):
            raise SystemExit(1)
