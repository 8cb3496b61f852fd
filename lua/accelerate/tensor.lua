--- Tensors: what scripts load as `accelerate.tensor`. The module is the constructor:
---
---   local tensor = require "accelerate.tensor"
---   local x = tensor({ {1, 2}, {3, 4} }, { dtype = "float64", requires_grad = true })
---   local y = (x * x):sum()
---   y:backward()
---   print(x.grad)
---
--- Sizes come as several numbers or as one list: tensor.zeros(2, 3), tensor.zeros({ 2, 3 }, { dtype
--- = "int64" }). Constructors take their parameters by name as well, in the table of options:
--- tensor.zeros { size = { 2, 3 } }, tensor.linspace(0, 1, { steps = 5 }). A number that names a
--- position (a dim, x[1]) counts from 1; integers stored in a tensor count from 0. `==` is
--- identity; x:eq(y) compares.

local core = require "accelerate.core"

---@class accelerate.Tensor
---@field shape integer[] a fresh table
---@field dtype accelerate.DType
---@field device string "cpu", "cuda:0"
---@field ndim integer
---@field requires_grad boolean may be set on leaves
---@field grad accelerate.Tensor? of a leaf, the same object until it is replaced; may be set
---@field data accelerate.Tensor holds the same elements without history; what is assigned to it
---  becomes the elements of x
---@field is_leaf boolean
---@field grad_fn string? the op that made it, where that was recorded
---@field backward fun(self: accelerate.Tensor, gradient?: accelerate.Tensor, ...: any) adds the
---  gradients of x to `grad` of the leaves that it comes from, or of the tensors in `inputs` alone;
---  `gradient`, of x's shape, is needed where x has several elements; retain_graph and create_graph
---  follow by position, or in a table at the end with `inputs`
---@field bfloat16 fun(self: accelerate.Tensor): accelerate.Tensor `x:to("bfloat16")`
---@field bool fun(self: accelerate.Tensor): accelerate.Tensor `x:to("bool")`: whether an element is
---  not 0
---@field byte fun(self: accelerate.Tensor): accelerate.Tensor `x:to("uint8")`
---@field cdouble fun(self: accelerate.Tensor): accelerate.Tensor `x:to("complex128")`
---@field cfloat fun(self: accelerate.Tensor): accelerate.Tensor `x:to("complex64")`
---@field copy_ fun(self: accelerate.Tensor, source: accelerate.Tensor|number|{ src:
---  accelerate.Tensor|number, non_blocking: boolean? }, non_blocking?: boolean|{ non_blocking:
---  boolean }): accelerate.Tensor writes source, broadcast and cast, into x, and returns x;
---  non_blocking changes nothing: copies are in order
---@field data_ptr fun(self: accelerate.Tensor): ffi.cdata* a pointer to the elements, of their type
---  in C; valid while x lives
---@field detach fun(self: accelerate.Tensor): accelerate.Tensor gives the same elements without
---  history
---@field detach_ fun(self: accelerate.Tensor): accelerate.Tensor drops x's own history
---@field dim fun(self: accelerate.Tensor): integer the number of dims, as `ndim`
---@field double fun(self: accelerate.Tensor): accelerate.Tensor `x:to("float64")`
---@field element_size fun(self: accelerate.Tensor): integer bytes of an element
---@field fill_ fun(self: accelerate.Tensor, value: number|boolean|accelerate.Tensor|table):
---  accelerate.Tensor writes one number everywhere, and returns x
---@field float fun(self: accelerate.Tensor): accelerate.Tensor `x:to("float32")`
---@field half fun(self: accelerate.Tensor): accelerate.Tensor `x:to("float16")`
---@field int fun(self: accelerate.Tensor): accelerate.Tensor `x:to("int32")`
---@field is_contiguous fun(self: accelerate.Tensor): boolean whether the elements stand one behind
---  the other, the last dim innermost
---@field is_pinned fun(self: accelerate.Tensor): boolean whether x is in pinned memory
---@field item fun(self: accelerate.Tensor): any, any the one element of x, a number or a boolean;
---  of a complex one the real and the imaginary part
---@field long fun(self: accelerate.Tensor): accelerate.Tensor `x:to("int64")`
---@field nbytes fun(self: accelerate.Tensor): integer bytes of all elements
---@field numel fun(self: accelerate.Tensor): integer the number of elements
---@field pin_memory fun(self: accelerate.Tensor): accelerate.Tensor copies x to pinned memory,
---  which a GPU reads by itself; gives x itself where it is there
---@field register_hook fun(self: accelerate.Tensor, hook: fun(gradient: accelerate.Tensor):
---  accelerate.Tensor?): table calls hook with each gradient of x; what it returns replaces the
---  gradient. The handle's `handle:remove()` takes the hook away
---@field register_post_accumulate_grad_hook fun(self: accelerate.Tensor, hook: fun(x:
---  accelerate.Tensor)): table calls hook with a leaf after its `grad` has been added to
---@field requires_grad_ fun(self: accelerate.Tensor, requires_grad?: boolean|{ requires_grad:
---  boolean }): accelerate.Tensor sets `requires_grad` (default true), and returns x
---@field size fun(self: accelerate.Tensor, dim?: integer): integer|integer[] the size of a dim, or
---  a list of all
---@field storage_offset fun(self: accelerate.Tensor): integer elements of the memory before the
---  first one, from 0
---@field stride fun(self: accelerate.Tensor, dim?: integer): integer|integer[] the distance of
---  neighbours in a dim, in elements, or a list of all
---@field to fun(self: accelerate.Tensor, target: accelerate.DType|string|accelerate.Tensor|{ dtype:
---  accelerate.DType?, device: string?, copy: boolean?, non_blocking: boolean? }, ...: any):
---  accelerate.Tensor converts to an element type, moves to a device, or both; gives x itself where
---  nothing changes. A tensor stands for its type and its device
---@field tolist fun(self: accelerate.Tensor): any the elements as nested lists; of 0 dims one
---  number
---@field totable fun(self: accelerate.Tensor): any another name of tolist
---@field zero_ fun(self: accelerate.Tensor): accelerate.Tensor writes 0 everywhere, and returns x

