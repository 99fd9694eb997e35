"""A module that cannot be imported, for a reason of its own. Named by test_pool.py."""

raise RuntimeError("no device answers while this module is imported")
