"""Pipeline parallelism cases: layers on several ranks agree with one process."""
