"""An empty `sgl_kernel` package that lets SGLang's Python package start on a CPU.

For contract tests only. SGLang's kernels have no installable CPU build. Every name can be imported
from here and raises when called, so nothing imitates a kernel. SGLang sees that the operator
`torch.ops.sgl_kernel.convert_weight_packed` is missing and uses its torch-native paths. Installed
as `sgl_kernel/__init__.py` into a dedicated environment, never next to the real package.
"""

from collections.abc import Callable
from typing import NoReturn

import torch

__version__ = "0.0.0"


def __getattr__(name: str) -> Callable[..., NoReturn]:
    if name.startswith("__"):
        raise AttributeError(name)

    def missing(*_args: object, **_kwargs: object) -> NoReturn:
        raise NotImplementedError(f"sgl_kernel.{name} is a stub without a kernel")

    missing.__name__ = name
    return missing


# Operators of this namespace that SGLang 0.5.23 looks up on import.
for _name in (
    "fused_dual_residual_rmsnorm_cpu",
    "fused_gdn_gating_cpu",
    "fused_moe_router_cpu",
    "fused_qk_gemma_rmsnorm_cpu",
    "fused_qk_gemma_rmsnorm_with_gate_cpu",
    "fused_qkvzba_split_reshape_cat_contiguous_cpu",
    "fused_sigmoid_mul_cpu",
):
    setattr(torch.ops.sgl_kernel, _name, __getattr__(_name))
