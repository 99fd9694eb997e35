"""Interface cases: devices, memory, copies, random numbers, streams, events and graphs, judged by their effects."""
