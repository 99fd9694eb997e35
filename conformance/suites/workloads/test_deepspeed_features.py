"""Cases of DeepSpeed's engine besides ZeRO's steps: hooks, files, compiling, tensor parallelism and checkpoints."""

from __future__ import annotations

import importlib.util
import os
from types import SimpleNamespace

import torch
import torch.distributed as dist

from conformance.accelerators.capabilities import CHECKPOINT, COMM, COMM_DTYPE, COMPILE, DTYPE, Cell
from conformance.judging.finding import environment_lacks
from conformance.plan.case import cases

from .parallel import models
from .parallel.deepspeed_engine import IMPORTS, config_of, deepspeed_on, start, weights_of
from .parallel.planned import check_mean_losses, planned

RANK_IMPORTS = (*models.IMPORTS, *IMPORTS)
NEEDS = (COMM, COMM_DTYPE.on("float32"), DTYPE.on("float32"), Cell("workloads.llama", "float32", "training"))
#: Sizes of a model of which each rank moves states to files: DeepSpeed keeps states below a megabyte in memory.
FILED = {"hidden_size": 128, "intermediate_size": 256}
#: Optimizers of DeepSpeed that send signs, their settings, and the step from which they send signs. Some versions have
#: none of them.
ONE_BIT = {
    "OneBitAdam": ({"freeze_step": 6}, 6),
    "OneBitLamb": ({"freeze_step": 6}, 6),
    "ZeroOneAdam": ({"var_freeze_step": 6, "var_update_scaler": 2, "local_step_scaler": 4, "local_step_clipper": 1}, 6),
}


def _of(way, key, values, ranks, *needs):
    return [planned(f"deepspeed.{way}", ((key, str(value)),), (*NEEDS, *needs), ranks) for value in values]


def _stage(case):
    return int(dict(case.axes)["stage"])


def _mine(step, rank, world_size, device):
    return [tensor.chunk(world_size)[rank].to(device) for tensor in models.batches()[step]]


def _train(engine, rank, world_size, device, steps=range(models.STEPS), backward=None):
    """Train some steps on this rank's part of each batch, and return the losses."""
    run = []
    for step in steps:
        loss = models.loss_on(engine, *_mine(step, rank, world_size, device))
        (backward or engine.backward)(loss)
        engine.step()
        run.append(float(loss.detach()))
    return run


# --- hooks and gradients of the user ----------------------------------------------------------------------------------


def _larger(_module, _inputs, output):
    """Scale the output of a layer, and the gradient that comes back to it."""
    output.register_hook(lambda gradient: gradient * 0.5)
    return output * 1.25


def with_hooks(model):
    """Register the hooks of a user: on a layer's output, on its gradient, and on the gradient of a weight."""
    model.model.layers[1].register_forward_hook(_larger)
    model.model.norm.weight.register_hook(lambda gradient: gradient * 3.0)


@cases(lambda: _of("hooks", "stage", range(4), 2))
def test_hooks(accelerator, check, device, case, rank, world_size, group):
    """Hooks that a user registers on a layer, its output's gradient and a weight's gradient act in every step."""
    model, config = models.new_model("llama").to(device), config_of(_stage(case), "float32", world_size)
    with_hooks(model)
    engine = start(accelerator, device, model, config, world_size)

    _train(engine, rank, world_size, device)

    models.check_weights(check, "llama", weights_of(engine), known=models.reference("llama", with_hooks))
    plain = models.reference("llama").weights["model.norm.weight"]
    moved = models.error_of(models.reference("llama", with_hooks).weights["model.norm.weight"], plain)
    check.that(moved > 100 * models.bound("weights"), f"the hooks change a weight by {moved:.3g} only")


@cases(lambda: _of("user_backward", "stage", (1, 2, 3), 2))
def test_user_backward(accelerator, check, device, case, rank, world_size, group):
    """A user's own loss.backward() gives the weights of one process."""
    config = config_of(_stage(case), "float32", world_size)
    engine = start(accelerator, device, models.new_model("llama").to(device), config, world_size)

    run = _train(engine, rank, world_size, device, backward=lambda loss: loss.backward())

    models.check_weights(check, "llama", weights_of(engine))
    check_mean_losses(check, "llama", run, world_size, device)


