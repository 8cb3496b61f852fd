--- Functions of tensors that are written in Lua, of rows of the op table.
---
---   define("diff", "x:T n:int=1 dim:dim=-1", "differences of neighbours", function(x, n, dim) ...
---     end)
---
--- The signature is in the language of host/core/ops/ops.def, and arguments are read by it as those
--- of rows are. The function gets one value for each parameter: dims from 1 to x.ndim, lists as
--- tables, nil for what is optional and was not given.
local core = require "accelerate.core"

---@class accelerate.tensor.definition
---@field name string
---@field signature string? where arguments are read by one
---@field usage string? else: how it is called
---@field summary string
---@field form "both"|"method"|"function"|"field"|"inner" inner: of a table of functions

---@class accelerate.tensor.define
---@field list accelerate.tensor.definition[] in the order of definition
---@field functions table<string, function> what is called as tensor.name(...)
local M = { list = {}, functions = {} }

local function add(entry, fn)
  local name, form = entry.name, entry.form
  M.list[#M.list + 1] = entry
  if form == "both" or form == "function" then M.functions[name] = fn end
  if form == "both" or form == "method" then core._add_method(name, fn) end
  if form == "field" then core._add_method(name, { fn }) end
end

--- Another name of something that tensors and the module have.
---@param name string
---@param of string
---@param in_place? boolean also name_
function M.alias(name, of, in_place)
  local fn = core[of] or M.functions[of]
  add({ name = name, summary = ("another name of `%s`"):format(of), form = "both" }, fn)
  if in_place then
    add({ name = name .. "_", summary = ("another name of `%s_`"):format(of), form = "method" },
      core.empty(0)[of .. "_"])
  end
end

--- A function with calls that its signature does not say: `prepare` gets the arguments as they were
--- given, and returns them as the signature has them.
---@param name string
---@param signature string
---@param summary string
---@param prepare fun(...: any): ...
---@param fn function
---@param form? "both"|"method"|"function"
function M.prepared(name, signature, summary, prepare, fn, form)
  local read = core._composed(name, signature, fn)
  add({ name = name, signature = signature, summary = summary, form = form or "both" },
    core._named(name, function(...) return read(prepare(...)) end))
end

--- For M.prepared: PyTorch takes the tensors of some functions one by one; a list will do, too.
function M.listed(first, ...)
  if core.is_tensor(first) then return { first, ... } end
  return first, ...
end

--- A function whose arguments are not read by a signature.
---@param name string
---@param usage string how it is called, "x:new_full(shape, value)"
---@param summary string
---@param form "both"|"method"|"function"|"field"
---@param fn function
function M.plain(name, usage, summary, form, fn)
  add({ name = name, usage = usage, summary = summary, form = form }, core._named(name, fn))
end

--- A function of a table of functions: tensor.special.name. It is no method.
---@param room string "special"
---@param name string
---@param signature string
---@param summary string
---@param fn function
---@return function
function M.within(room, name, signature, summary, fn)
  local full = room .. "." .. name
  local read = core._composed(full, signature, fn)
  add({ name = full, signature = signature, summary = summary, form = "inner" }, read)
  return read
end

return setmetatable(M, {
  __call = function(_, name, signature, summary, fn, form)
    add({ name = name, signature = signature, summary = summary, form = form or "both" },
      core._composed(name, signature, fn))
  end,
})
