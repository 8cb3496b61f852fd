-- What scripts can reach: the modules of docs/reference, their members, and where each is
-- described.
local annotations = require "host.tools.annotations"
local core = require "accelerate.core"
local fs = require "accelerate.utils.fs"
local methods = require "accelerate.messages.methods"

local M = {}

-- Page, module, how scripts call it, and where its sources are.
M.PAGES = {
  { "accelerate", "accelerate", "accelerate", { "lua/accelerate" } },
  { "tensor", "accelerate.tensor", "tensor",
    { "lua/accelerate/tensor.lua", "lua/accelerate/precision/autocast.lua" } },
  { "tensor.linalg", "accelerate.tensor.linalg", "linalg", { "lua/accelerate/tensor/linalg" } },
  { "tensor.fft", "accelerate.tensor.fft", "fft", { "lua/accelerate/tensor/fft.lua" } },
  { "sparse", "accelerate.sparse", "sparse", { "lua/accelerate/sparse" } },
  { "nn", "accelerate.nn", "nn", { "lua/accelerate/nn" } },
  { "nn.functional", "accelerate.nn.functional", "F", { "lua/accelerate/nn" } },
  { "nn.init", "accelerate.nn.initializers", "nn.init", { "lua/accelerate/nn/initializers.lua" } },
  { "nn.utils", "accelerate.nn.utils", "nn.utils",
    { "lua/accelerate/nn/utils.lua", "lua/accelerate/nn/utils" } },
  { "optim", "accelerate.optim", "optim", { "lua/accelerate/optim" } },
  { "optim.lr_scheduler", "accelerate.optim.lr_scheduler", "optim.lr_scheduler",
    { "lua/accelerate/optim/lr_scheduler" } },
  { "optim.swa_utils", "accelerate.optim.swa_utils", "optim.swa_utils",
    { "lua/accelerate/optim/swa_utils.lua" } },
  { "data", "accelerate.data", "data", { "lua/accelerate/data" } },
  { "data.transforms", "accelerate.data.transforms", "data.transforms",
    { "lua/accelerate/data/transforms.lua" } },
  { "data_loader", "accelerate.data_loader", "data_loader",
    { "lua/accelerate/data_loader.lua", "lua/accelerate/data_loader",
    "lua/accelerate/data_loader/shard_samplers.lua", "lua/accelerate/data/sampler.lua" } },
  { "cuda", "accelerate.cuda", "cuda", { "lua/accelerate/cuda.lua" } },
  { "autograd", "accelerate.autograd", "autograd", { "lua/accelerate/autograd.lua" } },
  { "func", "accelerate.func", "func", { "lua/accelerate/func.lua", "lua/accelerate/func" } },
  { "peft", "accelerate.peft", "peft", { "lua/accelerate/peft" } },
  { "quantisation", "accelerate.quantisation", "quantisation", { "lua/accelerate/quantisation" } },
  { "metrics", "accelerate.metrics", "metrics", { "lua/accelerate/metrics" } },
  { "models", "accelerate.models", "models", { "lua/accelerate/models" } },
  { "distributed", "accelerate.distributed", "distributed", { "lua/accelerate/distributed" } },
  { "distributions", "accelerate.distributions", "distributions", { "lua/accelerate/distributions" } },
  { "tokenizers", "accelerate.tokenizers", "tokenizers", { "lua/accelerate/tokenizers" } },
  { "tracking", "accelerate.tracking", "tracking", { "lua/accelerate/tracking" } },
  { "logging", "accelerate.logging", "logging", { "lua/accelerate/logging.lua" } },
  { "profiler", "accelerate.profiler", "profiler", { "lua/accelerate/profiler.lua" } },
  { "utils", "accelerate.utils", "utils", { "lua/accelerate" } },
  { "plot", "accelerate.plot", "plot", { "lua/accelerate/plot/init.lua" } },
}

