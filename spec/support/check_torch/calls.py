"""How an entry of PyTorch's operator database is called in accel.

An entry without a line here is the function of its name (tensor.NAME, F.NAME for nn.functional.NAME, ..), whose
signature accel knows. A line names another function, with its signature where accel has none for it, or is a function
that writes the call: (sample, input, args, kwargs) -> Lua text.
"""
import torch

from texts import Unsupported, arguments, shifted

ROOMS = [("nn.functional.", "F"), ("linalg.", "linalg"), ("fft.", "fft"), ("special.", "special"),
    ("masked.", "masked"), ("signal.windows.", "windows"), ("sparse.", "sparse")]

# PyTorch's names of arguments that have another name in accel
RENAMED = {"other": "b", "row": "rows", "col": "columns", "tensor1": "a", "tensor2": "b", "batch1": "a", "batch2": "b",
    "mat1": "a", "mat2": "b", "vec1": "a", "vec2": "b", "input2": "b", "end": "stop", "value": "value"}

# entries with drawn or unwritten values: types and shapes are compared
DRAWN = set("""cauchy exponential geometric log_normal normal uniform bernoulli multinomial randn randn_like rand_like
    randint randint_like empty empty_like new_empty new_empty_strided empty_strided empty_permuted
    nn.functional.dropout nn.functional.dropout2d nn.functional.dropout3d nn.functional.alpha_dropout
    nn.functional.feature_alpha_dropout nn.functional.rrelu resize_ resize_as_ svd_lowrank pca_lowrank""".split())


def by(template):
    """A call whose arguments are put into a text: {0} is the input, {1} the first argument, and so on."""
    return lambda sample, x, args, kwargs: template.format(*(sample.text(v) for v in (x, *args)),
        *(["nil"] * 4), **{name: sample.text(v) for name, v in kwargs.items()})


def in_place(name):
    return lambda sample, x, args, kwargs: \
        f"{sample.text(x)}:clone():{name}_({', '.join(sample.text(v) for v in args)})"


def cast(name):
    return lambda sample, x, args, kwargs: f"{sample.text(x)}:{name}()"


def key_text(sample, key):
    """A key of x[key] in Python as the key in Lua: lists and tensors count from 0 in both."""
    if isinstance(key, slice):
        if key.start is None and key.stop is None and key.step is None:
            return "{}"
        stop = -1 if key.stop is None else key.stop if key.stop > 0 else key.stop - 1
        return "{ %d, %d, %d }" % (shifted(key.start or 0), stop, key.step or 1)
    if key is Ellipsis:
        return '"..."'
    if key is None:
        return "tensor.newaxis"
    if isinstance(key, bool):
        raise Unsupported("True or False as a key")
    if isinstance(key, int):
        return str(shifted(key))
    if isinstance(key, (list, tuple)):
        kind = "bool" if key and isinstance(key[0], bool) else "int64"
        return f"tensor({sample.text(key)}, {{ dtype = '{kind}' }})"
    return sample.text(key)


def indexed(sample, x, args, kwargs):
    key = args[0]
    keys = key if isinstance(key, (list, tuple)) and any(not isinstance(k, int) for k in key) \
        or isinstance(key, tuple) else [key]
    return f"{sample.text(x)}[{{ {', '.join(key_text(sample, k) for k in keys)} }}]"


def sliced(sample, x, args, kwargs):
    named = dict(zip(("dim", "start", "end", "step"), args), **kwargs)
    dim = named.get("dim", 0) % x.ndim
    keys = ["{}"] * dim + [key_text(sample, slice(named.get("start"), named.get("end"), named.get("step", 1)))]
    return f"{sample.text(x)}[{{ {', '.join(keys)} }}]"


def grid_sampler(sample, x, args, kwargs):
    grid, mode, padding, corners = args
    modes, paddings = ("bilinear", "nearest", "bicubic"), ("zeros", "border", "reflection")
    return f'F.grid_sample({sample.text(x)}, {sample.text(grid)}, {{ mode = "{modes[mode]}", ' \
        f'padding_mode = "{paddings[padding]}", align_corners = {sample.text(corners)} }})'


def listed(name):
    """PyTorch takes several tensors, or a list of them; accel a list."""
    def write(sample, x, args, kwargs):
        tensors = [*x, *args] if isinstance(x, (list, tuple)) else [x, *args]
        named = {key: sample.text(value) for key, value in kwargs.items()}
        return f"{name}({sample.text(tensors)}{', ' + sample.options(named) if named else ''})"
    return write


def one_or_listed(name):
    listing = listed(name)
    return lambda sample, x, args, kwargs: listing(sample, x, args, kwargs) if isinstance(x, (list, tuple)) \
        else f"{name}({sample.text(x)})"


