--- nn.utils.rnn: padded and packed batches of sequences of different lengths.
---
--- A packed batch holds no padding: the rows of all sequences at step 1, then the rows at step 2 of
--- the sequences that have one, and so on, the longest sequence first.

local core = require "accelerate.core"
local class = require "accelerate.utils.class"
local lists = require "accelerate.utils.lists"
local options = require "accelerate.utils.options"
local positions = require "accelerate.utils.positions"

local fail = options.fail

local M = {}

--- Sequences of different lengths without padding: pack_padded_sequence and pack_sequence make it.
---@class accelerate.nn.PackedSequence
---@field data accelerate.Tensor (N, ...) all rows
---@field batch_sizes accelerate.Tensor int64, on the CPU: number of sequences at each step
---@field sorted_indices accelerate.Tensor? int64, on the device of `data`: position in the batch
---  of the k-th longest sequence; nil: the batch was sorted
---@field unsorted_indices accelerate.Tensor? int64, the inverse
local PackedSequence = class("PackedSequence")
class.optional(PackedSequence, "sorted_indices unsorted_indices")
M.PackedSequence = PackedSequence

function M._is_packed(value) return class.is(value, PackedSequence) end

local function int64(list, device) return core.tensor(list, { dtype = "int64", device = device }) end

local function make(data, sizes, order)
  local p = PackedSequence()
  p.data, p.batch_sizes, p._sizes = data, int64(sizes), sizes
  local sorted = true
  for i = 1, #order do sorted = sorted and order[i] == i end
  if not sorted then
    local there, back = {}, {}
    for i, from in ipairs(order) do there[i], back[from] = from - 1, i - 1 end
    p.sorted_indices, p.unsorted_indices = int64(there, data.device), int64(back, data.device)
  end
  p._order = order
  p._places = {}  -- computed at first use; shared by all sequences of this layout
  return p
end

--- Returns a sequence of this layout with other rows.
function PackedSequence:_with(data)
  local p = PackedSequence()
  for key, value in next, self do p[key] = value end
  p.data = data
  return p
end

--- Returns the sequence with its rows as `tensor:to` gives them, and its indices beside the rows.
--- `batch_sizes` stays on the CPU.
---@param ... any a device, a dtype or both, as of `tensor:to`
---@return accelerate.nn.PackedSequence
function PackedSequence:to(...)
  local p = self:_with(self.data:to(...))
  if p.data.device == self.data.device then return p end
  p._places = {}
  if p.sorted_indices then
    p.sorted_indices = p.sorted_indices:to(p.data.device)
    p.unsorted_indices = p.unsorted_indices:to(p.data.device)
  end
  return p
end

function PackedSequence:_batch() return self._sizes[1] end

-- Returns where each step's rows begin, and the lengths in sorted order.
local function layout(self)
  local starts, lengths, at = {}, {}, 0
  for t, n in ipairs(self._sizes) do
    starts[t] = at
    at = at + n
    for b = 1, n do lengths[b] = t end
  end
  return starts, lengths
end

--- Returns `batch_sizes` beside the rows, where a layer reads it.
function PackedSequence:_steps()
  if not self._places.steps then self._places.steps = self.batch_sizes:to(self.data.device) end
  return self._places.steps
end

--- Returns the last row of each sequence.
function PackedSequence:_ends()
  if not self._places.ends then
    local starts, lengths = layout(self)
    local rows = {}
    for b, n in ipairs(lengths) do rows[b] = starts[n] + b - 1 end
    self._places.ends = int64(rows, self.data.device)
  end
  return self._places.ends
end

