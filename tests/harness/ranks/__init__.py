"""Tests of the rank pool: failures of ranks, and what they leave behind."""
