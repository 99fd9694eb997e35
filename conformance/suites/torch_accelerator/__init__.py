"""Cases of ``torch.accelerator``: each public name, judged by its effect on the device."""
