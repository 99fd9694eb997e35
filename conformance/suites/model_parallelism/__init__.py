"""Model parallelism cases: layers that DTensor shards over ranks agree with whole layers."""
