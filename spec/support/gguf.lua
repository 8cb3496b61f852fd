-- Files of the GGUF format, written piece by piece, so that each piece can be wrong.
local ffi = require "ffi"

local M = {}

local KINDS = { u8 = 0, i8 = 1, u16 = 2, i16 = 3, u32 = 4, i32 = 5, f32 = 6, bool = 7, text = 8, list = 9,
  u64 = 10, i64 = 11, f64 = 12 }
local TYPES = { F32 = 0, F16 = 1, Q4_0 = 2, Q8_0 = 8, Q4_K = 12, IQ2_XXS = 16, BF16 = 30, MXFP4 = 39 }
local C = { u8 = "uint8_t", i8 = "int8_t", u16 = "uint16_t", i16 = "int16_t", u32 = "uint32_t",
  i32 = "int32_t", f32 = "float", bool = "uint8_t", u64 = "uint64_t", i64 = "int64_t", f64 = "double" }

-- The bytes of a number, little-endian or (big) the other way round.
local function number(kind, value, big)
  local box = ffi.new(C[kind] .. "[1]", value)
  local bytes = ffi.string(box, ffi.sizeof(box))
  return big and bytes:reverse() or bytes
end
M.number = number

-- How a version writes counts and lengths.
local function count(o, n) return number(o.version == 1 and "u32" or "u64", n, o.big) end
local function text(o, s, length) return count(o, length or #s) .. s end

local function value(o, entry)
  if entry.kind == "text" then return text(o, entry.value, entry.length) end
  if entry.kind ~= "list" then return number(entry.kind, entry.value, o.big) end
  local parts = { number("u32", KINDS[entry.of] or entry.of, o.big), count(o, entry.count or #entry.value) }
  for _, item in ipairs(entry.value) do
    parts[#parts + 1] = value(o, type(item) == "table" and item or { kind = entry.of, value = item })
  end
  return table.concat(parts)
end

--- Returns the bytes of a file. o: version, big, settings (a list of { key, kind =, value =, of =
--- }), tensors (a list of { name, type =, shape = (as rows), bytes =, offset =, dims = }),
--- alignment; tensor_count, setting_count and padding instead of those that are right.
---@param o table
---@return string
function M.bytes(o)
  local parts = { "GGUF", number("u32", o.version or 3, o.big),
    count(o, o.tensor_count or #(o.tensors or {})), count(o, o.setting_count or #(o.settings or {})) }
  local function add(s) parts[#parts + 1] = s end
  for _, entry in ipairs(o.settings or {}) do
    add(text(o, entry[1], entry.key_length))
    add(number("u32", KINDS[entry.kind] or entry.kind, o.big))
    if KINDS[entry.kind] then add(value(o, entry)) end
  end
  local at, alignment = 0, o.alignment or 32
  local data = {}
  for _, t in ipairs(o.tensors or {}) do
    add(text(o, t[1]))
    add(number("u32", t.dims or #t.shape, o.big))
    for d = #t.shape, 1, -1 do add(count(o, t.shape[d])) end
    add(number("u32", TYPES[t.type] or t.type, o.big))
    add(number("u64", t.offset or at, o.big))
    local bytes = t.bytes or ""
    data[#data + 1] = bytes .. ("\0"):rep(-#bytes % alignment)
    at = at + #data[#data]
  end
  local head = table.concat(parts)
  return head .. ("\0"):rep(-#head % alignment) .. table.concat(data)
end

return M
