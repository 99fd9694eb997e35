"""Networks and losses computed a tile of the tokens at a time: the same numbers in less memory."""
