"""Registers the device ``mycelya``, and starts the machine that computes in this process."""

import mycelya_torch

machine = mycelya_torch.RemoteMachine("mock")
machine.device("cpu")
