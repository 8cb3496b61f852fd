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

-- A table of options: each may be left out, whatever the annotation marks. Types with functions
-- stay, for a function's own arguments look the same.
local function options_type(p)
  if p.name ~= "opts" and p.name ~= "options" or p.type:find("fun(", 1, true) then return p.type end
  return (p.type:gsub("([{,]%s*[%a_][%w_]*):", "%1?:"))
end

-- The result of a function whose annotations name none may be anything: without the line a server
-- takes the empty body's nil.
local ANY_RESULTS = "---@return any ..."

function M.write_returns(out, returns)
  for _, r in ipairs(returns) do
    if r.type == "any" and r.text:find("^%.%.%.") then M.add(out, ANY_RESULTS)
    else M.add(out, "---@return ", r.type == "table" and "any" or r.type, M.remark(r.text)) end
  end
  if #returns == 0 then M.add(out, ANY_RESULTS) end
end

-- What a class that can be called gives: a server does not inherit the line, so each class has it.
function M.write_call(out, result)
  M.add(out, "---@overload fun(...: any): ", result)
end

function M.write_params(out, block)
  local names = {}
  if uses_generic(block) then M.add(out, "---@generic T") end
  for _, p in ipairs(block and block.params or {}) do
    if M.is_name(p.name) or p.name == "..." then
      M.add(out, "---@param ", p.name, p.optional and p.name ~= "..." and "? " or " ", p.type ~= ""
        and options_type(p) or "any", M.remark(p.text))
      names[#names + 1] = p.name
    end
  end
  return names
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
  M.add(out, ("function %s(%s) end"):format(call, M.argument_list(arguments, names)))
  M.add(out, "")
end

function M.write_fields(out, block, seen)
  for _, f in ipairs(block and block.fields or {}) do
    if not seen[f.name] then
      M.add(out, "---@field ", f.name, f.optional and not f.type:find("%?$") and "? " or " ", f.type,
      M.remark(f.text)) end
    seen[f.name] = true
  end
end

return M
