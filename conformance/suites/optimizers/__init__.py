"""Area ``optimizers``: every optimizer of ``torch.optim``, with its options and implementations."""
