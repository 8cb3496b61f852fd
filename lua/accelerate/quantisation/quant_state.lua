--- What bitsandbytes' files hold beside weights in 4 bits: the scales, and a text that describes
--- them.

local core = require "accelerate.core"
local encodings = require "accelerate.quantisation.encodings"
local json = require "accelerate.utils.json"
local options = require "accelerate.utils.options"

local fail = options.fail

local M = {}

local BLOCK = 256 -- scales that share a scale
local NUMBERS = 257 -- `more` begins with the 256 numbers of dynamic8 and the offset

-- The 16 numbers of an encoding, and the 256 of dynamic8.
local known = {}
local function numbers_of(name)
  if not known[name] then
    local bytes = {}
    for i = 0, 7 do bytes[i + 1] = 2 * i * 16 + 2 * i + 1 end
    known[name] = encodings.decode { name = name, rows = 1, cols = 16, size = 64,
      codes = core.tensor(bytes, { dtype = "uint8" }), scales = core.ones { 1 } }:view(16)
  end
  return known[name]
end

local dynamic
local function dynamic_numbers()
  dynamic = dynamic or encodings.encode("nf4", core.ones { 1, 64 }, 64, true).more:narrow(1, 1, 256)
  return dynamic
end

-- A number as Python's json writes a double.
local function shortest(v)
  for digits = 1, 17 do
    local text = ("%%.%dg"):format(digits):format(v)
    if tonumber(text) == v then return text:find "[.e]" and text or text .. ".0" end
  end
end

local function bytes_of(text)
  local list = {}
  for i = 1, #text do list[i] = text:byte(i) end
  return core.tensor(list, { dtype = "uint8" })
end

local function text_of(layer)
  local text = ('"quant_type": "%s", "blocksize": %d, "dtype": "%s", "shape": [%d, %d]'):format(
    layer.quant_type,
    layer.size, layer.quant_dtype, layer.out_features, layer.in_features)
  if layer.more then
    text = text .. (', "nested_blocksize": %d, "nested_dtype": "float32", "nested_offset": %s'):format(BLOCK,
      shortest(layer.more[BLOCK + 1]:item()))
  end
  return "{" .. text .. "}"
end

--- Adds the parts of a layer's weight to a state dict.
---@param layer accelerate.quantisation.Linear4bit
---@param dict table<string, accelerate.Tensor>
---@param name string of the weight
function M.save(layer, dict, name)
  if layer.weight.device == "meta" then return end
  dict[name .. ".absmax"] = layer.scales
  dict[name .. ".quant_map"] = numbers_of(layer.quant_type):clone() -- files have tensors that share no memory
  if layer.more then
    dict[name .. ".nested_absmax"] = layer.more:narrow(1, NUMBERS + 1, layer.more:numel() - NUMBERS)
    dict[name .. ".nested_quant_map"] = layer.more:narrow(1, 1, BLOCK):clone()
  end
  dict[name .. ".quant_state.bitsandbytes__" .. layer.quant_type] = bytes_of(text_of(layer))
end

-- ---- loading

local KEYS = { quant_type = "string", blocksize = "number", dtype = "string", shape = "table",
  nested_blocksize = "number", nested_dtype = "string", nested_offset = "number" }

-- The description of a weight, checked against the layer.
local function description(layer, dict, name)
  local kind, text
  for _, quant_type in ipairs { "nf4", "fp4" } do
    local key = name .. ".quant_state.bitsandbytes__" .. quant_type
    if core.is_tensor(dict[key]) then
      kind, text = quant_type, dict[key]
      dict[key] = nil
    end
  end
  if not text then
    fail("%s: the state dict has no '%s.quant_state.bitsandbytes__nf4' (or fp4)", name, name)
  end
  if text.dtype ~= "uint8" or text:numel() > 4096 then
    fail("%s.quant_state: expected a text of at most 4096 bytes, got %s", name, options.show(text))
  end
  local state, why = json.decode(string.char(unpack(text:reshape(-1):totable())))
  if type(state) ~= "table" then fail("%s.quant_state: %s", name, why or "expected a table") end
  for key, value in next, state do
    if type(value) ~= KEYS[key] then
      fail("%s.quant_state: '%s' is not known, or no %s", name, tostring(key), tostring(KEYS[key] or "value"))
    end
  end
  if state.quant_type ~= kind then
    fail("%s.quant_state: quant_type is %s, and the tensor's name says %s", name,
      options.show(state.quant_type), kind)
  end
  local shape = state.shape or {}
  if shape[1] ~= layer.out_features or shape[2] ~= layer.in_features or #shape ~= 2 then
    fail("%s.quant_state: the weight is [%s], the layer has [%d, %d]", name, table.concat(shape, ", "),
      layer.out_features, layer.in_features)
  end
  local size = state.blocksize
  if type(size) ~= "number" or size < 32 or size > 2 ^ 30 or math.log(size) / math.log(2) % 1 ~= 0 then
    fail("%s.quant_state: blocksize must be a power of two from 32 on, got %s", name, options.show(size))
  end
  return state
