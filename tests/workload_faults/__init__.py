"""Count of the planted faults that only a model shows."""
