"""The C++ backend: one native call per pass, kernels chosen by instruction set at run time."""

from foreword.kernels.cpu.backend import CpuKernels, make, native_rows

__all__ = ["CpuKernels", "make", "native_rows"]
