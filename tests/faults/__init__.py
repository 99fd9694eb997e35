"""Generated faults: a population from schemas and derivative rules, and the share of it that the suite kills."""
