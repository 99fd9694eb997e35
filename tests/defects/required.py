"""What the catalogue has to hold: defects seen in real stacks, and families. Each has mutants, waits, or both."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Line:
    """A defect that somebody had. ``waits`` names areas not built yet that will catch what the mutants do not show."""

    what: str
    mutants: tuple[str, ...] = ()
    waits: str = ""


#: Defects of accelerators and kernels, from the history of DeepSpeed and its backends.
LINES = (
    Line("fused Adam without bias correction, or a step off by one",
         ("fused Adam corrects no bias", "fused Adam counts steps from 2", "a fused Adam without bias correction",
          "a fused Adam one step ahead")),
    Line("fused Adam's mode ignored: decay added to the gradient, or dropped",
         ("fused AdamW decays as Adam does", "fused AdamW decays nothing", "a fused Adam that is always AdamW",
          "a fused Adam without decay in mode 0", "a CPU Adam that is always AdamW")),
    Line("fused Adam loses the tail of a chunk, or everything above INT_MAX",
         ("fused Adam loses the tail of a chunk", "fused SGD leaves large tensors",
          "a fused Adam that loses the tail")),
    Line("optimizer arithmetic in the storage dtype", ("a fused Adam in float16 throughout",)),
    Line("Lion takes sign(0) for ±1",
         ("a fused Lion whose 0 is positive", "a fused Lion whose 0 is negative", "a CPU Lion whose 0 is negative")),
    Line("LAMB's trust ratio unclamped, or norms over the first blocks only",
         ("a LAMB that does not clamp", "a LAMB with the norm of 512 blocks")),
    Line("an optimizer called twice in one step advances its beta powers",
         ("a CPU Adam that advances with every call",)),
    Line("fake quantization rounds dequantized values, or reads bfloat16 as float16",
         ("fake quantization of float32 to integers", "bfloat16 is read as float16")),
    Line("asymmetric dequantization through half precision, swapped nibbles",
         ("offsets go through float16", "two numbers of a byte are exchanged")),
    Line("softmax and causal masks off by one, fully masked rows",
         ("the triangle is off by one", "softmax over the axis beside", "a causal mask one too late",
          "a hidden row that is NaN", "a cache one place early")),
    Line("bfloat16 all-reduce truncates or accumulates in bfloat16", ("bfloat16 sums are cut off",)),
    Line("reduce-scatter drops the remainder, padding leaks",
         ("copies write one element too many", "reduce-scatter drops the remainder"), "zero"),
    Line("all-gather in the wrong order after new_group, op or group ignored",
         ("all-gather of a new group is mirrored", "all-reduce ignores its group", "max is a sum")),
    Line("all-to-all with uneven splits transposed", ("uneven rows come the other way round",),
         "moe, sequence parallelism"),
    Line("a hang instead of an error", ("an operator never returns", "an operator spins", "a rank stays away"),
         "launcher, for ranks"),
    Line("generator state not restored, reading it advances, lazy_call drops its callback",
         ("set_rng_state does nothing", "get_rng_state advances", "lazy_call drops its callback",
          "the device says it is not initialised")),
    Line("manual_seed seeds the current device only, device and host coupled",
         ("manual_seed_all seeds the current device only", "seeding the device seeds the host")),
    Line("elapsed_time negative or in a wrong unit, query always True, synchronize early",
         ("elapsed_time is negative", "elapsed_time is in seconds", "event.query is always True",
          "device synchronize returns at once")),
    Line("a stream does not wait, memory reused while a side stream reads it",
         ("wait_stream does nothing", "the default stream is the current one", "record_stream does nothing")),
    Line("asynchronous copies return early, a false claim of pinning",
         ("copies to the host never arrive", "copies to the device return early", "is_pinned is always True",
          "files are not copied back to the device")),
    Line("low-precision accumulation, backward gives zeros or another dtype",
         ("16-bit products are added in 16 bits", "relu's gradient is 0", "a gradient has another dtype")),
    Line("current_device of a wrong type or stale, device_name ignores its index, visibility not honoured",
         ("current_device is a string", "current_device is stale", "device_name ignores the index",
          "the visible devices are ignored"), "launcher, for ranks"),
    Line("memory numbers lie, empty_cache frees live tensors",
         ("more is available than there is", "peak memory is 0", "memory is counted on device 0",
          "empty_cache destroys live tensors")),
    Line("graph replay uses stale inputs, capture executes, create_graph without an answer",
         ("replays use the inputs of the capture", "capturing runs the work", "no graph, but a replay")),
    Line("ranks disagree on overflow, −infinity missed, checkpoints without float32",
         ("the loss scaler misses −infinity", "checkpoints lose the dtype"), "runtime, for ranks; onebit; compile"),
)  # fmt: skip

#: Families of defects, in the words of ``Fault.family``; the areas that will hold those without a mutant today.
FAMILIES: dict[str, str] = dict.fromkeys(
    (
        "stale or missing sync", "event time without work", "stream order ignored", "async copy returning early",
        "strides or storage offset ignored", "size-0 broadcasting", "empty tensors", "in-place aliasing",
        "out= resized silently", "wrong type promotion", "integer overflow saturates", "integer division rounding",
        "NaN in max/min/sort", "−0", "subnormals flushed", "tf32-like truncation", "low-precision accumulation",
        "reduction over the wrong axis with equal sizes", "last tile not computed", "out-of-bounds write by one",
        "mask off by one", "dropout ignoring the seed or p = 0/1", "rng state not restored",
        "generator shared between devices", "broadcast gradient not reduced", "gradient accumulation overwrites",
        "gradient dtype", "loss-scaler overflow ignored", "optimizer state on the wrong device",
        "all-reduce missing a rank, average without division, wrong op for max",
        "memory statistics negative or constant", "empty_cache frees live memory", "device count lies",
        "set_device ignored", "pinned flag false", "checkpoint loses dtype", "over-declared", "under-declared",
        "host fallback", "unclean refusal", "poison after case N", "hang", "abort", "exit(0)",
        "broadcast from the wrong root", "all-gather order", "reduce-scatter remainder", "no-op barrier",
        "sub-group rank mapping", "p2p mix-up", "compressed communication", "sharded parameters and gradients",
        "training engines", "checkpoints that do not go on", "layers in parts",
    ),
    "",
)  # fmt: skip
