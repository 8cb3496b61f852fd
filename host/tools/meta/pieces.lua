-- Lines of definition files: descriptions, parameters, functions, fields.
local M = {}

function M.add(out, ...) out[#out + 1] = table.concat { ... } end

function M.describe(out, lines)
  local text = table.concat(lines or {}, "\n"):gsub("^%s+", ""):gsub("%s+$", "")
  if text == "" then return end
  for line in (text .. "\n"):gmatch("(.-)\n") do M.add(out, "--- ", line) end
end

function M.is_name(text)
  return text:find("^[%a_][%w_]*$") ~= nil and not require("accelerate.prompt.lexer").KEYWORDS[text]
end

-- A text after a type. The mark before it ends the type.
function M.remark(text) return text and text ~= "" and " # " .. text or "" end

local function uses_generic(block)
  for _, list in ipairs { block and block.params or {}, block and block.returns or {} } do
    for _, entry in ipairs(list) do
      if entry.type:find("%f[%w]T%f[^%w]") then return true end
    end
  end
end

-- A table of options: each may be left out, whatever the annotation marks. The arguments of
-- functions in it look alike and stay; such a function stands in brackets, for its results would
-- take the options that follow.
local function options_type(p)
  if p.name ~= "opts" and p.name ~= "options" then return p.type end
  local functions = {}
  local function kept(text)
    functions[#functions + 1] = "(" .. text .. ")"
    return "fun" .. #functions .. "!"
  end
  local type = p.type:gsub("%f[%w]fun%b():%s*[%w_.%[%]|]+%??", kept):gsub("%f[%w]fun%b()", kept)
  type = type:gsub("([{,]%s*[%a_][%w_]*):", "%1?:")
  return (type:gsub("fun(%d+)!", function(i) return functions[tonumber(i)] end))
end

local TENSOR = "accelerate.Tensor"
M.TENSOR_OR_NUMBER = TENSOR .. "|number"

-- Where a type may be a table of any kind, a class beside it says nothing, and servers compare a
-- literal with it alone.
local function loose(type)
  if not type:find("|", 1, true) or not ("|" .. type .. "|"):find("|table[%[%]]*|") then return type end
  return (type:gsub("|accelerate%.[%w_.]+", function(name)
    return name ~= "|" .. TENSOR and "" or nil
  end))
end

-- What an argument may be. LuaJIT's numbers are of one kind, and servers make `number` of every
-- division and product, and of arithmetic with a value that they do not know: an integer
-- may be any number, and a tensor may be one.
function M.lenient(type)
  type = loose(type:gsub("%f[%w_]integer%f[^%w_]", "number"))
  type = type:gsub("^%d+[%d|]*(%??)$", "number%1") -- a few numbers: a variable may hold any
  return (type:gsub("^accelerate%.Tensor(%??)$", M.TENSOR_OR_NUMBER .. "%1"))
end

-- The result of a function whose annotations name none may be anything: without the line a server
-- takes the empty body's nil.
local ANY_RESULTS = "---@return any ..."

local function result_type(r)
  if r.type == "table" then return "any" end
  return r.text:find("^self%f[%W]") and "self" or r.type
end

function M.write_returns(out, returns)
  for _, r in ipairs(returns) do
    if r.type == "any" and r.text:find("^%.%.%.") then M.add(out, ANY_RESULTS)
    else M.add(out, "---@return ", result_type(r), M.remark(r.text)) end
  end
  if #returns == 0 then M.add(out, ANY_RESULTS) end
end

-- What a class that can be called gives: a server does not inherit the line, so each class has it.
function M.write_call(out, result)
  M.add(out, "---@overload fun(...: any): ", result)
end

local function param_type(p) return p.type ~= "" and M.lenient(options_type(p)) or "any" end

local function named_params(block)
  local list = {}
  for _, p in ipairs(block and block.params or {}) do
    if M.is_name(p.name) or p.name == "..." then list[#list + 1] = p end
  end
  return list
end

-- A function's type. `params`: as annotations have them; functions stand in brackets, for their
-- results would take the arguments that follow.
local function function_type(params, results)
  local list = {}
  for i, p in ipairs(params) do
    local kind = param_type(p)
    if kind:find("^fun%(") then kind = "(" .. kind .. ")" end
    list[i] = ("%s%s: %s"):format(p.name, p.optional and p.name ~= "..." and "?" or "", kind)
  end
  return ("fun(%s): %s"):format(table.concat(list, ", "), results)
end

local function result_types(returns)
  local list = {}
  for i, r in ipairs(returns) do
    list[i] = result_type(r)
    if r.type == "any" and r.text:find("^%.%.%.") then list[i] = "any ..." end
  end
  return #list > 0 and table.concat(list, ", ") or "any ..."
end

-- Options before a function may be left out, and the function then stands in their place.
local function without_options(block)
  local params = named_params(block)
  for i, p in ipairs(params) do
    local after = params[i + 1]
    if p.name == "opts" and p.optional and after and after.name == "fn" then
      local others = block.method and { { name = "self", type = block.method } } or {}
      for k, other in ipairs(params) do
        if k ~= i then others[#others + 1] = other end
      end
      return function_type(others, result_types(block.returns))
    end
  end
end

-- What takes anything and gives anything gives what it took, as `prepare` does.
local function passing(block)
  local only = #block.params == 1 and block.params[1].name == "..." and block.params[1].type == "any"
  if block.method and only and #block.returns == 1 and result_types(block.returns) == "any ..." then
    return ("fun<T>(self: %s, ...: T): T..."):format(block.method)
  end
end

function M.write_overloads(out, block)
  for _, form in ipairs { without_options(block) or "", passing(block) or "" } do
    if form ~= "" then M.add(out, "---@overload ", form) end
  end
end

function M.write_params(out, block)
  local names = {}
  if uses_generic(block) then M.add(out, "---@generic T") end
  for i, p in ipairs(named_params(block)) do
    M.add(out, "---@param ", p.name, p.optional and p.name ~= "..." and "? " or " ", param_type(p),
      M.remark(p.text))
    names[i] = p.name
  end
  return names
end

-- What makes an object of a class: its type, and its arguments as lines of a description.
function M.constructor(params, arguments, result)
  local list, lines = named_params { params = params }, {}
  if #list == 0 then -- nobody describes them
    for name in (arguments or "..."):gmatch("[%w_.]+") do
      list[#list + 1] = { name = name, type = "any", text = "", optional = true }
    end
  end
  for _, p in ipairs(list) do
    if p.text ~= "" then lines[#lines + 1] = ("- `%s` %s: %s"):format(p.name, p.type, p.text) end
  end
  return function_type(list, result), lines
end

-- The arguments of a definition: as they are written in the source, else those that are described.
function M.argument_list(written_ones, described)
  if not written_ones and #described == 0 then return "..." end -- nobody says
  local list, there = {}, {}
  for name in (written_ones or ""):gmatch("[%w_.]+") do
    if name ~= "self" and (M.is_name(name) or name == "...") then list[#list + 1] = name end
    there[name] = true
  end
  for _, name in ipairs(described) do
    if not there[name] then return table.concat(described, ", ") end
  end
  return table.concat(list, ", ")
end

function M.write_function(out, call, block, arguments)
  M.describe(out, block and block.text)
  local names = M.write_params(out, block)
  M.write_returns(out, block and block.returns or {})
  if block then M.write_overloads(out, block) end
  M.add(out, ("function %s(%s) end"):format(call, M.argument_list(arguments, names)))
  M.add(out, "")
end

-- An object that a field may lack is there for whoever looks into it; a field of any name says
-- nothing about the named ones.
local function field_type(f)
  if f.name:find("^%[") then return "any", false end
  local object = f.type:match("^(accelerate%.[%w_.]+)%?$")
  return object or f.type, f.optional and not object and not f.type:find("%?$")
end

function M.write_fields(out, block, seen)
  for _, f in ipairs(block and block.fields or {}) do
    if not seen[f.name] then
      local type, optional = field_type(f)
      M.add(out, "---@field ", f.name, optional and "? " or " ", type, M.remark(f.text))
    end
    seen[f.name] = true
  end
end

return M
