--- Where a name lives that a module lacks: another module here has it, or PyTorch has it and
--- something of another name takes its place. Messages about unknown names ask this.
local M = {}

-- In the order of the search. A name that several have is the first one's.
local MODULES = { "accelerate", "accelerate.nn", "accelerate.optim", "accelerate.optim.lr_scheduler",
  "accelerate.data", "accelerate.nn.functional", "accelerate.utils", "accelerate.tensor",
  "accelerate.distributions", "accelerate.func", "accelerate.nn.utils", "accelerate.nn.init",
  "accelerate.autograd", "accelerate.tensor.linalg", "accelerate.tensor.fft", "accelerate.tensor.special" }

local LAYOUT = "leave memory_format out: layers choose how they lay out what they compute"

--- PyTorch's names of things that are written in another way here: of functions of torch, and of
--- methods of its tensors. A name with its module is one of that module alone.
M.OTHERS = {
  Tensor = "tensor.tensor(values), or tensor.empty(sizes)",
  FloatTensor = "tensor.tensor(values), or tensor.empty(sizes)",
  ["accelerate.sparse.FloatTensor"] = "sparse.sparse_coo_tensor(indices, values, size)",
  LongTensor = 'tensor.tensor(values, { dtype = "int64" })',
  device = 'a device is a text, as "cpu" or "cuda:0"',
  dtype = 'a type is a text, as "float32"',
  from_numpy = "accelerate.data.read_npy(path)",
  compile = 'accelerate.Accelerator { dynamo_backend = "cudagraphs" } records steps on a GPU',
  jit = 'accelerate.Accelerator { dynamo_backend = "cudagraphs" } records steps on a GPU',
  distributed = "accelerator:gather(x), accelerator:reduce(x) and accelerate.utils.broadcast(x)",
  prune = "nn.utils.parametrize with a module that multiplies by a mask (pruning is not there)",
  int8 = 'no tensor has this type; "int32" holds its numbers',
  int16 = 'no tensor has this type; "int32" holds its numbers',
  DataParallel = "accelerator:prepare(model), with a process for each device",
  Variable = "a tensor itself, with requires_grad = true",
  Buffer = 'module:register_buffer("name", x)',
  Sampler = "any object with iter(), which yields positions from 1, and len()",
  kl = "distributions.kl_divergence(p, q)",
  lstm = "nn.LSTM", gru = "nn.GRU",
  set_default_tensor_type = 'tensor.set_default_dtype("float64") and tensor.set_default_device("cuda")',
  multiprocessing = "accelerate.notebook_launcher(fn, args, { num_processes = n })",
  amp = 'accelerate.Accelerator { mixed_precision = "fp16" } (or "bf16"), and tensor.autocast(fn)',
  GradScaler = 'accelerate.Accelerator { mixed_precision = "fp16" }, which scales losses',
  channels_last = LAYOUT, channels_last_3d = LAYOUT, contiguous_format = LAYOUT, preserve_format = LAYOUT,
  AutoTokenizer = "accelerate.tokenizers.from_pretrained(folder)",
}
M.METHODS = {
  numpy = "x:tolist(), or accelerate.data.write_npy(path, x)",
  __getitem__ = "x[i]", __len__ = "#x",
  storage = "x:data_ptr() and x:stride()",
  share_memory_ = "accelerate.notebook_launcher's function sees tensors of the script",
  apply_ = "x:tolist(), or ops on the whole tensor",
  map_ = "x:tolist(), or ops on the whole tensor",
}

--- Options that PyTorch's functions have and none here: what to write.
M.OPTIONS = {
  out = "a result is written into a tensor y by y:copy_(f(x))",
  memory_format = LAYOUT,
  layout = "tensors are dense; sparse ones are made by tensor.sparse_coo_tensor and x:to_sparse()",
  pin_memory = "x:pin_memory() copies a tensor to pinned memory",
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
  local same = near and near:lower() == tostring(name):lower() -- ReLU for relu
  near = near and (quote or "") .. near .. (quote or "")
  if found and not same then return "; it is " .. found end
  if found then return ("; did you mean %s, or %s?"):format(near, found) end
  return near and ("; did you mean %s?"):format(near) or ""
end

return M
