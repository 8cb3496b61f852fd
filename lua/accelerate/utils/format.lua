--- How tensors look as text: PyTorch's layout and its rules for choosing digits
--- (torch/_tensor_str.py). Loaded when the first tensor is printed.

local core = require "accelerate.core"
local options = require "accelerate.utils.options"

local M = {}

local DEFAULT = { precision = 4, threshold = 1000, edgeitems = 3, linewidth = 80 }
local shown = {} -- the settings in force: see set_options
for name, value in next, DEFAULT do shown[name] = value end

-- ---- values: nested lists of numbers, or of texts for integers; `cut` marks a list that shows
--      only its two ends

local function ends_of(n, summarize)
  if summarize and n > 2 * shown.edgeitems then return shown.edgeitems, n - shown.edgeitems + 1 end
  return n, n + 1
end

local function is_complex(x) return x.dtype:find("complex", 1, true) ~= nil end

local function plain_values(x)
  if x.dtype == "bool" then
    local list = x:totable()
    for i = 1, #list do list[i] = list[i] and "True" or "False" end
    return list
  elseif core._is_float(x) then
    return x:totable()
  elseif is_complex(x) then
    local list = x:totable()
    for i, v in ipairs(list) do list[i] = ("%.17g|%.17g"):format(v[1], v[2]) end
    return list
  end
  return core._integers(x:contiguous())
end