---@alias accelerate.DType "float32"|"float64"|"float16"|"bfloat16"|"int64"|"int32"|"uint8"|"bool"|
---  "complex64"|"complex128"
---@alias accelerate.TensorOptions { dtype: accelerate.DType?, device: string?, requires_grad:
---  boolean? }
---@alias accelerate.SizedOptions accelerate.TensorOptions | { size: integer[]? }
---@alias accelerate.SizedRandomOptions accelerate.RandomOptions | { size: integer[]? }
---@alias accelerate.RandomOptions { dtype: accelerate.DType?, device: string?, requires_grad:
---  boolean?, generator: userdata? }

---@class accelerate.tensor
---@overload fun(value: any, options?: accelerate.TensorOptions): accelerate.Tensor
---@field tensor fun(value: any, options?: accelerate.TensorOptions): accelerate.Tensor from nested
---  lists, a number, a boolean, or a copy of a tensor: numbers have the default type and booleans
---  bool unless dtype is given. 0-d tensors may stand for numbers, whose history the result has
---  not; where the first entry is one, the type holds them all
---@field zeros fun(...: integer|integer[]|accelerate.SizedOptions): accelerate.Tensor
---@field ones fun(...: integer|integer[]|accelerate.SizedOptions): accelerate.Tensor
---@field empty fun(...: integer|integer[]|accelerate.SizedOptions): accelerate.Tensor not cleared
---@field full fun(size: integer[]|integer, fill_value: number|boolean, options?:
---  accelerate.TensorOptions): accelerate.Tensor
---@field arange fun(...: number|accelerate.TensorOptions): accelerate.Tensor (stop), (start, stop)
---  or (start, stop, step); stop is not in it; int64 when all are integral
---@field linspace fun(start: number, stop: number, steps: integer, options?:
---  accelerate.TensorOptions): accelerate.Tensor both ends are in it
---@field eye fun(n: integer, m?: integer, options?: accelerate.TensorOptions): accelerate.Tensor
---@field rand fun(...: integer|integer[]|accelerate.SizedRandomOptions): accelerate.Tensor uniform
---  in [0, 1)
---@field randn fun(...: integer|integer[]|accelerate.SizedRandomOptions): accelerate.Tensor
---  standard normal
---@field randint fun(low: integer, high: integer, ...:
---  integer|integer[]|accelerate.SizedRandomOptions): accelerate.Tensor int64 in low ..
---  high - 1; (high, size) starts from 0
---@field randperm fun(n: integer, options?: accelerate.RandomOptions): accelerate.Tensor 0 .. n-1
---  in random order, int64; `dtype` is any type of integers or of floating numbers
---@field zeros_like fun(x: accelerate.Tensor, options?: accelerate.TensorOptions):
---  accelerate.Tensor
---@field ones_like fun(x: accelerate.Tensor, options?: accelerate.TensorOptions): accelerate.Tensor
---@field empty_like fun(x: accelerate.Tensor, options?: accelerate.TensorOptions):
---  accelerate.Tensor
---@field full_like fun(x: accelerate.Tensor, fill_value: number|boolean|accelerate.Tensor,
---  options?: accelerate.TensorOptions): accelerate.Tensor the value may be a tensor of 0 dims
---@field rand_like fun(x: accelerate.Tensor, options?: accelerate.RandomOptions): accelerate.Tensor
---@field randn_like fun(x: accelerate.Tensor, options?: accelerate.RandomOptions):
---  accelerate.Tensor
---@field is_tensor fun(value: any): boolean
---@field no_grad fun(fn: function, ...): ... runs fn(...) with nothing recorded, and returns what
---  it returns
---@field enable_grad fun(fn: function, ...): ... runs fn(...) with gradients recorded
---@field is_grad_enabled fun(): boolean
---@field set_grad_enabled fun(on: boolean, fn?: function, ...): ... sets whether gradients are
---  recorded, and returns the former setting; with fn: runs fn(...) in that setting
---@field autocast fun(options?: { device_type: ("cpu"|"cuda")?, dtype: ("bfloat16"|"float16")?,
---  enabled: boolean?, cache_enabled: boolean? }, fn: function, ...): ... runs fn(...) with
---  automatic casting; see Accelerator:autocast. The type of device may come first:
---  autocast("cuda", fn)
---@field is_autocast_enabled fun(): boolean
---@field get_autocast_dtype fun(): accelerate.DType the lower type
---@field scope fun(fn: function, ...): ... runs fn(...); results of ops made inside that are
---  neither returned nor kept are freed at once when it ends
---@field keep fun(...): ... its arguments; their tensors outlive the scope
---@field release fun(x: accelerate.Tensor) frees a tensor's handle at once; using it later is an
---  error
---@field is_released fun(x: accelerate.Tensor): boolean
---@field grad fun(outputs: accelerate.Tensor|accelerate.Tensor[], inputs:
---  accelerate.Tensor|accelerate.Tensor[], options?: { grad_outputs:
---  accelerate.Tensor|accelerate.Tensor[]|nil, retain_graph: boolean?, create_graph: boolean?,
---  only_inputs: boolean?, allow_unused: boolean?, materialize_grads: boolean? }): ... one gradient
---  for each input, as several values; grad_outputs, retain_graph, create_graph, only_inputs and
---  allow_unused may stand by position, and all of them in one table: grad { outputs = u, inputs =
---  x }. An input that the outputs do not come from raises; with allow_unused it has nil, with
---  materialize_grads zeros
---@field Function fun(definition: { forward: function, backward: function, setup_context:
---  function?, name: string? }): table a differentiable function written in Lua; call it. forward
---  gets ctx and the arguments; with setup_context(ctx, inputs, output) the arguments alone.
---  ctx:mark_non_differentiable(y) makes a result y one without gradients;
---  ctx:set_materialize_grads(false) gives backward nil, not zeros, for a result without a gradient
---@field Generator fun(seed?: integer|string|{ seed: integer, device: string }): userdata with
---  manual_seed, initial_seed, get_state, set_state. A device, by itself or in the table, has no
---  effect: a generator draws for all of them.
---@field manual_seed fun(seed: integer): userdata seeds the default generator of this rank and
---  math.random, and gives that generator
---@field default_generator fun(): userdata
---@field get_num_threads fun(): integer
---@field set_num_threads fun(n: integer)
---@field device_count fun(kind: "cpu"|"cuda"): integer, string? how many devices can be used; for
---  none also why
---@field set_default_device fun(device: string): string default device of constructors; returns the
---  former one
---@field set_default_dtype fun(dtype: "float32"|"float64"|"float16"|"bfloat16") the type of new
---  tensors without one (float32 until then), of parameters too, of a number that is not whole
---  beside integers, and of functions of integers as `sqrt`; for this process
---@field get_default_dtype fun(): string
---@field get_default_device fun(): string
---@field cuda table GPUs and their memory: see accelerate.cuda
---@field autograd table gradcheck, detect_anomaly and more: see accelerate.autograd
---@field linalg table linear algebra: see accelerate.tensor.linalg
---@field special table special functions under torch.special's names
---@field fft table Fourier transforms: see accelerate.tensor.fft
---@field random table under torch.random's names: fork_rng([opts], fn, ...), which runs fn(...) and
---  puts the generators back (enabled = false: it does not), manual_seed, seed, initial_seed,
---  get_rng_state, set_rng_state
---@field synchronize fun(device: string) waits until the device has done all work queued
---  on it
---@field set_float32_matmul_precision fun(precision: "highest"|"high"|"medium") how GPUs multiply
---  float32 matrices and convolve, in this process: "highest" (the default) in float32; "high" and
---  "medium" with operands rounded to TF32 (10 bits of mantissa), several times faster. PyTorch's
---  function, but it also governs convolutions until backends.cudnn.allow_tf32 is set; PyTorch lets
---  these use TF32 by default. The CPU computes in float32 always
---@field get_float32_matmul_precision fun(): string
---@field use_deterministic_algorithms fun(mode: boolean, options?: { warn_only: boolean? }) whether
---  every run has to give the same bits, in this process: true (the default here, not in PyTorch).
---  With false, cuDNN may use engines whose sums have no fixed order, for shapes that are new from
---  then on, and NCCL, when it has not begun yet, reductions in the switch
---@field are_deterministic_algorithms_enabled fun(): boolean
---@field is_deterministic_algorithms_warn_only_enabled fun(): boolean
---@field backends table switches under torch.backends' names: cudnn.allow_tf32 (float32
---  convolutions on GPUs rounded to TF32; PyTorch's default is true, here
---  set_float32_matmul_precision decides until it is set), cudnn.deterministic,
---  cudnn.benchmark (may be set, and changes nothing), cuda.matmul.allow_tf32
---@field einsum fun(equation: string, ...: accelerate.Tensor|accelerate.Tensor[]):
---  accelerate.Tensor Einstein's sum, as einsum("bij,bjk->bik", a, b): labels of dims, those
---  missing behind the arrow are summed over; repeated ones are diagonals, "..." stands for any
---  dims
---@field split fun(x: accelerate.Tensor, split_size: integer|integer[], dim?: integer): ... views
---  of split_size positions each, or of the sizes listed
---@field chunk fun(x: accelerate.Tensor, chunks: integer, dim?: integer): ... at most `chunks`
---  views of equal length (the last one may be shorter)
---@field unbind fun(x: accelerate.Tensor, dim?: integer): ... a view of each position of dim
---@field meshgrid fun(tensors: accelerate.Tensor[], options?: { indexing: "ij"|"xy" }): ... vectors
---  expanded to the grid that they span
---@field inf number infinity
---@field nan number not a number
---@field newaxis userdata in a key: a new dim of size 1, as in x[{ {}, tensor.newaxis }]
---@field ops fun(): table[] the op table: name, signature, summary, form, autocast, differentiable,
---  inplace, hidden
local M = {}

