"""From the end of a body to a verdict: checks, findings, whose error it was, and what the declaration says."""
