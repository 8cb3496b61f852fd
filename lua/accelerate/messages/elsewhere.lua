--- Where a name lives that a module lacks: another module here has it, or PyTorch has it and
--- something of another name takes its place. Messages about unknown names ask this.
local M = {}

-- In the order of the search. A name that several have is the first one's.
local MODULES = { "accelerate", "accelerate.nn", "accelerate.optim", "accelerate.optim.lr_scheduler",
  "accelerate.data", "accelerate.nn.functional", "accelerate.utils", "accelerate.tensor",
  "accelerate.distributions", "accelerate.func", "accelerate.nn.utils", "accelerate.nn.init",
  "accelerate.autograd", "accelerate.tensor.linalg", "accelerate.tensor.fft", "accelerate.tensor.special" }

local function results(text)
  return ("local %s: several results are several values"):format(text)
end
local LAYOUT = "leave memory_format out: layers choose how they lay out what they compute"

local RANKS = "accelerator:prepare(model), with a process for each device"
local STREAMS = "nothing: each process has one stream, which orders its work"
local WRITER = 'accelerate.Accelerator { log_with = "tensorboard", project_dir = folder }, whose ' ..
  'accelerator:get_tracker("tensorboard", { unwrap = true }) is a SummaryWriter'
local FLAT = "PyTorch's submodules are flat here: %s"
local UNCONSTRAINED = "transforms as distributions.ExpTransform() and distributions.SigmoidTransform(); " ..
  "distributions have no constraints"

local RUNNING = "nothing: ranks that accel-run has started are connected already"
local JOINED = "y = distributed.all_gather(x), joined along dim 1; { y:chunk(n) } has the parts"

local STRIDED = "x:unfold(dim, size, step), x:expand(sizes) or ranges, which are views; " ..
  "x:as_strided_copy(size, stride) is a copy"

local function of_type(dtype)
  return ('tensor.tensor(values, { dtype = "%s" }), or tensor.empty(sizes, { dtype = "%s" })'):format(dtype,
    dtype)
end

