--- What to write instead, for errors whose words do not say it: tensors where Lua wants numbers,
--- methods without their object, modules that were not required, and Python's syntax.
local options = require "accelerate.utils.options"
local source = require "accelerate.messages.source"

local M = {}

-- ---- errors while the script runs

local NO_OBJECT = "a method was called without its object: write object:method(...), with a colon in " ..
  "place of the dot"
local NO_ORDER = "Lua's operators do not compare tensors: x:item() is the number of a tensor of one " ..
  "element, and x:lt(y), x:gt(y), ... compare the elements"
local NO_NUMBER = "if it is a tensor of one element, x:item() is the number to give"
local TORCH = "PyTorch's names are in the modules accelerate.tensor, accelerate.nn, accelerate.optim and " ..
  "accelerate.data"
-- (in two parts, or the check of what requires what would take it for code)
local REQUIRE = ('modules are loaded by require: local nn = require "%s"'):format "accelerate.nn"

-- The names that the README gives to modules.
local USUAL = { accelerate = "accelerate", core = "accelerate.core", data = "accelerate.data",
  F = "accelerate.nn.functional", metrics = "accelerate.metrics", models = "accelerate.models",
  nn = "accelerate.nn", optim = "accelerate.optim", tensor = "accelerate.tensor",
  tokenizers = "accelerate.tokenizers", utils = "accelerate.utils" }

-- Python's functions.
local FUNCTIONS = { len = "#x is the length", str = "tostring(x)",
  int = "math.floor(x) is of a number; x:item() is the number of a tensor of one element",
  float = "tonumber(x) is the number that a text holds; x:item() is that of a tensor of one element",
  range = "for i = 1, n do ... end", enumerate = "for i, x in ipairs(list) do ... end",
  super = "a method of the base class is called as Base.method(self, ...)",
  isinstance = "type(x) is the type's name; tensor.is_tensor(x), nn.is_module(x) and " ..
    "accelerate.utils.isinstance(x, nn.Linear) ask for these",
  import = "require \"name\"", f = 'a text with values is made by ("loss %.3f"):format(loss:item())',
  max = "math.max(a, b) is of numbers; x:max() and tensor.maximum(x, y) are of tensors",
  min = "math.min(a, b) is of numbers; x:min() and tensor.minimum(x, y) are of tensors",
  abs = "math.abs(a) is of a number; x:abs() is of a tensor",
  sum = "x:sum() is of a tensor; the numbers of a list are added in a loop",
  round = "math.floor(a + 0.5) is of a number; x:round() is of a tensor",
  sorted = "table.sort(list) sorts in place; x:sort() is of a tensor",
  iter = "for x, y in loader:iter() do ... end; loader:iter()() is the first batch alone",
  open = "io.open(path) gives a file, whose f:read(\"*a\") is its text", exit = "os.exit(status)",
  input = "io.read() is a line of the terminal",
  any = "x:any() is of a tensor; the entries of a list are looked at in a loop",
  all = "x:all() is of a tensor; the entries of a list are looked at in a loop",
  reversed = "for i = #list, 1, -1 do ... end",
  zip = "for i, x in ipairs(list) do local y = other[i] ... end",
  list = "a list is written { x, y }", dict = "a table is written { name = value }",
  hasattr = "accelerate.utils.hasattr(x, \"name\")", getattr = "x[name]", setattr = "x[name] = value" }

-- Python's modules that scripts use without a thought.
local OTHERS = { torch = TORCH, np = "arrays are tensors, of the module accelerate.tensor",
  time = "accelerate.utils.time() is a clock in seconds",
  json = "accelerate.utils.json reads and writes JSON",
  random = "math.random() draws; accelerate.utils.set_seed(0) seeds it",
  plt = "accelerate.plot draws on the terminal, and into PNG and SVG files",
  pd = "accelerate.data.read_csv(path) reads a table" }

