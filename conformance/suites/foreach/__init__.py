"""Area ``foreach``: torch's functions on lists of tensors."""
