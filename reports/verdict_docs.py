"""What each reason means and what to do about it, for people: pages and answers are made of this."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from conformance.reports.verdict import Reason


@dataclass(frozen=True)
class ReasonDoc:
    """When a case ends so, and the next step; empty if there is none."""

    when: str
    mend: str = ""


REASON_DOCS: Final[dict[Reason, ReasonDoc]] = {
    Reason.NATIVE: ReasonDoc("The right result, on the device."),
    Reason.EMULATED: ReasonDoc(
        "The right result, and the declaration says that it is emulated or computed on the host."
    ),
    Reason.UNSUPPORTED: ReasonDoc("Declared unsupported; where the case probes, a clean refusal was seen."),
    Reason.UNDECLARED: ReasonDoc(
        "The declaration is silent. The message carries what a probe saw. With strictness certify it is a failure.",
        "Declare it, one way or the other; conformance suggest proposes how.",
    ),
    Reason.ENVIRONMENT: ReasonDoc(
        "This machine lacks something: a package, a second device, memory, a host reference.",
        "Read the message, and run where it is there. The gate rejects claims that could not run.",
    ),
    Reason.WAIVED: ReasonDoc("It failed as a valid waiver says.", "Fix it before the waiver expires."),
    Reason.WRONG: ReasonDoc(
        "A wrong value, dtype, shape, stride, device, aliasing or order; an input that was changed; nothing compared.",
        "Fix the device.",
    ),
    Reason.RAISED: ReasonDoc("An exception where a result is due.", "Fix the device, or withdraw the claim."),
    Reason.OVER_DECLARED: ReasonDoc(
        "Declared supported, and it ends with “not implemented”, or a member is missing.",
        "Implement it, or withdraw the claim.",
    ),
    Reason.STUB: ReasonDoc(
        "Declared supported, and it answers None or has no effect.", "Implement it, or withdraw the claim."
    ),
    Reason.FALLBACK: ReasonDoc(
        "Computed on the host, and nothing said so.", "Declare it as host, or compute it on the device."
    ),
    Reason.UNSAFE: ReasonDoc(
        "Declared unsupported, yet it answers wrongly, crashes or hangs.", "Raise an error instead."
    ),
    Reason.UNDER_DECLARED: ReasonDoc(
        "Declared unsupported, yet it works. A failure with strictness certify, else a note.", "Claim it."
    ),
    Reason.CRASH: ReasonDoc("The process died. The message carries the stacks.", "Reproduce it with the repro line."),
    Reason.HANG: ReasonDoc("The deadline passed. The message carries the stacks.", "Reproduce it with the repro line."),
    Reason.POISONED: ReasonDoc(
        "After this case the device no longer computed 1 + 1. Cases after it ran again elsewhere.",
        "Reproduce it with the repro line.",
    ),
    Reason.DISAGREEMENT: ReasonDoc("Ranks ended differently.", "Look for the rank whose message differs."),
    Reason.CORE_MISSING: ReasonDoc("Something of the mandatory core is not supported.", "Implement it."),
    Reason.WAIVER_STALE: ReasonDoc("It is waived, and passes.", "Delete the waiver: conformance waivers prune."),
    Reason.WAIVER_EXPIRED: ReasonDoc("It fails, and its waiver has run out.", "Fix it, or renew the waiver."),
}
