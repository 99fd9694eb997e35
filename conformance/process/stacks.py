"""The Python stacks of a rank, without the frames and threads that every rank has."""

from __future__ import annotations

_LONGEST = 6000
#: Below the case's first frame there are only frames of the rank's main loop and of the zygote.
_OURS = "/conformance/ranks/"
#: Library frames that stand between ours and mean nothing by themselves.
_BETWEEN = ("/threading.py", "/socket.py", "<string>")


def of_the_case(stacks: str) -> str:
    """Threads that run the case's code or a library of it, shortened in the middle."""
    text = "\n".join("\n".join(block) for block in map(_without_ours, _blocks(stacks)) if block)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST // 2]}\n…\n{text[-_LONGEST // 2 :]}"


def _blocks(stacks: str) -> list[list[str]]:
    """The dump cut where a thread begins; what comes before the first thread is a block of its own."""
    blocks: list[list[str]] = [[]]
    for line in stacks.splitlines():
        if line.startswith(("Thread 0x", "Current thread 0x")):
            blocks.append([])
        if line.strip():
            blocks[-1].append(line)
    return blocks


def _without_ours(block: list[str]) -> list[str]:
    """The block without our frames; nothing if only they and what lies between them were there."""
    if not any(line.startswith("  File ") for line in block):
        return block
    kept = [line for line in block if not (line.startswith("  File ") and _OURS in line)]
    telling = [line for line in kept if line.startswith("  File ") and not any(part in line for part in _BETWEEN)]
    return kept if telling else []
