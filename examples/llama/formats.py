"""The number formats of q, k, v and o in numpy arrays, and what rounding to them does."""
import math

import numpy as np


class Format:
    def __init__(self, name, dtype, digits):
        self.name, self.dtype, self.digits = name, np.dtype(dtype), digits
        self.work = np.float64 if self.dtype == np.float64 else np.float32  # what sums are held in

    def store(self, x):
        """x rounded to this format; x itself where it has it already."""
        if self.name != "bf16":
            return x.astype(self.dtype, copy=False)
        bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
        rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16  # to nearest, ties to even
        return np.where(np.isnan(x), 0x7FC0, rounded).astype(np.uint16)

    def load(self, x, dtype):
        """The numbers that x stores, exactly, as float32 or float64."""
        if self.name == "bf16":
            x = (x.astype(np.uint32) << 16).view(np.float32)
        return x.astype(dtype, copy=False)

    def ulp(self, x):
        """The distance from |x| to the next larger number."""
        return 2.0 ** (math.frexp(x)[1] - self.digits)

    def nan(self, shape):
        return np.full(shape, self.store(np.full(1, np.nan)))


F64 = Format("f64", np.float64, 53)
F32 = Format("f32", np.float32, 24)
F16 = Format("f16", np.float16, 11)
BF16 = Format("bf16", np.uint16, 8)  # numpy has no bfloat16: its bits lie in uint16
BY_DTYPE = {format.dtype: format for format in (F64, F32, F16, BF16)}
