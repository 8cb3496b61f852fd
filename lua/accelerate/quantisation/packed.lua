--- Linear layers of GPTQ's and AWQ's files: integers of 4 or 8 bits in words of 32 bits, with a
--- scale and a zero for each group of inputs.

local class = require "accelerate.utils.class"
local core = require "accelerate.core"
local layers = require "accelerate.quantisation.layers"
local lists = require "accelerate.utils.lists"
local options = require "accelerate.utils.options"

local fail = options.fail

local M = {}

-- AWQ's order of eight columns in a word: the columns of its halves of bytes, and the places of
-- columns.
local AWQ_COLUMNS, AWQ_PLACES = { 0, 2, 4, 6, 1, 3, 5, 7 }, { 0, 4, 1, 5, 2, 6, 3, 7 }

local function numbers(list, device) return core.tensor(list, { dtype = "int64", device = device }) end

-- ---- codes in bytes

local function bytes_of(words) return words:contiguous():view "uint8" end
local function words_of(bytes) return bytes:contiguous():view "int32" end

-- (.., n) bytes -> (.., 2 n) codes of four bits, the low halves first.
local function unpacked(bytes)
  local shape = bytes.shape
  shape[#shape] = 2 * shape[#shape]
  return core.stack({ bytes:bitwise_and(15), bytes:bitwise_right_shift(4) }, -1):reshape(shape)
end

-- (.., 2 n) codes of four bits -> (.., n) bytes.
local function packed(codes)
  local shape = codes.shape
  shape[#shape], shape[#shape + 1] = shape[#shape] / 2, 2
  local pairs_ = codes:reshape(shape)
  return pairs_:select(-1, 1):bitwise_or(pairs_:select(-1, 2):bitwise_left_shift(4)):contiguous()
end

-- Words of AWQ (n, m / 8) as codes (n, m), and back.
local function from_awq(words)
  local n, m = words:size(1), words:size(2) * 8
  return unpacked(bytes_of(words)):view(n, m / 8, 8):index_select(3, numbers(AWQ_PLACES, words.device))
    :reshape(n, m)
end

local function to_awq(codes)
  local n, m = codes:size(1), codes:size(2)
  local turned = codes:reshape(n, m / 8, 8):index_select(3, numbers(AWQ_COLUMNS, codes.device))
  return words_of(packed(turned:reshape(n, m)))
end

-- ---- layouts of files

-- A layout gives the codes of a weight as the layer has them, (out, in / 2) bytes of two or (out,
-- in), and zeros (out, groups); and the other way round.
local GPTQ, AWQ = {}, {}

function GPTQ.weight_shape(l) return { l.in_features * l.bits / 32, l.out_features } end

function GPTQ.codes(l, words)
  return bytes_of(words):view(words:size(1), l.out_features, 4):permute { 2, 1, 3 }
    :reshape(l.out_features, l.in_features * l.bits / 8)
end

function GPTQ.words(l, codes)
  local rows = l.in_features * l.bits / 32
  return words_of(codes:view(l.out_features, rows, 4):permute { 2, 1, 3 }:reshape(rows, l.out_features * 4))
end

-- The first form of such files has zeros less one.
function GPTQ.zeros(l, words)
  local bytes = bytes_of(words)
  local zeros = l.bits == 4 and unpacked(bytes) or bytes
  return (zeros:to "int32" + l.offset):bitwise_and(2 ^ l.bits - 1):to("uint8"):t():contiguous()
end

function GPTQ.zero_words(l, zeros)
  local stored = (zeros:t():to "int32" - l.offset):bitwise_and(2 ^ l.bits - 1):to("uint8"):contiguous()
  return words_of(l.bits == 4 and packed(stored) or stored)
end

function AWQ.weight_shape(l) return { l.in_features, l.out_features / 8 } end
function AWQ.codes(_, words) return packed(from_awq(words):t():contiguous()) end
function AWQ.words(_, codes) return to_awq(unpacked(codes):t():contiguous()) end
function AWQ.zeros(_, words) return from_awq(words):t():contiguous() end
function AWQ.zero_words(_, zeros) return to_awq(zeros:t():contiguous()) end

M.layouts = { gptq = GPTQ, awq = AWQ }

-- ---- the layer

---@class accelerate.quantisation.PackedLinear : accelerate.quantisation.EncodedLinear
---@field bits integer
---@field group integer inputs that share a scale and a zero
---@field order accelerate.Tensor? int64 (in): the inputs, group by group
local PackedLinear = class("PackedLinear", layers.EncodedLinear)
PackedLinear._builtin = true
class.optional(PackedLinear, "order")
PackedLinear._parts = { scales = "scales" }
M.PackedLinear = PackedLinear

local function take(dict, name, dtype, shape)
  local t = dict[name]
  if not core.is_tensor(t) then fail("the state dict has no '%s'", name) end
  if t.dtype ~= dtype and not (dtype == "float" and core._is_float(t)) or not lists.same(t.shape, shape) then
    fail("%s: expected %s %s, got %s %s", name, dtype, lists.shape_text { shape = shape }, t.dtype,
      lists.shape_text(t))
  end
  dict[name] = nil
  return t
end

-- The order of inputs by their groups, nil where that is their own; groups of other sizes raise.
local function order_of(self, name, groups)
  local expected = core.arange(self.in_features):floor_divide(self.group):to "int32"
  groups = groups:to "cpu"
  if groups:eq(expected):all():item() then return nil end
  local order = groups:long():argsort { stable = true }
  if not groups:index_select(1, order):eq(expected):all():item() then
    fail("%s: groups of other inputs than %d each are not read", name, self.group)
  end
  return order
end

-- Codes with their columns in another order.
local function reordered(self, codes, order)
  if not order then return codes end
  order = order:to(codes.device)
  if self.bits == 8 then return codes:index_select(2, order) end
  return packed(unpacked(codes):index_select(2, order))
end

local function inverse(order) return order and order:argsort() end

local function load(self, dict, prefix)
  if dict[prefix .. "qweight"] == nil then return end
  local rows, groups = self.out_features, math.ceil(self.in_features / self.group)
  local words = take(dict, prefix .. "qweight", "int32", M.layouts[self.layout].weight_shape(self))
  local zeros = take(dict, prefix .. "qzeros", "int32", { groups, rows * self.bits / 32 })
  local scales = take(dict, prefix .. "scales", "float", { groups, rows })
  local order
  if self.layout == "gptq" and dict[prefix .. "g_idx"] ~= nil then
    order = order_of(self, prefix .. "g_idx", take(dict, prefix .. "g_idx", "int32", { self.in_features }))
  end
  self.scale_dtype = scales.dtype
  self:register_buffer("order", order and order:to(words.device) or nil, { persistent = false })
  self:_take { name = self.encoding, size = self.size,
    codes = reordered(self, M.layouts[self.layout].codes(self, words), order),
    scales = scales:float():t():contiguous(), more = M.layouts[self.layout].zeros(self, zeros) }
  dict[prefix .. "weight"] = self.weight:detach()
end

local function save(self, dict, prefix)
  if self.weight.device == "meta" then return end
  local back = inverse(self.order)
  dict[prefix .. "weight"] = nil
  dict[prefix .. "qweight"] = M.layouts[self.layout].words(self, reordered(self, self.weight:detach(), back))
  dict[prefix .. "qzeros"] = M.layouts[self.layout].zero_words(self, self.more)
  dict[prefix .. "scales"] = self.scales:t():contiguous():to(self.scale_dtype)
  if self.layout == "gptq" then
    local of_group = core.arange(self.in_features):floor_divide(self.group):to("int32"):to(self.weight.device)
    dict[prefix .. "g_idx"] = back and of_group:index_select(1, back) or of_group
  end
end

--- A linear layer over packed integers, which a state dict brings.
---@param layer accelerate.nn.Linear whose sizes and bias are taken over
---@param o { method: "gptq"|"awq", bits: integer, group_size: integer, offset: integer } offset:
---  the number that the file has subtracted from zeros
function PackedLinear:init(layer, o)
  local rows, cols = layer.out_features, layer.in_features
  local encoding = o.bits == 4 and "affine4" or "affine8"
  self.in_features, self.out_features = cols, rows
  self.bits, self.offset, self.layout = o.bits, o.offset, o.method
  self.group = o.group_size > 0 and o.group_size or cols
  local size = o.group_size > 0 and o.group_size or layers.power_from(cols)
  local function empty(shape, dtype) return core.empty(shape, { dtype = dtype, device = "meta" }) end
  local groups = math.ceil(cols / self.group)
  layers.EncodedLinear.init(self, { name = encoding, rows = rows, cols = cols, size = size,
    codes = empty({ rows, cols * o.bits / 8 }, "uint8"), scales = empty({ rows, groups }, "float32"),
    more = empty({ rows, groups }, "uint8") }, layer.bias)
  self.plain = layers.plain_of(layer)
  self:register_load_state_dict_pre_hook(function(it, dict, prefix)
    local value = dict[prefix .. "weight"]
    if core.is_tensor(value) and core._is_float(value) then it:quantize() end
    load(it, dict, prefix)
  end)
  self:register_state_dict_post_hook(function(it, dict, prefix) save(it, dict, prefix) end)
end

function PackedLinear:quantize()
  fail("PackedLinear: numbers are not encoded in %s; model:dequantize(), or from_pretrained with " ..
    "dequantize = true, makes it a plain layer", self.layout == "awq" and "AWQ's form" or "GPTQ's form")
end

function PackedLinear:dequantize(dtype)
  local values = layers.EncodedLinear.dequantize(self, dtype)
  return self.order and values:index_select(2, inverse(self.order)) or values
end

function PackedLinear:forward(x)
  local order = self._values.order
  return layers.EncodedLinear.forward(self, order and x:index_select(-1, order) or x)
end

return M
