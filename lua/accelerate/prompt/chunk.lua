--- Chunks: what is typed becomes a function, and its top-level locals stay for the chunks after it.
---
--- A local stays the variable that it is. After each top-level `local` statement a call is added
--- that hands a closure over the new variable to this module. A later chunk that uses the name is
--- compiled inside a declaration of it, and its upvalue is joined to the variable of that closure:
--- functions of both chunks share one variable, and a second `local` of one name makes another one,
--- as in one long chunk. The closures assign to their variable (they never run): LuaJIT may take an
--- upvalue that nothing assigns for a constant.
local explain = require "accelerate.messages.explain"
local hints = require "accelerate.messages.hints"
local parser = require "accelerate.prompt.parser"

local M = {}

local KEEP, RESULTS = "__prompt_keep", "__prompt_results"

--- name -> a closure whose first upvalue is the variable.
local kept = {}

-- ---- variables that stay

local function keep(name, closure)
  if name ~= "_" then kept[name] = closure end
end

--- Returns the names of the locals that stay.
---@return string[]
function M.names()
  local list = {}
  for name in next, kept do list[#list + 1] = name end
  table.sort(list)
  return list
end

--- Returns whether a local of this name stays, and its value.
---@param name string
---@return boolean
---@return any
function M.value(name)
  local closure = kept[name]
  if not closure then return false end
  local _, value = debug.getupvalue(closure, 1)
  return true, value
end

--- Forgets all locals.
function M.forget() kept = {} end

-- ---- rewriting

-- The text with pieces put in: { at (before this byte), text }, in order.
local function with_pieces(text, pieces)
  local out, at = {}, 1
  for _, piece in ipairs(pieces) do
    out[#out + 1] = text:sub(at, piece[1] - 1)
    out[#out + 1] = piece[2]
    at = piece[1]
  end
  out[#out + 1] = text:sub(at)
  return table.concat(out)
end

local function keeping(statement)
  local calls = {}
  for i, name in ipairs(statement.names) do
    calls[i] = (" %s(%q, function() %s = %s end)"):format(KEEP, name, name, name)
  end
  return { statement.last + 1, table.concat(calls) .. ";" }
end

-- What a chunk's last statement gives is handed over in a call, not returned: a tail call would
-- hide the chunk's line from tracebacks.
local function giving(text, statement, pieces)
  local first, last = statement.first, statement.last
  if statement.kind == "return" then
    text = text:sub(1, first - 1) .. (" "):rep(#"return") .. text:sub(first + #"return")
    if not text:find("%S", first) or text:find("^%s*;", first) then last = first end
  end
  pieces[#pieces + 1] = { first, RESULTS .. "(" }
  pieces[#pieces + 1] = { math.max(last, first) + 1, ")" }
  return text
end

local function rewritten(text, statements, is_script)
  local pieces, last = {}, statements[#statements]
  for _, statement in ipairs(statements) do
    if statement.names then pieces[#pieces + 1] = keeping(statement) end
  end
  if not is_script and last and (last.kind == "values" or last.kind == "call" or last.kind == "return") then
    text = giving(text, last, pieces)
  end
  return with_pieces(text, pieces)
end

-- ---- compiling

-- The kept names that the text may use.
local function used_names(text)
  local list, seen = {}, {}
  for name in text:gmatch("[%a_\128-\255][%w_\128-\255]*") do
    if kept[name] and not seen[name] then
      seen[name] = true
      list[#list + 1] = name
    end
  end
  return list
end

-- The function for a text, with its upvalues joined to the variables that stay.
local function build(text, name, results)
  local declared = { KEEP, RESULTS, unpack(used_names(text)) }
  local source = ("local %s; return function(...) %s\nend"):format(table.concat(declared, ", "), text)
  local maker, problem = loadstring(source, name)
  if not maker then return nil, problem end
  local fn = maker()
  for i = 1, 255 do
    local upvalue = debug.getupvalue(fn, i)
    if not upvalue then break end
    if upvalue == KEEP then debug.setupvalue(fn, i, keep)
    elseif upvalue == RESULTS then debug.setupvalue(fn, i, results)
    else debug.upvaluejoin(fn, i, kept[upvalue], 1) end
  end
  return fn
end

---@class accelerate.prompt.Chunk
---@field run function
---@field results any[]? what the last statement gave, with their number as n; nil: it gave nothing
---@field silent boolean the last statement ends with ";"
---@field text string what the other ranks of a prompt of several run
---@field alone boolean? only rank 0 runs it
---@field ranks boolean? the values of all ranks are shown

--- Compiles a text.
---@param text string
---@param name string the chunk's name, "=[3]"
---@return accelerate.prompt.Chunk? chunk
---@return string|boolean problem the message; true: more text may make it complete
function M.compile(text, name)
  text = text:gsub("^%s*=", "return ", 1)
  local statements, incomplete = parser.parse(text)
  if incomplete then return nil, true end
  explain.chunk(name, text)
  if statements then
    local chunk = { text = text }
    local function results(...) chunk.results = { n = select("#", ...), ... } end
    local problem
    chunk.run, problem = build(rewritten(text, statements, false), name, results)
    local last = statements[#statements]
    chunk.silent = last ~= nil and (last.closed or last.text == ";")
    if chunk.run then return chunk, false end
    local fn, plain = loadstring(text, name)
    return nil, hints.add(fn and problem or plain, true)
  end
  local _, problem = loadstring(text, name)
  return nil, problem and hints.add(problem, true) or name:sub(2) .. ": this cannot be read"
end

--- Compiles a script whose top-level locals stay.
---@param text string
---@param name string "@train.lua"
---@return function? run
---@return string? problem
function M.script(text, name)
  text = text:gsub("^#[^\n]*", "", 1)
  local statements = parser.parse(text)
  explain.chunk(name, text)
  local fn = statements and build(rewritten(text, statements, true), name)
  if fn then return fn end
  return loadstring(text, name) -- its message, or a script whose locals are too many for this
end

--- Compiles a script's file: see script.
---@param path string
---@return function? run
---@return string? problem
function M.file(path)
  local file, problem = io.open(path, "rb")
  if not file then return nil, problem end
  local text = file:read("*a")
  file:close()
  return M.script(text, "@" .. path)
end

return M
