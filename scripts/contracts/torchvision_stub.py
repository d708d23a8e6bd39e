"""Let a CUDA build of torchvision import next to a CPU build of torch.

Its operator library cannot load there, and `import torchvision` fails when it registers kernels for
the missing operators. Only the pure-torch transforms are needed, so this declares the two
registering modules as empty before torchvision imports them. A `.pth` line loads it in every
process of the environment. Detection and NMS operators do not work afterwards.
"""

import sys
import types

for _name in ("torchvision._meta_registrations", "torchvision._autograd_registrations"):
    sys.modules.setdefault(_name, types.ModuleType(_name))
