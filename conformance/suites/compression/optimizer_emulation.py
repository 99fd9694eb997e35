"""Single-process reference of the one-bit optimizers, one function for each.

The docstrings of the kernels under test name the papers.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from conformance.suites.compression.emulation import EmulatedExchange

#: Gradients of all parameters, given a rank and a step.
Gradients = Callable[[int, int], list[Tensor]]
#: Parameters after every step: a list for each step, in it a list for each rank.
Trajectory = list[list[list[Tensor]]]
BETA1, BETA2, EPS = 0.9, 0.999, 1e-8


def mean(tensors: list[Tensor]) -> Tensor:
    """Return the mean, with the sum taken in the order of ranks."""
    total = tensors[0].clone()
    for tensor in tensors[1:]:
        total = total + tensor
    return total / len(tensors)


def exchanged(exchange: EmulatedExchange, tensors: list[Tensor]) -> Tensor:
    """Return the compressed mean over ranks; a single rank has nothing to exchange and nothing to compress."""
    return exchange.mean(tensors) if len(tensors) > 1 else tensors[0]


def one_bit_adam(
    start: list[Tensor],
    gradients: Gradients,
    size: int,
    steps: int,
    *,
    lr: float,
    weight_decay: float,
    freeze_step: int,
) -> Trajectory:
    parameters = [tensor.clone() for tensor in start]
    m, v = ([torch.zeros_like(tensor) for tensor in start] for _ in range(2))
    exchanges, trajectory = [EmulatedExchange() for _ in start], []
    for step in range(steps):
        for index, parameter in enumerate(parameters):
            own = [gradients(rank, step)[index] for rank in range(size)]
            if step < freeze_step:
                g = mean(own)
                m[index] = BETA1 * m[index] + (1 - BETA1) * g
                v[index] = BETA2 * v[index] + (1 - BETA2) * g**2
            else:  # compressed stage: the variance stays frozen
                m[index] = exchanged(exchanges[index], [BETA1 * m[index] + (1 - BETA1) * g for g in own])
            parameters[index] = parameter - lr * (m[index] / (v[index].sqrt() + EPS) + weight_decay * parameter)
        trajectory.append([list(parameters)] * size)
    return trajectory


def one_bit_lamb(
    start: list[Tensor],
    gradients: Gradients,
    size: int,
    steps: int,
    *,
    lr: float,
    weight_decay: float,
    freeze_step: int,
) -> Trajectory:
    parameters, indices = [tensor.clone() for tensor in start], range(len(start))
    m, v, fresh = ([torch.zeros_like(tensor) for tensor in start] for _ in range(3))
    average, factors, exchange, trajectory = [0.0] * len(start), [1.0] * len(start), EmulatedExchange(), []
    scales = [1.0] * len(start)
    for step in range(steps):
        own = [gradients(rank, step) for rank in range(size)]
        if step < freeze_step:
            for i in indices:
                g, p = mean([gradient[i] for gradient in own]), parameters[i]
                m[i], v[i] = BETA1 * m[i] + (1 - BETA1) * g, BETA2 * v[i] + (1 - BETA2) * g**2
                update = m[i] / (v[i].sqrt() + EPS) + weight_decay * p
                ratio = min(10.0, max(0.01, float(p.norm() / update.norm())))
                average[i] = 0.9 * average[i] + 0.1 * ratio
                parameters[i] = p - lr * ratio * update
                fresh[i] = v[i]
        else:
            if step == freeze_step:
                # All tensors are compressed as one, and a chunk has one magnitude: so all get one root mean square.
                sizes = [float(tensor.pow(2).mean().sqrt()) for tensor in m]
                scales = [sum(sizes) / len(sizes) / root_mean_square for root_mean_square in sizes]
            moved = [[(BETA1 * m[i] + (1 - BETA1) * own[rank][i]) * scales[i] for i in indices] for rank in range(size)]
            flat = exchanged(exchange, [torch.cat([tensor.reshape(-1) for tensor in tensors]) for tensors in moved])
            parts = flat.split([tensor.numel() for tensor in start])
            for i in indices:
                last, m[i] = m[i], parts[i].view(start[i].shape) / scales[i]
                fresh[i] = BETA2 * fresh[i] + (1 - BETA2) * ((m[i] - BETA1 * last) / (1 - BETA1)) ** 2
                direction, p = m[i] / (v[i].sqrt() + EPS), parameters[i]
                update = direction + weight_decay * p
                share = min(1.0, float(direction.norm() / update.norm()))
                factor = float(((v[i].sqrt() + EPS) / (fresh[i].sqrt() + EPS)).max()) * share + 1 - share
                factor = min(4.0, max(0.5, factor))
                factors[i] = min(1.1 * factors[i], max(0.9 * factors[i], factor))
                parameters[i] = p - lr * average[i] * factors[i] * update
        trajectory.append([list(parameters)] * size)
    return trajectory


def zero_one_adam(
    start: list[Tensor],
    gradients: Gradients,
    size: int,
    steps: int,
    *,
    lr: float,
    weight_decay: float,
    var_freeze_step: int,
    var_update_scaler: int,
    local_step_scaler: int,
) -> Trajectory:
    columns = [
        _zero_one_column(
            tensor, [[gradients(rank, step)[index] for rank in range(size)] for step in range(steps)],
            lr, weight_decay, var_freeze_step, var_update_scaler, local_step_scaler,
        )
        for index, tensor in enumerate(start)
    ]  # fmt: skip
    return [[[column[step][rank] for column in columns] for rank in range(size)] for step in range(steps)]


def _zero_one_column(
    start: Tensor, own: list[list[Tensor]], lr: float, decay: float, freeze: int, renewals: int, scaler: int
) -> list[list[Tensor]]:
    """Return one parameter by step and rank. Steps are numbered from 1, as the schedule counts them."""
    ranks = range(len(own[0]))
    p, m, u = [start] * len(ranks), [torch.zeros_like(start)] * len(ranks), [torch.zeros_like(start)] * len(ranks)
    v, interval, renewed, pause, local_steps, rates, trajectory = torch.zeros_like(start), 1, 0, 1, 0, 0.0, []
    exchange = EmulatedExchange()
    for step, gradient in enumerate(own, start=1):
        if step <= freeze:
            if step % interval == 0:
                g = mean(gradient)
                v, renewed = BETA2 * v + (1 - BETA2) * g**2, renewed + 1
            else:
                g = exchanged(exchange, gradient)
            if renewed == renewals:
                renewed, interval = 0, 2 * interval
            gradient = [g] * len(ranks)
            if step == freeze:
                exchange = EmulatedExchange()  # from here on changes of parameters are sent: drop gradients' feedback
        root = v.sqrt() + EPS
        m = [BETA1 * m[r] + (1 - BETA1) * gradient[r] for r in ranks]
        change = [-lr * (m[r] / root + decay * p[r]) for r in ranks]
        p = [p[r] + change[r] for r in ranks]
        if step > freeze:
            u, rates = [u[r] + change[r] for r in ranks], rates + lr
            if step % pause == 0:
                together = exchanged(exchange, [tensor * root for tensor in u])
                m = [together / -rates] * len(ranks)
                p = [p[r] - u[r] + together / root for r in ranks]
                u, rates = [torch.zeros_like(start)] * len(ranks), 0.0
            local_steps += 1
            if local_steps == scaler:
                local_steps, pause = 0, min(16, 2 * pause)
        trajectory.append(list(p))
    return trajectory
