"""The ``conformance`` command: finds the subcommand, and turns every error into one sentence.

Each subcommand is a module of this folder with ``SUMMARY``, ``add_arguments(parser)`` and ``run(arguments) -> int``. It
is named for the command, with an underscore after a word of Python (``import_``). Only the chosen one is imported, and
it imports torch only if it needs to, so that help is printed at once.
"""

from __future__ import annotations

import argparse
import importlib
import os
import pkgutil
import sys
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from io import TextIOWrapper
from typing import Any, Final, NoReturn

from conformance import cli
from conformance.errors import ConformanceError, UnknownName, UsageError

_INTERRUPTED: Final = 130


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are ours: one sentence, exit status 4."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}. See: {self.prog} --help")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the exit status."""
    _never_fail_to_print()
    # A broken vendor wheel can make a plain `import torch` raise; what a command needs of it is loaded by name.
    os.environ.setdefault("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")
    try:
        status = _dispatch(list(sys.argv[1:] if argv is None else argv))
        sys.stdout.flush()
    except ConformanceError as error:
        return _say(error)
    except BrokenPipeError:
        # The reader, such as `head`, has what it wanted. Nothing more can be flushed at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return _INTERRUPTED
    return status


def _dispatch(words: list[str]) -> int:
    if not words or words[0] in ("-h", "--help"):
        print(overview())
        return 0 if words else UsageError.exit_status
    if words[0] == "--version":
        from importlib import metadata

        print(metadata.version("accelerator-conformance"))
        return 0
    name, *rest = words
    command = find_command(name)
    parser = Parser(prog=f"conformance {name}", description=command.SUMMARY, allow_abbrev=False)
    command.add_arguments(parser)
    status: int = command.run(parser.parse_args(rest))
    return status


def find_command(name: str) -> Any:
    """Return the module of a subcommand; UnknownName with suggestions if there is none."""
    module = _modules().get(name)
    if module is None or not _is_command(module):
        raise UnknownName("command", name, commands(), "see: conformance --help")
    return _load(module)


def commands() -> dict[str, str]:
    """Return the summary of every subcommand by its name, sorted."""
    return {name: _load(module).SUMMARY for name, module in sorted(_modules().items()) if _is_command(module)}


def _modules() -> dict[str, str]:
    """Return the modules beside this one, by the names that their commands would have."""
    beside = (module.name for module in pkgutil.iter_modules(cli.__path__))
    return {name.rstrip("_"): name for name in beside if name != "main"}


def _is_command(module: str) -> bool:
    return hasattr(_load(module), "SUMMARY")


def _load(module: str) -> Any:
    return importlib.import_module(f"{cli.__name__}.{module}")


def overview() -> str:
    """Return the text of ``conformance --help``."""
    summaries = commands()
    width = max(map(len, summaries))
    lines = [f"  {name:<{width}}  {summary}" for name, summary in summaries.items()]
    return "\n".join(
        [
            "usage: conformance COMMAND [options]",
            "",
            *lines,
            "",
            "Options of a command: conformance COMMAND --help. The suite itself: pytest --accelerator=NAME.",
        ]
    )


def known_name(kind: str, name: str, known: Collection[str], hint: str = "") -> str:
    """``name``, if it is known."""
    if name not in known:
        raise UnknownName(kind, name, known, hint)
    return name


def known_names(kind: str, values: Iterable[str] | None, known: Collection[str]) -> tuple[str, ...]:
    """The names of an option that may be repeated, or hold several separated by commas."""
    names = [name.strip() for value in values or () for name in value.split(",") if name.strip()]
    return tuple(dict.fromkeys(known_name(kind, name, known) for name in names))


def _say(error: ConformanceError) -> int:
    from conformance.reports.plain_text import plain

    # What went wrong may quote an untrusted file.
    print(plain(str(error)), file=sys.stderr)
    return error.exit_status


def _never_fail_to_print() -> None:
    """A terminal that cannot show a sign shows a question mark instead of a traceback."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")


def program() -> NoReturn:
    """The process ``conformance``: :func:`main`, and an end that does not take apart all that was read.

    The system gives the memory of 20,000 cases back at once. Where torch or pytest is loaded they clean up first.
    """
    status = main()
    if {"torch", "pytest"} & sys.modules.keys():
        sys.exit(status)
    with suppress(OSError):
        sys.stdout.flush()
    os._exit(status)


if __name__ == "__main__":
    program()
