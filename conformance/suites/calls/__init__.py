"""Calls that models of transformers make, at their real sizes, strides and dtypes."""