local function read(x, summarize)
  local n = x:size(1)
  local head, tail = ends_of(n, summarize)
  local list
  if x.ndim == 1 then
    if head == n then return plain_values(x) end
    list = plain_values(core.cat({ x:narrow(1, 1, head), x:narrow(1, tail, n - tail + 1) }))
  else
    list = {}
    for i = 1, head do list[#list + 1] = read(x[i], summarize) end
    for i = tail, n do list[#list + 1] = read(x[i], summarize) end
  end
  list.cut = head < n
  return list
end

local function each(values, visit)
  for _, v in ipairs(values) do
    if type(v) == "table" then each(v, visit) else visit(v) end
  end
end

-- ---- one width and one notation for all

local function is_finite(v) return v == v and v ~= math.huge and v ~= -math.huge end

local function odd_text(v)
  if v ~= v then return "nan" end
  return v > 0 and "inf" or "-inf"
end

-- Returns the text of a number with so many digits, rounded as C and Python do: halves to even.
-- (LuaJIT rounds them up: 0.28125 to 0.2813.)
local MORE, HALF = 30, "5" .. ("0"):rep(29)
local function rounder(kind, precision)
  local short, long = ("%%.%d%s"):format(precision, kind), ("%%.%d%s"):format(precision + MORE, kind)
  return function(v)
    local digits, exponent = long:format(v):match("^([^e]*)(.*)$")
    if digits:sub(-MORE) ~= HALF then return short:format(v) end
    local cut = digits:sub(1, -MORE - 1):gsub("%.$", "")
    return tonumber(cut:sub(-1)) % 2 == 0 and cut .. exponent or short:format(v)
  end
end

local function float_format(values)
  local least, most, integral, sample = math.huge, 0, true, {}
  each(values, function(v)
    if is_finite(v) and v ~= 0 then
      local a = math.abs(v)
      least, most = math.min(least, a), math.max(most, a)
      if v ~= math.floor(v) then integral = false end
      sample[#sample + 1] = v
    end
  end)
  if #sample == 0 then
    return 1, function(v) return is_finite(v) and ("%.0f."):format(v) or odd_text(v) end
  end
  local exponent = most / least > 1000 or most > 1e8 or least < 1e-4
  if shown.sci_mode ~= nil then exponent = shown.sci_mode end
  local text = rounder(exponent and "e" or "f", shown.precision)
  if integral and not exponent then text = function(v) return ("%.0f."):format(v) end end
  local width = 1
  for _, v in ipairs(sample) do width = math.max(width, #text(v)) end
  return width, function(v) return is_finite(v) and text(v) or odd_text(v) end
end

local function text_format(values)
  local width = 1
  each(values, function(v) width = math.max(width, #v) end)
  return width, function(v) return v end
end

-- Both parts have their width and notation; the imaginary part is not filled up with spaces. Also
-- returns the width to fill up to, which is that of the real part.
local function complex_format(values)
  local re, im = {}, {}
  each(values, function(v)
    local a, b = v:match "^(.*)|(.*)$"
    re[#re + 1], im[#im + 1] = tonumber(a), tonumber(b)
  end)
  local re_width, re_text = float_format(re)
  local im_width, im_text = float_format(im)
  return re_width + im_width + 1, function(v)
    local a, b = v:match "^(.*)|(.*)$"
    local left, right = re_text(tonumber(a)), im_text(tonumber(b)) .. "j"
    return (" "):rep(re_width - #left) .. left .. (right:find "^[+-]" and "" or "+") .. right
  end, 0
end

-- ---- layout

local function vector_text(values, indent, width, text, fill)
  local parts = {}
  for i, v in ipairs(values) do
    local s = text(v)
    parts[#parts + 1] = (" "):rep((fill or width) - #s) .. s
    if values.cut and i == shown.edgeitems then parts[#parts + 1] = " ..." end
  end
  local per_line = math.max(1, math.floor((shown.linewidth - indent) / (width + 2)))
  local lines = {}
  for i = 1, #parts, per_line do
    lines[#lines + 1] = table.concat(parts, ", ", i, math.min(i + per_line - 1, #parts))
  end
  return "[" .. table.concat(lines, ",\n" .. (" "):rep(indent + 1)) .. "]"
end

local function nested_text(values, dims, indent, width, text, fill)
  if dims == 1 then return vector_text(values, indent, width, text, fill) end
  local parts = {}
  for i, v in ipairs(values) do
    parts[#parts + 1] = nested_text(v, dims - 1, indent + 1, width, text, fill)
    if values.cut and i == shown.edgeitems then parts[#parts + 1] = "..." end
  end
  return "[" .. table.concat(parts, "," .. ("\n"):rep(dims - 1) .. (" "):rep(indent + 1)) .. "]"
end

local function body_text(x, indent)
  if x.device == "meta" then return "..." end
  if x:numel() == 0 then return "[]" end
  local choose = core._is_float(x) and float_format or is_complex(x) and complex_format
    or text_format
  if x.ndim == 0 then
    local values = plain_values(x:reshape(1))
    local width, text, fill = choose(values)
    local s = text(values[1])
    return (" "):rep((fill or width) - #s) .. s
  end
  local values = read(x, x:numel() > shown.threshold)
  local width, text, fill = choose(values)
  return nested_text(values, x.ndim, indent, width, text, fill)
end

-- ---- the whole

local function suffixes_of(x)
  local list = {}
  local default = core.get_default_dtype()
  local named = x.dtype ~= default and x.dtype ~= "int64" and x.dtype ~= "bool"
    and x.dtype ~= (default == "float64" and "complex128" or "complex64")
  if x.device ~= "cpu" then list[#list + 1] = ("device='%s'"):format(x.device) end
  if x:numel() == 0 or x.device == "meta" then
    if x.ndim ~= 1 or x.device == "meta" then
      list[#list + 1] = "size=(" .. table.concat(x.shape, ", ") .. ")"
    end
    named = x.dtype ~= default
  end
  if named then list[#list + 1] = "dtype=" .. x.dtype end
  if x.grad_fn then
    list[#list + 1] = ("grad_fn=<%s>"):format(x.grad_fn)
  elseif x.requires_grad then
    list[#list + 1] = "requires_grad=True"
  end
  return list
end

local PROFILES = {
  default = DEFAULT,
  short = { precision = 2, threshold = 1000, edgeitems = 2, linewidth = 80 },
  full = { precision = 4, threshold = math.huge, edgeitems = 3, linewidth = 80 },
}
local OPTIONS = {
  precision = { "integer", optional = true, min = 0, max = 40 },
  threshold = { "number", optional = true, min = 0 },
  edgeitems = { "integer", optional = true, min = 0 },
  linewidth = { "integer", optional = true, min = 1 },
  profile = { "string", optional = true, one_of = { "default", "short", "full" } },
  sci_mode = { "boolean", optional = true },
}

--- Sets how tensors are shown from now on. precision: digits after the point (4); threshold: from
--- how many elements on only the ends of dims are shown (1000); edgeitems: how many are shown there
--- (3); linewidth: columns (80); profile: all of these; sci_mode: always or never with exponents,
--- chosen for each tensor when it is not given.
---@param ... any precision, threshold, edgeitems, linewidth, profile ("default", "short" or "full")
---  and sci_mode, or a table of them
function M.set_options(...)
  local o = options.read("set_printoptions",
    { "precision", "threshold", "edgeitems", "linewidth", "profile", "sci_mode" }, OPTIONS, ...)
  for name, value in next, PROFILES[o.profile] or {} do shown[name] = value end
  for name in next, DEFAULT do if o[name] ~= nil then shown[name] = o[name] end end
  shown.sci_mode = o.sci_mode
end

--- The settings in force.
---@return { precision: integer, threshold: number, edgeitems: integer, linewidth: integer,
---  sci_mode: boolean? }
function M.get_options()
  local copy = {}
  for name, value in next, shown do copy[name] = value end
  return copy
end

--- "tensor([[1., 2.],\n        [3., 4.]])". Above 1000 elements only the three at each end of a dim
--- are shown.
---@param x accelerate.Tensor
---@return string
function M.tensor(x)
  local indent = #"tensor("
  local body = core.no_grad(function() return body_text(x:detach(), indent) end)
  local text = "tensor(" .. body
  local out, last_line = { text }, #text:match("[^\n]*$") + 2
  for _, suffix in ipairs(suffixes_of(x)) do
    if last_line + #suffix + 2 > shown.linewidth then
      out[#out + 1] = ",\n" .. (" "):rep(indent) .. suffix
      last_line = indent + #suffix
    else
      out[#out + 1] = ", " .. suffix
      last_line = last_line + #suffix + 2
    end
  end
  out[#out + 1] = ")"
  return table.concat(out)
end

return M
