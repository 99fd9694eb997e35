"""Signatures over a report's bytes, made and checked by OpenSSH. They prove the author, not the truth of a report.

The signed message is one line with the SHA-256 of the file.
"""

from __future__ import annotations

import base64
import re
import shutil
import subprocess
from pathlib import Path
from typing import Final

from conformance.base.errors import JournalError, UsageError
from conformance.reports.gate.evidence import SignatureCheck
from conformance.reports.json_files import read_capped
from conformance.reports.loading import ReportFile
from conformance.reports.plain_text import one_line

#: Namespace of ssh-keygen. Signatures that were made for other purposes, such as commits, are rejected.
NAMESPACE: Final = "conformance-report"
#: Bytes. An SSH signature has one or two thousand.
_MAX_SIGNATURE: Final = 64 * 1024
_MAX_SIGNERS: Final = 1024 * 1024
#: First bytes of a signature.
_MAGIC: Final = b"SSHSIG"
#: Options of an allowed signer that limit when, and for what, the key is valid.
_LIMITS: Final = re.compile(r'\b(valid-after|valid-before|namespaces)="([^"]*)"')
#: ssh-keygen may wait for an agent, or for a touch of a hardware key.
_SECONDS: Final = 30


def signature_path(report: Path) -> Path:
    return report.with_name(report.name + ".sig")


def message(sha256: str) -> bytes:
    """Return the message that is signed for a report file with this hash."""
    return f"conformance-report sha256:{sha256}\n".encode()


def sign(report: ReportFile, key: Path) -> Path:
    """Sign a report with a private key, or with a public one whose private key an agent has; return the path."""
    done = _ssh_keygen(["-Y", "sign", "-q", "-n", NAMESPACE, "-f", str(key)], message(report.sha256))
    if done.returncode:
        raise JournalError(f"ssh-keygen could not sign with {key}: {_said(done)}.")
    path = signature_path(report.path)
    try:
        path.write_bytes(done.stdout)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}.") from None
    return path


def check(report: ReportFile, signature: Path | None, allowed_signers: Path) -> SignatureCheck:
    """Check that the bytes of the report are signed by a principal of the file of allowed signers."""
    path = signature or signature_path(report.path)
    if not path.is_file():
        return SignatureCheck(problem=f"The report is not signed: there is no {path.name} beside it.")
    # ssh-keygen reads the file itself, and must not get a huge one.
    armored = read_capped(path, _MAX_SIGNATURE, "signature")
    principal = _principal(path, allowed_signers)
    if not principal:
        return SignatureCheck(problem=_not_allowed(armored, allowed_signers))
    words = ["-Y", "verify", "-n", NAMESPACE, "-f", str(allowed_signers), "-I", principal, "-s", str(path)]
    done = _ssh_keygen(words, message(report.sha256))
    if done.returncode:
        return SignatureCheck(principal, f"The signature of {principal} does not verify: {_said(done)}.")
    return SignatureCheck(principal)


def _not_allowed(armored: bytes, allowed_signers: Path) -> str:
    """Return why no principal is found for a signature: its key is unknown, or not valid now or for reports."""
    key = _public_key(armored)
    lines = read_capped(allowed_signers, _MAX_SIGNERS, "file of allowed signers").decode("utf-8", errors="replace")
    for line in lines.splitlines():
        if key and key in line.split() and not line.lstrip().startswith("#"):
            principal, *limits = line.split(None, 1)[0].split(",")[0], *_LIMITS.findall(line)
            said = one_line(", ".join(f"{name} {value}" for name, value in limits), 120) or "its line is not valid"
            return f"The report is signed with a key of {one_line(principal, 200)} that is not allowed now: {said}."
    return "The report is not signed by an allowed signer: none of them has the key."


def _public_key(armored: bytes) -> str:
    """Return the public key in a signature as files of keys write it; empty if the signature is malformed.

    The format is in PROTOCOL.sshsig of OpenSSH: the magic bytes, a version, and the key with its length.
    """
    text = b"".join(line for line in armored.splitlines() if not line.startswith(b"-----"))
    try:
        blob = base64.b64decode(text, validate=True)
    except ValueError:
        return ""
    start = len(_MAGIC) + 8
    length = int.from_bytes(blob[start - 4 : start], "big")
    if not blob.startswith(_MAGIC) or not 0 < length <= len(blob) - start:
        return ""
    return base64.b64encode(blob[start : start + length]).decode()


def _principal(signature: Path, allowed_signers: Path) -> str:
    """Return the first principal that the file of allowed signers has for the signature's key, or an empty text."""
    done = _ssh_keygen(["-Y", "find-principals", "-f", str(allowed_signers), "-s", str(signature)], b"")
    lines = done.stdout.decode("utf-8", errors="replace").splitlines()
    return one_line(lines[0].split(",")[0], 200) if lines and not done.returncode else ""


def _ssh_keygen(words: list[str], data: bytes) -> subprocess.CompletedProcess[bytes]:
    """Run ssh-keygen on ``data``. Raises ``JournalError`` if it is missing or does not answer in time."""
    program = shutil.which("ssh-keygen")
    if program is None:
        raise JournalError("there is no ssh-keygen here; install OpenSSH 8.1 or newer to sign and to verify.")
    try:
        return subprocess.run([program, *words], input=data, capture_output=True, timeout=_SECONDS, check=False)  # noqa: S603
    except subprocess.TimeoutExpired:
        raise JournalError(f"ssh-keygen did not answer within {_SECONDS} seconds.") from None


def _said(done: subprocess.CompletedProcess[bytes]) -> str:
    text = (done.stderr or done.stdout).decode("utf-8", errors="replace").strip()
    return one_line(text.splitlines()[-1].rstrip(".") if text else "it said nothing", 200)
