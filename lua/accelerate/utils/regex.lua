--- Regular expressions in Python's notation, matched against whole texts: names of modules, say.
---
---   local is_block = regex.full_match "transformer\\.h\\.(0|1)\\..*"
---   is_block "transformer.h.1.mlp"      -- true
---
--- A node of an expression is a function that takes the set of positions where it may begin, and
--- returns the set of those where it may end. So a match takes time in proportion to the text and
--- the expression, whatever they are.
local options = require "accelerate.utils.options"

local fail = options.fail

local M = {}

local MOST_REPEATS, MOST_DEPTH = 1000, 100

local function digit(byte) return byte >= 48 and byte <= 57 end
local function word(byte)
  return digit(byte) or byte >= 65 and byte <= 90 or byte >= 97 and byte <= 122 or byte == 95 or byte >= 128
end
local function space(byte) return byte == 32 or byte >= 9 and byte <= 13 end

local CLASSES = { d = digit, w = word, s = space }
local CONTROLS = { n = 10, t = 9, r = 13, f = 12, v = 11 }

local function negated(test) return function(byte) return not test(byte) end end

-- The length of the letter that begins at a position: letters of UTF-8 have up to four bytes.
local function letter_length(text, at)
  local byte = text:byte(at)
  return byte < 0xC0 and 1 or byte < 0xE0 and 2 or byte < 0xF0 and 3 or 4
end

-- ---- nodes

local function one_letter(test)
  return function(text, from)
    local to = {}
    for at in pairs(from) do
      if at <= #text and test(text:byte(at)) then to[at + letter_length(text, at)] = true end
    end
    return to
  end
end

local function literal(char)
  return function(text, from)
    local to = {}
    for at in pairs(from) do
      if text:sub(at, at) == char then to[at + 1] = true end
    end
    return to
  end
end

local function anchor(holds)
  return function(text, from)
    local to = {}
    for at in pairs(from) do
      if holds(text, at) then to[at] = true end
    end
    return to
  end
end

local function sequence(nodes)
  return function(text, from)
    for _, node in ipairs(nodes) do from = node(text, from) end
    return from
  end
end

local function either(nodes)
  return function(text, from)
    local to = {}
    for _, node in ipairs(nodes) do
      for at in pairs(node(text, from)) do to[at] = true end
    end
    return to
  end
end

-- `most` nil: any number of times.
local function repeated(node, least, most)
  return function(text, from)
    for _ = 1, least do from = node(text, from) end
    local all, fresh, left = {}, from, most and most - least
    while next(fresh) ~= nil do
      local new = {}
      for at in pairs(fresh) do
        if not all[at] then all[at], new[at] = true, true end
      end
      if left == 0 then break end
      left = left and left - 1
      fresh = next(new) ~= nil and node(text, new) or new
    end
    return all
  end
end

-- ---- reading

local function wrong(self, message, ...)
  fail("%s: the expression '%s' at letter %d: %s", self.where, self.source, self.at, message:format(...))
end

local function take(self, pattern)
  local found = self.source:match("^" .. pattern, self.at)
  if found then self.at = self.at + #found end
  return found
end

-- The test that an escape stands for, or the byte; the letter behind the backslash is taken.
local function escape(self)
  local char = take(self, ".")
  if not char then wrong(self, "a backslash at the end") end
  if CLASSES[char] then return CLASSES[char] end
  if CLASSES[char:lower()] then return negated(CLASSES[char:lower()]) end
  if CONTROLS[char] then return nil, CONTROLS[char] end
  if char:find "%w" then wrong(self, "\\%s is not supported", char) end
  return nil, char:byte()
end

local function class_item(self)
  if take(self, "\\") then return escape(self) end
  local char = take(self, ".")
  if not char then wrong(self, "a class without its ]") end
  if char:byte() >= 128 then wrong(self, "letters beyond ASCII in a class are not supported") end
  return nil, char:byte()
end

