--- Rank 0's side of a prompt of several ranks: sends chunks to the others, gathers how theirs
--- ended.
local M = {}

---@class accelerate.prompt.Session the host's functions (host/launch/session.c)
---@field rank integer
---@field size integer
---@field send fun(rank: integer, ...: string): boolean
---@field receive fun(rank: integer): string?
---@field gather fun(afresh: boolean)
---@field begin fun(afresh: boolean)
---@field broken fun(): boolean
---@field settle fun()

---@class accelerate.prompt.Outcome how a chunk ended in a rank
---@field rank integer
---@field error string? the error that ended it
---@field text string what it gave, where the values of all ranks are wanted
---@field broken boolean a collective failed in it

local ranks
local waiting = {}   -- rank -> number of the chunk whose end it has not answered yet
local afresh = false -- a collective has failed since the last chunk began

--- The rank that is gone; nil while all are there.
---@type integer?
M.gone = nil

--- Called once. The others are running the script, as chunk 0, or nothing, which is one too.
---@param given accelerate.prompt.Session
function M.start(given)
  ranks = given
  for rank = 1, ranks.size - 1 do waiting[rank] = "0" end
end

local function lose(rank) M.gone = M.gone or rank end

-- The answer about the chunk that a rank was sent last; an interrupt may have left older ones.
local function take(rank)
  while waiting[rank] do
    local number, outcome, broken, text = ranks.receive(rank)
    if not number then
      lose(rank)
      return nil
    end
    if number == waiting[rank] then
      waiting[rank] = nil
      local failed = outcome == "failed"
      return { rank = rank, error = failed and text or nil, text = failed and "" or text,
        broken = broken == "broken" }
    end
  end
end

--- Waits until the chunk has ended in all ranks and what they printed is shown.
---@param own accelerate.prompt.Outcome rank 0's
---@return accelerate.prompt.Outcome[] by rank, those of ranks that are gone left out
function M.collect(own)
  local list = { own }
  own.rank, own.broken = 0, ranks.broken()
  for rank = 1, ranks.size - 1 do list[#list + 1] = take(rank) end
  for _, outcome in ipairs(list) do afresh = afresh or outcome.broken end
  ranks.settle()
  return list
end

--- Sends a chunk to all ranks. False when one is gone.
---@param number integer
---@param kind string "run" or "ranks"
---@param text string
---@return boolean
function M.send(number, kind, text)
  for rank = 1, ranks.size - 1 do take(rank) end -- what an interrupt left
  if M.gone then return false end
  ranks.gather(afresh)
  for rank = 1, ranks.size - 1 do
    waiting[rank] = tostring(number)
    if not ranks.send(rank, waiting[rank], kind, afresh and "afresh" or "", text) then lose(rank) end
  end
  ranks.begin(afresh)
  afresh = false
  return M.gone == nil
end

-- "ranks 0-2, 5"
local function list_of(numbers)
  local parts, at = {}, 1
  while numbers[at] do
    local last = at
    while numbers[last + 1] == numbers[last] + 1 do last = last + 1 end
    parts[#parts + 1] = last > at and ("%d-%d"):format(numbers[at], numbers[last]) or tostring(numbers[at])
    at = last + 1
  end
  return (#numbers == 1 and "rank " or "ranks ") .. table.concat(parts, ", ")
end

--- Returns the texts of a list of outcomes, equal ones once, each with its ranks before it.
---@param outcomes accelerate.prompt.Outcome[]
---@param field string "text" or "error"
---@return { ranks: string, text: string }[]
function M.grouped(outcomes, field)
  local groups, by_text = {}, {}
  for _, outcome in ipairs(outcomes) do
    local text = outcome[field]
    if text and not by_text[text] then
      by_text[text] = { text = text }
      groups[#groups + 1] = by_text[text]
    end
    if text then table.insert(by_text[text], outcome.rank) end
  end
  for _, group in ipairs(groups) do
    group.ranks = #group == ranks.size and ("all %d ranks"):format(ranks.size) or list_of(group)
  end
  return groups
end

--- Splits outcomes with errors: those that failed by themselves, and those whose collective failed
--- because of others.
---@param outcomes accelerate.prompt.Outcome[]
---@return accelerate.prompt.Outcome[] first
---@return accelerate.prompt.Outcome[] caused
function M.causes(outcomes)
  local first, caused = {}, {}
  for _, outcome in ipairs(outcomes) do
    if outcome.error then table.insert(outcome.broken and caused or first, outcome) end
  end
  if #first == 0 then return caused, {} end
  return first, caused
end

return M
