"""Monitor cases: logged values, counters of memory and throughput, and the files that they are written to."""
