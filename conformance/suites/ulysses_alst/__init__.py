"""Tiling cases: networks and losses computed in tiles of tokens give the same results in less memory."""
