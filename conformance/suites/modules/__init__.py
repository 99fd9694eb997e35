"""Module cases: layers of ``torch.nn``, forward and backward, in training and in evaluation."""
