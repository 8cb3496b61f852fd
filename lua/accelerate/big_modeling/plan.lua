--- What a device map costs: bytes on each device, and the time of a token.
local class = require "accelerate.utils.class"
local device_maps = require "accelerate.big_modeling.device_map"
local dispatching = require "accelerate.big_modeling.dispatch"
local homes = require "accelerate.big_modeling.homes"
local limits = require "accelerate.big_modeling.limits"
local options = require "accelerate.utils.options"
local ordered = require "accelerate.utils.ordered"
local sizes = require "accelerate.big_modeling.sizes"
local size_text = require("accelerate.utils.sizes").text
local speeds = require "accelerate.big_modeling.speeds"
local tensors = require "accelerate.hooks.tensors"
local ties = require "accelerate.big_modeling.ties"
local weights = require "accelerate.weights"

local fail = options.fail
local WHERE = "plan_device_map"

local M = {}

---@class accelerate.DeviceMapPlan
---@field device_map table<string, string|integer>
---@field bytes number of all weights
---@field read number bytes of weights that a token of one row needs: of embeddings only rows
---@field parts table[] { place = "cuda:0", "cpu" or "disk", bytes =, read =, seconds = of a token,
---  first = of the first token, how = }
---@field seconds number? of a token; nil: the speed of the disk is not known
---@field first number? of the first token, which finds no file in memory
---@field ahead number bytes of weights that are on their way at a time, at most
local Plan = class "DeviceMapPlan"

-- ---- what rests where

-- The tensors that are embeddings and nothing else: a token reads a row of them.
local function looked_up(model)
  local nn, all = require "accelerate.nn", {}
  for _, module in model:named_modules() do
    local is_embedding = class.is(module, nn.Embedding)
    for _, p in module:named_parameters { recurse = false } do
      if all[p] == nil then all[p] = is_embedding else all[p] = all[p] and is_embedding end
    end
  end
  return all
end

-- The type that a tensor is multiplied in, or the encoding that it belongs to.
local function kind_of(model, name, t, o)
  local module, last = tensors.owner(model, name)
  if module._parts and (last == "weight" or module:_kind_of(last) == "buffer") then return module.encoding end
  local own = o.special_dtypes and o.special_dtypes[name] or t.dtype
  if t.dtype:find "int" or t.dtype == "bool" then return "float32" end
  if o.dtype and sizes.dtype_byte_size(o.dtype) < sizes.dtype_byte_size(own) then own = o.dtype end
  return own:gsub("^torch%.", "")
end

-- { place -> { bytes, rows (bytes that are looked up), kinds = { kind -> bytes } } }, in the order
-- of the model.
local function places_of(model, map, o)
  local all, bytes = ordered.new(), sizes.compute_module_sizes(model, { dtype = o.dtype,
    special_dtypes = o.special_dtypes })
  local rows = looked_up(model)
  for name, t in tensors.named_module_tensors(model, { recurse = true }) do
    local place = ties.place_of(map, name)
    if place == nil then fail("%s: device_map gives '%s' no device", WHERE, name) end
    place = type(place) == "number" and ("cuda:%d"):format(place) or place
    local at = all[place] or { place = place, bytes = 0, rows = 0, kinds = ordered.new() }
    all[place] = at
    at.bytes = at.bytes + bytes[name]
    if rows[t] then at.rows = at.rows + bytes[name]
    else
      local kind = kind_of(model, name, t, o)
      at.kinds[kind] = (at.kinds[kind] or 0) + bytes[name]
    end
  end
  return all
end

-- ---- how long it takes

local Clock = class "Clock"

-- stated: speeds by name of a place, of "transfer"; path: a file with weights, or nil.
function Clock:init(stated, path)
  self.stated, self.path, self.known = {}, path, {}
  for name, value in next, stated or {} do
    local what = ("bandwidth[%s]"):format(tostring(name))
    local key = type(name) == "number" and ("cuda:%d"):format(name) or name
    options.value(WHERE, what, value, { "number|string" })
    self.stated[key] = weights.bytes_of(WHERE .. ": " .. what, value)
  end
end

function Clock:measured(key, measure)
  if self.known[key] == nil then self.known[key] = measure() or false end
  return self.known[key] or nil
end

function Clock:products(device, kind)
  return self.stated[device]
    or self:measured(device .. kind, function() return speeds.products(device, kind) end)
end

function Clock:transfers(device)
  return self.stated.transfer
    or self:measured("to " .. device, function() return speeds.transfers(device) end)
end

function Clock:disk()
  return self.stated.disk or self.path and self:measured("disk", function() return speeds.disk(self.path) end)
end

function Clock:says(key) return self.stated[key] and "stated" or "measured" end

-- The seconds in which a device multiplies the weights of a place.
local function computing(clock, device, at)
  local sum = 0
  for kind, bytes in ordered.pairs(at.kinds) do sum = sum + bytes / clock:products(device, kind) end
  return sum
end

local function speed_text(bytes, seconds) return size_text(bytes / math.max(seconds, 1e-9)) .. "/s" end

