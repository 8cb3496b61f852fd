"""How far two results may be apart."""
import torch

# relative to the value, relative to the largest value of the result
NEAR = {torch.float64: (1e-7, 1e-9), torch.complex128: (1e-7, 1e-9), torch.float32: (1e-4, 1e-5),
    torch.complex64: (1e-4, 2e-5), torch.float16: (1e-2, 1e-3), torch.bfloat16: (2e-2, 1e-2)}


def shape_of(x):
    return f"{str(x.dtype)[6:]} {list(x.shape)}"


def differs(ours, theirs, how="values"):
    """What differs, or None. how: "shapes" compares types and shapes alone."""
    if not isinstance(theirs, torch.Tensor):
        return scalar_differs(ours, theirs)
    if not isinstance(ours, torch.Tensor):
        if theirs.ndim == 0:
            return scalar_differs(ours, theirs.item())
        return f"{ours}; PyTorch: {shape_of(theirs)}"
    if shape_of(ours) != shape_of(theirs):
        return f"{shape_of(ours)}; PyTorch: {shape_of(theirs)}"
    if how == "shapes":
        return None
    theirs = theirs.detach().resolve_conj().resolve_neg()
    if theirs.dtype not in NEAR:
        if torch.equal(ours, theirs):
            return None
        return f"{ours.flatten()[:6].tolist()}; PyTorch: {theirs.flatten()[:6].tolist()}"
    relative, absolute = NEAR[theirs.dtype]
    finite = theirs[theirs.isfinite()].abs()
    scale = max(1.0, finite.max().item()) if finite.numel() else 1.0
    near = torch.isclose(ours, theirs, rtol=relative, atol=absolute * scale, equal_nan=True)
    if near.all():
        return None
    at = (~near).flatten().nonzero()[0].item()
    return f"{ours.flatten()[at].item()} at {at} of {shape_of(ours)}; PyTorch: {theirs.flatten()[at].item()}"


def scalar_differs(ours, theirs):
    if isinstance(ours, torch.Tensor):
        if ours.ndim == 0:
            ours = str(ours.item()).lower() if ours.dtype == torch.bool else str(ours.item())
        else:
            return f"{shape_of(ours)}; PyTorch: {theirs}"
    if isinstance(theirs, bool):
        same = ours == str(theirs).lower()
    elif isinstance(theirs, (int, float)):
        try:
            same = abs(float(ours) - theirs) <= 1e-5 * max(1, abs(theirs)) or float(ours) == theirs \
                or float(ours) != float(ours) and theirs != theirs
        except ValueError:
            same = False
    else:
        same = ours == str(theirs)
    return None if same else f"{ours}; PyTorch: {theirs}"
