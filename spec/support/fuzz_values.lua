--- Random nested values and modules, with circles, shared tables and tensors, views, odd keys and
--- every type: what is saved and loaded, copied or cloned is the same value; and junk arguments to
--- what saves, loads, copies and averages. FUZZ_TRACE=1 prints each step before it is made.
local accelerate = require "accelerate"
local core = require "accelerate.core"
local data = require "accelerate.data"
local files = require "accelerate.files"
local fuzz_ops = require "spec.support.fuzz_ops"
local nn = require "accelerate.nn"
local optim = require "accelerate.optim"
local ordered = require "accelerate.utils.ordered"
local same = require "spec.fuzz.same"

local M = {}

local function step(...)
  if os.getenv("FUZZ_TRACE") then io.stderr:write(table.concat({ ... }, " "), "\n") end
end

-- ---- values

local TEXTS = { "", "a", "table", "tensor", "__metadata__", "data.pkl", "x.y", "\0", "\255\254", "é", "\r\n",
  "storage", ("long"):rep(1500), '"\\', "1", "true", "\27[0m", "\239\187\191" }
local NUMBERS = { 0, -0.0, 1, -1, 0.1, 1 / 3, 0 / 0, 1 / 0, -1 / 0, 2 ^ 31, -2 ^ 31, 2 ^ 53, -2 ^ 53, 2 ^ 63,
  -2 ^ 63, 5e-324, 1.7e308, 255, 256, 65536, 1e15 }

local function plain_of(c)
  local kind = c:int(4)
  if kind == 1 then return c:once_in(2) end
  return c:of(kind == 2 and NUMBERS or TEXTS)
end