-- A part of a plan: weights on its own device, from memory, or out of a file. `stays`:
-- files that were read stay in memory.
local function part_of(clock, at, main, stays)
  local own = at.place ~= "disk" and (at.place ~= "cpu" or main == "cpu")
  local device = own and at.place or main
  local part = { place = at.place, bytes = at.bytes, read = at.bytes - at.rows }
  local seconds = computing(clock, device, at)
  part.seconds, part.first = seconds, seconds
  if own then
    part.how = part.read == 0 and "no product reads it" or ("computed on where it is, %s, %s"):format(
      speed_text(part.read, seconds), clock:says(device))
    return part
  end
  if device ~= "cpu" then -- whole tensors travel, beside the computing
    part.read = at.bytes
    part.seconds = math.max(seconds, at.bytes / clock:transfers(device))
    part.first = part.seconds
    part.how = ("comes to %s, %s, %s"):format(device, speed_text(at.bytes, part.seconds),
      clock:says "transfer")
  end
  if at.place ~= "disk" then return part end
  local disk = clock:disk()
  part.first = disk and math.max(part.seconds, part.read / disk)
  if not stays then part.seconds = part.first end
  local file = disk and ("out of its file, %s/s, %s"):format(size_text(disk), clock:says "disk")
    or "out of its file, whose speed is not known (give checkpoint or bandwidth.disk)"
  part.how = ("%s%s"):format(stays and "the first time " or "", file) ..
    (stays and ", then " .. (part.how or "computed on where it is mapped") or "")
  return part
end

local function sum_of(parts, key)
  local sum = 0
  for _, part in ipairs(parts) do
    if not part[key] then return nil end
    sum = sum + part[key]
  end
  return sum
end

-- ---- the call

local OPTIONS = {
  device_map = { "string|table", optional = true },
  max_memory = { "table", optional = true },
  no_split_module_classes = { "string|list", optional = true },
  dtype = { "string", optional = true },
  special_dtypes = { "table", optional = true },
  main_device = { "string|integer", optional = true },
  checkpoint = { "string", optional = true },
  bandwidth = { "table", optional = true },
}

local function map_of(model, o)
  local map = o.device_map or rawget(model._values, "hf_device_map")
  if not map then fail("%s: the model has no hf_device_map; give a device_map", WHERE) end
  return dispatching.resolve_map(WHERE, model, map, o)
end

-- The first device of a map that is no home alone. GPUs of another machine may be planned for, if
-- their speeds are stated.
local function main_of(map, o)
  if o.main_device then return tensors.device_name(o.main_device) end
  for _, place in ordered.pairs(map) do
    if place ~= "cpu" and place ~= "disk" then
      return type(place) == "number" and ("cuda:%d"):format(place) or place
    end
  end
  return "cpu"
end

--- Returns the plan of a device map, which prints as text: bytes on each device, how they come to
--- where they are used, and the expected time of a token of one row. The time is that of reading
--- the weights once; speeds are measured, in some hundredths of a second each, or stated.
---
---   print(utils.plan_device_map(model))                       -- of a dispatched model
---   print(utils.plan_device_map(empty, { device_map = "auto", dtype = "float16",
---     checkpoint = folder, bandwidth = { [0] = "2TB", transfer = "25GB" } }))
---
---@param model accelerate.nn.Module may be made by init_empty_weights
---@param opts? { device_map: string|table<string, string|integer>?, max_memory: table?,
---  no_split_module_classes: string|string[]?, dtype: string?, special_dtypes: table<string,
---  string>?, main_device: string|integer?, checkpoint: string?, bandwidth: table<string|integer,
---  number|string>? } device_map: default the model's own; max_memory, no_split_module_classes: of
---  a device_map that is a word; dtype, special_dtypes: as compute_module_sizes takes them;
---  main_device: what computes the offloaded parts, default the map's first GPU, else the CPU;
---  checkpoint: the files, for the disk's speed; default those of a dispatched model; bandwidth:
---  bytes a second, by "cpu" and number of a GPU for products, "transfer" for copies to GPUs, and
---  "disk"
---@return accelerate.DeviceMapPlan
function M.plan_device_map(model, opts)
  sizes.check_model(WHERE, model)
  local o = options.check(WHERE, opts, OPTIONS)
  local map = map_of(model, o)
  local path = o.checkpoint and weights.find_files(o.checkpoint, WHERE)[1] or homes.file_of(model)
  local clock, main = Clock(o.bandwidth, path), main_of(map, o)
  local places = places_of(model, map, o)
  local stays = (places.disk and places.disk.bytes or 0) < 0.8 * (limits.get_max_memory().cpu or 0)
  local plan = Plan()
  plan.device_map, plan.parts, plan.bytes, plan.read = map, {}, 0, 0
  for _, at in ordered.pairs(places) do
    if at.place ~= "cpu" and at.place ~= "disk" and not clock.stated[at.place] then
      device_maps.device_of(WHERE, at.place)
    end
    local part = part_of(clock, at, main, stays)
    plan.parts[#plan.parts + 1] = part
    plan.bytes, plan.read = plan.bytes + part.bytes, plan.read + part.read
  end
  plan.seconds, plan.first = sum_of(plan.parts, "seconds"), sum_of(plan.parts, "first")
  plan.ahead = (places.disk or main ~= "cpu" and places.cpu) and 3 * homes.block_bytes(model, o) or 0
  return plan
end

local function milliseconds(seconds) return seconds and ("%.1f ms"):format(seconds * 1e3) or "unknown" end

function Plan:__tostring()
  local lines = { ("%s of weights; a token of one row reads %s"):format(size_text(self.bytes),
    size_text(self.read)) }
  for _, part in ipairs(self.parts) do
    lines[#lines + 1] = ("  %-8s %9s %10s  %s"):format(part.place, size_text(part.bytes),
      milliseconds(part.seconds), part.how)
  end
  if self.ahead > 0 then
    lines[#lines + 1] = ("on their way: at most %s, a block and two ahead"):format(size_text(self.ahead))
  end
  local first = self.first ~= self.seconds and (", %s the first one"):format(milliseconds(self.first)) or ""
  lines[#lines + 1] = ("expected: %s a token%s"):format(milliseconds(self.seconds), first)
  return table.concat(lines, "\n")
end

return M
