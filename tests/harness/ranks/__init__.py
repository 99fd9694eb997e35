"""The rank pool: what ranks do when things go wrong, and what is left of them."""
