"""Compiler cases: compiled code agrees with uncompiled code, and compiler passes for sharded training change no bit."""