local RAISED = {
  { "attempt to index global 'self' %(a nil value%)$",
    "a method has `self` when it is written with a colon: function Net:forward(x) ... end" },
  { "local 'self' %(a nil value%)$", NO_OBJECT },
  { "bad argument #1 to 'rawget' %(table expected, got nil%)$", NO_OBJECT },
  { "attempt to call a table value$", "a list is walked by ipairs: for i, x in ipairs(list) do ... end" },
  { "bad argument #1 to 'i?pairs' %(table expected, got function%)$",
    "an iterator stands alone: for name, p in model:named_parameters() do ... end" },
  { "attempt to perform arithmetic on a string value$",
    'texts are joined by "..", and values put into them by ("%d steps"):format(n)' },
  { "attempt to compare two userdata values$", NO_ORDER },
  { "attempt to compare number with userdata$", NO_ORDER },
  { "attempt to compare userdata with number$", NO_ORDER },
  { "%(number expected, got userdata%)$", NO_NUMBER },
  { "the range {%-[^}]*} does not fit a dim of size %d+",
    "Python cuts a range at the start: write -math.min(n, x:size(1))" },
  { "the range %b{} does not fit a dim of size %d+",
    "Python cuts a range at the end: write math.min(last, x:size(1)), or x:split(n) for parts of n" },
  { "'for' %a+ must be a number$", "if it is a tensor, x:item() is its number and x:size(1) its length" },
}

--- Returns whether a function of Python's has this name, and there is something to say about it.
---@param name string
---@return boolean
function M.knows(name) return FUNCTIONS[name] ~= nil end

local function of_name(message)
  local verb, name = message:match "attempt to (%l+) global '([%w_]+)' %(a nil value%)$"
  if verb == "call" and FUNCTIONS[name] then return "in Lua: " .. FUNCTIONS[name] end
  local module = USUAL[name]
  if verb == "index" and OTHERS[name] then return OTHERS[name] end
  return module and ('it was not required: local %s = require "%s"'):format(name, module)
end

-- For a loop over a tensor.
local function of_loop(message)
  local path, number = message:match "^(.-):(%d+): attempt to call a userdata value$"
  local line = path and source.line(path, tonumber(number))
  return line and line:find "%f[%w_]for%s.-%sin%s" and
    "the rows of a tensor are walked by ipairs: for i, row in ipairs(x) do ... end"
end

-- For a size that a shape does not have: the position that the line has in brackets.
local function of_shape(message)
  if not message:find "a nil value" and not message:find "got nil" then return nil end
  local path, number = message:match "^(.-):(%d+): "
  local line = path and source.line(path, tonumber(number))
  local at = line and line:match "%f[%w_]shape%s*%[%s*(%-?%d+)%s*%]"
  return at and ("shape[%s] is nil where there are fewer dims: shape[1] is the first size, #x.shape " ..
    "counts them, " ..
    "x:size(-1) is the last"):format(at)
end

-- Python's packages, by their first names.
local PACKAGES = { torch = TORCH, numpy = "arrays are tensors, of the module accelerate.tensor",
  transformers = "models are in the module accelerate.models",
  datasets = "data sets are in the module accelerate.data" }

