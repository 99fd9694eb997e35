"""One set of weights that is trained and generates in turns: each sees what the other did, and nothing else."""
