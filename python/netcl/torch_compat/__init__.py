"""PyTorch's module names over netcl, for programs that should change one line: ``import netcl.torch_compat as torch``.

Names that netcl has are netcl's. A name that is missing raises ``AttributeError`` that says what to write instead. ``install()`` makes ``import torch`` and
``import torch.nn.functional as F`` of other files give these modules.
"""

from ._device import cuda, device, get_default_device
from ._names import __getattr__ as __getattr__
from ._names import install, names

__all__ = ["cuda", "device", "get_default_device", "install", "names"]
