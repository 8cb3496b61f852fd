--- How much each device may hold.
local core = require "accelerate.core"
local fs = require "accelerate.utils.fs"
local notice = require "accelerate.messages.notice"
local options = require "accelerate.utils.options"
local ordered = require "accelerate.utils.ordered"
local sizes = require "accelerate.big_modeling.sizes"
local weights = require "accelerate.weights"

local fail = options.fail

local M = {}

-- Bytes that new tensors of this process may take: the machine's free memory, or less where the
-- process's limit leaves less.
local function free_memory()
  local stats = core.memory_stats()
  local left = math.max(0, stats.limit_bytes - stats.live_bytes)
  local kilobytes = (fs.read("/proc/meminfo") or ""):match "MemAvailable:%s*(%d+) kB"
  return kilobytes and math.min(left, tonumber(kilobytes) * 1024) or left
end

local function measured()
  local limits = ordered.new()
  for i = 0, (core.device_count("cuda")) - 1 do
    limits[i] = core.memory_stats("cuda:" .. i).available_bytes
  end
  limits.cpu = free_memory()
  return limits
end

-- The numbers of the GPUs that a table of limits has, ascending.
local function gpus_of(where, limits)
  local list = {}
  for key in next, limits do
    if type(key) == "number" then list[#list + 1] = key
    elseif key ~= "cpu" and key ~= "disk" then
      fail("%s: max_memory has the device %s; known are the numbers of GPUs, \"cpu\" and \"disk\"", where,
        options.show(key))
    end
  end
  table.sort(list)
  local there = (core.device_count("cuda"))
  for _, i in ipairs(list) do
    if i < 0 or i >= there or i % 1 ~= 0 then
      notice.main_once("%s: max_memory names GPU %g; this machine has %d", where, i, there)
    end
  end
  return list
end

--- Returns the bytes that each device may hold, GPUs first by number, then "cpu" and "disk":
--- without an argument what is free now on the GPUs and in memory, else the given limits as
--- numbers. Raises for other devices.
---@param max_memory? table<string|integer, integer|string> bytes, or text such as "5GB"
---@return table<string|integer, integer> ordered
function M.get_max_memory(max_memory)
  if max_memory == nil then return measured() end
  options.value("get_max_memory", "max_memory", max_memory, { "table" })
  local limits, keys = ordered.new(), gpus_of("get_max_memory", max_memory)
  keys[#keys + 1], keys[#keys + 2] = "cpu", "disk"
  for _, key in ipairs(keys) do
    local given = max_memory[key]
    if given ~= nil then
      local what = ("max_memory[%s]"):format(tostring(key))
      options.value("get_max_memory", what, given, { "number|string" })
      limits[key] = weights.bytes_of("get_max_memory: " .. what, given)
    end
  end
  return limits
end

-- Of a map of sizes, the names that no other name stands below.
local function leaves_of(module_sizes)
  local parents, leaves = {}, {}
  for _, name in ipairs(ordered.keys(module_sizes)) do
    local parent = name:match "^(.*)%.[^.]*$"
    if parent then parents[parent] = true end
  end
  for _, name in ipairs(ordered.keys(module_sizes)) do
    if name ~= "" and not parents[name] then leaves[#leaves + 1] = name end
  end
  return leaves
end

-- The mean bytes of the modules that hold tensors and no modules.
local function mean_leaf(module_sizes)
  local without = ordered.new()
  for name, size in ordered.pairs(module_sizes) do without[name] = size end
  for _, name in ipairs(leaves_of(module_sizes)) do without[name] = nil end
  local sum, leaves = 0, leaves_of(without)
  for _, name in ipairs(leaves) do sum = sum + without[name] end
  return math.floor(sum / math.max(#leaves, 1))
end

-- The largest of the first modules of each class that is not split.
local function largest_block(model, module_sizes, classes)
  local most, seen = 0, {}
  for path, module in model:named_modules() do
    local name = module.__name
    if path ~= "" and classes[name] and not seen[name] and module_sizes[path] then
      seen[name], most = true, math.max(most, module_sizes[path])
    end
  end
  return most
end

M.BALANCED = { max_memory = { "table", optional = true },
  no_split_module_classes = { "string|list", optional = true },
  dtype = sizes.SIZES.dtype, special_dtypes = sizes.SIZES.special_dtypes,
  low_zero = { "boolean", default = false } }

-- The limits of the GPUs but the last: an equal share, and room for a layer.
local function share(model, limits, gpus, o, low_zero)
  local all = sizes.compute_module_sizes(model, { dtype = o.dtype, special_dtypes = o.special_dtypes })
  local total = all[""] or 0
  local classes = sizes.class_set("get_balanced_memory", o.no_split_module_classes, model)
  local room = math.floor(1.25 * math.max(largest_block(model, all, classes), mean_leaf(all)))
  local each = math.floor(total / (low_zero and #gpus - 1 or #gpus)) + room
  for k = 1, #gpus - 1 do
    local i = gpus[k]
    limits[i] = math.min(low_zero and i == 0 and limits[0] or each, limits[i])
  end
  if low_zero and limits[0] then
    local others = 0
    for i = 1, #gpus - 1 do others = others + (limits[i] or 0) end
    limits[0] = math.min(math.max(0, total - others), limits[0])
  end
end

--- Returns limits for infer_auto_device_map with which the GPUs get about equal shares: the model's
--- bytes by the number of GPUs, and 1.25 times the largest block that is not split, or the mean
--- layer where that is more. The last GPU keeps its limit. Where only one GPU is there and
--- max_memory is not given, it gets 90 % of what is free.
---@param model accelerate.nn.Module may be on the device "meta"
---@param opts? { max_memory: table<string|integer, integer|string>?, no_split_module_classes:
---  string|string[]?, dtype: string?, special_dtypes: table<string, string>?, low_zero: boolean? }
---  low_zero: GPU 0 gets only what the others cannot hold; default false
---@return table<string|integer, number> ordered
function M.get_balanced_memory(model, opts)
  sizes.check_model("get_balanced_memory", model)
  local o = options.check("get_balanced_memory", opts, M.BALANCED)
  local limits, gpus = M.get_max_memory(o.max_memory), {}
  for key, bytes in ordered.pairs(limits) do
    if type(key) == "number" and bytes > 0 then gpus[#gpus + 1] = key end
  end
  if #gpus == 0 then return limits end
  if #gpus == 1 and o.max_memory == nil then limits[gpus[1]] = limits[gpus[1]] * 0.9 end
  share(model, limits, gpus, o, o.low_zero and #gpus > 1)
  return limits
end

return M
