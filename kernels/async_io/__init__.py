"""Tensors to and from files, many requests at a time: DeepSpeed's ``aio_handle``.

A compiled engine goes past the page cache with a queue of requests; a portable one uses Python's own calls. Both give
the same bytes and refuse the same arguments. ``AsyncIOBuilder`` chooses between them.
"""

from conformance.kernels.async_io.engines import describe
from conformance.kernels.async_io.handle import Handle, NativeHandle, PortableHandle, native_handle

__all__ = ["Handle", "NativeHandle", "PortableHandle", "native_handle", "describe"]
