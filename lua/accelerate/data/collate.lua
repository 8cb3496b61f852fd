--- Collate: turns a list of samples into one batch.
---
---   tensors                stacked along a new dim 1; their shapes must agree
---   numbers                a tensor: int64 when all are integral, else float32
---   booleans               a bool tensor
---   strings                a list, as they are
---   tables                 lists (keys 1 to n) and maps, collated key by key in sorted order; all
---                          samples need the same keys
---
--- A loader remembers the kind of each field. A kind that changes between batches (for example when
--- all numbers of one batch happen to be integral) is an error: otherwise the model would get int64
--- in one batch and float32 in another.
local core = require "accelerate.core"
local ffi = require "ffi"
local options = require "accelerate.utils.options"
local ordered = require "accelerate.utils.ordered"

local fail, show = options.fail, options.show
local is_tensor = core.is_tensor

local M = {}

local EXACT = 2 ^ 53
local int64 = ffi.typeof("int64_t")

-- A field is a place in the samples: its path for messages, its kind in earlier batches, and the
-- fields inside it. The root's path is "", which messages call the sample.
local function new_field(path) return { path = path, inner = {} } end

local function inner_field(field, key)
  local inner = field.inner[key]
  if not inner then
    local name = type(key) == "number" and ("[%d]"):format(key) or tostring(key)
    inner = new_field((field.path == "" or type(key) == "number") and field.path .. name or field.path ..
      "." .. name)
    field.inner[key] = inner
  end
  return inner
end

-- Returns the name of `field` in the j-th value, for messages.
local function name_of(field, j, positions)
  local sample = ("sample %s"):format(tostring(positions and positions[j] or j))
  return field.path == "" and sample or ("'%s' of %s"):format(field.path, sample)
end

local ADVICE = {
  int64 = "numbers are int64 when all of a batch are integral, else float32",
  float32 = "numbers are int64 when all of a batch are integral, else float32",
}

-- Raises unless the field has the kind that it had in earlier batches.
local function check_kind(field, kind, positions)
  local before = field.kind
  if before == kind then return end
  field.kind = before or kind
  if before then
    fail("DataLoader: %s was %s in the batches before and is %s in the one of %s%s; give one kind, for " ..
      "example " ..
      "tensor(value, { dtype = '%s' }) in the dataset's get, or use a collate_fn",
      field.path == "" and "the sample" or "'" .. field.path .. "'", before, kind,
      name_of(new_field(""), 1, positions),
      ADVICE[kind] and ADVICE[before] and " (" .. ADVICE[kind] .. ")" or "", before == "int64" and "float32"
        or before)
  end
end

-- Returns the form of a value. All values of a field must have one form.
local function form_of(value)
  if is_tensor(value) then return "tensor" end
  local kind = type(value)
  if kind == "cdata" and (ffi.istype(int64, value) or ffi.istype("uint64_t", value)) then return "number" end
  if kind == "table" and getmetatable(value) then return "object" end
  return kind
end

local function stack(values, field, positions)
  local ok, batch = pcall(core.stack, values)
  if ok then return batch end
  local first = values[1].shape
  for j = 2, #values do
    local shape = values[j].shape
    local same = #shape == #first
    for d = 1, #first do same = same and shape[d] == first[d] end
    if not same then
      fail("DataLoader: tensors of one batch must have one shape; %s is [%s], %s is [%s]; make them " ..
        "equal in the " ..
        "dataset's get, or use a collate_fn that pads", name_of(field, 1, positions),
        table.concat(first, ", "),
        name_of(field, j, positions), table.concat(shape, ", "))
    end
  end
  error(batch, 0)
end