--- Returns the page that a member of a module has for itself: it is the page's module.  nil: none.
---@param value any the member
---@return table?
function M.page_of(value)
  if type(value) ~= "table" then return nil end
  for _, page in ipairs(M.PAGES) do
    if rawequal(package.loaded[page[2]], value) then return page end
  end
end

-- ---- what there is

function M.files_under(places)
  local list = {}
  for _, place in ipairs(places) do
    if place:find("%.lua$") then
      list[#list + 1] = place
    else
      local pipe = io.popen(("find %s -name '*.lua' | LC_ALL=C sort"):format(place))
      for path in pipe:lines() do list[#list + 1] = path end
      pipe:close()
    end
  end
  return list
end

function M.sorted_names(map)
  local names = {}
  for name in next, map do
    if type(name) == "string" and name:sub(1, 1) ~= "_" then names[#names + 1] = name end
  end
  table.sort(names)
  return names
end

function M.members(module)
  local meta = getmetatable(module)
  return meta and meta.__members or M.sorted_names(module)
end

-- The op that a function is, or nil.
M.ops = {}
for _, row in ipairs(core.ops()) do
  if not row.hidden then M.ops[core[row.name]] = row.name end
end
-- A function that stands for an op, as nn.functional has some, is that op.
setmetatable(M.ops, { __index = function(list, value)
  local plain = require("accelerate.messages.methods").plain(value)
  return plain ~= value and plain ~= nil and rawget(list, plain) or nil
end })

function M.is_class(value)
  return type(value) == "table" and rawget(value, "__name") ~= nil and rawget(value, "__new") ~= nil
end

function M.is_callable(value)
  local meta = type(value) == "table" and getmetatable(value)
  return meta and meta.__call ~= nil
end

-- ---- where it is described

function M.described(block)
  return block and (#block.text > 0 or #block.params > 0 or #block.returns > 0 or #block.fields > 0)
end

--- The block of a function: above its own line; else above the line in its files that names it.
function M.function_block(name, fn, files)
  local path, line = annotations.place(fn)
  if path then
    local block = annotations.above(path, line)
    local arguments = annotations.lines(path)[line]:match("function[^(]*(%b())")
    if block then return block, arguments and arguments:sub(2, -2) end
    local found, written = annotations.find({ path }, name)
    if found then return found, written end
    local fallback, text = annotations.find(files, name)
    return fallback, text or (arguments and arguments:sub(2, -2))
  end
  return annotations.find(files, name)
end

function M.header_file(module)
  local base = "lua/" .. module:gsub("%.", "/")
  return fs.exists(base .. ".lua") and base .. ".lua" or base .. "/init.lua"
end

--- The name under which a table was required, or nil.
function M.module_of(value)
  for _, name in ipairs(M.sorted_names(package.loaded)) do
    if package.loaded[name] == value then return name end
  end
end

-- ---- classes

-- Methods that every module or object has and that no one calls by name; and `end`, a former name
-- that raises.
M.OWN = { init = true, forward = true, extra_repr = true, ["end"] = true }

--- Returns whether a class's function is written with a dot and takes no object: it is called as
--- nn.Embedding.from_pretrained(rows). One without any parameter may be a method that needs no
--- self.
function M.of_class(fn)
  local path, line = annotations.place(fn)
  local text = path and annotations.lines(path)[line] or ""
  fn = methods.plain(fn)
  local how = debug.getinfo(fn, "u")
  local dotted = text:find "function%s+[%w_]+%.[%w_]+%s*%(" or text:find "=%s*function%s*%("
  return dotted ~= nil and not methods.takes_self(fn) and (how.nparams > 0 or how.isvararg)
end

function M.methods_of(Class)
  local names = {}
  for _, name in ipairs(M.sorted_names(Class)) do
    if type(rawget(Class, name)) == "function" and not M.OWN[name] then names[#names + 1] = name end
  end
  return names
end

return M
