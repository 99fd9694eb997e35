"""Bugs that real backends had, by public reports: each is planted as data, and cases of the suite look for it."""
