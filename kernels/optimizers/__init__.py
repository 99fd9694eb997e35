"""Arithmetic of optimizer steps: portable, compiled for the CPU, and as float64 oracles."""