--- PyTorch's names of things that are written in another way here: of functions of torch, and of
--- methods of its tensors. A name with its module is one of that module alone.
M.OTHERS = {
  Tensor = "tensor.tensor(values), or tensor.empty(sizes)",
  FloatTensor = "tensor.tensor(values), or tensor.empty(sizes)",
  DoubleTensor = of_type "float64", HalfTensor = of_type "float16", BFloat16Tensor = of_type "bfloat16",
  IntTensor = of_type "int32", BoolTensor = of_type "bool", ByteTensor = of_type "uint8",
  ShortTensor = of_type "int32", CharTensor = of_type "int32",
  Size = "a shape is a list of numbers; x.shape is a fresh one",
  __version__ = "accelerate.__version__",
  accelerator = "accelerate.Accelerator().device, and tensor.cuda.is_available()",
  ["accelerate.sparse.FloatTensor"] = "sparse.sparse_coo_tensor(indices, values, size)",
  LongTensor = of_type "int64",
  device = 'a device is a text, as "cpu" or "cuda:0"',
  dtype = 'a type is a text, as "float32"',
  from_numpy = "accelerate.data.read_npy(path)",
  compile = 'accelerate.Accelerator { dynamo_backend = "cudagraphs" } records steps on a GPU',
  jit = 'accelerate.Accelerator { dynamo_backend = "cudagraphs" } records steps on a GPU',
  distributed = "the module accelerate.distributed, or accelerator:gather(x) and accelerator:reduce(x)",
  prune = "nn.utils.parametrize with a module that multiplies by a mask (pruning is not there)",
  int8 = 'no tensor has this type; "int32" holds its numbers',
  int16 = 'no tensor has this type; "int32" holds its numbers',
  short = 'no tensor has this type; "int32" holds its numbers',
  char = 'no tensor has this type; "int32" holds its numbers',
  DataParallel = RANKS, DistributedDataParallel = RANKS, parallel = RANKS,
  Variable = "a tensor itself, with requires_grad = true",
  Buffer = 'module:register_buffer("name", x)',
  Sampler = "any object with iter(), which yields positions from 1, and len()",
  kl = "distributions.kl_divergence(p, q)",
  lstm = "nn.LSTM", gru = "nn.GRU",
  ["accelerate.tensor.detach"] = "x:detach()",
  ["accelerate.tensor.range"] = "tensor.arange(first, last + 1), whose end is not included",
  ["accelerate.tensor.as_strided"] = STRIDED,
  ["accelerate.tensor.hub"] = "accelerate.models.from_pretrained(folder)",
  symeig = "tensor.linalg.eigh(x)",
  ["accelerate.tensor.binomial"] =
    "accelerate.distributions.Binomial { total_count = n, probs = p }:sample()",
  stateless = "accelerate.func.functional_call(model, params, x)",
  RNNBase = "accelerate.utils.isinstance(module, { nn.LSTM, nn.GRU, nn.RNN })",
  skip_init = "the layer itself, as nn.Linear(2, 3)",
  ["accelerate.nn.attention"] = "nothing: F.scaled_dot_product_attention chooses its kernel",
  set_default_tensor_type = 'tensor.set_default_dtype("float64") and tensor.set_default_device("cuda")',
  multiprocessing = "accelerate.notebook_launcher(fn, args, { num_processes = n })",
  amp = 'accelerate.Accelerator { mixed_precision = "fp16" } (or "bf16"), and tensor.autocast(fn)',
  GradScaler = 'accelerate.Accelerator { mixed_precision = "fp16" }, which scales losses',
  channels_last = LAYOUT, channels_last_3d = LAYOUT, contiguous_format = LAYOUT, preserve_format = LAYOUT,
  ["accelerate.distributed.init_process_group"] = RUNNING,
  ["accelerate.distributed.is_initialized"] = RUNNING,
  ["accelerate.distributed.is_available"] = RUNNING,
  ["accelerate.distributed.ReduceOp"] = 'a text, as { op = "sum" }',
  ["accelerate.distributed.all_gather_into_tensor"] = JOINED,
  ["accelerate.distributed.reduce_scatter_tensor"] = "y = distributed.reduce_scatter(x)",
  ["accelerate.distributed.all_to_all_single"] = "y = distributed.all_to_all(x)",
  ["accelerate.distributed.all_gather_object"] = "accelerate.utils.gather_object(values)",
  ["accelerate.distributed.gather_object"] = "accelerate.utils.gather_object(values)",
  ["accelerate.distributed.broadcast_object_list"] = "accelerate.utils.broadcast_object_list(values)",
  ["accelerate.distributed.monitored_barrier"] = "distributed.barrier(), which names the rank that is late",
  ["accelerate.distributed.init_device_mesh"] = "distributed.mesh { dp_shard = 2, tp = 2 }",
  AutoTokenizer = "accelerate.tokenizers.from_pretrained(folder)",
  SummaryWriter = WRITER, ["accelerate.utils.tensorboard"] = WRITER,
  ["accelerate.utils.ffi"] = 'require "ffi", which is LuaJIT\'s',
  ["accelerate.nn.modules"] = FLAT:format "nn.Linear",
  ["accelerate.nn.parameter"] = FLAT:format "nn.Parameter",
  ["accelerate.data.distributed"] = FLAT:format "data.DistributedSampler",
  ["accelerate.data.sampler"] = FLAT:format "data.RandomSampler, data.SubsetRandomSampler, ..",
  ["accelerate.distributions.transforms"] = FLAT:format "distributions.AffineTransform, ..",
  ["accelerate.distributions.utils"] = "nothing: its functions are written with those of tensors",
  ["accelerate.distributions.class"] = 'accelerate.utils.class("Name", distributions.Normal)',
  ["accelerate.distributions.constraints"] = UNCONSTRAINED,
  ["accelerate.distributions.biject_to"] = UNCONSTRAINED,
  ["accelerate.distributions.transform_to"] = UNCONSTRAINED,
  set_device = "the launcher chooses the GPU of each process; tensor.set_default_device(\"cuda:1\") " ..
    "chooses one in a script",
  Event = "tensor.cuda.synchronize() before a clock is read, or accelerator:profile(fn)",
  Stream = STREAMS, stream = STREAMS, current_stream = STREAMS, default_stream = STREAMS,
}
M.METHODS = {
  as_strided = STRIDED,
  new = "x:new_empty(sizes), or x:new_tensor(values)",
  resize_ = "x:reshape(sizes), or tensor.empty(sizes)",
  set_ = "x.data = y, or x:copy_(y)",
  short = 'no tensor has this type; x:to("int32") holds its numbers',
  char = 'no tensor has this type; x:to("int32") holds its numbers',
  int8 = 'no tensor has this type; x:to("int32") holds its numbers',
  record_stream = STREAMS,
  untyped_storage = "x:data_ptr() and x:stride()",
  register_backward_hook = "x:register_hook(hook)",
  numpy = "x:tolist(), or accelerate.data.write_npy(path, x)",
  __getitem__ = "x[i]", __len__ = "#x", len = "#x, the size of dim 1; x:numel() counts the elements",
  float16 = 'x:half(), or x:to("float16")', float32 = 'x:float(), or x:to("float32")',
  float64 = 'x:double(), or x:to("float64")',
  storage = "x:data_ptr() and x:stride()",
  share_memory_ = "accelerate.notebook_launcher's function sees tensors of the script",
  apply_ = "x:tolist(), or ops on the whole tensor",
  map_ = "x:tolist(), or ops on the whole tensor",
  -- fields of PyTorch's named tuples
  values = results "values, indices = x:max(2)" .. " (a sparse tensor has s:values())",
  indices = results "values, indices = x:topk(3)" .. " (a sparse tensor has s:indices())",
  S = results "U, S, Vh = tensor.linalg.svd(x)",
  Vh = results "U, S, Vh = tensor.linalg.svd(x)",
  Q = results "Q, R = tensor.linalg.qr(x)",
  eigenvalues = results "values, vectors = tensor.linalg.eigh(x)",
  eigenvectors = results "values, vectors = tensor.linalg.eigh(x)",
  logabsdet = results "sign, logabsdet = tensor.linalg.slogdet(x)",
}

