--- The writer of Python's pickle, protocol 2, for nested values: what torch.load reads with
--- weights_only = True.
local ffi = require "ffi"
local structure = require "accelerate.files.structure"

local char = string.char

local M = {}

local function little(v, n)
  local bytes = {}
  for i = 1, n do
    bytes[i] = char(v % 256)
    v = math.floor(v / 256)
  end
  return table.concat(bytes)
end

local function double(v)
  local box = ffi.new("double[1]", v)
  return ffi.string(box, 8):reverse()
end

--- Returns an integral number of at most 2^53 as Python's int.
---@param v number
---@return string
function M.integer(v)
  if v >= 0 and v < 256 then return "K" .. char(v) end
  if v >= 0 and v < 65536 then return "M" .. little(v, 2) end
  if v >= -2 ^ 31 and v < 2 ^ 31 then return "J" .. little(v % 2 ^ 32, 4) end
  local box = ffi.new("int64_t[1]", v)
  return "\138\8" .. ffi.string(box, 8)
end
local integer = M.integer

local function number(v)
  if v % 1 == 0 and math.abs(v) <= 2 ^ 53 and not (v == 0 and 1 / v < 0) then return integer(v) end
  return "G" .. double(v)
end

--- Returns a text, which is UTF-8, as Python's str.
---@param s string
---@return string
function M.text(s) return "X" .. little(#s, 4) .. s end
local text = M.text

-- Texts are str, other strings bytes: protocol 2 has them as the latin1 of a text.
local function bytes(s)
  if structure.is_text(s) then return text(s) end
  local latin = s:gsub("[\128-\255]", function(c)
    return c:byte() < 192 and "\194" .. c or "\195" .. char(c:byte() - 64)
  end)
  return "c_codecs\nencode\n" .. text(latin) .. text("latin1") .. "\134R"
end

local function scalar(v)
  if v == true then return "\136" end
  if v == false then return "\137" end
  return type(v) == "number" and number(v) or bytes(v)
end

local NO_HOOKS = "ccollections\nOrderedDict\n)R"

local function sizes(list)
  local out = { "(" }
  for i, size in ipairs(list) do out[i + 1] = integer(size) end
  out[#out + 1] = "t"
  return table.concat(out)
end

---@class accelerate.files.PickledTensor
---@field storage string "FloatStorage"; "UntypedStorage": elements have a type of one byte
---@field dtype string
---@field key string
---@field count integer elements of the storage
---@field offset integer
---@field shape integer[]
---@field strides integer[]
---@field requires_grad boolean
---@field parameter boolean

---@param t accelerate.files.PickledTensor
local function tensor(t)
  local flag = t.requires_grad and "\136" or "\137"
  local untyped = t.storage == "UntypedStorage"
  local made = "ctorch._utils\n_rebuild_tensor_v" .. (untyped and 3 or 2) .. "\n((" .. text("storage") ..
    "ctorch" .. (untyped and ".storage" or "") .. "\n" .. t.storage .. "\n" .. text(t.key) .. text("cpu") ..
    integer(t.count) .. "tQ" .. integer(t.offset) .. sizes(t.shape) .. sizes(t.strides) .. flag .. NO_HOOKS ..
    (untyped and "ctorch\n" .. t.dtype .. "\n" or "") .. "tR"
  if not t.parameter then return made end
  return "ctorch._utils\n_rebuild_parameter\n(" .. made .. flag .. NO_HOOKS .. "tR"
end

-- The places of a list at which PyTorch has None.
local function places(entry)
  local found = {}
  for _, i in ipairs(entry.nones or found) do found[i] = true end
  return found
end

-- The values of a list or of a dict's pairs, when they are no tables; nil otherwise.
local function scalars(entry)
  local out, nones = {}, entry.list and places(entry) or {}
  for i, v in ipairs(entry.list or entry.keys) do
    local with = entry.values and entry.values[i]
    if type(v) == "table" or type(with) == "table" then return nil end
    out[i] = nones[i] and "N" or scalar(v) .. (with ~= nil and scalar(with) or "")
  end
  return table.concat(out)
end

-- How often each entry of a list of scalars is there, as a dict's pairs; nil for other lists.
local function tally(list)
  local order, counts = {}, {}
  for i, v in ipairs(list) do
    if type(v) == "table" or v ~= v then return nil end
    if not counts[v] then order[#order + 1] = v end
    counts[v] = (counts[v] or 0) + 1
  end
  for i, v in ipairs(order) do order[i] = scalar(v) .. integer(counts[v]) end
  return table.concat(order)
end

-- What is written whole: a note's kind -> the pickle of an entry, or nil where it does not fit.
local WHOLE = {}

function WHOLE.Counter(entry)
  local pairs_of = entry.list and tally(entry.list) or not entry.list and scalars(entry)
  return pairs_of and "ccollections\nCounter\n}(" .. pairs_of .. "u\133R"
end

function WHOLE.set(entry)
  local items = entry.list and scalars(entry)
  return items and "c__builtin__\nset\n](" .. items .. "e\133R"
end

--- Returns the pickle of a nested value.
---@param flat accelerate.files.Flat
---@param tensors accelerate.files.PickledTensor[] one for each of flat.tensors
---@return string
function M.write(flat, tensors)
  local out, todo, memo, remembered = { "\128\2" }, {}, {}, 0
  local function emit(code) out[#out + 1] = code end
  -- What is memoized keeps its number: 'r' writes, 'j' reads.
  local function remember(reference)
    memo[reference] = "j" .. little(remembered, 4)
    emit("r" .. little(remembered, 4))
    remembered = remembered + 1
  end
  local function emit_nones(entry)
    for _, key in ipairs(entry.nones or {}) do emit(scalar(key) .. "Ns") end
  end
  local function begin(reference)
    if reference.tensor then
      emit(tensor(tensors[reference.tensor]))
      return remember(reference)
    end
    local entry = flat.tables[reference.table]
    local whole = WHOLE[entry.kind] and WHOLE[entry.kind](entry)
    if whole then
      emit(whole)
      return remember(reference)
    end
    -- An empty table is a dict: nothing distinguishes it from a list.
    local list = entry.list and #entry.list > 0 and entry.list
    emit(list and "]" or entry.ordered and NO_HOOKS or "}")
    remember(reference)
    if not list then emit_nones(entry) end
    if not list and #(entry.keys or {}) == 0 then return end
    emit("(")
    todo[#todo + 1] = { code = list and "e" or "u", entry = entry, list = list, at = 1,
      nones = list and places(entry) }
  end
  local function value(v)
    if type(v) ~= "table" then emit(scalar(v))
    elseif memo[v] then emit(memo[v])
    else begin(v) end
  end
  value(flat.value)
  while #todo > 0 do
    local work = todo[#todo]
    local at = work.at
    work.at = at + 1
    if at > #(work.list or work.entry.keys) then
      emit(work.code)
      todo[#todo] = nil
    elseif work.list then
      if work.nones and work.nones[at] then emit("N") else value(work.list[at]) end
    else
      emit(scalar(work.entry.keys[at]))
      value(work.entry.values[at])
    end
  end
  emit(".")
  return table.concat(out)
end

return M