-- For a module that was not found: its near name.
local function of_module(message)
  local name = message:match "module '([^']+)' not found:"
  if not name then return nil end
  local package = PACKAGES[name:gsub("^accelerate%.", ""):match "^[^.]+"]
  if package then return package end
  if USUAL[name] then return ("its name is '%s'"):format(USUAL[name]) end
  local list = {}
  for _, module in pairs(USUAL) do list[#list + 1] = module end
  table.sort(list)
  local near = options.nearest(name, list)
  return near and ("did you mean '%s'?"):format(near)
end

-- ---- errors before the script runs: what Python writes so

local CAUGHT = "errors are caught by pcall: local ok, message = pcall(fn, ...)"
local NAMED = 'a table is written { name = 1 }, or { ["a name"] = 1 }'
local VARIABLE = "a variable is made by: local x = 1"

-- A pattern of the line, and what Lua has instead.
local SYNTAX = {
  { "^%s*import%s", REQUIRE },
  { "^%s*from%s+%S+%s+import%s", REQUIRE },
  { "^%s*def%s", "a function is written: local function name(x) ... end" },
  { "^%s*class%s", 'a class of modules is written: local Net = nn.class("Net")' },
  { "^%s*elif%s", "it is written: elseif ... then" },
  { "^%s*print%s+[^%s(\"'{%[]", "a call has parentheses: print(x)" },
  { "^%s*try%s*:", CAUGHT },
  { "^%s*except%f[^%w_]", CAUGHT },
  { "^%s*let%s+[%a_]", VARIABLE },
  { "^%s*const%s+[%a_]", VARIABLE },
  { "^%s*var%s+[%a_]", VARIABLE },
  { "^%s*global%s+[%a_]", "a name without `local` is global: nothing declares it" },
  { "^%s*nonlocal%s+[%a_]", "a function sees the locals around it: nothing declares them" },
  { "^%s*with%s.*:%s*$", "a context takes a function: tensor.no_grad(function() ... end)" },
  { "^%s*for%s+.-%s+in%s+range%s*%(", "it is written: for i = 1, n do ... end" },
  { "^%s*for%s.*:%s*[^%s:]*$", "it is written: for ... do ... end" },
  { "^%s*while%s.*:%s*[^%s:]*$", "it is written: while ... do ... end" },
  { "^%s*if%s.*:%s*[^%s:]*$", "it is written: if ... then ... else ... end" },
  { "^%s*else%s*:%s*$", "it is written: if ... then ... else ... end" },
  { "^%s*#", "a comment begins with --" },
  { "[{%[].-%sfor%s+[%w_, ]+%sin%s",
    "a list is filled in a loop: for i, x in ipairs(list) do out[i] = f(x) end" },
  { "%f[%w_]continue%s*$", "a loop goes on by: goto continue, with ::continue:: before its end" },
  { "%f[%w_]continue%s+e[nl][ds]", "a loop goes on by: goto continue, with ::continue:: before its end" },
  { "%f[%w_]pass%s*$", "an empty block needs nothing" },
  { "%f[%w_]pass%s+e[nl][ds]", "an empty block needs nothing" },
  { "[%w_%]]%s*%+%+", "there is no ++: x = x + 1" },
  { "{%s*[\"'][^\"']*[\"']%s*:", NAMED },
  { "^%s*[\"'][%w_.]+[\"']%s*:", NAMED },
  { "[\"'][^\"',]*[\"']%s+[\"']", 'texts are joined by "..": "a" .. "b"' },
  { "%f[%w]lambda%f[%W]", "a function is written: function(x) return ... end" },
  { "!=", "unequal is written ~=" },
  { "[%w_%]%)]%s*[-+*/]=", "there is no += and the like: x = x + y" },
  { '"""', "a text of several lines is written [[ ... ]]" },
  { "[%w_%]%)]%s*//", "there is no //: math.floor(x / y); a comment begins with --" },
  { "[%w_%]%)]%s*%*%*", "a power is written x ^ y" },
  { "[(,]%s*%*%*[%a_{]", "options by name are a table at the end: f(x, options)" },
  { "[(,]%s*%*[%a_]",
    "the entries of a list are unpack(list); where modules or sizes are taken, so is the list itself" },
  { "[%w_%]%)]%s*@", "a product of matrices is written x:matmul(y)" },
  { "^%s*assert%s+[^%s(]", "a call has parentheses: assert(x)" },
  { "^%s*raise%s", "an error is raised by error(message)" },
  { "^%s*del%s", "a variable is let go by: x = nil" },
  { "%f[%w]is%s+not%s+None", "it is written: x ~= nil" },
  { "%f[%w]is%s+[%w_]+", "it is written: x == nil" },
  { "%f[%w]if%s.-%selse%s", "a choice is written: condition and x or y" },
  { "&&", "it is written: x and y" },
  { "||", "it is written: x or y" },
  { "[^~]~%s*[%a_(]", "of a tensor of booleans: x:logical_not()" },
  { "[%w_%]%)]%s*&", "of tensors of booleans: x:logical_and(y)" },
  { "[%w_%]%)]%s*|", "of tensors of booleans: x:logical_or(y)" },
  { "%?.*:", "a choice is written: condition and x or y" },
  { "%[[^%[%]\"']*:[^%[%]]*%]", "a range of positions is a list, both ends included: x[{ { 1, 3 } }]" },
  { "[%w_%]%)]%[[^%[%]\"']*,", "positions in several dims are a list: x[{ 1, 2 }]" },
  { "[=(,]%s*%[[^%[=]", "a list is written { 1, 2, 3 }" },
}

-- An argument by name, at the "=" that the parser does not expect.
local BY_NAME = "arguments by name are a table at the end: x:sum(1, { keepdim = true })"

-- For a block that is not closed: Lua takes "else if" for an else with an if of its own.
local function of_else_if(message)
  local path, number = message:match "^(.-):(%d+): 'end' expected"
  if not path then return nil end
  for k = tonumber(message:match "at line (%d+)" or 1), tonumber(number) do
    local line = source.line(path, k)
    local code = line and line:gsub("%-%-.*", "")
    if code and code:find "%f[%w_]else%s+if%f[^%w_]" and not code:find "%f[%w_]end%f[^%w_]" then
      return ("`else if` begins an if of its own, with an end of its own; it is written: elseif (line %d)")
        :format(k)
    end
  end
end

-- The name of "x:shape", which is not called.
local function of_colon(line)
  for name, behind in line:gmatch "[%w_%]%)]:([%a_][%w_]*)%s*(.?)" do
    if not behind:find "[({\"']" then return name end
  end
end

local function of_line(line)
  for _, one in ipairs(SYNTAX) do
    if line:find(one[1]) then return one[2] end
  end
end

-- The parser takes the colon of Python's "for x in loader:" for that of a method, and notices
-- later, where the header should have ended or where the method's arguments should be. How many
-- lines with code there may be between, by what it expected.
local HEADERS = { ["'do' expected"] = 10, ["'then' expected"] = 10, ["'<name>' expected"] = 1,
  ["function arguments expected"] = 1 }

-- For a header with a colon, in a line before the one that a syntax error names.
local function of_header(message, path, number)
  local expected = message:match ":%d+: ('[^']+' expected)"
    or message:match ":%d+: (function arguments expected)"
  local left = HEADERS[expected] or 0
  for k = number - 1, math.max(number - 20, 1), -1 do
    local line = source.line(path, k)
    if left == 0 or not line then return nil end
    local one = line:find "^%s*[fw]%l+%s.*:%s*[^%s:]+$" -- "for x in loader: print(x)"
    local hint = (line:find "^%s*%l.*:%s*$" or one) and of_line(line)
    if hint then return ("%s (line %d)"):format(hint, k) end
    if line:find "%S" then left = left - 1 end
  end
end

-- The line that a syntax error names, or the last one with code before it: the parser may notice
-- later.
local function of_syntax(message)
  local path, number = message:match "^(.-):(%d+): .* near '.*'$"
  if not path then return nil end
  number = tonumber(number)
  local line = source.line(path, number)
  if message:find "'%)' expected near '='$" and line and line:find "[(,]%s*[%a_][%w_]*%s*=" then
    return BY_NAME
  end
  local name = message:find("function arguments expected", 1, true) and line and of_colon(line)
  if name then
    return ("a field is read with a dot, x.%s, and a method is called, x:%s()"):format(name, name)
  end
  local hint = of_header(message, path, number) or (line and of_line(line))
  local late = message:find "'=' expected near" -- a word that is no statement may be the line before
  for k = number - 1, math.max(number - 3, 1), -1 do
    local has_code = line and line:find "%S"
    if hint or has_code and not late then break end
    late = late and not has_code
    line = source.line(path, k)
    hint = line and of_line(line)
  end
  return hint
end

-- The last line with code before a line, or nil.
local function before(path, number)
  for k = number - 1, math.max(number - 5, 1), -1 do
    local line = source.line(path, k)
    if line and line:find "%S" and not line:find "^%s*%-%-" then return line end
  end
end

--- Returns what to write where a line that begins with a parenthesis was taken for the arguments of
--- a call of the line before it; nil elsewhere.
---@param path string
---@param number integer of the line
---@return string?
function M.of_parenthesis(path, number)
  local line = source.line(path, number)
  local last = line and line:find "^%s*%(" and before(path, number)
  if not last or not last:find "[%w_%]%)}\"']%s*$" then return nil end
  local word = last:match "([%a_]+)%s*$"
  if word == "do" or word == "then" or word == "else" or word == "end" or word == "repeat" or word == "return"
    or word == "and" or word == "or" or word == "not" or last:find "function[%s%w_.:]*%b()%s*$" then
      return nil
    end
  return "a line that begins with ( goes on with the line before it; write ;( to begin anew"
end

--- A message with what to write instead, behind its first line; without one the message itself.
---@param message string
---@param compiling boolean? it is about a text that could not be compiled
---@return string
function M.add(message, compiling)
  local hint = of_name(message) or of_module(message) or of_loop(message) or of_shape(message) or
    (compiling and (of_else_if(message) or of_syntax(message)) or nil)
  for _, one in ipairs(RAISED) do
    if hint then break end
    if message:find(one[1]) then hint = one[2] end
  end
  if not hint then return message end
  local first, rest = message:match "^([^\n]*)(.*)$"
  return ("%s; %s%s"):format(first:gsub(":$", ""), hint, rest)
end

return M
