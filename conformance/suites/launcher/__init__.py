"""Ranks as a launcher starts them: who they are, which device they see, and how a job ends."""
