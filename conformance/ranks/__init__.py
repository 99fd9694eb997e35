"""Ranks: processes that run the body of one case together. They stay warm between cases.

    pytest process (or xdist worker)          guard → fork server       rank 0 … rank N-1
    rank_cases → pool → execution ─ fork ────▶ forks, reaps ───────────▶ main loop: join, body, leave
              ▲  └───────────── work, leave ────────────────────────────▶ │
              └────────── end, done, output, stacks, collectives ─────────┘

A case passes only if every rank has reported "passed" for this execution's nonce after its body has returned, has then
reported "done" after its tear-down, and is still alive. Silence, an end of file and exit status 0 are failures.
"""