for _, name in ipairs {
  "tensor", "zeros", "ones", "empty", "full", "arange", "linspace", "eye", "rand", "randn", "randint",
  "randperm",
  "zeros_like", "ones_like", "empty_like", "full_like", "rand_like", "randn_like", "is_tensor",
  "no_grad", "enable_grad", "is_grad_enabled", "scope", "keep", "release", "is_released",
  "Generator", "manual_seed", "default_generator", "get_num_threads", "set_num_threads", "device_count",
  "set_default_device", "set_default_dtype", "get_default_dtype", "synchronize", "ops",
  "set_float32_matmul_precision", "get_float32_matmul_precision", "newaxis",
} do
  M[name] = core[name]
end
for _, row in ipairs(core.ops()) do
  if not row.hidden then M[row.name] = core[row.name] end
end
-- other names of the same ops; tensor["repeat"] is tile
for _, name in ipairs { "repeat", "swapaxes", "swapdims", "moveaxis", "concat", "broadcast_to", "einsum" } do
  M[name] = core[name]
end
M.concatenate = core.concat
local calls = require "accelerate.tensor.calls"
M.full_like, M.randperm = calls.full_like, calls.randperm
M.manual_seed, M.get_default_device = calls.manual_seed, calls.get_default_device
local gradients = require "accelerate.autograd.calls"
M.grad, M.Function, M.set_grad_enabled = gradients.grad, gradients.Function, gradients.set_grad_enabled

