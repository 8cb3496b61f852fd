--- Runs the statements of a chat template.
local buffer = require "string.buffer"
local calls = require "accelerate.tokenizers.chat.calls"
local functions = require "accelerate.tokenizers.chat.functions"
local evaluation = require "accelerate.tokenizers.chat.evaluate"
local run = require "accelerate.tokenizers.chat.run"
local values = require "accelerate.tokenizers.chat.values"

local fail, evaluate = run.fail, evaluation.evaluate

local M = {}

-- ---- what is written

-- `root` is the text of the template; `out` is `root` or what a block is captured in.
local Output = {}
Output.__index = Output

function Output:put(text)
  run.made(#text)
  self.out:put(text)
end

-- Returns the text that fn writes.
function Output:captured(fn)
  local outer = self.out
  self.out = buffer.new()
  fn()
  local text = self.out:get()
  self.out = outer
  return text
end

local output

local EXECUTE = {}

-- Runs nodes; returns "break" or "continue" where one of them says so.
local function body(scope, nodes)
  for i = 1, #nodes do
    local node = nodes[i]
    run.step()
    run.line = node.line
    local signal = EXECUTE[node.kind](scope, node)
    if signal then return signal end
  end
end

local function inner(scope) return { names = {}, parent = scope } end

local function captured(scope, nodes)
  return output:captured(function() body(inner(scope), nodes) end)
end

evaluation.define("captured", function(scope, node) return captured(scope, node.body) end)

-- ---- assigning

local function assign_member(scope, target, value)
  local holder = evaluation.lookup(scope, target.name)
  if values.kind(holder) ~= "namespace" then
    fail("'%s.%s' cannot be set: only what namespace() made can be changed, '%s' is %s", target.name,
      target.member, target.name, values.shown(holder))
  end
  functions.check_member(target.member)
  values.put(holder, target.member, value)
end

local function assign(scope, target, value)
  if target.kind == "name" then
    scope.names[target.name] = value
  elseif target.kind == "member" then
    assign_member(scope, target, value)
  else
    local list = values.walk("an assignment to several names", value)
    if #list ~= #target.entries then
      fail("%d values for %d names", #list, #target.entries)
    end
    for i, entry in ipairs(target.entries) do assign(scope, entry, list[i]) end
  end
end

-- ---- macros

local MOST_CALLS = 150 -- of macros inside of one another
local depth = 0

-- What a macro gets beside the arguments that it names; raises for those that it does not take.
local function take_rest(names, node, args, named)
  local what = ("the macro '%s'"):format(node.name)
  local more, extra = {}, values.map()
  for i = #node.names + 1, #args do more[#more + 1] = args[i] end
  for key, value in values.each(named) do
    local known = key == "caller" and node.used.caller
    for i, name in ipairs(node.names) do
      known = known or name == key
      if name == key and i <= #args then fail("%s got the argument '%s' twice", what, key) end
    end
    if known then names[key] = value else values.put(extra, key, value) end
  end
  if node.used.varargs then
    names.varargs = values.list(more, "tuple")
  elseif #more > 0 then
    fail("%s takes at most %d argument%s, got %d", what, #node.names, #node.names == 1 and "" or "s", #args)
  end
  if node.used.kwargs then
    names.kwargs = extra
  elseif #extra.keys > 0 then
    fail("%s has no argument '%s'", what, values.text(extra.keys[1]))
  end
end

local function call_macro(scope, node, args, named)
  depth = depth + 1
  if depth > MOST_CALLS then fail("macros call one another more than %d deep", MOST_CALLS) end
  run.step()
  local own = inner(scope)
  take_rest(own.names, node, args, named)
  for i, name in ipairs(node.names) do
    if i <= #args then own.names[name] = args[i] end
    if own.names[name] == nil then
      if node.defaults[i] then
        own.names[name] = evaluate(own, node.defaults[i])
      else
        own.names[name] = values.undefined("the macro '%s' got no argument '%s'", node.name, name)
      end
    end
  end
  if node.used.caller and own.names.caller == nil then
    own.names.caller = values.undefined("'%s' was not called by a 'call' block", node.name)
  end
  local text = output:captured(function() body(own, node.body) end)
  depth = depth - 1
  return text
end

local function macro(scope, node)
  local made = values.callable(("the macro '%s'"):format(node.name),
    function(args, named) return call_macro(scope, node, args, named) end)
  made.fields = { name = node.name, arguments = values.list({ unpack(node.names) }, "tuple"),
    catch_kwargs = node.used.kwargs == true, catch_varargs = node.used.varargs == true,
    caller = node.used.caller == true }
  return made
end

-- ---- loops

local function neighbour(distance, why)
  return function(loop)
    local entry = loop.list[loop.index + distance]
    if entry == nil then return values.undefined("%s", why) end
    return entry
  end
end

local LOOP = {
  index = function(loop) return loop.index end,
  index0 = function(loop) return loop.index - 1 end,
  revindex = function(loop) return loop.length - loop.index + 1 end,
  revindex0 = function(loop) return loop.length - loop.index end,
  first = function(loop) return loop.index == 1 end,
  last = function(loop) return loop.index == loop.length end,
  length = function(loop) return loop.length end,
  depth = function(loop) return loop.depth end,
  depth0 = function(loop) return loop.depth - 1 end,
  previtem = neighbour(-1, "there is no item before the first one"),
  nextitem = neighbour(1, "there is no item behind the last one"),
  cycle = function(loop)
    return values.callable("the method 'cycle' of loop", function(args, named)
      calls.take("the method 'cycle' of loop", "", {}, named)
      if #args == 0 then fail "the method 'cycle' of loop needs a value" end
      return args[(loop.index - 1) % #args + 1]
    end)
  end,
  changed = function(loop)
    return values.callable("the method 'changed' of loop", function(args)
      local now = values.list({ unpack(args) }, "tuple")
      local same = loop.seen ~= nil and values.equal(loop.seen, now)
      loop.seen = now
      return not same
    end)
  end,
}

local Loop = { kind = "loop" }

local function kept(scope, node, list)
  if not node.only then return list end
  local only = {}
  for i = 1, #list do
    local own = inner(scope)
    assign(own, node.target, list[i])
    if values.truth(evaluate(own, node.only)) then only[#only + 1] = list[i] end
  end
  return only
end

local function loop_over(scope, node, over, level)
  local list = values.entries(over)
  if not list then fail("'for' needs what can be walked over, got %s", values.shown(over)) end
  list = kept(scope, node, list)
  local n = #list
  local loop = setmetatable({ list = list, length = n, depth = level, fields = LOOP }, Loop)
  function loop.recurse(args, named)
    if not node.recursive then fail "'loop' is called in a 'for' that is not recursive" end
    local inside = calls.take("loop", "/iterable", args, named)
    if level >= MOST_CALLS then fail("loops call themselves more than %d deep", MOST_CALLS) end
    return output:captured(function() loop_over(scope, node, inside, level + 1) end)
  end
  for i = 1, n do
    run.step()
    loop.index = i
    local own = { names = { loop = loop }, parent = scope }
    assign(own, node.target, list[i])
    if body(own, node.body) == "break" then return end
  end
  if n == 0 and node.otherwise then body(inner(scope), node.otherwise) end
end

-- ---- kinds of statements

EXECUTE.text = function(_, node) output:put(node.value) end

EXECUTE.print = function(scope, node) output:put(values.text(evaluate(scope, node.of))) end

EXECUTE["filter block"] = function(scope, node)
  local made = evaluate(scope, node.of)
  output:put(values.text_of(made) or fail("a 'filter' block gives a text, got %s", values.shown(made)))
end

EXECUTE.block = function(scope, node) return body(scope, node.body) end

EXECUTE["break"] = function() return "break" end
EXECUTE["continue"] = function() return "continue" end

EXECUTE.set = function(scope, node) assign(scope, node.target, evaluate(scope, node.value)) end

EXECUTE["if"] = function(scope, node)
  for _, branch in ipairs(node.branches) do
    if not branch.condition or values.truth(evaluate(scope, branch.condition)) then
      return body(scope, branch.body)
    end
  end
end

EXECUTE["for"] = function(scope, node) loop_over(scope, node, evaluate(scope, node.over), 1) end

EXECUTE.macro = function(scope, node) scope.names[node.name] = macro(scope, node) end

EXECUTE["call block"] = function(scope, node)
  local call = node.call
  local of = evaluate(scope, call.of)
  local args, named = evaluation.arguments(scope, call.arguments)
  local with_caller = values.map()
  for key, value in values.each(named) do values.put(with_caller, key, value) end
  values.put(with_caller, "caller", macro(scope, node.caller))
  output:put(values.text(evaluation.call(of, args, with_caller)))
end

EXECUTE.with = function(scope, node)
  local own, list = inner(scope), {}
  for i, value in ipairs(node.values) do list[i] = evaluate(scope, value) end
  for i, target in ipairs(node.targets) do assign(own, target, list[i]) end
  return body(own, node.body)
end

-- Where the text of an assistant begins is counted in the template's text, as Transformers has it.
EXECUTE.generation = function(scope, node)
  local from = #output.root
  local text = captured(scope, node.body)
  output.spans[#output.spans + 1] = { from, from + #text }
  output:put(text)
end

--- Returns the text that nodes make of variables, and where `generation` blocks are in it.
---@param nodes table[]
---@param variables table<string, any> values of templates
---@return string
---@return integer[][] spans {from, to} in bytes, from 0
function M.run(nodes, variables)
  local root = buffer.new()
  output = setmetatable({ root = root, out = root, spans = {} }, Output)
  depth = 0
  body({ names = {}, parent = { names = variables, parent = { names = functions.all() } } }, nodes)
  return root:get(), output.spans
end

--- Lets go of what the last rendering wrote.
function M.finish() output = nil end

return M
