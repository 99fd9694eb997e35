"""The accelerators under test: interface, vocabulary, declarations, registry, one declarative file per backend."""