end

-- Takes a part out of the state dict. Scales of a layer that ran on a CPU are bfloat16 in files.
local function take(dict, name, dtype, count)
  local t = dict[name]
  if dtype == "float32" and core.is_tensor(t) and core._is_float(t) then t = t:float() end
  if not core.is_tensor(t) or t.dtype ~= dtype or t:numel() ~= count then
    fail("%s: expected %d elements of %s, got %s", name, count, dtype, options.show(t))
  end
  dict[name] = nil
  return t:reshape(-1)
end

-- The numbers that codes name must be those that the kernels know.
local function check_numbers(dict, name, expected)
  local given = take(dict, name, "float32", expected:numel())
  if (given - expected:to(given.device)):abs():max():item() > 1e-6 then
    fail("%s: the numbers are not those of bitsandbytes' encoding", name)
  end
  return given
end

--- Takes the parts of a layer's weight out of a state dict into the layer.
---@param layer accelerate.quantisation.Linear4bit
---@param dict table<string, accelerate.Tensor>
---@param name string of the weight
function M.load(layer, dict, name)
  local state = description(layer, dict, name)
  local n = layer.out_features * layer.in_features
  local blocks = math.ceil(n / state.blocksize)
  local nested = state.nested_offset ~= nil
  check_numbers(dict, name .. ".quant_map", numbers_of(state.quant_type))
  local scales = take(dict, name .. ".absmax", nested and "uint8" or "float32", blocks)
  local more
  if nested then
    if state.nested_blocksize ~= BLOCK or state.nested_dtype ~= "float32" then
      fail("%s.quant_state: nested scales of float32 in blocks of %d are read, got %s in blocks of %s", name,
        BLOCK,
        options.show(state.nested_dtype), options.show(state.nested_blocksize))
    end
    more = core.cat { check_numbers(dict, name .. ".nested_quant_map", dynamic_numbers()),
      core.tensor { state.nested_offset }:to(scales.device),
      take(dict, name .. ".nested_absmax", "float32", math.ceil(blocks / BLOCK)) }
  end
  local codes = dict[name]
  if codes.dtype ~= "uint8" or codes:numel() ~= math.ceil(n / 2) then
    fail("%s: expected %d bytes of codes, got %s", name, math.ceil(n / 2), options.show(codes))
  end
  layer.quant_type, layer.blocksize, layer.quant_dtype = state.quant_type, state.blocksize, state.dtype
  layer.compress_statistics = nested
  layer:_take { name = state.quant_type, size = state.blocksize, codes = layer:_kept(codes):view(-1, 1),
    scales = layer:_kept(scales), more = more }
  dict[name] = layer.weight:detach()
end

--- Returns parts of a layer's weight on the meta device.
---@param layer accelerate.quantisation.Linear4bit
---@return accelerate.EncodedMatrix
function M.empty(layer)
  local n = layer.out_features * layer.in_features
  local blocks = math.ceil(n / layer.blocksize)
  local function empty(count, dtype) return core.empty(count, { dtype = dtype, device = "meta" }) end
  local doubled = layer.compress_statistics
  return { name = layer.quant_type, size = layer.blocksize, rows = layer.out_features,
    cols = layer.in_features,
    codes = empty({ math.ceil(n / 2), 1 }, "uint8"),
    scales = empty({ blocks }, doubled and "uint8" or "float32"),
    more = doubled and empty({ NUMBERS + math.ceil(blocks / BLOCK) }, "float32") or nil }
end

return M
