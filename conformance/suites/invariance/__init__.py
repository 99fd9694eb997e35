"""Whether the bits of a row depend on what surrounds it: its batch, its chunk, its padding, its strides, its run."""