-- PyTorch's names of types, and of numbers that are not finite
for _, dtype in ipairs { "bool", "uint8", "int32", "int64", "float16", "bfloat16", "float32", "float64",
  "complex64", "complex128", "float8_e4m3fn", "float8_e5m2" } do
  M[dtype] = dtype
end
M.half, M.float, M.double, M.int, M.long = "float16", "float32", "float64", "int32", "int64"
M.cfloat, M.cdouble = "complex64", "complex128"
M.inf, M.nan, M.pi = math.huge, 0 / 0, math.pi

local casting = require "accelerate.precision.autocast"
M.autocast, M.is_autocast_enabled, M.get_autocast_dtype = casting.autocast, casting.is_autocast_enabled,
  casting.get_autocast_dtype

-- What Lua writes of rows is loaded at the first name that is not in M; see
-- accelerate.tensor.define.
local function written_in_lua(key)
  local fn = require("accelerate.tensor.composed").functions[key]
  M[key] = fn
  return fn
end

-- Methods in place are functions, too, as in PyTorch: tensor.relu_(x).
local function in_place(key)
  if type(key) == "string" and key:find "%w_$" and core._tensor_names()[key] then
    M[key] = core.empty(0)[key]
    return M[key]
  end
end

local NUMERICS = { use_deterministic_algorithms = true, are_deterministic_algorithms_enabled = true,
  is_deterministic_algorithms_warn_only_enabled = true, backends = true }

