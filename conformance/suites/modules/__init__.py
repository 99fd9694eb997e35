"""Area ``modules``: the layers of ``torch.nn``, forward and backward, in training and in evaluation."""