# --- parameters in parts and on files ---------------------------------------------------------------------------------


@cases(lambda: [case for ranks in (2, 4) for case in _of("gathered", "world", (ranks,), ranks)])
def test_gathered(accelerator, check, device, case, rank, world_size, group):
    """A parameter is in parts on the ranks of ZeRO 3; gathered it is whole on each of them."""
    config = config_of(3, "float32", world_size, zero={"stage3_param_persistence_threshold": 0})
    engine = start(accelerator, device, models.new_model("llama").to(device), config, world_size)
    import deepspeed

    for name, exact in models.new_model("llama").named_parameters():
        parameter = engine.module.get_parameter(name)
        check.equal(parameter.numel(), 0, f"elements of {name} that a rank holds outside of gathering")
        check.equal(parameter.ds_tensor.numel(), -(-exact.numel() // world_size), f"elements of a part of {name}")
        with deepspeed.zero.GatheredParameters([parameter]):
            check.equal(parameter.detach().cpu(), exact.detach(), f"{name} gathered")


@cases(lambda: _of("gathered_write", "world", (2,), 2))
def test_gathered_write(accelerator, check, device, case, rank, world_size, group):
    """A gathered parameter that one rank changes is changed on every rank, and in the next forward pass."""
    engine = start(
        accelerator, device, models.new_model("llama").to(device), config_of(3, "float32", world_size), world_size
    )
    import deepspeed

    here = torch.device(accelerator.current_device_name())
    if torch.empty(1, device=here).device != here:
        environment_lacks(
            f"DeepSpeed compares the device of a tensor with {here}, as current_device_name() says; PyTorch's tensors "
            f"are on {torch.empty(1, device=here).device} here"
        )
    written = engine.module.model.norm.weight
    wanted = torch.linspace(0.5, 1.5, models.SIZES["hidden_size"])
    with deepspeed.zero.GatheredParameters([written], modifier_rank=1):
        written.data.copy_(wanted if rank == 1 else -wanted)
    with deepspeed.zero.GatheredParameters([written]):
        check.equal(written.detach().cpu(), wanted, "what rank 1 has written")
    exact = models.new_model("llama").double()
    exact.model.norm.weight.data.copy_(wanted)
    tokens, targets = models.batches()[0]
    with torch.no_grad():
        found = float(models.loss_on(engine, tokens.to(device), targets.to(device)))
        right = float(models.loss_on(exact, tokens, targets))
    check.that(abs(found - right) <= models.bound("loss") * right, f"the loss is {found!r}, and it should be {right!r}")


@cases(lambda: _of("nvme", "stage", (3,), 2))
def test_nvme(accelerator, check, device, case, rank, world_size, group, shared_dir):
    """With parameters and states of the optimizer in files, the weights are those of one process."""
    deepspeed_on(accelerator, device, world_size)
    builder = accelerator.create_op_builder("AsyncIOBuilder")
    if builder is None or not builder.is_compatible():
        environment_lacks("the accelerator's AsyncIOBuilder is not compatible here, and NVMe offload needs it")
    files = {"device": "nvme", "nvme_path": str(shared_dir), "buffer_count": 4}
    config = config_of(
        3, "float32", world_size, zero_force_ds_cpu_optimizer=False,
        zero={
            "offload_optimizer": files,
            "offload_param": {**files, "buffer_count": 16, "buffer_size": 2**17},
            "stage3_param_persistence_threshold": 0,
        },
    )  # fmt: skip
    engine = start(accelerator, device, models.new_model("llama", **FILED).to(device), config, world_size)

    run = _train(engine, rank, world_size, device)

    exact = models.reference("llama", **FILED)
    models.check_weights(check, "llama", weights_of(engine), known=exact)
    check_mean_losses(check, "llama", run, world_size, device, known=exact)
    kept = sum(file.stat().st_size for file in shared_dir.rglob("*") if file.is_file())
    needed = sum(4 * value.numel() for value in exact.weights.values())
    check.that(kept >= needed, f"files keep {kept} bytes, and the weights alone have {needed}")
    check.metric("file_bytes", kept)


# --- compiled, and tensor parallelism ---------------------------------------------------------------------------------


@cases(lambda: _of("compiled", "stage", (0, 1), 2, COMPILE))
def test_compiled(accelerator, check, device, case, rank, world_size, group):
    """A model that the engine compiles has the losses and weights of one process."""
    config = config_of(_stage(case), "float32", world_size)
    engine = start(accelerator, device, models.new_model("llama").to(device), config, world_size)
    engine.compile(backend="aot_eager")
    check.that(engine.is_compiled, "the engine is not compiled")

    run = _train(engine, rank, world_size, device)

    models.check_weights(check, "llama", weights_of(engine))
    check_mean_losses(check, "llama", run, world_size, device)


@cases(lambda: _of("deepcompile", "stage", (1,), 1, COMPILE))
def test_deepcompile(accelerator, check, device, case, rank, world_size, group):
    """With DeepCompile the weights are those of one process."""
    deepspeed_on(accelerator, device, world_size)
    from deepspeed.compile.util import is_deepcompile_supported

    if not is_deepcompile_supported():
        environment_lacks("DeepSpeed's is_deepcompile_supported() is False: DeepSpeed has DeepCompile for CUDA only")
    config = config_of(1, "float32", world_size, compile={"deepcompile": True})
    engine = start(accelerator, device, models.new_model("llama").to(device), config, world_size)
    engine.compile()

    run = _train(engine, rank, world_size, device)

    models.check_weights(check, "llama", weights_of(engine))
    check_mean_losses(check, "llama", run, world_size, device)


@cases(lambda: [case for ranks in (2, 4) for case in _of("auto_tp", "world", (ranks,), ranks)])
def test_auto_tp(accelerator, check, device, case, world_size, group):
    """A llama that DeepSpeed cuts over the ranks has the losses and weights of one process."""
    config = config_of(0, "float32", 1, tensor_parallel={"autotp_size": world_size})
    engine = start(accelerator, device, models.new_model("llama").to(device), config, world_size)

    run = _train(engine, 0, 1, device)

    exact = models.reference("llama").weights
    parts = {name: value.detach().cpu() for name, value in engine.module.named_parameters()}
    check.that(any(parts[name].shape != exact[name].shape for name in exact), "no weight is cut over the ranks")
    full = {name: _whole(value, exact[name].shape, device) for name, value in parts.items()}
    models.check_weights(check, "llama", full)
    check_mean_losses(check, "llama", run, 1, device)


def _whole(part, shape, device):
    """Return the full weight: the parts of all ranks, joined along the dimension in which they are shorter."""
    cut = [dim for dim, (own, full) in enumerate(zip(part.shape, shape, strict=True)) if own != full]
    if not cut:
        return part
    everyone = [torch.empty_like(part, device=device) for _ in range(dist.get_world_size())]
    dist.all_gather(everyone, part.to(device).contiguous())
    return torch.cat(everyone, cut[0]).cpu()


# --- checkpoints ------------------------------------------------------------------------------------------------------


def universal_cases():
    """Return a case for each stage and number of ranks after, such as ``workloads.deepspeed.universal[3-4]``."""
    return [
        planned("deepspeed.universal", (("stage", stage), ("after", str(after))), (*NEEDS, CHECKPOINT), max(2, after))
        for stage in "13"
        for after in (1, 4)
    ]


@cases(universal_cases)
def test_universal(accelerator, check, device, case, rank, world_size, shared_dir):
    """A checkpoint of two ranks, made universal and loaded by one or four, gives the weights of one process."""
    axes, half = dict(case.axes), models.STEPS // 2
    stage, after = int(axes["stage"]), int(axes["after"])
    dist.destroy_process_group()  # DeepSpeed's engine takes all ranks of the default group, and here are two sizes
    # DeepSpeed numbers the parameters of a process. The ranks have to agree, so each of them is in an engine before.
    pair = shared_dir / str(rank // 2)
    pair.mkdir(exist_ok=True)
    _join(accelerator, device, pair / "store", rank % 2, 2)
    model, config = models.new_model("llama").to(device), config_of(stage, "float32", 2)
    engine = start(accelerator, device, model, config, 2, models.adamw_of)
    _train(engine, rank % 2, 2, device, range(half))
    engine.save_checkpoint(str(pair / "saved"), tag="half")
    dist.barrier()
    if rank == 0:
        _make_universal(pair / "saved" / "half", shared_dir / "universal" / "half")
    dist.barrier()
    _leave()
    check.that(True, "took part")  # a rank that only the first engine has compares nothing
    if rank >= after:
        return
    _join(accelerator, device, shared_dir / "store", rank, after)
    config = config_of(stage, "float32", after, checkpoint={"load_universal": True})
    engine = start(accelerator, device, models.new_model("llama", seed=1).to(device), config, after, models.adamw_of)
    engine.load_checkpoint(str(shared_dir / "universal"), tag="half")
    _train(engine, rank, after, device, range(half, models.STEPS))

    exact = models.reference("llama", None, models.adamw_of)
    models.check_weights(check, "llama", weights_of(engine), kind="_adamw", known=exact)
    _leave()


def _join(accelerator, device, store, rank, ranks):
    """Make the default group of some ranks. The file is made by the first of them."""
    backend = accelerator.communication_backend_name()
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(ranks))  # DeepSpeed compares them with the group
    dist.init_process_group(backend, init_method=f"file://{store}", rank=rank, world_size=ranks)


def _leave():
    """Destroy the default group, and let DeepSpeed forget it."""
    from deepspeed import comm

    comm.destroy_process_group()


def _make_universal(saved, folder):
    from deepspeed.checkpoint import ds_to_universal

    ds_to_universal.main(
        SimpleNamespace(
            input_folder=str(saved), output_folder=str(folder), num_extract_workers=1, num_merge_workers=1,
            keep_temp_folder=False, strict=True, inject_missing_state=True,
        )
    )  # fmt: skip


# --- optimizers that send signs ---------------------------------------------------------------------------------------


@cases(lambda: _of("one_bit", "optimizer", ONE_BIT, 2))
def test_one_bit(accelerator, check, device, case, rank, world_size, group):
    """A llama learns with DeepSpeed's optimizers that send signs, and all ranks keep the same weights."""
    deepspeed, name = deepspeed_on(accelerator, device, world_size), dict(case.axes)["optimizer"]
    if importlib.util.find_spec("deepspeed.runtime.fp16.onebit") is None:
        environment_lacks(f"DeepSpeed {deepspeed.__version__} has no {name}: it was removed from DeepSpeed")
    settings, compressed_from = ONE_BIT[name]
    config = config_of(0, "float32", world_size, optimizer={
        "type": name, "params": {"lr": 1e-3, "comm_backend_name": "compressed", **settings},
    })  # fmt: skip
    engine = start(accelerator, device, models.new_model("llama").to(device), config, world_size, lambda model: None)

    try:
        run = _train(engine, rank, world_size, device, [0])
    except RuntimeError as error:
        if "allgather: invalid tensor size" not in str(error):
            raise
        environment_lacks(
            f"DeepSpeed {deepspeed.__version__} gathers scales without a dimension into tensors of one element, which "
            f"{dist.get_backend()} refuses: {error}"
        )
    check.same_on_all_ranks("weights", _flat(engine))
    # The first step of these optimizers only makes their buffers.
    exact = models.new_model("llama").named_parameters()
    still = all(torch.equal(engine.module.get_parameter(name).cpu(), value) for name, value in exact)
    check.that(still, "the first step has changed the weights")
    run += [loss for _ in range(3) for loss in _train(engine, rank, world_size, device)]

    check.that(run[-1] < run[0] - 0.1, f"the loss fell from {run[0]:.3f} to {run[-1]:.3f} only")
    check.same_on_all_ranks("weights", _flat(engine))
    check.metric("compressed_from_step", compressed_from)


def _flat(engine):
    return torch.cat([value.detach().flatten() for value in engine.module.parameters()])
