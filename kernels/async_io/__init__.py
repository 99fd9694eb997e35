"""Asynchronous I/O between tensors and files: DeepSpeed's ``aio_handle``.

A compiled engine bypasses the page cache and keeps a queue of requests in flight; a portable one uses Python's own
calls. Both give the same bytes and refuse the same arguments. ``AsyncIOBuilder`` chooses between them.
"""

from conformance.kernels.async_io.engines import describe
from conformance.kernels.async_io.handle import Handle, NativeHandle, PortableHandle, native_handle

__all__ = ["Handle", "NativeHandle", "PortableHandle", "native_handle", "describe"]