local function tensor_of(c, known)
  if #known > 0 and c:once_in(2) then
    local t = c:of(known)
    if c:once_in(3) then return t end
    t = t:detach()
    return t.ndim > 0 and t.shape[1] > 0 and c:once_in(2) and t[c:int(t.shape[1])] or t
  end
  local t = fuzz_ops.fresh(c)
  if c:once_in(6) and t.dtype:find("float", 1, true) then
    t = nn.Parameter(t:detach(), { requires_grad = c:once_in(2) })
  end
  known[#known + 1] = t
  return t
end

--- Returns a nested value of about `size` tables.
local function value_of(c, size)
  local tables, tensors = { {} }, {}
  local function item()
    if c:once_in(4) then return tensor_of(c, tensors) end
    if c:once_in(2) then return plain_of(c) end
    if #tables < size and not c:once_in(4) then
      tables[#tables + 1] = c:once_in(3) and ordered.new() or {}
      return tables[#tables]
    end
    return c:of(tables)
  end
  local at = 1
  while tables[at] do
    local t, list = tables[at], not ordered.is_ordered(tables[at]) and c:once_in(2)
    for k = 1, c:int(5) - 1 do
      local key = list and k or plain_of(c)
      if key == key and t[key] == nil then t[key] = item() end
    end
    at = at + 1
  end
  return tables[1]
end

local function compare(what, a, b)
  local difference = same(a, b)
  if difference then error(what .. ": " .. difference, 0) end
end

local function travel(c, folder)
  local value = value_of(c, c:int(12))
  for _, name in ipairs { "x.safetensors", "x.pt" } do
    step("save and load", name)
    files.write(value, folder .. "/" .. name)
    compare(name, value, files.load(folder .. "/" .. name))
  end
  step "deepcopy"
  compare("deepcopy", value, accelerate.utils.deepcopy(value))
end

local function write_tensors(c, folder)
  local t, u = fuzz_ops.fresh(c):detach(), fuzz_ops.fresh(c):detach()
  step("npy", t.dtype, table.concat(t.shape, ","))
  data.write_npy(folder .. "/x.npy", t)
  compare("npy", t, data.read_npy(folder .. "/x.npy"))
  data.write_npz(folder .. "/x.npz", { a = t, ["b/c"] = u })
  compare("npz", { a = t, ["b/c"] = u }, (data.read_npz(folder .. "/x.npz")))
  local picture = core.randint(0, 256, { c:of { 1, 3 }, c:int(5), c:int(5) }, { dtype = "uint8" })
  data.write_image(folder .. "/x.png", picture:transpose(2, 3))
  compare("png", picture:transpose(2, 3), data.read_image(folder .. "/x.png", "UNCHANGED"))
end

-- ---- modules

local LAYERS = {
  function(c) return nn.Linear(c:int(4), c:int(4), { bias = c:once_in(2) }) end,
  function(c) return nn.Conv2d(c:int(3), c:int(3), c:int(3)) end,
  function(c) return nn.BatchNorm1d(c:int(4)) end,
  function(c) return nn.Embedding(c:int(5), c:int(4)) end,
  function(c) return nn.LayerNorm(c:int(4)) end,
  function() return nn.Dropout(0.5) end,
}

local function module_of(c, depth)
  if depth > 3 or c:once_in(2) then return c:of(LAYERS)(c) end
  local list = {}
  for i = 1, c:int(4) do list[i] = module_of(c, depth + 1) end
  if #list > 1 and c:once_in(2) then list[#list] = list[1] end -- one module in two places
  return nn.Sequential(unpack(list))
end

local function halve(c, module)
  if c:once_in(3) then module:to(c:of { "bfloat16", "float16", "float64" }) end
  local parameters = module:parameters()
  if #parameters > 0 and c:once_in(3) then c:of(parameters).requires_grad = false end
  return module
end

local function copy_modules(c, folder)
  local module = halve(c, nn.Sequential(module_of(c, 1), module_of(c, 1)))
  step("clone", tostring(module))
  local clone = module:clone()
  compare("clone", module:state_dict(), clone:state_dict())
  assert(tostring(module) == tostring(clone), "the clone prints otherwise")
  local average = optim.swa_utils.AveragedModel(module, { use_buffers = c:once_in(2),
    multi_avg_fn = c:of { false, optim.swa_utils.get_ema_multi_avg_fn(0.5) } or nil })
  for _ = 1, c:int(3) do average:update_parameters(module) end
  files.write(average:state_dict(), folder .. "/m.pt")
  local back = files.load(folder .. "/m.pt")
  compare("state_dict", average:state_dict(), back)
  average:load_state_dict(back)
end

-- ---- junk

local function raising() error("asked for by the test", 0) end
local JUNK = {
  function()
    return nil
  end, function() return true end, function() return -1 end, function() return 0 / 0 end,
  function()
    return 2 ^ 53
  end, function() return 1e300 end, function() return "" end, function() return "x\0y" end,
  function() return "/nowhere/x" end, function() return "/dev/null" end, function() return {} end,
  function() return { 1, "x", [5] = {} } end, function() return { [{}] = 1 } end, function() return print end,
  function()
    return { a = print }
  end, function() return coroutine.create(print) end, function() return io.stdout end,
  function() return require("ffi").new("int64_t", 5) end, function() return newproxy(true) end,
  function()
    return setmetatable({}, { __index = raising, __newindex = raising, __len = raising, __pairs = raising })
  end,
  function() return setmetatable({ 1 }, { __metatable = "hidden" }) end,
  function() return setmetatable({}, { __order = 5 }) end,
  function()
    return core.ones(2)
  end, function() return core.zeros(0, 3) end, function() return core.tensor(true) end,
  function()
    return core.ones(2, 3):transpose(1, 2)
  end, function() return core.ones(1):expand(2 ^ 20, 2 ^ 20) end,
  function() return nn.Linear(2, 2) end, function() return nn.Linear end, function() return optim.SGD end,
  function()
    return ordered.new()
  end, function() return { device = "cuda:0" } end, function() return { keys = { 1 } } end,
  function() return { map_location = 5 } end, function() return { use_buffers = {} } end,
}

local function open_file(folder)
  core.safetensors_save(folder .. "/j.safetensors", { { "a", core.ones(2) } }, { k = "v" })
  return files.safe_open(folder .. "/j.safetensors")
end

local function calls_of(folder)
  local swa, f = optim.swa_utils, open_file(folder)
  local module, average = nn.Linear(2, 2), swa.AveragedModel(nn.Linear(2, 2))
  local good = folder .. "/junk"
  return { { files.save, nil, good }, { files.save, nil, nil, nil }, { files.write, nil, good, nil },
    { files.load },
    { files.load, nil, nil }, { files.safe_open }, { files.load_safetensors, nil, nil },
    { files.load_safetensors, folder .. "/j.safetensors" }, { f.get_tensor, f }, { f.get_shape, f },
    { f.get_dtype },
    { f.keys }, { f.metadata }, { data.write_npy, good, nil }, { data.write_npz, good, nil },
    { data.write_csv, good },
    { data.write_csv, good, { a = { 1 } } }, { data.write_image, good .. ".png", nil }, { data.read_npy },
    { data.read_csv, good, nil }, { data.read_json }, { data.decode_image, nil, nil },
    { accelerate.utils.deepcopy },
    { module.clone }, { module.load_state_dict, module, nil }, { swa.AveragedModel, nil, nil },
    { swa.AveragedModel, module, nil }, { average.update_parameters, average, nil },
    { swa.get_ema_multi_avg_fn },
    { average.load_state_dict, average, nil }, { core.safetensors_save, good, nil, nil },
    { core._parts_write, good, nil, "save" }, { core._zip_write, good, nil, "save" },
    { core._zip_open, nil, "load" },
    { core._csv, nil, ",", '"', nil }, { core._tokens, nil, nil, nil },
    { core._token_windows, nil, nil, nil, nil } }
end

local OURS = { "attempt to ", "lua/accelerate/[%w_/]+%.lua:%d+: ", "stack overflow" }

local function try_junk(c, folder, call)
  local n, given = 1 + c:int(3), {}
  for i = 2, math.max(n, 3) do
    given[i - 1] = call[i]
    if given[i - 1] == nil then given[i - 1] = c:of(JUNK)() end
  end
  step("junk", tostring(call[1]))
  local ok, message = pcall(call[1], unpack(given, 1, math.max(n, 3) - 1))
  if ok then return end
  if type(message) ~= "string" then error("raised a " .. type(message), 0) end
  if message == "asked for by the test" then return end
  for _, pattern in ipairs(OURS) do
    if message:find(pattern) then
      local shown = {}
      for i = 1, 3 do shown[i] = type(given[i]) == "table" and "a table" or tostring(given[i]) end
      error(("call %s with %s: %s"):format(tostring(call.number), table.concat(shown, ", "), message), 0)
    end
  end
end

--- Runs `rounds` rounds of it. Raises, with the seed, where a promise is broken.
---@param seed integer
---@param rounds integer
---@param folder string where files go
function M.run(seed, rounds, folder)
  core.manual_seed(seed)
  local c = fuzz_ops.chance(seed)
  local calls = calls_of(folder)
  for i, call in ipairs(calls) do call.number = i end
  for _ = 1, rounds do
    local ok, message = pcall(function()
      travel(c, folder)
      write_tensors(c, folder)
      copy_modules(c, folder)
      for _ = 1, 20 do try_junk(c, folder, c:of(calls)) end
    end)
    if not ok then error(("seed %d: %s"):format(seed, tostring(message)), 2) end
  end
end

return M
