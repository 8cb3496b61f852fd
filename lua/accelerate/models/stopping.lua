--- When a row of generate ends: at an end token, behind a text that stops it, or when the time is
--- up.

local core = require "accelerate.core"

local M = {}

-- Where two texts differ first, less one.
local function common(a, b)
  local n = 0
  while n < #a and a:byte(n + 1) == b:byte(n + 1) do n = n + 1 end
  return n
end

-- Does one of the texts end within what the last token added?
local function ends_in_last(texts, before, text)
  local old = common(before, text)
  for _, stop in ipairs(texts) do
    local from = math.max(1, old - #stop + 2)
    if text:find(stop, from, true) then return true end
  end
  return false
end

-- Returns whether the tokens of a row, and `id` behind them, end with a text that stops it.
local function by_text(o)
  local texts = type(o.stop_strings) == "table" and o.stop_strings or { o.stop_strings }
  local longest = 1
  for _, text in ipairs(texts) do longest = math.max(longest, #text) end
  return function(row, id)
    local tail = {}
    for i = math.max(1, #row - longest), #row do tail[#tail + 1] = row[i] end
    local plain = { clean_up_tokenization_spaces = false }
    local before = o.tokenizer:decode(tail, plain)
    tail[#tail + 1] = id
    return ends_in_last(texts, before, o.tokenizer:decode(tail, plain))
  end
end

---@class accelerate.models.Stopping
local Stopping = {}
Stopping.__index = Stopping

--- Returns what says when rows end; its clock starts now.
---@param o table generate's options
---@return accelerate.models.Stopping
function M.new(o)
  return setmetatable({ _o = o, _text = o.stop_strings and by_text(o),
    _until = o.max_time and core._monotonic() + o.max_time }, Stopping)
end

--- Returns whether the time is up.
---@return boolean
function Stopping:late() return self._until ~= nil and core._monotonic() > self._until end

--- Returns whether a token ends its row.
---@param id integer
---@param row integer[]? the tokens before it, where stop_strings are given
---@return boolean
function Stopping:ends(id, row)
  return self._o.ends[id] or self._text and self._text(row, id) or false
end

return M
