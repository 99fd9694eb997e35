"""Coverage of PyTorch's dispatcher: which overloads, arguments, layouts and derivatives the cases exercise."""
