"""Stock PyTorch on fixed-shape tiles: exact on any device PyTorch runs on."""

from foreword.kernels.torch.backend import TorchKernels, make

__all__ = ["TorchKernels", "make"]
