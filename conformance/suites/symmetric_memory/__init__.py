"""Cases of ``torch.distributed._symmetric_memory``: memory that each rank reads and writes directly."""
