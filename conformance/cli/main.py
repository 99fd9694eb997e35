"""Entry point of the ``conformance`` command. Runs a subcommand, and prints an error without a traceback.

Each subcommand is a module of this folder with ``SUMMARY``, ``add_arguments(parser)`` and ``run(arguments) -> int``.
The module has the name of the command, with an underscore where Python has that name already (``import_``, ``list_``).
Only the module of the chosen command is imported. It imports torch only if ``run`` needs it, so help appears at once.
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
from conformance.base.errors import ConformanceError, UnknownName, UsageError

#: As shells report it: 128 and the number of SIGINT.
_INTERRUPTED: Final = 130


class Parser(argparse.ArgumentParser):
    """Argument parser that raises UsageError, so that a wrong option is one sentence and exit status 4."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}. See: {self.prog} --help")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command, and return its exit status."""
    _replace_unprintable_characters()
    # With autoload, a broken vendor wheel makes a plain `import torch` raise. Commands load vendor packages by name.
    os.environ.setdefault("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")
    try:
        status = _dispatch(list(sys.argv[1:] if argv is None else argv))
        sys.stdout.flush()
    except ConformanceError as error:
        return _print_error(error)
    except BrokenPipeError:
        # The reader, such as `head`, has closed the pipe. The flush at exit must not fail on it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return _INTERRUPTED
    return status


def _dispatch(words: list[str]) -> int:
    """Run the command that ``words`` name and return its exit status."""
    if not words or words[0] in ("-h", "--help"):
        print(overview())
        return 0 if words else UsageError.exit_status
    if words[0] == "--version":
        from importlib import metadata

        print(metadata.version("accelerator-conformance"))
        return 0
    name, *rest = words
    command = find_command(name)
    # No abbreviations: a new option could make an old command line ambiguous.
    parser = Parser(prog=f"conformance {name}", description=command.SUMMARY, allow_abbrev=False)
    command.add_arguments(parser)
    status: int = command.run(parser.parse_args(rest))
    return status


def find_command(name: str) -> Any:
    """Return the module of a subcommand; raise UnknownName with suggestions if there is none."""
    module = _modules().get(name)
    if module is None or not _is_command(module):
        raise UnknownName("command", name, commands(), "see: conformance --help")
    return _load(module)


def commands() -> dict[str, str]:
    """Return the summary of every subcommand by its name, sorted by name."""
    return {name: _load(module).SUMMARY for name, module in sorted(_modules().items()) if _is_command(module)}


def _modules() -> dict[str, str]:
    """Return the names of the other modules of this folder, by the names that their commands would have."""
    names = (module.name for module in pkgutil.iter_modules(cli.__path__))
    return {name.rstrip("_"): name for name in names if name != "main"}


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
    """Return ``name``; raise UnknownName with suggestions if it is not known."""
    if name not in known:
        raise UnknownName(kind, name, known, hint)
    return name


def known_names(kind: str, values: Iterable[str] | None, known: Collection[str]) -> tuple[str, ...]:
    """Return the names from an option that may be repeated or hold several names, separated by commas.

    Each name is returned once. Raise UnknownName for a name that is not known.
    """
    names = [name.strip() for value in values or () for name in value.split(",") if name.strip()]
    return tuple(dict.fromkeys(known_name(kind, name, known) for name in names))


def _print_error(error: ConformanceError) -> int:
    """Print the message without a traceback and return the exit status for this kind of error."""
    from conformance.reports.plain_text import plain

    # The message may quote an untrusted file.
    print(plain(str(error)), file=sys.stderr)
    return error.exit_status


def _replace_unprintable_characters() -> None:
    """Print a question mark for a character that the terminal cannot show, instead of raising an error."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")


def program() -> NoReturn:
    """Run :func:`main` as the process ``conformance``, and end it without freeing memory object by object.

    A report can have 20,000 cases; the system frees their memory at once. If torch or pytest is loaded, the process
    ends the normal way, so that their exit handlers run.
    """
    status = main()
    if {"torch", "pytest"} & sys.modules.keys():
        sys.exit(status)
    with suppress(OSError):
        sys.stdout.flush()
    os._exit(status)


if __name__ == "__main__":
    program()
