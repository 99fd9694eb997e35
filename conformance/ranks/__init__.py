"""Ranks: processes that run the body of one case together, kept warm between cases.

    pytest process (or xdist worker)          guard → zygote            rank 0 … rank N-1
    plugin → pool → round ──── fork, kill ───▶ forks, reaps ───────────▶ main loop: join, body, leave
              ▲  └───────────── work, leave ────────────────────────────▶ │
              └──────────────── end, done, output, stacks, ledger ────────┘

A case passes if and only if every rank said "passed" for this round's nonce after its body had returned, then "done"
after its tear-down, and is still alive. Silence, an end of file and exit status 0 are failures.
"""
