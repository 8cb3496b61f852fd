-- The side of accel in check.py: answers requests on its standard input until it ends.
--
-- A request is the path of a folder. Its `samples` has one sample a line, Lua text that gives three
-- values: the tensors of the sample, { type, number of its first element in the file of that type,
-- shape, whether it requires a gradient }; a function of these tensors, the call; and what is to be
-- differentiated: { { result, tensor that is its gradient }, .. , of = { tensors } }. `data.npz`
-- has the elements, one row for each type. The answer is `results` (JSON, one line a sample) and
-- `results.npz`.
local core = require "accelerate.core"
local data = require "accelerate.data"
local json = require "accelerate.utils.json"
local tensor = require "accelerate.tensor"
local composed = require "accelerate.tensor.composed"

local function module_of(name)
  local found, module = pcall(require, name)
  return found and module or {}
end
local NAMES = { tensor = tensor, F = require "accelerate.nn.functional", nn = require "accelerate.nn",
  optim = require "accelerate.optim", huge = math.huge, nan = 0 / 0, unpack = unpack, math = math,
  linalg = tensor.linalg, fft = tensor.fft, special = tensor.special, ipairs = ipairs,
  lr_scheduler = require "accelerate.optim.lr_scheduler", masked = module_of "accelerate.tensor.masked",
  windows = module_of "accelerate.tensor.windows", sparse = tensor.sparse }

-- ---- what there is

local function keys(module)
  local list = json.list()
  for name, value in pairs(module) do
    if type(value) == "function" or type(value) == "table" then list[#list + 1] = name end
  end
  return list
end

-- The names of functions, with their signatures where they have one.
local function inventory()
  local found = { signatures = {}, functions = {}, aliases = {} }
  for _, row in ipairs(core.ops()) do
    if not row.hidden then found.signatures[row.name] = row.signature end
  end
  for _, entry in ipairs(composed.list) do
    found.signatures[entry.name] = entry.signature
    found.aliases[entry.name] = entry.summary:match "^another name of `([%w_]+)`$"
  end
  for name, module in pairs(NAMES) do
    if type(module) == "table" then found.functions[name] = keys(module) end
  end
  found.functions.tensor = json.list()
  local x = core.empty(0)
  for name in io.lines(os.getenv "CHECK_NAMES") do
    local optimizer = name:match "^optim%.(.*)"
    if optimizer then -- they are loaded at their first use
      local there, class = pcall(function() return NAMES.optim[optimizer] end)
      if there and class then table.insert(found.functions.optim, optimizer) end
    end
    local known, fn = pcall(function() return tensor[name] end)
    local got, method = pcall(function() return x[name] end)
    if known and fn ~= nil then table.insert(found.functions.tensor, name) end
    if got and method ~= nil then found.functions["x:" .. name] = json.list() end
  end
  return found
end

-- ---- samples

-- Rows of elements, one for each type, that tensors are appended to.
local function writer()
  local rows, counts = {}, {}
  return {
    add = function(x)
      local dtype = x.dtype
      if dtype == "bfloat16" or dtype == "float16" then x = x:float() end
      local kind = x.dtype
      rows[kind], counts[kind] = rows[kind] or {}, counts[kind] or 0
      local at = counts[kind]
      counts[kind] = at + x:numel()
      table.insert(rows[kind], x:detach():reshape(-1))
      return { dtype, json.list(x.shape), kind, at }
    end,
    write = function(path)
      local whole = {}
      for kind, list in pairs(rows) do whole[kind] = core.cat(list, 1) end
      if next(whole) == nil then whole.none = core.zeros(1) end
      data.write_npz(path, whole)
    end,
  }
end

local function flat(value, out)
  if type(value) == "table" then
    for _, v in ipairs(value) do flat(v, out) end
  else
    out[#out + 1] = value
  end
  return out
end

local function tensors_of(list, rows)
  local T = {}
  for i, entry in ipairs(list) do
    local kind, from, shape, wants = unpack(entry)
    local count = 1
    for _, size in ipairs(shape) do count = count * size end
    local x = rows[kind]:narrow(1, from + 1, count):reshape(shape):clone()
    if wants then x.requires_grad = true end
    T[i] = x
  end
  return T
end

local function gradients(results, T, wanted)
  local outputs, seeds, inputs = {}, {}, {}
  for _, pair in ipairs(wanted) do
    local x, seed = results[pair[1] + 1], T[pair[2]]
    if core.is_tensor(x) and x.requires_grad then
      outputs[#outputs + 1], seeds[#seeds + 1] = x, seed:to(x.dtype)
    elseif seed:numel() > 0 then
      error("result " .. pair[1] + 1 .. " has no gradient", 0)
    end
  end
  for i, at in ipairs(wanted.of) do inputs[i] = T[at] end
  if #outputs == 0 then return {}, #inputs end
  local function list(...)
    return type(...) == "table" and (...) or { ... }
  end
  return list(core.grad(outputs, inputs, { grad_outputs = seeds, allow_unused = true })), #inputs
end

local function run_sample(line, rows, out)
  local list, call, wanted = setfenv(assert(loadstring(line)), NAMES)()
  local T = tensors_of(list, rows)
  local results = flat({ setfenv(call, NAMES)(T) }, {})
  local answer = { results = json.list(), gradients = json.list() }
  for i, value in ipairs(results) do
    answer.results[i] = core.is_tensor(value) and out.add(value) or { tostring(value) }
  end
  if #wanted > 0 then
    local ok, found, count = pcall(gradients, results, T, wanted)
    if not ok then answer.gradient_error = tostring(found)
    else
      for i = 1, count do
        answer.gradients[i] = core.is_tensor(found[i]) and out.add(found[i]) or { "none" }
      end
    end
  end
  return answer
end

local function serve(folder)
  local rows, out = data.read_npz(folder .. "/data.npz"), writer()
  local results = assert(io.open(folder .. "/results", "w"))
  for line in io.lines(folder .. "/samples") do
    core.manual_seed(0)
    local ok, answer = pcall(run_sample, line, rows, out)
    if not ok then answer = { error = (tostring(answer):gsub("^%S+%.lua:%d+: ", "")) } end
    results:write(json.encode(answer), "\n")
  end
  results:close()
  out.write(folder .. "/results.npz")
end

print(json.encode(inventory()))
io.flush()
for folder in io.lines() do
  local ok, message = xpcall(serve, debug.traceback, folder)
  print(ok and "done" or "failed: " .. tostring(message):gsub("\n", " | "))
  io.flush()
  collectgarbage()
end
