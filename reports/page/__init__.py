"""``conformance publish``: one HTML file for several accelerators, and small files beside it for machines."""
