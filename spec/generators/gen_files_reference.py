"""Writes files_reference.lua: small files as NumPy and Pillow write them, in hexadecimal, with what is in them.

    python3 gen_files_reference.py > files_reference.lua        (needs numpy and Pillow)
"""
import io

import numpy as np
from PIL import Image


def hexed(b):
    return '"' + b.hex() + '"'


def lua(v):
    if isinstance(v, (list, np.ndarray)):
        return "{ " + ", ".join(lua(x) for x in v) + " }"
    if isinstance(v, (bool, np.bool_)):
        return "true" if v else "false"
    return repr(float(v)).removesuffix(".0")


def npy(a, **how):
    f = io.BytesIO()
    np.lib.format.write_array(f, a, **how)
    return f.getvalue()


def npz(fn, **arrays):
    f = io.BytesIO()
    fn(f, **arrays)
    return f.getvalue()


def picture(image, kind, **how):
    f = io.BytesIO()
    image.save(f, kind, **how)
    return f.getvalue()


def planes(image):
    a = np.array(image)
    return a[None] if a.ndim == 2 else a.transpose(2, 0, 1)


def main():
    base = np.array([[1, 0, 3], [0, 5, 100]])
    kinds = [("<f4", "float32"), ("<f8", "float64"), ("<f2", "float16"), ("<i8", "int64"), ("<i4", "int32"),
        ("|u1", "uint8"),
             ("|b1", "bool"), ("|i1", "int32"), ("<i2", "int32"), ("<u2", "int32"), ("<u4", "int64"), ("<u8", "int64"),
             (">f4", "float32"), (">f8", "float64"), (">i2", "int32"), (">i8", "int64"), (">u8", "int64")]
    print("-- Written by gen_files_reference.py with NumPy and Pillow.")
    print("return {\n  npy = {")
    for descr, dtype in kinds:
        a = base.astype(descr)
        for order in "CF":
            b = np.asarray(a, order=order)
            print(f'    {{ "{descr}", "{dtype}", {lua(a)}, {hexed(npy(b))} }},')
    three = np.asfortranarray(np.arange(12, dtype="<i4").reshape(2, 3, 2))
    print(f'    {{ "3 dims", "int32", {lua(three)}, {hexed(npy(three))} }},')
    print(f'    {{ "version 2", "float32", {{ 1, 2 }}, {hexed(npy(np.float32([1, 2]), version=(2, 0)))} }},')
    print(f'    {{ "version 3", "float32", {{ 1, 2 }}, {hexed(npy(np.float32([1, 2]), version=(3, 0)))} }},')
    print("  },")
    big = np.full(1, 2**64 - 1, "<u8")
    print(f"  npy_scalar = {hexed(npy(np.float32(2.5)))},\n  npy_empty = {hexed(npy(np.zeros((0, 3), '<f4')))},")
    print(f"  npy_complex = {hexed(npy(np.zeros(1, '<c8')))},")
    print(f"  npy_records = {hexed(npy(np.zeros(1, [('a', '<f4')])))},")
    print(f"  npy_too_big = {hexed(npy(big))},")
    arrays = dict(weights=np.float32([[1, 2], [3, 4]]), steps=np.arange(3))
    print(f"  npz_stored = {hexed(npz(np.savez, **arrays))},")
    print(f"  npz_deflated = {hexed(npz(np.savez_compressed, **arrays))},")

    y, x = np.mgrid[0:9, 0:12]
    rgb = np.stack([x * 20, y * 28, 255 - x * 10 - y * 10], -1).astype("u1")
    image = Image.fromarray(rgb)
    print("  pictures = {")
    for name, im, kind, how in [("png", image, "PNG", {}), ("png_grey", image.convert("L"), "PNG", {}),
                                ("png_palette", image.quantize(16), "PNG", {}),
                                    ("png_alpha", image.convert("RGBA"), "PNG", {}),
                                ("png_bits", image.convert("1"), "PNG", {}),
                                ("jpeg", image, "JPEG", dict(quality=95, subsampling=0)),
                                ("jpeg_grey", image.convert("L"), "JPEG", dict(quality=95)),
                                ("jpeg_progressive", image, "JPEG", dict(quality=95, progressive=True))]:
        data = picture(im, kind, **how)
        shown = Image.open(io.BytesIO(data))
        shown = shown.convert("L") if shown.mode in "1L" else shown.convert("RGB")
        print(f"    {name} = {{ {hexed(data)}, {lua(planes(shown))} }},")
    deep = Image.fromarray((rgb[:, :, 0].astype("u2") * 257))
    print(f"    png_16 = {{ {hexed(picture(deep, 'PNG'))}, {lua(rgb[None, :, :, 0])} }},")
    print("  },")
    print(f"  jpeg_cmyk = {hexed(picture(image.convert('CMYK'), 'JPEG'))},")
    for name, size in [("smaller", (5, 4)), ("larger", (20, 15)), ("wide", (17, 3))]:
        print(f"  resized_{name} = {lua(planes(image.resize(size, Image.BILINEAR)))},")
    print("}")


main()
