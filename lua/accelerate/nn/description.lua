--- How a module describes itself: what print shows, and which layer an error's message names.

local options = require "accelerate.utils.options"

local fail = options.fail

local M = {}

local Module -- nn.Module; see install

local function indented(text) return (text:gsub("\n", "\n  ")) end

-- ---- errors of built-in layers

local function name_in(parent, module)
  for name, below in Module.named_modules(parent) do
    if below == module then return name end
  end
end

-- Where `self` sits in the modules whose calls are under way: "net.0", or nil when it was called on
-- its own.
local function path_of(self)
  local path, at = {}, self
  for level = 2, 250 do
    local info = debug.getinfo(level, "f")
    if not info then break end
    if info.func == Module.__call then
      local _, module = debug.getlocal(level, 1)
      local name = module ~= at and Module._is_module(module) and name_in(module, at)
      if name and name ~= "" then
        table.insert(path, 1, name)
        at = module
      end
    end
  end
  if #path > 0 then return table.concat(path, "."), at end
end

local function finish(self, ok, ...)
  if ok then return ... end
  local err = ...
  if type(err) ~= "string" then error(err, 0) end
  local path, root = path_of(self)
  local text = err:gsub("^[^\n:]+:%d+: ", "")
  if path then fail("%s", ("%s (in layer '%s' of %s: %s)"):format(text, path, root.__name, self:_brief())) end
  fail("%s", ("%s (in %s)"):format(text, self:_brief()))
end

--- Adds the methods to nn.Module.
function M.install(base)
  Module = base

  --- Returns what print shows between the parentheses: "in_features=20, out_features=10".
  ---@return string
  function Module:extra_repr() return "" end

  --- Returns the name of the module's class, "Linear", which print shows; `module.__name` is the
  --- same.
  ---@return string
  function Module:_get_name() return self.__name end

  --- A value as PyTorch prints it in extra_repr: True, False, None, 0.1, 1e-05.
  function Module._show(value)
    if value == true then return "True" end
    if value == false then return "False" end
    if value == nil then return "None" end
    if type(value) == "number" then return ("%.12g"):format(value) end
    return tostring(value)
  end

  --- A list of sizes as PyTorch prints it: "(3, 3)", "(3,)"; `short`: "3" when all are the same.
  function Module._tuple(list, short)
    local same = true
    for i = 2, #list do same = same and list[i] == list[1] end
    if short and same then return Module._show(list[1]) end
    if #list == 1 then return ("(%s,)"):format(Module._show(list[1])) end
    local words = {}
    for i, v in ipairs(list) do words[i] = Module._show(v) end
    return ("(%s)"):format(table.concat(words, ", "))
  end

  --- The lines for the children: "(name): text".
  function Module:_child_lines()
    local lines = {}
    for _, child in ipairs(self:_own("module")) do
      lines[#lines + 1] = ("(%s): %s"):format(child[1], indented(tostring(child[2])))
    end
    return lines
  end

  --- As PyTorch prints modules.
  function Module.__tostring(self)
    local extra, lines, name = self:extra_repr(), self:_child_lines(), self:_get_name()
    if #lines == 0 and not extra:find("\n", 1, true) then return ("%s(%s)"):format(name, extra) end
    if extra ~= "" then table.insert(lines, 1, indented(extra)) end
    return ("%s(\n  %s\n)"):format(name, table.concat(lines, "\n  "))
  end

  --- Returns the layer as one line of text.
  function Module:_brief() return ("%s(%s)"):format(self.__name, self:extra_repr()) end

  --- Calls op(...); an error is raised again with the layer and its path in the message and the
  --- script's position before it.
  function Module:_run(op, ...) return finish(self, pcall(op, ...)) end

  Module._indented = indented
end

return M
