--- Makes a tree of a Jinja template: its texts, expressions and statements.
local expressions = require "accelerate.tokenizers.chat.expressions"
local run = require "accelerate.tokenizers.chat.run"

local fail_at = run.fail_at
local expression, disjunction = expressions.expression, expressions.disjunction

local M = {}

local STATEMENTS = {}

local function at_close(w)
  local token = w:token()
  return not token or token.kind == "close"
end

local function set_of(...)
  local set = {}
  for _, name in ipairs { ... } do set[name] = true end
  return set
end

-- The node of one block, or the name of the statement that ends the body.
local function block(w, ends)
  local open = w:accept_kind "open"
  if open.value == "{{" then
    local node = { kind = "print", of = expressions.tuple(w, expression, at_close), line = open.line }
    w:finish()
    return node
  end
  local name = w:name()
  if ends and ends[name] then return nil, name end
  local statement = STATEMENTS[name]
  if not statement then fail_at(open.line, "the statement '%s' is not supported", name) end
  return statement(w, open.line)
end

-- Nodes up to a statement whose name is in `ends`; returns them and that name.
local function nodes_up_to(w, ends, opener, line)
  local nodes = {}
  while true do
    local text = w:accept_kind "text"
    if text then
      nodes[#nodes + 1] = text
    elseif not w:token() then
      if opener then fail_at(line, "'%s' without its end", opener) end
      return nodes
    else
      local node, name = block(w, ends)
      if name then return nodes, name end
      nodes[#nodes + 1] = node
    end
  end
end

-- The body of a statement: what is behind the end of its block.
local function body(w, ends, opener, line)
  w:accept ":"
  w:finish()
  local name
  local nodes = w:nested(function()
    local list
    list, name = nodes_up_to(w, ends, opener, line)
    return list
  end)
  return nodes, name
end

-- The body of a statement that has one end.
local function whole_body(w, opener, line)
  local nodes = body(w, { ["end" .. opener] = true }, opener, line)
  w:finish()
  return nodes
end

-- ---- what is assigned to

local RESERVED = set_of("true", "false", "none", "True", "False", "None")

local function assigned_name(w)
  local line, name = w:line(), w:name()
  if RESERVED[name] then fail_at(line, "'%s' cannot be assigned to", name) end
  return name
end

local function target(w, ends, member)
  local function one(words)
    local line = words:line()
    if words:accept "(" then
      local node = target(words, function(inner) return inner:peek ")" ~= nil end, member)
      words:expect ")"
      return node
    end
    local name = assigned_name(words)
    if member and words:accept "." then
      return { kind = "member", name = name, member = words:name(), line = line }
    end
    return { kind = "name", name = name, line = line }
  end
  return expressions.tuple(w, one, ends)
end

-- ---- statements

local IF_ENDS = set_of("elif", "else", "endif")

STATEMENTS["if"] = function(w, line)
  local node, name = { kind = "if", branches = {}, line = line }, "elif"
  while name == "elif" do
    local branch = { condition = expressions.tuple(w, disjunction, at_close) }
    branch.body, name = body(w, IF_ENDS, "if", line)
    node.branches[#node.branches + 1] = branch
  end
  if name == "endif" then
    w:finish()
  else
    node.branches[#node.branches + 1] = { body = whole_body(w, "if", line) }
  end
  return node
end

STATEMENTS["for"] = function(w, line)
  local node = { kind = "for", line = line }
  node.target = target(w, function(words) return words:peek "in" ~= nil end)
  if node.target.name == "loop" then fail_at(line, "'loop' cannot be assigned to by a 'for'") end
  w:expect "in"
  node.over = expressions.tuple(w, disjunction,
    function(words) return at_close(words) or words:peek "recursive" ~= nil end)
  if w:accept "if" then node.only = expression(w) end
  node.recursive = w:accept "recursive" ~= nil
  local name
  w.loops = w.loops + 1
  node.body, name = body(w, set_of("else", "endfor"), "for", line)
  w.loops = w.loops - 1
  if name == "else" then node.otherwise = whole_body(w, "for", line) else w:finish() end
  return node
end

local function leaving(kind)
  return function(w, line)
    if w.loops == 0 then fail_at(line, "'%s' outside of a 'for'", kind) end
    w:finish()
    return { kind = kind, line = line }
  end
end
STATEMENTS["break"], STATEMENTS["continue"] = leaving "break", leaving "continue"

-- Filters with '|' between them, over what a block's body gives.
local function body_filters(w, node)
  while w:accept "|" do node = expressions.filter(w, node) end
  return node
end

STATEMENTS["set"] = function(w, line)
  local node = { kind = "set", line = line }
  node.target = target(w, function(words)
    return at_close(words) or words:peek "=" ~= nil or words:peek "|" ~= nil
  end, true)
  if w:accept "=" then
    node.value = expressions.tuple(w, expression, at_close)
    w:finish()
    return node
  end
  local captured = { kind = "captured", line = line }
  node.value = body_filters(w, captured)
  captured.body = whole_body(w, "set", line)
  return node
end

-- The names, and the values that they have without an argument, of a macro or a caller.
local function signature(w)
  local names, defaults = {}, {}
  w:expect "("
  while not w:accept ")" do
    if #names > 0 then w:expect "," end
    local line = w:line()
    names[#names + 1] = assigned_name(w)
    if w:accept "=" then
      defaults[#names] = expression(w)
    elseif next(defaults) then
      fail_at(line, "an argument without a default behind one with a default")
    end
  end
  return names, defaults
end

-- The body of a macro is no part of the loop around it. Returns its nodes and the names it uses.
local function macro_body(w, opener, line)
  local loops, used = w.loops, w.used
  w.loops, w.used = 0, {}
  local nodes, inside = whole_body(w, opener, line), w.used
  w.loops, w.used = loops, used
  for name in pairs(inside) do used[name] = true end
  return nodes, inside
end

STATEMENTS.macro = function(w, line)
  local node = { kind = "macro", name = assigned_name(w), line = line }
  node.names, node.defaults = signature(w)
  node.body, node.used = macro_body(w, "macro", line)
  return node
end

STATEMENTS.call = function(w, line)
  local caller = { kind = "macro", name = "caller", names = {}, defaults = {}, line = line }
  if w:peek "(" then caller.names, caller.defaults = signature(w) end
  local call = expression(w)
  if call.kind ~= "call" then fail_at(line, "'call' needs a call") end
  caller.body, caller.used = macro_body(w, "call", line)
  return { kind = "call block", call = call, caller = caller, line = line }
end

STATEMENTS.filter = function(w, line)
  local captured = { kind = "captured", line = line }
  local node = { kind = "filter block", line = line }
  node.of = body_filters(w, expressions.filter(w, captured))
  captured.body = (macro_body(w, "filter", line))
  return node
end

STATEMENTS.with = function(w, line)
  local node = { kind = "with", targets = {}, values = {}, line = line }
  while not at_close(w) and not w:peek ":" do
    if #node.targets > 0 then w:expect "," end
    node.targets[#node.targets + 1] = target(w, function(words) return words:peek "=" ~= nil end)
    w:expect "="
    node.values[#node.values + 1] = expression(w)
  end
  node.body = whole_body(w, "with", line)
  return node
end

STATEMENTS.generation = function(w, line)
  return { kind = "generation", body = (macro_body(w, "generation", line)), line = line }
end

STATEMENTS.print = function(w, line)
  local nodes = {}
  while not at_close(w) do
    if #nodes > 0 then w:expect "," end
    nodes[#nodes + 1] = { kind = "print", of = expression(w), line = line }
  end
  w:finish()
  return { kind = "block", body = nodes, line = line }
end

for _, name in ipairs { "include", "import", "from", "extends", "block", "autoescape" } do
  STATEMENTS[name] = function(_, line)
    local why = name == "autoescape" and "texts are not escaped here" or "a chat template is one text"
    fail_at(line, "the statement '%s' is not supported: %s", name, why)
  end
end

--- Returns the nodes of a template.
---@param template string well-formed UTF-8
---@return table[]
function M.parse(template)
  return (nodes_up_to(expressions.Words.of(template)))
end

return M
