"""One bit an element on the wire: signs as bits, means over ranks that lose nothing, and optimizers that use them."""