local function numbers(values)
  local integral = true
  for j = 1, #values do
    local v = tonumber(values[j])
    values[j] = v
    -- infinities and NaN are not integral
    if v % 1 ~= 0 or v > EXACT or v < -EXACT then integral = false end
  end
  local batch = core.empty(#values, { dtype = integral and "int64" or "float32" })
  local p = batch:data_ptr()
  for j = 1, #values do p[j - 1] = values[j] end
  return batch
end

local collate

local function tables(values, field, positions)
  local keys = ordered.sorted_keys(values[1])
  for j = 2, #values do
    local n = ordered.count(values[j])
    for _, key in ipairs(keys) do
      if values[j][key] == nil then
        fail("DataLoader: %s has no '%s', but %s has; tables of one batch must have the same keys, or " ..
          "use a collate_fn",
          name_of(field, j, positions), tostring(key), name_of(field, 1, positions))
      end
    end
    if n ~= #keys then
      fail("DataLoader: %s has %d keys, %s has %d; tables of one batch must have the same keys, " ..
        "or use a collate_fn",
        name_of(field, j, positions), n, name_of(field, 1, positions), #keys)
    end
  end
  local batch, column = {}, {}
  for _, key in ipairs(keys) do
    for j = 1, #values do column[j] = values[j][key] end
    batch[key] = collate(column, inner_field(field, key), positions)
  end
  return batch
end

--- `values` may be overwritten.
function collate(values, field, positions)
  local form = form_of(values[1])
  for j = 2, #values do
    local other = form_of(values[j])
    if other ~= form then
      fail("DataLoader: %s is a %s, %s a %s; a field must hold one kind of value, or use a collate_fn",
        name_of(field, 1, positions), form, name_of(field, j, positions), other)
    end
  end
  local batch
  if form == "tensor" then
    batch = stack(values, field, positions)
    check_kind(field, batch.dtype, positions)
  elseif form == "number" then
    batch = numbers(values)
    check_kind(field, batch.dtype, positions)
  elseif form == "boolean" then
    batch = core.tensor(values)
    check_kind(field, "bool", positions)
  elseif form == "string" then
    batch = {}
    for j = 1, #values do batch[j] = values[j] end
    check_kind(field, "string", positions)
  elseif form == "table" then
    check_kind(field, "table", positions)
    batch = tables(values, field, positions)
  else
    fail("DataLoader: %s is %s, which cannot be put into a batch (tensors, numbers, booleans, strings " ..
      "and plain tables can); " ..
      "use a collate_fn", name_of(field, 1, positions), show(values[1]))
  end
  return batch
end

--- Makes a loader's memory of kinds.
function M.new_fields() return new_field("") end

--- Collates samples of one value each.
---@param samples any[] may be overwritten; is not kept
---@param fields table from new_fields
---@param positions? integer[] names the samples in messages
---@return any batch
function M.values(samples, fields, positions) return collate(samples, fields, positions) end

--- Collates samples of `n` parts each, given as lists.
---@return any ... n parts
function M.parts(samples, n, fields, positions)
  local batch = {}
  for k = 1, n do
    local column = {}
    for j = 1, #samples do column[j] = samples[j][k] end
    local field = fields.inner[k]
    if not field then
      field = new_field(("part %d"):format(k))
      fields.inner[k] = field
    end
    batch[k] = collate(column, field, positions)
  end
  return unpack(batch, 1, n)
end

--- Collates as a loader without a collate_fn does, for use inside one. Samples of several parts are
--- lists, and so is their batch.
---@param samples any[] at least one
---@return any batch
function M.default_collate(samples)
  if type(samples) ~= "table" or getmetatable(samples) or #samples == 0 then
    fail("default_collate: expected a list of at least one sample, got %s", show(samples))
  end
  local copy = {}
  for j = 1, #samples do copy[j] = samples[j] end
  return collate(copy, new_field(""))
end

--- Returns a collate_fn that pads lists of numbers to the longest of the batch; see
--- data.DataCollatorWithPadding.
---@param opts? table
---@return accelerate.DataCollatorWithPadding
function M.pad(opts) return require("accelerate.data.padding").DataCollatorWithPadding(opts) end

return M
