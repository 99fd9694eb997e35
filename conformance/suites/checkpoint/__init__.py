"""Checkpoint cases: training resumes from saved state, also on another device or another number of ranks."""
