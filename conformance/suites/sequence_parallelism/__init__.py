"""Sequences cut over ranks: attention that sees all of them gives what one device gives."""
