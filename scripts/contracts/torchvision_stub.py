"""Let a CUDA build of torchvision import beside a CPU build of torch.

Its operator library cannot load there, and `import torchvision` fails on registering kernels for
operators that are missing. Only the pure-torch transforms are needed, so the two modules that do
the registering are declared empty before torchvision looks for them. Loaded by a `.pth` line in
every process of the environment; detection and NMS operators do not work after it.
"""

import sys
import types

for _name in ("torchvision._meta_registrations", "torchvision._autograd_registrations"):
    sys.modules.setdefault(_name, types.ModuleType(_name))
