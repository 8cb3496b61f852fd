"""Writes numpy_reference.lua: NumPy's values and lazy tensors as torch.save writes them.

    python3 gen_numpy_reference.py > numpy_reference.lua        (needs torch and numpy)
"""
import collections
import io

import numpy as np
import torch


def saved(value, **options):
    to = io.BytesIO()
    torch.save(value, to, **options)
    return to.getvalue().hex()


same = np.arange(3)
values = {
    "best": np.float64(0.5), "n": np.int64(7), "flag": np.bool_(True), "half": np.float16(1.5),
    "complex": np.complex64(1 + 2j), "zero": np.array(3.0), "empty": np.zeros((0, 3)),
    "matrix": np.arange(6, dtype=np.float32).reshape(2, 3),
    "fortran": np.asfortranarray(np.arange(6).reshape(2, 3)), "big_endian": np.array([1, 2], dtype=">i4"),
    "int8": np.array([-1, 2], dtype=np.int8), "uint16": np.array([65535], dtype=np.uint16),
    "uint32": np.array([2**32 - 1], dtype=np.uint32), "bools": np.array([True, False]),
    "complexes": np.array([1 + 2j]), "deque": collections.deque([1, 2, 3], maxlen=5), "same": [same, same],
}
z = torch.tensor([[1 + 2j]])
files = {
    "plain": saved(values),
    "legacy": saved(values, _use_new_zipfile_serialization=False),
    "protocol5": saved(values, pickle_protocol=5),
    "texts": saved({"a": np.array(["ab"])}),
    "objects": saved({"a": np.array([1, None], dtype=object)}),
    "inexact": saved({"a": np.int64(2**53 + 1)}),
    "dtype": saved({"a": np.dtype("f8")}),
    "lazy": saved({"conj": z.conj(), "adjoint": z.mH, "plain": z}),
    "lazy_legacy": saved({"conj": z.conj(), "adjoint": z.mH, "plain": z}, _use_new_zipfile_serialization=False),
    "negative": saved({"imag": z.conj().imag}),
}
print("-- Written by gen_numpy_reference.py with PyTorch and NumPy.\nreturn {")
for name, text in files.items():
    print(f'  {name} =\n    "{text}",')
print("}")
