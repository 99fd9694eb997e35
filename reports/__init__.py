"""Reports: journal, report, views, profiles and gate. Nothing here imports torch or pytest."""
