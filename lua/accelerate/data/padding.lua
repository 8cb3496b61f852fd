--- Collate functions for samples of different lengths.
local class = require "accelerate.utils.class"
local collate = require "accelerate.data.collate"
local core = require "accelerate.core"
local options = require "accelerate.utils.options"
local ordered = require "accelerate.utils.ordered"

local fail, show = options.fail, options.show

local M = {}

local ORDER = { "batch_first", "padding_value", "padding_side", "length" }

-- Returns whether `value` is a sequence: a list of numbers, or a tensor with dims, whose length is
-- dim 1.
local function is_sequence(value)
  if core.is_tensor(value) then return value.ndim > 0 end
  return type(value) == "table" and not getmetatable(value)
    and (value[1] == nil and next(value) == nil or type(value[1]) == "number")
end

local function length_of(value) return core.is_tensor(value) and value:size(1) or #value end

local function check_integral(lists)
  for j = 1, #lists do
    for k = 1, #lists[j] do
      local v = lists[j][k]
      if type(v) ~= "number" then
        fail("pad: entry %d of sequence %d must be a number, got %s", k, j, show(v))
      end
      if v % 1 ~= 0 then return false end
    end
  end
  return true
end

-- Copies lists of numbers into one tensor [n, longest].
local function pad_lists(lists, longest, value, left)
  local integral = check_integral(lists) and value % 1 == 0
  local out = core.full({ #lists, longest }, value, { dtype = integral and "int64" or "float32" })
  if out:numel() == 0 then return out end
  local p = out:data_ptr()
  for j = 1, #lists do
    local list = lists[j]
    local at = (j - 1) * longest + (left and longest - #list or 0) - 1
    for k = 1, #list do p[at + k] = list[k] end
  end
  return out
end

local function pad_tensors(list, longest, value, left)
  local first = list[1]
  local shape = first.shape
  for j = 2, #list do
    local other = list[j].shape
    local same = #other == #shape and list[j].dtype == first.dtype
    for d = 2, #shape do same = same and other[d] == shape[d] end
    if not same then
      fail("pad: sequences must agree in dtype and in all sizes but that of dim 1; the first is %s, " ..
        "sequence %d is %s", show(first), j,
        show(list[j]))
    end
  end
  shape[1] = longest
  table.insert(shape, 1, #list)
  local out = core.full(shape, value, { dtype = first.dtype })
  for j, t in ipairs(list) do
    local n = t:size(1)
    if n > 0 then out:select(1, j):narrow(1, left and longest - n + 1 or 1, n):copy_(t) end
  end
  return out
end

--- Returns one tensor [n, longest, …] of sequences that differ in length. Lists of numbers become
--- int64 when all are integral, else float32.
---@param sequences any[] lists of numbers, or tensors that differ in dim 1 only
---@param ... any batch_first = true, padding_value = 0, padding_side = "right" or "left", length
---  (pad to this instead of the longest), or a table of them
---@return accelerate.Tensor
function M.pad_sequence(sequences, ...)
  local o = options.read("pad_sequence", ORDER, {
    padding_value = { "number", default = 0 },
    padding_side = { "string", default = "right", one_of = { "right", "left" } },
    batch_first = { "boolean", default = true }, length = { "integer", optional = true, min = 0 },
  }, ...)
  if type(sequences) ~= "table" or getmetatable(sequences) or #sequences == 0 then
    fail("pad_sequence: expected a list of at least one sequence, got %s", show(sequences))
  end
  local longest, tensors = o.length or 0, core.is_tensor(sequences[1])
  for j, sequence in ipairs(sequences) do
    if not is_sequence(sequence) or core.is_tensor(sequence) ~= tensors then
      fail("pad_sequence: sequence %d must be a %s, got %s", j, tensors and "tensor with at least one dim"
        or "list of numbers",
        show(sequence))
    end
    local n = length_of(sequence)
    if o.length and n > o.length then
      fail("pad_sequence: sequence %d has %d entries, more than length = %d", j, n, o.length)
    end
    longest = math.max(longest, n)
  end
  local out = (tensors and pad_tensors or pad_lists)(sequences, longest, o.padding_value,
    o.padding_side == "left")
  return o.batch_first and out or out:transpose(1, 2):contiguous()
end

local COLLATOR = {
  tokenizer = { "any", optional = true },
  padding_value = { "number", default = 0 },
  padding_values = { "table", optional = true },
  padding_side = { "string", optional = true, one_of = { "right", "left" } },
  max_length = { "integer", optional = true, min = 1 },
  pad_to_multiple_of = { "integer", optional = true, min = 1 },
  attention_mask = { "boolean", default = true },
  fields = { "list", optional = true },
}

-- Returns the names of the first sample's fields that are sequences, in order; for a sample of
-- several parts, their numbers.
local function sequence_fields(sample, wanted)
  local names = {}
  for _, name in ipairs(wanted or ordered.sorted_keys(sample)) do
    if sample[name] == nil then
      fail("DataCollatorWithPadding: the samples have no field '%s'", tostring(name))
    end
    if is_sequence(sample[name]) then names[#names + 1] = name end
  end
  return names
end

--- A collate_fn that pads: `DataLoader(set, { collate_fn = data.DataCollatorWithPadding{
--- padding_value = 0 } })`.
---
--- Samples are tables. Fields with lists of numbers (or tensors that differ in dim 1) are padded to
--- the longest of the batch; other fields are collated as usual. An `attention_mask` is added for
--- the field input_ids, or else the first padded field: 1 for the field's own entries, 0 for
--- padding. An attention_mask of the samples is padded with 0. `labels` are padded with -100, which
--- cross_entropy ignores, unless padding_values sets another value.
---
--- With a tokenizer, `data.DataCollatorWithPadding(tokenizer)`, input_ids are padded with its
--- pad_token_id, and at its padding_side, and a field `label` or `label_ids` is called `labels` in
--- the batch, as Transformers' collator has it.
---@class accelerate.DataCollatorWithPadding
---@overload fun(tokenizer: accelerate.Tokenizer): accelerate.DataCollatorWithPadding
---@overload fun(opts?: { tokenizer: accelerate.Tokenizer?, padding_value: number?, padding_values:
---  table<string, number>?, padding_side: "right"|"left"|nil, max_length: integer?,
---  pad_to_multiple_of: integer?, attention_mask: boolean?, fields: string[]? }):
---  accelerate.DataCollatorWithPadding
local Collator = class("DataCollatorWithPadding")
M.DataCollatorWithPadding = Collator

-- The side at which a tokenizer pads. Raises for what cannot pad.
local function side_of(tokenizer)
  if tokenizer == nil then return "right" end
  if not class.of(tokenizer) or not class.of(tokenizer).apply_chat_template then
    fail("DataCollatorWithPadding: tokenizer must be a tokenizer, got %s", show(tokenizer))
  end
  if not tokenizer.pad_token_id then
    fail("DataCollatorWithPadding: the tokenizer has no pad_token; set tokenizer.pad_token_id")
  end
  return tokenizer.padding_side
end

--- max_length: pad to this length, and refuse longer sequences; fields: names of those to pad
--- (default: all sequences).
function Collator:init(opts)
  if class.of(opts) then opts = { tokenizer = opts } end
  self.options = options.check("DataCollatorWithPadding", opts, COLLATOR)
  self.values = { labels = -100, label_ids = -100, attention_mask = 0, token_type_ids = 0 }
  local tokenizer = self.options.tokenizer
  self.options.padding_side = self.options.padding_side or side_of(tokenizer)
  if tokenizer then self.values.input_ids = tokenizer.pad_token_id end
  for name, value in pairs(self.options.padding_values or {}) do
    options.value("DataCollatorWithPadding", ("padding_values '%s'"):format(tostring(name)), value,
      { "number" })
    self.values[name] = value
  end
  self.kinds = collate.new_fields()
end

--- Returns the length to pad a batch to: the longest, rounded up to a multiple of
--- pad_to_multiple_of.
function Collator:length(samples, name)
  local o, longest = self.options, 0
  for _, sample in ipairs(samples) do longest = math.max(longest, length_of(sample[name])) end
  if o.max_length then
    if longest > o.max_length then
      fail("DataCollatorWithPadding: '%s' has a sequence of %d entries, more than max_length = %d",
        tostring(name), longest, o.max_length)
    end
    longest = o.max_length
  end
  local multiple = o.pad_to_multiple_of or 1
  return math.ceil(longest / multiple) * multiple
end

local function mask(samples, name, length, left)
  local ones = {}
  for j, sample in ipairs(samples) do
    local n = length_of(sample[name])
    ones[j] = {}
    for k = 1, n do ones[j][k] = 1 end
  end
  return pad_lists(ones, length, 0, left)
end

-- Transformers' models take the field labels: one called label, or label_ids, becomes it.
local LABELS = { "label", "label_ids" }

---@param samples table[]
---@return table batch
function Collator:__call(samples)
  local o, first = self.options, samples[1]
  if type(first) ~= "table" or getmetatable(first) then
    fail("DataCollatorWithPadding: expected samples that are tables, got %s", show(first))
  end
  local batch, padded, rest = {}, sequence_fields(first, o.fields), {}
  local is_padded = {}
  for _, name in ipairs(padded) do
    is_padded[name] = true
    local column = {}
    for j, sample in ipairs(samples) do
      column[j] = sample[name]
      if not is_sequence(column[j]) then
        fail("DataCollatorWithPadding: '%s' of sample %d must be a list of numbers or a tensor, got %s",
          tostring(name), j, show(column[j]))
      end
    end
    batch[name] = M.pad_sequence(column, {
      padding_value = self.values[name] or o.padding_value, padding_side = o.padding_side,
      length = self:length(samples, name),
    })
  end
  for j, sample in ipairs(samples) do
    rest[j] = {}
    for name, value in pairs(sample) do -- order does not matter: keys are distinct
      if not is_padded[name] then rest[j][name] = value end
    end
  end
  if next(rest[1]) ~= nil then
    for name, value in pairs(collate.values(rest, self.kinds)) do batch[name] = value end
  end
  local of = is_padded.input_ids and "input_ids" or padded[1]
  if o.attention_mask and of ~= nil and batch.attention_mask == nil and type(of) == "string" then
    batch.attention_mask = mask(samples, of, self:length(samples, of), o.padding_side == "left")
  end
  for _, name in ipairs(o.tokenizer and LABELS or {}) do
    if batch[name] ~= nil then batch.labels, batch[name] = batch[name], nil end
  end
  return batch
end

return M
