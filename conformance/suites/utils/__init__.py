"""Everyday cases: views, placement, saving and loading, and the optimizers of torch.optim."""
