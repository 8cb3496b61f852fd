--- Beam search: the likeliest continuations of each prompt, several at a time.

local core = require "accelerate.core"

local M = {}

local NEVER = -1e9

local function by_score(a, b)
  if a.score ~= b.score then return a.score > b.score end
  return a.place < b.place
end

-- The best `count` entries of a list.
local function best(list, count)
  for i, entry in ipairs(list) do entry.place = i end
  table.sort(list, by_score)
  for i = #list, count + 1, -1 do list[i] = nil end
  return list
end

local function extended(tokens, id)
  local copy = { unpack(tokens) }
  copy[#copy + 1] = id
  return copy
end

-- The candidates of one prompt, best first: { tokens, score, beam, ended }.
local function candidates(item, scores, places, vocabulary, o, last)
  local list = {}
  for i, score in ipairs(scores) do
    local beam, id = math.floor(places[i] / vocabulary) + 1, places[i] % vocabulary
    list[i] = { tokens = extended(item.running[beam].tokens, id), id = id, score = score, beam = beam,
      ended = o.ends[id] or last }
  end
  return list
end

-- Moves what ended among the best num_beams to the finished, and the best others on.
local function advance(item, list, o, length)
  local count = o.num_beams
  local running = {}
  for _, c in ipairs(list) do
    running[#running + 1] = { tokens = c.tokens, id = c.id, beam = c.beam,
      score = c.ended and c.score + NEVER or c.score }
  end
  local full = #item.finished == count and o.early_stopping
  for i = 1, count do
    local c = list[i]
    if c and c.ended and not full and item.may_improve then
      item.finished[#item.finished + 1] = { tokens = c.tokens, score = c.score / length ^ o.length_penalty }
    end
  end
  best(item.finished, count)
  item.running = best(running, count)
  local worst = #item.finished == count and item.finished[count].score or NEVER
  item.may_improve = item.may_improve and item.running[1].score / length ^ o.length_penalty > worst
end

-- The rows that the running beams go on from, counted from 0, and their tokens.
local function rows_of(items, count)
  local index, ids = {}, {}
  for n, item in ipairs(items) do
    for _, beam in ipairs(item.running) do
      index[#index + 1], ids[#ids + 1] = (n - 1) * count + beam.beam - 1, beam.id
    end
  end
  return index, ids
end

local function unfinished(items, o)
  local improves, open = false, false
  for _, item in ipairs(items) do
    improves = improves or item.may_improve
    open = open or #item.finished < o.num_beams
  end
  return improves and (open or not o.early_stopping)
end

-- The prompts with their best continuations, filled up.
local function result(prompt, items, o)
  local rows, longest = {}, 0
  for _, item in ipairs(items) do
    local list = #item.finished > 0 and item.finished or item.running
    for i = 1, o.num_return_sequences do
      rows[#rows + 1] = list[i].tokens
      longest = math.max(longest, #list[i].tokens)
    end
  end
  for _, tokens in ipairs(rows) do
    for i = #tokens + 1, longest do tokens[i] = o.pad_token_id end
  end
  local starts = {}
  for n = 1, #items do
    for i = 1, o.num_return_sequences do starts[#starts + 1] = (n - 1) * o.num_beams + i - 1 end
  end
  local function int64(list) return core.tensor(list, { dtype = "int64", device = prompt.device }) end
  return core.cat({ prompt:index_select(1, int64(starts)), int64(rows) }, 2)
end

--- Returns the best sequences of each prompt by the sum of log chances over length ^
--- length_penalty.
---@param step table what the model's _stepper gave for num_beams rows of each prompt
---@param o table generate's options
---@param limit integer
---@param processor function
---@return accelerate.Tensor
function M.search(step, o, limit, processor)
  local prompt, count = step.ids, o.num_beams
  local items = {}
  for n = 1, prompt:size(1) / count do
    local running = {}
    for i = 1, count do running[i] = { tokens = {}, score = i == 1 and 0 or NEVER } end
    items[n] = { running = running, finished = {}, may_improve = true }
  end
  local keep = math.max(2, 1 + #o.end_list) * count
  local process, saw, reorder = processor(o, step, prompt)
  local new = prompt
  for length = 1, limit do
    local logs = process(step.scores(new):log_softmax(2), length - 1)
    local vocabulary, before = logs:size(2), {}
    for _, item in ipairs(items) do
      for _, beam in ipairs(item.running) do before[#before + 1] = beam.score end
    end
    local sums = logs + core.tensor(before, { device = logs.device }):view(-1, 1)
    local scores, places = sums:view(#items, count * vocabulary):topk(math.min(keep, count * vocabulary), 2)
    scores, places = scores:totable(), places:totable()
    for n, item in ipairs(items) do
      local list = candidates(item, scores[n], places[n], vocabulary, o, length == limit)
      advance(item, list, o, length)
    end
    if length == limit or not unfinished(items, o) then break end
    local index, ids = rows_of(items, count)
    index = core.tensor(index, { dtype = "int64", device = prompt.device })
    new = core.tensor(ids, { dtype = "int64", device = prompt.device }):view(-1, 1)
    step.reorder(index)
    reorder(index)
    saw(new)
  end
  return result(prompt, items, o)
end

return M
