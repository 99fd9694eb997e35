"""Numbers of few bits, group by group: the portable arithmetic, the compiled one, and the exact one for oracles."""
