"""Data by which runs are ordered and the profile ``standard`` is chosen: how it is measured and written."""
