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

function M.write_params(out, block)
  local names = {}
  if uses_generic(block) then M.add(out, "---@generic T") end
  for _, p in ipairs(block and block.params or {}) do
    if M.is_name(p.name) or p.name == "..." then
      M.add(out, "---@param ", p.name, p.optional and p.name ~= "..." and "? " or " ", p.type ~= "" and p.type
        or "any",
        M.remark(p.text))
      names[#names + 1] = p.name
    end
  end
  for _, r in ipairs(block and block.returns or {}) do M.add(out, "---@return ", r.type, M.remark(r.text)) end
  return names
end

-- The arguments of a definition: as they are written in the source, else those that are described.
function M.argument_list(written_ones, described)
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
