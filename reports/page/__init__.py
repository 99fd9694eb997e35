"""Published page of ``conformance publish``: one HTML file for several accelerators, and small files for programs."""
