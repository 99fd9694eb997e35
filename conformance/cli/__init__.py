"""Commands of the program ``conformance``, one module each."""
