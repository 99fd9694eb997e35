"""Models of transformers under parallel engines of PyTorch and transformers, compared with one process in float64."""
