"""What was saved goes on as if nothing had happened: elsewhere, on other numbers of ranks, or not at all."""