def unbiased(name):
    """(x, unbiased) beside (x, dim, ..)."""
    return lambda sample, x, args, kwargs: \
        f"{name}({sample.text(x)}, {{ unbiased = {sample.text(args[0] if args else kwargs['unbiased'])} }})"


def corrected(name):
    """(x, unbiased) as a correction."""
    return lambda sample, x, args, kwargs: \
        f"{name}({sample.text(x)}, {{ correction = {int(args[0] if args else kwargs['unbiased'])} }})"


def slice_scatter(sample, x, args, kwargs):
    named = dict(zip(("src", "dim", "start", "end", "step"), args), **kwargs)
    dim = named.get("dim", 0)
    start, stop = shifted(named.get("start") or 0), named.get("end")
    stop = -1 if stop is None or stop > x.shape[dim] else stop if stop > 0 else stop - 1
    return f"tensor.slice_scatter({sample.text(x)}, {sample.text(named['src'])}, {shifted(dim)}, {start}, {stop}, " \
        f"{named.get('step', 1)})"


def to(sample, x, args, kwargs):
    target = next((v for v in (*args, *kwargs.values()) if not isinstance(v, (bool, str)) and v is not None), None)
    if target is None:
        return f"{sample.text(x)}:to('cpu')"
    if kwargs.get("memory_format") in (torch.channels_last, torch.channels_last_3d):
        raise Unsupported("torch.channels_last")
    return f"{sample.text(x)}:to({sample.text(target)})"


def tensordot(sample, x, args, kwargs):
    dims = kwargs.get("dims", args[1] if len(args) > 1 else 2)
    text = sample.text(dims, "dims") if isinstance(dims, (list, tuple)) else str(dims)
    return f"tensor.tensordot({sample.text(x)}, {sample.text(args[0])}, {{ dims = {text} }})"


def made_like(name, values):
    """x.new_zeros(sizes, dtype=..)."""
    def write(sample, x, args, kwargs):
        named = {"dtype": sample.text(kwargs["dtype"])} if kwargs.get("dtype") else {}
        texts = [sample.text(x), sample.text(list(args[0]))] + [sample.text(v) for v in args[1:1 + values]]
        return f"{texts[0]}:{name}({', '.join(texts[1:] + ([sample.options(named)] if named else []))})"
    return write


def einsum(sample, x, args, kwargs):
    return f"tensor.einsum({sample.text(args[0])}, {', '.join(sample.text(v) for v in x)})"


def without(names, call):
    """A call without arguments that do not change its result here."""
    path, _, signature = call.partition(" ")

    def write(sample, x, args, kwargs):
        kept = {key: value for key, value in kwargs.items() if key not in names}
        return f"{path}({arguments(sample, signature, (x, *args), kept, RENAMED)})"
    return write


def overload(name):
    """Tensors of 0 dims as numbers."""
    def plain(value):
        return value.item() if isinstance(value, torch.Tensor) else value
    signature = "start:num stop:num steps:int" + (" base:num" if name == "logspace" else "") + " | dtype:dtype"
    return lambda sample, x, args, kwargs: \
        f"tensor.{name}({arguments(sample, signature, [plain(v) for v in (x, *args)], kwargs, RENAMED)})"


POOL = "x:T kernel_size:int3 stride:int3 padding:int3 dilation:int3 ceil_mode:bool return_indices:bool"
UNPOOL = "x:T indices:T kernel_size:int3 stride:int3 padding:int3 output_size:ints"
RESAMPLE = "F.interpolate x:T | size:ints scale_factor:ints mode:any align_corners:bool recompute_scale_factor:bool " \
    "antialias:bool"
NORM = "x:T ord:any dim:dims keepdim:bool dtype:dtype"

