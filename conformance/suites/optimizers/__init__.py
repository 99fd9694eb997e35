"""Optimizer cases: every optimizer of ``torch.optim``, with its options, implementations and saved state."""
