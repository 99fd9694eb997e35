"""Blame: which operator of a user's own program is wrong on a device, and how much of the final error it causes."""