--- Options that PyTorch's functions have and none here: what to write.
M.OPTIONS = {
  out = "a result is written into a tensor y by y:copy_(f(x))",
  memory_format = LAYOUT,
  layout = "tensors are dense; sparse ones are made by tensor.sparse_coo_tensor and x:to_sparse()",
  pin_memory = "x:pin_memory() copies a tensor to pinned memory",
}

--- Names of Python's that objects here are used without: what to write.
M.WALKS = {
  enumerate = "ipairs counts what it walks: for i, x in ipairs(loader) do ... end",
  __iter__ = "ipairs and iter walk it: for x, y in loader:iter() do ... end",
  __len__ = "#x is the length", __getitem__ = "x:get(i) and x[i] are an entry",
}

local searching = false -- a module that lacks the name calls this again

local function has(module, name)
  local fine, value = pcall(function() return require(module)[name] end)
  return fine and value ~= nil
end

-- "accelerate.data.DataLoader", or nil.
local function found_in(name, from)
  if type(name) ~= "string" or name:sub(1, 1) == "_" or searching then return nil end
  searching = true
  local found
  for _, module in ipairs(MODULES) do
    if module ~= from and has(module, name) then
      found = module .. "." .. name
      break
    end
  end
  searching = false
  return found
end

--- Returns the end of a message after "there is no NAME": "; did you mean 'Linear'?", "; it is
--- accelerate.optim.Adam", "; instead: tensor.tensor(values)" or "".
---@param name any
---@param near string? the nearest name of the module itself
---@param from string? the module
---@param quote string? what stands around `near`
---@return string
function M.hint(name, near, from, quote)
  local other = M.OTHERS[("%s.%s"):format(from, name)] or M.OTHERS[name]
  if other then return "; instead: " .. other end
  local found = found_in(name, from)
  local same = near and (near:lower() == tostring(name):lower() -- ReLU for relu
    or near == tostring(name) .. "_") -- init.normal_ for init.normal
  near = near and (quote or "") .. near .. (quote or "")
  if found and not same then return "; it is " .. found end
  if found then return ("; did you mean %s, or %s?"):format(near, found) end
  return near and ("; did you mean %s?"):format(near) or ""
end

return M
