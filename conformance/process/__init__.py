"""Processes: their state between cases, their timeouts, and how they end."""