local function class(self)
  local tests, inverse, first = {}, take(self, "%^") ~= nil, true
  while first or not take(self, "%]") do
    local test, low = class_item(self)
    if not test then
      local high = low
      if take(self, "%-%f[^%]%z]") or self.source:find("^%-[^%]]", self.at) and take(self, "%-") then
        local range_test, last = class_item(self)
        if range_test or last < low then wrong(self, "a range that ends before it begins") end
        high = last
      end
      test = function(byte) return byte >= low and byte <= high end
    end
    tests[#tests + 1], first = test, false
  end
  return one_letter(function(byte)
    for _, test in ipairs(tests) do
      if test(byte) then return not inverse end
    end
    return inverse
  end)
end

local alternatives

local function group(self)
  if take(self, "%?") then
    if not take(self, ":") and not take(self, "P<[%a_][%w_]*>") then
      wrong(self, "(?%s is not supported; groups are (...) and (?:...)", self.source:sub(self.at, self.at))
    end
  end
  local node = alternatives(self)
  if not take(self, "%)") then wrong(self, "a ) is missing") end
  return node
end

local function atom(self)
  local char = take(self, ".")
  if char == "(" then return group(self) end
  if char == "[" then return class(self) end
  if char == "." then return one_letter(function(byte) return byte ~= 10 end) end
  if char == "^" then return anchor(function(_, at) return at == 1 end) end
  if char == "$" then return anchor(function(text, at) return at == #text + 1 end) end
  if char == "\\" then
    local test, byte = escape(self)
    return test and one_letter(test) or literal(string.char(byte))
  end
  if char:find "[*+?]" then wrong(self, "nothing stands before %s", char) end
  return literal(char)
end

-- How often the atom before occurs: least, most; nil: no quantifier.
local function quantifier(self)
  local char = take(self, "[*+?]")
  if char then return char == "+" and 1 or 0, char == "?" and 1 or nil end
  local least, comma, most = self.source:match("^{(%d*)(,?)(%d*)}", self.at)
  if not least or least == "" and most == "" then return nil end
  self.at = self.source:find("}", self.at, true) + 1
  least, most = tonumber(least) or 0, comma == "" and tonumber(least) or tonumber(most)
  if most and most < least then wrong(self, "at least %d and at most %d repeats", least, most) end
  return least, most
end

-- Nodes are counted by how often the text may pass them: counts in counts multiply.
local function passes(self, node, times)
  local n = (self.passes[node] or 1) * times
  if n > MOST_REPEATS then wrong(self, "more than %d repeats", MOST_REPEATS) end
  return n
end

local function most_passes(self, node, parts)
  local n = 1
  for _, part in ipairs(parts) do n = math.max(n, self.passes[part] or 1) end
  self.passes[node] = n
  return node
end

local function branch(self)
  local nodes = {}
  while self.at <= #self.source and not self.source:find("^[|)]", self.at) do
    local node = atom(self)
    local least, most = quantifier(self)
    if least then
      local times = passes(self, node, math.max(least, most or 1, 1))
      node = repeated(node, least, most)
      self.passes[node] = times
      take(self, "%?")  -- as few as possible: a match of the whole text is the same
      if self.source:find("^[*+]", self.at) then wrong(self, "a quantifier of a quantifier") end
    end
    nodes[#nodes + 1] = node
  end
  return most_passes(self, sequence(nodes), nodes)
end

function alternatives(self)
  self.depth = self.depth + 1
  if self.depth > MOST_DEPTH then wrong(self, "groups inside each other more than %d times", MOST_DEPTH) end
  local branches = { branch(self) }
  while take(self, "|") do branches[#branches + 1] = branch(self) end
  self.depth = self.depth - 1
  return #branches == 1 and branches[1] or most_passes(self, either(branches), branches)
end

--- Returns a function that says whether an expression matches the whole of a text. Alternatives,
--- groups, classes, quantifiers, anchors and \d \w \s are there; looking ahead and behind,
--- references to groups and flags raise.
---@param source string
---@param where string? what messages begin with; default "full_match"
---@return fun(text: string): boolean
function M.full_match(source, where)
  local self = { source = options.value("full_match", "source", source, { "string" }), at = 1, depth = 0,
    passes = {}, where = where or "full_match" }
  local node = alternatives(self)
  if self.at <= #source then wrong(self, "a ) without its (") end
  return function(text) return node(text, { [1] = true })[#text + 1] == true end
end

return M