--- Returns, for each row, the row that replaces it when every sequence is reversed.
function PackedSequence:_turned()
  if not self._places.turned then
    local starts, lengths = layout(self)
    local rows = {}
    for t, n in ipairs(self._sizes) do
      for b = 1, n do rows[#rows + 1] = starts[lengths[b] + 1 - t] + b - 1 end
    end
    self._places.turned = int64(rows, self.data.device)
  end
  return self._places.turned
end

function PackedSequence.__tostring(self)
  return ("PackedSequence(data=%s, batch_sizes=%s)"):format(tostring(self.data), tostring(self.batch_sizes))
end

local PAD = { batch_first = { "boolean", default = false }, padding_value = { "number", default = 0 },
  padding_side = { "string", default = "right", one_of = { "right", "left" } } }

local function check_list(where, list)
  if type(list) ~= "table" or getmetatable(list) ~= nil or #list == 0 then
    fail("%s: expected a list of tensors that is not empty, got %s", where, options.show(list))
  end
  local fault = lists.fault(list)
  if fault then fail("%s: expected a list of tensors, but it has %s", where, fault) end
  for i, t in ipairs(list) do
    if not core.is_tensor(t) or t:dim() == 0 then
      fail("%s: entry %d must be a tensor with at least one dim, got %s", where, i, options.show(t))
    end
    local a, b = list[1].shape, t.shape
    local same = #a == #b
    for d = 2, #a do same = same and a[d] == b[d] end
    if not same then
      fail("%s: entries may differ in their first dim only: entry 1 is [%s], entry %d is [%s]", where,
        table.concat(a, ", "), i, table.concat(b, ", "))
    end
  end
end

--- Pads sequences of different lengths (L, ...) into one tensor: (longest, B, ...), or (B, longest,
--- ...) with batch_first.
---@param sequences accelerate.Tensor[]
---@param ... any batch_first = false, padding_value = 0, padding_side = "right" or "left", or a
---  table of them
---@return accelerate.Tensor
function M.pad_sequence(sequences, ...)
  local o = options.read("pad_sequence", { "batch_first", "padding_value", "padding_side" }, PAD, ...)
  check_list("pad_sequence", sequences)
  local longest = 0
  for _, t in ipairs(sequences) do longest = math.max(longest, t:size(1)) end
  local filled = {}
  for i, t in ipairs(sequences) do
    local shape = t.shape
    shape[1] = longest - shape[1]
    filled[i] = t
    if shape[1] > 0 then
      local pad = core.full(shape, o.padding_value, { dtype = t.dtype, device = t.device })
      filled[i] = core.cat(o.padding_side == "right" and { t, pad } or { pad, t }, 1)
    end
  end
  return core.stack(filled, o.batch_first and 1 or 2)
end

-- loose: lengths of 0, and above the longest, are fine
local function read_lengths(where, lengths, batch, longest, loose)
  if core.is_tensor(lengths) then lengths = lengths:totable() end
  if type(lengths) ~= "table" or #lengths ~= batch then
    local got = type(lengths) == "table" and ("%d entries"):format(#lengths) or options.show(lengths)
    fail("%s: lengths must be a list or an int64 tensor with one entry for each of the %d sequences, got %s",
      where, batch, got)
  end
  local list = {}
  for i, n in ipairs(lengths) do
    if type(n) == "number" and n % 1 == 0 and n >= 0 and loose then
      list[i] = n
    elseif type(n) ~= "number" or n % 1 ~= 0 or n < 1 or n > longest then
      fail("%s: length %d must be a whole number in 1..%d, got %s", where, i, longest, options.show(n))
    end
    list[i] = n
  end
  return list
end

-- Returns the positions of sequences from the longest to the shortest; equally long ones keep their
-- order.
local function by_length(lengths)
  local order = {}
  for i = 1, #lengths do order[i] = i end
  table.sort(order, function(a, b)
    if lengths[a] ~= lengths[b] then return lengths[a] > lengths[b] end
    return a < b
  end)
  return order
end

local PACK = { batch_first = { "boolean", default = false }, enforce_sorted = { "boolean", default = true } }

--- Packs a padded batch (T, B, ...), or (B, T, ...) with batch_first.
---@param x accelerate.Tensor
---@param lengths integer[]|accelerate.Tensor lengths of the B sequences, at least 1
---@param ... any batch_first = false, enforce_sorted = true (raise unless the longest come first;
---  false: sort here), or a table of them
---@return accelerate.nn.PackedSequence
function M.pack_padded_sequence(x, lengths, ...)
  local where = "pack_padded_sequence"
  local o = options.read(where, { "batch_first", "enforce_sorted" }, PACK, ...)
  if not core.is_tensor(x) or x:dim() < 2 then
    fail("%s: expected a tensor (T, B, ...), got %s", where, options.show(x))
  end
  if o.batch_first then x = x:transpose(1, 2) end
  local steps, batch = x:size(1), x:size(2)
  lengths = read_lengths(where, lengths, batch, steps)
  local order = by_length(lengths)
  if o.enforce_sorted then
    for i = 1, batch do
      if order[i] ~= i then
        fail("%s: lengths must fall (the longest sequence first); sort the batch or pass { " ..
          "enforce_sorted = false }", where)
      end
    end
  end
  local sizes, rows = {}, {}
  for t = 1, lengths[order[1]] do
    local n = 0
    for _, b in ipairs(order) do
      if lengths[b] < t then break end
      n = n + 1
      rows[#rows + 1] = (t - 1) * batch + b - 1
    end
    sizes[t] = n
  end
  local shape = x.shape
  table.remove(shape, 1)
  shape[1] = steps * batch
  return make(x:reshape(shape):index_select(1, int64(rows, x.device)), sizes, order)
end

local UNPACK = { batch_first = PAD.batch_first, padding_value = PAD.padding_value,
  total_length = { "integer", optional = true, min = 1 } }

--- Returns the padded form of a packed batch, in the sequences' original order, and their lengths
--- (int64).
---@param sequence accelerate.nn.PackedSequence
---@param ... any batch_first = false, padding_value = 0, total_length (pad at least to this), or a
---  table of them
---@return accelerate.Tensor x
---@return accelerate.Tensor lengths
function M.pad_packed_sequence(sequence, ...)
  local where = "pad_packed_sequence"
  local o = options.read(where, { "batch_first", "padding_value", "total_length" }, UNPACK, ...)
  if not M._is_packed(sequence) then
    fail("%s: expected a packed sequence, got %s", where, options.show(sequence))
  end
  local starts, lengths = layout(sequence)
  local steps, batch = #sequence._sizes, #lengths
  if o.total_length then
    if o.total_length < steps then
      fail("%s: total_length must be at least %d, the longest length, got %d", where, steps, o.total_length)
    end
    steps = o.total_length
  end
  local data, n = sequence.data, sequence.data:size(1)
  local place = {}  -- position of each sequence among the sorted ones
  for k, from in ipairs(sequence._order) do place[from] = k end
  local rows, own = {}, {}
  for t = 1, steps do
    for b = 1, batch do
      local k = place[b]
      rows[#rows + 1] = t <= lengths[k] and starts[t] + k - 1 or n
      own[b] = lengths[k]
    end
  end
  local shape = data.shape
  shape[1] = 1
  local with_padding = core.cat({ data,
    core.full(shape, o.padding_value, { dtype = data.dtype, device = data.device }) }, 1)
  table.remove(shape, 1)
  local x = with_padding:index_select(1, int64(rows, data.device)):reshape { steps, batch, unpack(shape) }
  return o.batch_first and x:transpose(1, 2) or x, int64(own)
end

local SEQUENCES = { enforce_sorted = PACK.enforce_sorted }

--- Packs a list of sequences (L, ...).
---@param sequences accelerate.Tensor[]
---@param ... any enforce_sorted = true, or a table with it
---@return accelerate.nn.PackedSequence
function M.pack_sequence(sequences, ...)
  local o = options.read("pack_sequence", { "enforce_sorted" }, SEQUENCES, ...)
  check_list("pack_sequence", sequences)
  local lengths = {}
  for i, t in ipairs(sequences) do lengths[i] = t:size(1) end
  return M.pack_padded_sequence(M.pad_sequence(sequences), lengths, o)
end

--- Returns the sequences of a padded batch (T, B, ...), or (B, T, ...) with batch_first, as a list.
---@param padded_sequences accelerate.Tensor
---@param lengths integer[]|accelerate.Tensor one for each sequence; more than T is T
---@param ... any batch_first = false, or a table with it
---@return accelerate.Tensor[]
function M.unpad_sequence(padded_sequences, lengths, ...)
  local x = padded_sequences
  local where = "unpad_sequence"
  local o = options.read(where, { "batch_first" }, { batch_first = PAD.batch_first }, ...)
  if not core.is_tensor(x) or x:dim() < 2 then
    fail("%s: expected a tensor (T, B, ...), got %s", where, options.show(x))
  end
  if not o.batch_first then x = x:transpose(1, 2) end
  local longest, list = x:size(2), {}
  for i, n in ipairs(read_lengths(where, lengths, x:size(1), longest, true)) do
    list[i] = x:select(1, i):narrow(1, 1, math.min(n, longest))
  end
  return list
end

--- Returns the sequences of a packed batch as a list, in their original order.
---@param packed_sequences accelerate.nn.PackedSequence
---@return accelerate.Tensor[]
function M.unpack_sequence(packed_sequences)
  local x, lengths = M.pad_packed_sequence(packed_sequences, { batch_first = true })
  local list = {}
  for i, n in ipairs(lengths:totable()) do list[i] = x:select(1, i):narrow(1, 1, n) end
  return list
end

positions.functions(M, {
  pad_sequence = "sequences ...",
  pack_padded_sequence = "x lengths ...",
  pad_packed_sequence = "sequence ...",
  pack_sequence = "sequences ...",
  unpad_sequence = "padded_sequences lengths ...",
  unpack_sequence = "packed_sequences",
})

return require("accelerate.utils.properties").strict("accelerate.nn.utils.rnn", M)
