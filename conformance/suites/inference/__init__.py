"""Generating: what a cache, a cut over ranks, few bits or padding save is not seen in the logits."""
