"""Compiled code gives what uncompiled code gives, and what a compiler does to sharded training changes no bit."""
