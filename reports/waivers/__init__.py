"""Waivers: known failures with an owner, a ticket and an expiry date."""
