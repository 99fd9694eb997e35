"""Foreach cases: functions on lists of tensors."""
