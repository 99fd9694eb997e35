"""What runs: cases, the plan of the suite, the options of a run, and which cases they select."""
