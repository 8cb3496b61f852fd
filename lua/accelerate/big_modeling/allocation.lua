--- infer_auto_device_map: which module goes where, greedily in the order of registration.
---
--- People keep device maps in files, so the result is Accelerate's to the letter, also where
--- another choice would be better: a device that was left is not used again, and of the first GPU
--- and of the CPU room for the largest layer is kept.
local class = require "accelerate.utils.class"
local device_map = require "accelerate.big_modeling.device_map"
local limits = require "accelerate.big_modeling.limits"
local notice = require "accelerate.messages.notice"
local options = require "accelerate.utils.options"
local ordered = require "accelerate.utils.ordered"
local sizes = require "accelerate.big_modeling.sizes"
local ties = require "accelerate.big_modeling.ties"
local Module = require("accelerate.nn").Module

local M = {}

-- An entry is { name, module or tensor }.  Lists of entries are the modules that have still to get
-- a place.

local function index_of(entries, name)
  for i, entry in ipairs(entries) do
    if entry[1] == name then return i end
  end
end

-- The list without the entry at `at`, which the entries of `children` replace.
local function replaced(entries, at, children)
  local list = {}
  for i, entry in ipairs(entries) do
    if i ~= at then list[#list + 1] = entry
    else
      for _, child in ipairs(children) do list[#list + 1] = child end
    end
  end
  return list
end

-- Does the text of one name hold the other, as whole parts?  Accelerate asks so, and not whether
-- one begins with the other.
local function holds(name, part) return (name .. "."):find(part .. ".", 1, true) ~= nil end

-- The parameters outside a module that are tied to one inside.
local function tied_outside(groups, name)
  local list = {}
  for _, group in ipairs(groups) do
    local outside = {}
    for _, p in ipairs(group) do
      if not holds(p, name) then outside[#outside + 1] = p end
    end
    if #outside > 0 and #outside < #group then
      for _, p in ipairs(outside) do list[#list + 1] = p end
    end
  end
  return list
end

-- The bytes of a module with the modules that its ties lead to, and those.  A parameter whose
-- module has its place already adds nothing.
local function with_ties(tied, bytes, all, entries)
  local modules = {}
  for _, p in ipairs(tied) do
    for _, entry in ipairs(entries) do
      local prefix = entry[1] .. "."
      if p:sub(1, #prefix) == prefix then
        modules[#modules + 1] = entry
        bytes = bytes + (all[entry[1]] or 0) - (all[p] or 0)
        break
      end
    end
  end
  return bytes, modules
end

local function modules_only(entries)
  local list = {}
  for _, entry in ipairs(entries) do
    if class.is(entry[2], Module) then list[#list + 1] = entry end
  end
  return list
end

-- ---- a run of the allocation

local Run = class("DeviceMapRun")

function Run:init(model, o)
  local where = "infer_auto_device_map"
  self.o, self.max = o, limits.get_max_memory(o.max_memory)
  self.classes = sizes.class_set(where, o.no_split_module_classes, model)
  self.sizes = sizes.compute_module_sizes(model, { dtype = o.dtype, special_dtypes = o.special_dtypes })
  self.tied = ties.find_tied_parameters(model)
  self.left = sizes.direct(model)
  self.devices = ordered.keys(self.max)
  if self.devices[#self.devices] ~= "disk" then table.insert(self.devices, "disk") end
  self.keeps_room = { cpu = true, [self.devices[1] ~= "disk" and self.devices[1] or "cpu"] = true }
  self.map, self.used, self.buffers, self.needed = ordered.new(), {}, {}, ordered.new()
  for _, device in ipairs(self.devices) do self.used[device] = 0 end
  self.at = 1
  self:measure(self.left)
end

function Run:say(...)
  if self.o.verbose then print((...):format(select(2, ...))) end
end

-- Finds the largest layer of those that have no place.
function Run:measure(entries)
  self.largest, self.largest_names = sizes.largest(entries, self.sizes, self.classes)
end

-- Finds the largest layer that is left, where the layer just placed was the largest.
function Run:update_largest(name)
  local kept = {}
  for _, layer in ipairs(self.largest_names) do
    if layer ~= name and layer:sub(1, #name + 1) ~= name .. "." then kept[#kept + 1] = layer end
  end
  self.largest_names = kept
  if #kept == 0 then self:measure(modules_only(self.left)) end
end

-- Gives a module and those that its ties lead to the device.
function Run:put(entry, bytes, modules)
  local device = self.devices[self.at]
  self:say("%s: on %s (%g bytes%s)", entry[1], tostring(device), bytes, modules[1] and ", with its ties"
    or "")
  self.used[device] = self.used[device] + bytes
  self.map[entry[1]] = device
  for _, tied in ipairs(modules) do
    local at = index_of(self.left, tied[1])
    if at then table.remove(self.left, at) end
    self.map[tied[1]] = device
  end
  if not self.o.offload_buffers and class.is(entry[2], Module) then
    self.buffers[device] = (self.buffers[device] or 0) + M.compute_module_total_buffer_size(entry[2],
      { dtype = self.o.dtype, special_dtypes = self.o.special_dtypes })
  end
end

-- Replaces one of the tied modules by its children, so that a part of it may fit.
function Run:split_tied(entry, modules)
  for _, tied in ipairs(modules) do
    if not sizes.is_whole(tied[2], self.classes) then
      self:say("%s: splitting %s, which is tied to it", entry[1], tied[1])
      self.left = replaced(self.left, index_of(self.left, tied[1]), sizes.children(tied, true))
      table.insert(self.left, 1, entry)
      self:measure(modules_only(self.left))
      return true
    end
  end
end

-- Replaces the module by its parameters and children.
function Run:split(entry)
  if sizes.is_whole(entry[2], self.classes) then return false end
  self:say("%s: does not fit, splitting it", entry[1])
  local children = sizes.children(entry, true)
  for i = #children, 1, -1 do table.insert(self.left, 1, children[i]) end
  self:measure(modules_only(self.left))
  return true
end

-- Brings a module that fits the empty device to the front.
function Run:fall_back(entry, device, bytes)
  local limit = self.max[device] - math.max(self.largest, bytes)
  local found, rest = M.fallback_allocate(self.left, self.sizes, limit, self.classes, self.tied)
  if not found then return false end
  self:say("%s: does not fit, taking %s before it", entry[1], found[1])
  self.left = rest
  table.insert(self.left, 1, entry)
  table.insert(self.left, 1, found)
  return true
end

function Run:next_device(entry, bytes, reserved)
  local device = self.devices[self.at]
  self:say("%s: does not fit on %s", entry[1], tostring(device))
  if self.used[device] == 0 then self.needed[device] = bytes + reserved end
  self.used[device] = self.used[device] + reserved
  self.at = self.at + 1
  table.insert(self.left, 1, entry)
end

-- Treats the first module of the list.
function Run:step()
  local entry = table.remove(self.left, 1)
  local name, device = entry[1], self.devices[self.at]
  self:update_largest(name)
  local bytes, tied = self.sizes[name] or 0, tied_outside(self.tied, name)
  local reserved = self.keeps_room[device] and device ~= "disk" and self.largest or 0
  local room = device ~= "disk" and self.max[device] - reserved or nil
  local all, modules = with_ties(tied, bytes, self.sizes, self.left)
  if not room or self.used[device] + all <= room then return self:put(entry, all, modules) end
  if #tied > 0 and self.used[device] + bytes <= room and self:split_tied(entry, modules) then return end
  if self.used[device] + bytes >= room and self:split(entry) then return end
  if self.used[device] == 0 and self.o.fallback_allocation and self:fall_back(entry, device, all) then
    return
  end
  self:next_device(entry, all, reserved)
end

-- Buffers of offloaded modules stay on a GPU, unless they are offloaded too.
function Run:check_buffers()
  local bytes = (self.buffers.cpu or 0) + (self.buffers.disk or 0)
  local gpus = false
  for device, limit in ordered.pairs(self.max) do
    if type(device) == "number" then
      gpus = true
      if limit >= bytes + self.used[device] then return end
    end
  end
  if gpus and bytes > 0 and not self.o.offload_buffers then
    notice.main("infer_auto_device_map: the buffers of modules on the CPU and on disk have %g bytes, and " ..
      "no GPU " ..
      "has room for them; offload_buffers = true leaves them where the modules are", bytes)
  end
end

-- ---- what scripts call

local BUFFERS = { dtype = sizes.SIZES.dtype, special_dtypes = sizes.SIZES.special_dtypes }

--- Returns the bytes of a model's buffers.
---@param model accelerate.nn.Module
---@param opts? { dtype: string?, special_dtypes: table<string, string>? } as compute_module_sizes
---  has them
---@return number
function M.compute_module_total_buffer_size(model, opts)
  sizes.check_model("compute_module_total_buffer_size", model)
  local o = options.check("compute_module_total_buffer_size", opts, BUFFERS)
  o.buffers_only = true
  return sizes.compute_module_sizes(model, o)[""] or 0
end

-- Splits the modules of a list above `name` until it stands in it itself.
local function split_above(entries, name)
  for at in name:gmatch "()%." do
    local i = index_of(entries, name:sub(1, at - 1))
    if i then entries = replaced(entries, i, sizes.children(entries[i], true)) end
  end
  return entries
end

--- Looks breadth first for a module that fits in `limit` bytes. Returns its entry { name, module }
--- and the list without it; nil and the list where none does.
---@param modules table[] { name, module or tensor }
---@param module_sizes table<string, number>
---@param limit number
---@param classes? table<string, boolean> names of classes that are not split
---@param tied_parameters? string[][]
---@return table? found
---@return table[] rest
function M.fallback_allocate(modules, module_sizes, limit, classes, tied_parameters)
  sizes.check_entries("fallback_allocate", modules)
  options.value("fallback_allocate", "module_sizes", module_sizes, { "table" })
  options.value("fallback_allocate", "limit", limit, { "number" })
  options.value("fallback_allocate", "classes", classes or {}, { "table" })
  options.value("fallback_allocate", "tied_parameters", tied_parameters or {}, { "list" })
  local search, found = { unpack(modules) }, nil
  while search[1] and not found do
    local entry = table.remove(search, 1)
    local bytes = with_ties(tied_outside(tied_parameters or {}, entry[1]), module_sizes[entry[1]] or 0,
      module_sizes, search)
    if bytes <= limit then
      found = entry
    elseif not sizes.is_whole(entry[2], classes or {}) then
      local children = sizes.children(entry, true)
      for i = #children, 1, -1 do table.insert(search, 1, children[i]) end
    end
  end
  if not found then return nil, modules end
  local rest = { unpack(split_above(modules, found[1])) }
  return table.remove(rest, index_of(rest, found[1])), rest
end

local INFER = {
  max_memory = limits.BALANCED.max_memory,
  no_split_module_classes = limits.BALANCED.no_split_module_classes,
  dtype = BUFFERS.dtype, special_dtypes = BUFFERS.special_dtypes,
  verbose = { "boolean", default = false }, clean_result = { "boolean", default = true },
  offload_buffers = { "boolean", default = false }, fallback_allocation = { "boolean", default = false },
}

--- Returns a device map: the GPUs are filled first, by number, then the CPU, and the rest goes to
--- "disk". A module that does not fit is split into its parameters and children, unless its class
--- is not to be split; then the next device begins, and no earlier one is used again. On the first
--- GPU and on the CPU room for the largest layer is kept. Tied modules go together and count once.
--- The map is Accelerate's for the model and the limits.
---@param model accelerate.nn.Module may be on the device "meta"
---@param opts? { max_memory: table<string|integer, integer|string>?, no_split_module_classes:
---  string|string[]?, dtype: string?, special_dtypes: table<string, string>?, verbose: boolean?,
---  clean_result: boolean?, offload_buffers: boolean?, fallback_allocation: boolean? } max_memory:
---  default what is free, see get_max_memory; verbose: prints each decision; clean_result = false:
---  an entry for each module that was placed; offload_buffers: the buffers of modules on the CPU
---  and on disk stay there too, which saves a notice where no GPU has room for them;
---  fallback_allocation: a device that would stay empty gets the first smaller module that fits
---@return table<string, string|integer> device_map ordered: names of modules, and 0, "cpu", "disk"
function M.infer_auto_device_map(model, opts)
  sizes.check_model("infer_auto_device_map", model)
  local run = Run(model, options.check("infer_auto_device_map", opts, INFER))
  while run.left[1] do run:step() end
  run:check_buffers()
  for device, bytes in ordered.pairs(run.needed) do
    run:say("%s holds no module; the first one needs %g bytes", tostring(device), bytes)
  end
  return run.o.clean_result and device_map.clean_device_map(run.map) or run.map
end

return M
