"""Bundled conformance cases: one package for each area."""
