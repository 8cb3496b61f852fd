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

-- A copy of a list, which may be long, with one more entry.
local function extended(list, value)
  local copy, n = {}, #list
  for i = 1, n do copy[i] = list[i] end
  copy[n + 1] = value
  return copy
end

-- The candidates of prompt `n`, best first: { tokens, score, beam, rows, ended }. rows: the row of
-- the scores that each token came from, from 0.
local function candidates(search, n, scores, places, vocabulary, last)
  local list, item, rows = {}, search.items[n], search.process.rows
  for i, score in ipairs(scores) do
    local beam, id = math.floor(places[i] / vocabulary) + 1, places[i] % vocabulary
    local row, from = (n - 1) * search.o.num_beams + beam, item.running[beam]
    list[i] = { tokens = extended(from.tokens, id), id = id, score = score, beam = beam,
      rows = extended(from.rows, row - 1),
      ended = last or search.stop:ends(id, rows and rows[row]) }
  end
  return list
end

-- The best score that the running beams may still reach.
local function hope(item, o, length, limit)
  if o.early_stopping == "never" and o.length_penalty > 0 then length = limit end
  return item.running[1].score / length ^ o.length_penalty
end

-- Moves what ended among the best num_beams to the finished, and the best others on. Returns
-- whether any candidate goes on.
local function advance(item, list, o, length, limit)
  local count, open = o.num_beams, false
  local running = {}
  for _, c in ipairs(list) do
    open = open or not c.ended
    running[#running + 1] = { tokens = c.tokens, id = c.id, beam = c.beam, rows = c.rows,
      score = c.ended and c.score + NEVER or c.score }
  end
  local full = #item.finished == count and o.early_stopping == true
  for i = 1, count do
    local c = list[i]
    if c and c.ended and not full and item.may_improve then
      item.finished[#item.finished + 1] = { tokens = c.tokens, rows = c.rows,
        score = c.score / length ^ o.length_penalty }
    end
  end
  best(item.finished, count)
  item.running = best(running, count)
  local worst = #item.finished == count and item.finished[count].score or NEVER
  item.may_improve = item.may_improve and hope(item, o, length, limit) > worst
  return open
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
  return improves and (open or o.early_stopping ~= true)
end

-- Lists as the rows of a tensor, filled up to one length.
local function filled(lists, value, device)
  local longest = 0
  for _, list in ipairs(lists) do longest = math.max(longest, #list) end
  for _, list in ipairs(lists) do
    for i = #list + 1, longest do list[i] = value end
  end
  return core.tensor(lists, { dtype = "int64", device = device })
end

-- The prompts with their best continuations, filled up.
local function result(prompt, items, o)
  local tokens, rows, scores, starts = {}, {}, {}, {}
  for n, item in ipairs(items) do
    local list = #item.finished > 0 and item.finished or item.running
    for i = 1, o.num_return_sequences do
      local found = list[i]
      tokens[#tokens + 1], rows[#rows + 1] = extended(found.tokens), extended(found.rows)
      scores[#scores + 1], starts[#starts + 1] = found.score, (n - 1) * o.num_beams + i - 1
    end
  end
  local device = prompt.device
  local index = core.tensor(starts, { dtype = "int64", device = device })
  return {
    sequences = core.cat({ prompt:index_select(1, index), filled(tokens, o.pad_token_id, device) }, 2),
    sequences_scores = o.output_scores and core.tensor(scores, { device = device }) or nil,
    beam_indices = filled(rows, -1, device),
  }
end

-- One step: the best continuations of all prompts. Returns whether any of them goes on.
local function extend(search, logs, length)
  local items, count, vocabulary, before = search.items, search.o.num_beams, logs:size(2), {}
  for _, item in ipairs(items) do
    for _, beam in ipairs(item.running) do before[#before + 1] = beam.score end
  end
  local sums = logs + core.tensor(before, { device = logs.device }):view(-1, 1)
  local keep = math.min(math.max(2, 1 + #search.o.end_list) * count, count * vocabulary)
  local scores, places = sums:view(#items, count * vocabulary):topk(keep, 2)
  scores, places = scores:totable(), places:totable()
  local last, open = length == search.limit or search.stop:late(), false
  for n, item in ipairs(items) do
    local list = candidates(search, n, scores[n], places[n], vocabulary, last)
    open = advance(item, list, search.o, length, search.limit) or open
  end
  return open
end

--- Returns the best sequences of each prompt by the sum of log chances over length ^
--- length_penalty; their scores, with output_scores; and the rows of the scores that each of their
--- tokens came from.
---@param step table what the model's _stepper gave for num_beams rows of each prompt
---@param o table generate's options
---@param limit integer
---@param process accelerate.models.Processor
---@param stop accelerate.models.Stopping
---@return { sequences: accelerate.Tensor, sequences_scores: accelerate.Tensor?, beam_indices:
---  accelerate.Tensor }
function M.search(step, o, limit, process, stop)
  local prompt, count, items = step.ids, o.num_beams, {}
  for n = 1, prompt:size(1) / count do
    local running = {}
    for i = 1, count do running[i] = { tokens = {}, rows = {}, score = i == 1 and 0 or NEVER } end
    items[n] = { running = running, finished = {}, may_improve = true }
  end
  local search = { items = items, o = o, limit = limit, process = process, stop = stop }
  local new = prompt
  for length = 1, limit do
    local open = extend(search, process:process(step.scores(new)), length)
    if not open or not unfinished(items, o) then break end
    local index, ids = rows_of(items, count)
    index = core.tensor(index, { dtype = "int64", device = prompt.device })
    new = core.tensor(ids, { dtype = "int64", device = prompt.device }):view(-1, 1)
    step.reorder(index)
    process:reorder(index)
    process:saw(new, ids)
  end
  return result(prompt, items, o)
end

return M
