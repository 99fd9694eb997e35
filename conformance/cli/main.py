"""The ``conformance`` command: finds the subcommand, and turns every error into one sentence.

Each subcommand is a module with ``add_arguments(parser)`` and ``run(arguments) -> int``. Only the chosen one is
imported, and it imports torch only if it has to, so that help comes at once.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from io import TextIOWrapper
from typing import Final, NoReturn

from conformance.errors import ConformanceError, UnknownName, UsageError


@dataclass(frozen=True)
class Command:
    """A subcommand: what help says about it, and the module that is it."""

    name: str
    summary: str
    module: str


COMMANDS: Final = {
    command.name: command
    for command in (
        Command("challenge", "Make a challenge, and compute again what a report answers to it.", "challenge"),
        Command("diff", "Tell what changed between two reports, case by case.", "diff"),
        Command("doctor", "Tell what is here, what is missing, and what that would skip.", "doctor"),
        Command("list", "List cases, capabilities or accelerators.", "listing"),
        Command("explain", "Tell what a case checks, and how it ended.", "explain"),
        Command("gate", "Tell whether a report may be accepted, and why not.", "gate"),
        Command("import", "Take the results of another suite from JUnit XML.", "import_junit"),
        Command("lint", "Check an accelerator's declaration without a device.", "lint"),
        Command("manifest", "Write what this suite plans, for the gate to judge by.", "manifest"),
        Command("merge", "Make one report of the reports of all shards.", "merge"),
        Command("onboard", "Probe a device, and print a first declaration of it.", "onboard"),
        Command("publish", "Write the page of several accelerators: a matrix, cards, pictures.", "publish"),
        Command("report", "Print a report folder, a report.json or a journal.", "report"),
        Command("sign", "Sign a report with an SSH key.", "sign"),
        Command("suggest", "Print the declaration that would have been true in a run.", "suggest"),
        Command("verify", "Tell who signed a report.", "verify"),
        Command("waivers", "Check, prune or add waivers of known failures.", "waivers"),
    )
}
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
    if words[0] not in COMMANDS:
        raise UnknownName("command", words[0], COMMANDS, "see: conformance --help")
    return _run(COMMANDS[words[0]], words[1:])


def _run(command: Command, words: list[str]) -> int:
    module = importlib.import_module(f"conformance.cli.{command.module}")
    parser = Parser(prog=f"conformance {command.name}", description=command.summary, allow_abbrev=False)
    module.add_arguments(parser)
    status: int = module.run(parser.parse_args(words))
    return status


def overview() -> str:
    """What ``conformance --help`` prints."""
    width = max(map(len, COMMANDS))
    lines = [f"  {command.name:<{width}}  {command.summary}" for command in COMMANDS.values()]
    return "\n".join(
        [
            "usage: conformance COMMAND [options]",
            "",
            *lines,
            "",
            "Options of a command: conformance COMMAND --help. The suite itself: pytest --accelerator=NAME.",
        ]
    )


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
