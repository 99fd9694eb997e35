"""A PyTorch device in pure Python. Importing this package makes ``torch.device("heron")`` and ``torch.heron`` work.

A heron tensor is a wrapper: a subclass of ``torch.Tensor`` without a storage of its own, which holds a tensor of the
host and forwards every operator to it. PyTorch reaches the device in two ways. Calls with a heron tensor arrive in
``HeronTensor.__torch_dispatch__``. Calls without one, such as ``torch.empty(2, device="heron")``, and calls that
PyTorch makes below its Python layer arrive in a kernel of the dispatch key ``PrivateUse1``.
"""

from __future__ import annotations

from torch.utils.backend_registration import _setup_privateuseone_for_python_backend
from torch_heron import device

__version__ = "0.3.1"
_setup_privateuseone_for_python_backend("heron", device)

from torch_heron import dispatch  # noqa: E402 - the device type exists from here on

HeronTensor = dispatch.HeronTensor
#: Registrations live as long as this object.
_kernels = dispatch.register_kernels()
