"""Runner: the parts of the pytest plugin that plan, run and report the cases of one run."""
