"""With ``-n0`` a crash or a hang ends pytest itself. A child of it says what happened, for nobody else is left to."""

from __future__ import annotations

import os
import select
import signal
import warnings

from conformance.process.watchdog import read_stacks, readable, stacks_path
from conformance.reports.journal import CaseStart, read_journal
from conformance.runner.context import Settings
from conformance.runner.crashes import death_verdict

#: With -n0 a case that crashes would end the resumed run as well.
_NEXT = "Nothing is lost: repeat the command with --resume, and -n1 for -n0: such a case then ends a worker alone."
#: How often the child looks whether its parent is alive, in seconds: what forks of a case hold the pipe open longer.
_LOOK = 0.5


class LastWords:
    """From ``begin`` to ``end`` a child waits for this process to die."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._child = 0
        self._pipe = -1

    def begin(self) -> None:
        """Nothing where processes cannot fork."""
        if not hasattr(os, "fork"):
            return
        parent = os.getpid()
        heard, self._pipe = os.pipe()
        with warnings.catch_warnings():
            # From Python 3.12 on, a fork beside threads warns; the child takes no lock that they may hold.
            warnings.simplefilter("ignore", DeprecationWarning)
            self._child = os.fork()
        if self._child:
            os.close(heard)
            return
        try:
            os.close(self._pipe)
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to both, and pytest has its own answer
            if _dies(parent, heard):
                os.write(2, _told(self._settings, parent).encode(errors="replace"))
        finally:
            os._exit(0)

    def end(self) -> None:
        """This process ends as it should."""
        if not self._child:
            return
        os.write(self._pipe, b".")
        os.close(self._pipe)
        os.waitpid(self._child, 0)
        self._child = 0


def _dies(parent: int, heard: int) -> bool:
    """Wait for the parent's word, or for its death."""
    while not select.select([heard], [], [], _LOOK)[0]:
        if os.getppid() != parent:
            return True
    return not os.read(heard, 1)


def _told(settings: Settings, dead: int) -> str:
    """What the journal and the stacks say of a run that has just died."""
    stacks, culprit = read_stacks(stacks_path(settings.folder.path, "main")), _in_flight(settings, dead)
    if culprit is None:
        what = ["conformance: pytest's process died, and no case was running.", readable(stacks)]
    else:
        verdict = death_verdict(culprit, stacks, None, settings)
        what = [f"conformance: {culprit.id} has ended the run · {verdict.reason.value}", verdict.message]
    return "\n".join(["", *what, _NEXT, ""])


def _in_flight(settings: Settings, process: int) -> CaseStart | None:
    if not settings.folder.journal.exists():
        return None
    records = read_journal(settings.folder.journal)
    return next((one for one in records.in_flight.values() if one.pid == process), None)