CALLS = {
    "arange": "tensor.arange start:any stop:any step:any | dtype:dtype",
    "linspace": "tensor.linspace start:num stop:num steps:int | dtype:dtype",
    "linspace [tensor_overload]": overload("linspace"),
    "logspace": "tensor.logspace start:num stop:num steps:int base:num | dtype:dtype",
    "logspace [tensor_overload]": overload("logspace"),
    "broadcast_shapes": lambda sample, x, args, kwargs: "unpack(tensor.broadcast_shapes(%s))" \
        % ", ".join(sample.text([v] if isinstance(v, int) else v) for v in (x, *args)),
    "broadcast_tensors": listed("tensor.broadcast_tensors"),
    "block_diag": listed("tensor.block_diag"),
    "cartesian_prod": listed("tensor.cartesian_prod"),
    "meshgrid": listed("tensor.meshgrid"),
    "atleast_1d": one_or_listed("tensor.atleast_1d"),
    "atleast_2d": one_or_listed("tensor.atleast_2d"),
    "atleast_3d": one_or_listed("tensor.atleast_3d"),
    "einsum": einsum,
    "tensordot": tensordot,
    "to": to,
    "new_zeros": made_like("new_zeros", 0),
    "new_ones": made_like("new_ones", 0),
    "new_empty": made_like("new_empty", 0),
    "new_full": made_like("new_full", 1),
    "zero_": by("{0}:clone():zero_()"),
    "cdist": lambda sample, x, args, kwargs: "F.cdist(%s)" % arguments(sample, "x1:T x2:T | p:num", (x, args[0]),
        {**({"p": args[1]} if len(args) > 1 else {}), **{k: v for k, v in kwargs.items() if k != "compute_mode"}}, {}),
    "sum_to_size": lambda sample, x, args, kwargs: "tensor.sum_to_size(%s, %s)" % (sample.text(x),
        sample.text(list(args[0]) if args and isinstance(args[0], (list, tuple)) else list(args))),
    "polygamma": by("tensor.polygamma({1}, {0})"),
    "special.polygamma": by("special.polygamma({1}, {0})"),
    "where": by("tensor.where({1}, {0}, {2})"),
    "repeat": "tensor.tile",
    "narrow": lambda sample, x, args, kwargs: "tensor.narrow(%s, %d, %d, %d)" % (sample.text(x), shifted(args[0]),
        shifted(int(args[1])), args[2]),
    "select_scatter": "tensor.select_scatter x:T src:T dim:dim index:pos",
    "slice_scatter": slice_scatter,
    "tensor_split": lambda sample, x, args, kwargs: "tensor.tensor_split(%s)" % arguments(sample,
        "x:T sections:ints dim:dim", (x, *(v.tolist() if isinstance(v, torch.Tensor) else v for v in args)), kwargs,
        {"indices": "sections", "indices_or_sections": "sections", "tensor_indices_or_sections": "sections"}),
    "std [unbiased]": unbiased("tensor.std"),
    "var [unbiased]": unbiased("tensor.var"),
    "std_mean [unbiased]": corrected("tensor.std_mean"),
    "var_mean [unbiased]": corrected("tensor.var_mean"),
    "norm [nuc]": "linalg.norm " + NORM,
    "norm [fro]": "linalg.norm " + NORM,
    "nn.functional.embedding": lambda sample, x, args, kwargs: "F.embedding(%s)" % arguments(sample,
        "input:T weight:T | padding_idx:int max_norm:num norm_type:num scale_grad_by_freq:bool", (args[0], x), kwargs,
        {}),
    "nn.functional.embedding_bag": lambda sample, x, args, kwargs: "F.embedding_bag(%s)" % arguments(sample,
        "input:T weight:T offsets:T | max_norm:num norm_type:num scale_grad_by_freq:bool mode:any "
        "per_sample_weights:T include_last_offset:bool padding_idx:int", (args[0], x, *args[1:]), kwargs, {}),
    "nn.functional.softmin": "F.softmin x:T dim:dim dtype:dtype",
    "nn.functional.adaptive_avg_pool3d": "F.adaptive_avg_pool3d x:T output_size:int3",
    "nn.functional.adaptive_max_pool3d": "F.adaptive_max_pool3d x:T output_size:int3 return_indices:bool",
    "nn.functional.avg_pool3d": "F.avg_pool3d x:T kernel_size:int3 stride:int3 padding:int3 ceil_mode:bool "
        "count_include_pad:bool divisor_override:int",
    "nn.functional.max_pool3d": "F.max_pool3d " + POOL,
    "nn.functional.max_unpool1d": "F.max_unpool1d " + UNPOOL,
    "nn.functional.max_unpool2d": "F.max_unpool2d " + UNPOOL,
    "nn.functional.max_unpool3d": "F.max_unpool3d " + UNPOOL,
    "nn.functional.unfold": "F.unfold x:T kernel_size:int2 dilation:int2 padding:int2 stride:int2",
    "nn.functional.interpolate": lambda sample, x, args, kwargs: "F.interpolate(%s)" % arguments(sample,
        RESAMPLE.partition(" ")[2], (x,), {**dict(zip(("size", "scale_factor", "mode", "align_corners"), args)),
        **kwargs}, {}),
    "linalg.norm": "linalg.norm " + NORM,
    "linalg.vector_norm": "linalg.vector_norm " + NORM,
    "linalg.matrix_norm": "linalg.matrix_norm " + NORM,
    "linalg.lu_solve": lambda sample, x, args, kwargs: "linalg.lu_solve(%s)" % arguments(sample,
        "LU:T pivots:T b:T | left:bool adjoint:bool", (x, *args), kwargs, {}),
    **{name: lambda sample, x, args, kwargs, name=name: f"tensor.{name}({sample.text(x)}:matmul("
        f"{sample.text(args[0])}:transpose(-2, -1)), "
        + sample.options({key: sample.text(value) for key, value in kwargs.items()}) + ")"
        for name in ("svd_lowrank", "pca_lowrank")},
    "linalg.lstsq [grad_oriented]": lambda sample, x, args, kwargs: \
        "unpack({ linalg.lstsq(%s) }, 1, 2)" % arguments(sample, "a:T b:T | rcond:num driver:any",
            (x, args[0]), {**({"driver": args[1]} if len(args) > 1 else {}), **kwargs}, {}),
    # how PyTorch cuts the work into pieces does not change what it computes
    "nn.functional.linear_cross_entropy": without({"options"}, "F.linear_cross_entropy "
        "input:T linear_weight:T target:T | linear_bias:T weight:T reduction:any ignore_index:int label_smoothing:num"),
    "linalg.svd": "linalg.svd x:T | full_matrices:bool",
    "linalg.vecdot": "linalg.vecdot a:T b:T | dim:dim",
    "linalg.diagonal": "linalg.diagonal x:T | offset:int dim1:dim dim2:dim",
    "linalg.cross": "linalg.cross a:T b:T | dim:dim",
    "linalg.vander": "linalg.vander x:T | N:int",
    "linalg.tensorsolve": "linalg.tensorsolve a:T b:T | dims:dims",
    "linalg.pinv [singular]": by("linalg.pinv({0}:matmul({1}:transpose(-2, -1)))"),
    "linalg.pinv": "linalg.pinv x:T | atol:any rtol:any hermitian:bool",
    "cauchy": in_place("cauchy"),
    "exponential": in_place("exponential"),
    "geometric": in_place("geometric"),
    "log_normal": in_place("log_normal"),
    "normal [in_place]": in_place("normal"),
    "uniform": in_place("uniform"),
    "unsafe_chunk": "tensor.chunk",
    "unsafe_split": "tensor.split",
    "split_with_sizes": "tensor.split",
    "conj_physical": "tensor.conj",
    "max [binary]": "tensor.maximum",
    "min [binary]": "tensor.minimum",
    "__radd__": by("{1} + {0}"),
    "__rmul__": by("{1} * {0}"),
    "__rdiv__": by("{1} / {0}"),
    "__rsub__": by("{1} - {0}"),
    "__rmod__": by("{1} % {0}"),
    "__rpow__": by("{1} ^ {0}"),
    "__rand__": by("tensor.bitwise_and({0}, {1})"),
    "__ror__": by("tensor.bitwise_or({0}, {1})"),
    "__rxor__": by("tensor.bitwise_xor({0}, {1})"),
    "__rmatmul__": by("tensor.matmul({1}, {0})"),
    "__getitem__": indexed,
    "slice": sliced,
    "grid_sampler_2d": grid_sampler,
    "grid_sampler_3d": grid_sampler,
    "T": by("{0}.T"),
    "mT": by("{0}.mT"),
    "H": by("{0}.H"),
    "mH": by("{0}.mH"),
    "_segment_reduce": without({"indices"}, "tensor.segment_reduce x:T reduce:any | lengths:T offsets:T axis:dim "
        "unsafe:bool initial:num"),
    "constant_pad_nd": lambda sample, x, args, kwargs: "F.pad(%s)" % arguments(sample, "x:T pad:ints | value:num",
        (x, args[0]), {"value": args[1]} if len(args) > 1 else {}, {}),
    "item": lambda sample, x, args, kwargs: f"({sample.text(x)}:item())" if not x.is_complex()
        else f"{sample.text(x)}:view({{}})",
    "svd": "tensor.svd",
    **{name: cast(name) for name in
        ("bfloat16", "bool", "byte", "double", "float", "half", "int", "long", "cdouble", "cfloat")},
}


def find(name, variant, has):
    """A function that writes the call, (path, signature), or None: accel does not have the entry."""
    how = CALLS.get(f"{name} [{variant}]", CALLS.get(name))
    if callable(how):
        return how
    if how:
        path, _, signature = how.partition(" ")
        return (path, signature or signature_of(path.partition(".")[2], has)) if there(path, has) else None
    for prefix, room in ROOMS:
        if name.startswith(prefix):
            short = name[len(prefix):]
            if short not in has["functions"][room]:
                return None
            full = f"{room}.{short}" if room in ("special", "masked") else short
            known = signature_of(full, has) if full in has["signatures"] or room == "F" or full in has["aliases"] \
                else None
            return f"{room}.{short}", known
    if name in has["functions"]["tensor"]:
        return f"tensor.{name}", signature_of(name, has)
    if "x:" + name in has["functions"]:
        return "x:" + name, signature_of(name, has)
    return None


def there(path, has):
    room, _, name = path.partition(".")
    return path in has["functions"] or name in has["functions"].get(room, []) or path.startswith("x:")


def signature_of(name, has):
    return has["signatures"].get(name) or has["signatures"].get(has["aliases"].get(name))