return setmetatable(M, {
  __call = function(_, ...) return core.tensor(...) end,
  __index = function(_, key)
    if key == "cuda" then
      M.cuda = require "accelerate.cuda"
      return M.cuda
    elseif key == "autograd" then
      M.autograd = require "accelerate.autograd"
      return M.autograd
    elseif key == "linalg" or key == "special" or key == "fft" or key == "masked" then
      M[key] = require("accelerate.tensor." .. key)
      return M[key]
    elseif key == "random" then
      require "accelerate.tensor.composed"
      M.random = require "accelerate.tensor.generators"
      return M.random
    elseif key == "sparse" then
      M.sparse = require "accelerate.sparse"
      return M.sparse
    elseif key == "signal" then
      M.signal = { windows = require "accelerate.tensor.windows" }
      return M.signal
    end
    if NUMERICS[key] then
      for name in pairs(NUMERICS) do M[name] = require("accelerate.tensor.numerics")[name] end
      return M[key]
    end
    local fn = written_in_lua(key) or in_place(key)
    if fn then return fn end
    local names = { "random", "cuda", "autograd", "linalg", "special", "fft", "sparse", "masked", "signal" }
    for name in pairs(NUMERICS) do names[#names + 1] = name end
    for name in pairs(require("accelerate.tensor.composed").functions) do names[#names + 1] = name end
    for name in pairs(M) do names[#names + 1] = name end
    table.sort(names)
    local near = type(key) == "string" and core._nearest(key, names)
    error(("tensor: there is no function %s%s"):format(tostring(key),
      require("accelerate.messages.elsewhere").hint(key, near or nil, "accelerate.tensor")), 2)
  end,
})
