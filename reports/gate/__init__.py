"""Gate: rules that accept or reject a report, with the evidence that they use."""
