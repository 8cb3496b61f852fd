--- What generate makes of a model's scores before it picks tokens: penalties, tokens that may not
--- come, tokens that must come. The order is Transformers'.

local core = require "accelerate.core"
local options = require "accelerate.utils.options"
local sampling = require "accelerate.models.sampling"

local fail = options.fail

local M = {}

local LARGEST = 3.4028234663852886e38  -- of float32

-- ---- changing scores

local function int64(list, like) return core.tensor(list, { dtype = "int64", device = like.device }) end

-- Scores (N, V) with `value` added at places[i] of the rows after one another; those may repeat.
local function added(scores, places, values)
  if #places == 0 then return scores end
  local sums = core.tensor(values, { device = scores.device })
  return scores:reshape(-1):scatter_add(1, int64(places, scores), sums):view(scores.shape)
end

-- Scores with -inf at places of the rows after one another.
local function without(scores, places)
  if #places == 0 then return scores end
  return scores:reshape(-1):index_fill(1, int64(places, scores), -math.huge):view(scores.shape)
end

-- Those of the ids that the vocabulary has.
local function known(ids, vocabulary)
  local list = {}
  for _, id in ipairs(ids) do
    if id < vocabulary then list[#list + 1] = id end
  end
  return list
end

local function without_columns(scores, ids)
  local list = known(ids, scores:size(2))
  if #list == 0 then return scores end
  return scores:index_fill(2, int64(list, scores), -math.huge)
end

-- Nothing but the given tokens.
local function only(scores, ids, name)
  for _, id in ipairs(ids) do
    if id >= scores:size(2) then
      fail("generate: %s = %d, but the vocabulary has %d tokens", name, id, scores:size(2))
    end
  end
  return core.full_like(scores, -math.huge):index_fill(2, int64(ids, scores), 0)
end

-- ---- n-grams

-- Does list[at ...] hold the last `size` entries of tail?
local function follows(list, at, tail, size)
  local last = #tail - size
  for i = 1, size do
    if list[at + i - 1] ~= tail[last + i] then return false end
  end
  return true
end

-- Adds the places of the tokens that follow the last n - 1 ones of `tail` somewhere in `list`.
local function add_followers(places, list, tail, n, offset, vocabulary)
  if #tail < n - 1 then return end
  for at = 1, #list - n + 1 do
    local id = list[at + n - 1]
    if id < vocabulary and follows(list, at, tail, n - 1) then places[#places + 1] = offset + id end
  end
end

-- Bans tokens that would complete an n-gram of lists[row] behind the end of rows[row].
local function without_followers(scores, lists, rows, n)
  local places, vocabulary = {}, scores:size(2)
  for row, tail in ipairs(rows) do
    add_followers(places, lists[row], tail, n, (row - 1) * vocabulary, vocabulary)
  end
  return without(scores, places)
end

-- ---- biases of sequences

-- The entries of a list of { ids, bias }: { ids, biases } of single tokens, and the others by the
-- token before their last one. Where ids come twice, the last entry counts.
local function sorted_out(pairs_of)
  local seen, single, longer = {}, { ids = {}, biases = {} }, {}
  for i = #pairs_of, 1, -1 do
    local ids, bias = pairs_of[i][1], pairs_of[i][2]
    local key = table.concat(ids, " ")
    if not seen[key] then
      seen[key] = true
      local before = ids[#ids - 1]
      if not before then
        table.insert(single.ids, ids[1])
        table.insert(single.biases, bias)
      else
        longer[before] = longer[before] or {}
        table.insert(longer[before], { ids, bias })
      end
    end
  end
  return single, longer
end

local function check_vocabulary(pairs_of, vocabulary, name)
  for _, entry in ipairs(pairs_of) do
    for _, id in ipairs(entry[1]) do
      if id >= vocabulary then
        fail("generate: %s has the token %d, but the vocabulary has %d tokens", name, id, vocabulary)
      end
    end
  end
end

-- Adds the places and biases of the sequences that a row is about to complete.
local function add_biases(places, values, tail, longer, offset)
  for _, entry in ipairs(longer[tail[#tail]] or {}) do
    local ids, bias = entry[1], entry[2]
    local n = #ids - 1
    if n <= #tail and follows(ids, 1, tail, n) then
      places[#places + 1], values[#values + 1] = offset + ids[#ids], bias
    end
  end
end

local function biased(pairs_of, name)
  local single, longer = sorted_out(pairs_of)
  local every -- (V): the biases of single tokens
  return function(scores, state)
    local vocabulary, places, values = scores:size(2), {}, {}
    if not every then
      check_vocabulary(pairs_of, vocabulary, name)
      every = added(core.zeros({ vocabulary }, { device = scores.device }), single.ids, single.biases)
    end
    for row, tail in ipairs(state.rows) do
      add_biases(places, values, tail, longer, (row - 1) * vocabulary)
    end
    return added(scores + every, places, values)
  end
end

-- ---- the processors
--
-- Each function gets the options and the call { given, limit, encoded }, and returns what turns
-- scores (N, V) and the state { length, rows, seen } into scores, or nil where none is wanted.

local function sequence_bias(o) return o.sequence_bias and biased(o.sequence_bias, "sequence_bias") end

local function encoder_repetition_penalty(o, call)
  if o.encoder_repetition_penalty == 1 then return nil end
  local prompt
  return function(scores)
    prompt = prompt or sampling.seen(call.encoded, scores:size(2))
    return sampling.penalised(scores, prompt, 1 / o.encoder_repetition_penalty)
  end
end

local function repetition_penalty(o)
  return o.repetition_penalty ~= 1 and function(scores, state)
    return sampling.penalised(scores, state.seen(scores:size(2)), o.repetition_penalty)
  end
end

local function no_repeat_ngram_size(o)
  local n = o.no_repeat_ngram_size
  return n > 0 and function(scores, state) return without_followers(scores, state.rows, state.rows, n) end
end

local function encoder_no_repeat_ngram_size(o, call)
  local n, lists = o.encoder_no_repeat_ngram_size, nil
  return n > 0 and function(scores, state)
    lists = lists or call.encoded:totable()
    return without_followers(scores, lists, state.rows, n)
  end
end

local function bad_words_ids(o)
  local list = {}
  for _, ids in ipairs(o.bad_words_ids or {}) do
    if #ids > 1 or not o.ends[ids[1]] then list[#list + 1] = { ids, -math.huge } end
  end
  return #list > 0 and biased(list, "bad_words_ids")
end

local function min_length(o, call)
  local least = o.min_new_tokens > 0 and o.min_new_tokens + call.given or o.min_length
  return least > call.given and #o.end_list > 0 and function(scores, state)
    return state.length < least and without_columns(scores, o.end_list) or scores
  end
end

local function forced_bos_token_id(o)
  local id = o.forced_bos_token_id
  return id and function(scores, state)
    return state.length == 1 and only(scores, { id }, "forced_bos_token_id") or scores
  end
end

local function forced_eos_token_id(o, call)
  local ids = o.forced_eos_token_id
  if type(ids) == "number" then ids = { ids } end
  return ids and function(scores, state)
    local last = state.length == call.given + call.limit - 1
    return last and only(scores, ids, "forced_eos_token_id") or scores
  end
end

local function remove_invalid_values(o)
  return o.remove_invalid_values and function(scores) return scores:nan_to_num(0, LARGEST, -LARGEST) end
end

local function exponential_decay_length_penalty(o, call)
  local start, factor = unpack(o.exponential_decay_length_penalty or {})
  return start and function(scores, state)
    local beyond = state.length - call.given - start
    if beyond <= 0 then return scores end
    local at = int64(known(o.end_list, scores:size(2)), scores)
    local values = scores:index_select(2, at)
    local more = (values:abs() * (factor ^ beyond - 1)):masked_fill(values:isfinite():logical_not(), 0)
    return scores:index_copy(2, at, values + more)
  end
end

local function suppress_tokens(o)
  local ids = o.suppress_tokens
  return ids and function(scores) return without_columns(scores, ids) end
end

local function begin_suppress_tokens(o, call)
  local ids = o.begin_suppress_tokens
  local begin = call.given == 1 and o.forced_bos_token_id and 2 or call.given
  return ids and function(scores, state)
    return state.length == begin and without_columns(scores, ids) or scores
  end
end

local function warping(o, call)
  return o.do_sample and not call.quick and function(scores) return sampling.warped(scores, o) end
end

local function renormalize_logits(o)
  return o.renormalize_logits and function(scores) return scores:log_softmax(2) end
end

local ORDER = { sequence_bias, encoder_repetition_penalty, repetition_penalty, no_repeat_ngram_size,
  encoder_no_repeat_ngram_size, bad_words_ids, min_length, forced_bos_token_id, forced_eos_token_id,
  remove_invalid_values, exponential_decay_length_penalty, suppress_tokens, begin_suppress_tokens, warping,
  renormalize_logits }

-- ---- the state of a call

-- Do any of the options look at the tokens so far?
local function looks_back(o)
  return o.sequence_bias or o.bad_words_ids or o.no_repeat_ngram_size > 0
    or o.encoder_no_repeat_ngram_size > 0 or o.stop_strings
end

-- Which tokens each row has had, kept up to date after the first call of `seen`.
local function tracker(step)
  local marks
  local t = {}
  function t.seen(vocabulary)
    marks = marks or sampling.seen(step.ids, vocabulary, step.padding)
    return marks
  end
  function t.add(ids)
    if marks then marks = marks:logical_or(sampling.seen(ids, marks:size(2))) end
  end
  function t.reorder(index)
    if marks then marks = marks:index_select(1, index) end
  end
  return t
end

local function copied(rows, index)
  local new = {}
  for i, from in ipairs(index:totable()) do
    local row, copy = rows[from + 1], {}
    for k = 1, #row do copy[k] = row[k] end
    new[i] = copy
  end
  return new
end

---@class accelerate.models.Processor
---@field rows integer[][]? the tokens of each row so far, where an option looks at them
---@field scores accelerate.Tensor[] processed scores of each step, with output_scores
---@field logits accelerate.Tensor[] a model's scores of each step, with output_logits
local Processor = {}
Processor.__index = Processor

--- Returns what processes the scores of one call.
---@param o table generate's options
---@param step table what the model's _stepper gave
---@param limit integer most tokens to generate
---@return accelerate.models.Processor
function M.new(o, step, limit)
  -- quick draws warp the scores themselves
  local call = { given = step.ids:size(2), limit = limit, encoded = step.encoded or step.ids,
    quick = o.do_sample and sampling.is_quick(o) and not o.output_scores }
  local chain = {}
  for _, make in ipairs(ORDER) do chain[#chain + 1] = make(o, call) or nil end
  local tracked = tracker(step)
  local rows = looks_back(o) and step.ids:totable() or nil
  return setmetatable({ _o = o, _chain = chain, _quick = call.quick, _tracked = tracked, rows = rows,
    _state = { length = call.given, seen = tracked.seen, rows = rows }, scores = {}, logits = {} }, Processor)
end

--- Returns the scores that tokens are picked from: for beams, logarithms of chances.
---@param logits accelerate.Tensor (N, V) of float32
---@return accelerate.Tensor
function Processor:process(logits)
  local o = self._o
  if o.output_logits then self.logits[#self.logits + 1] = logits end
  local scores = o.num_beams > 1 and logits:log_softmax(2) or logits
  for _, fn in ipairs(self._chain) do scores = fn(scores, self._state) end
  if o.output_scores then self.scores[#self.scores + 1] = scores end
  return scores
end

--- Returns a token of each row of processed scores.
---@param scores accelerate.Tensor
---@return accelerate.Tensor int64 (N)
function Processor:pick(scores)
  local o = self._o
  if not o.do_sample then return scores:argmax(2) end
  if self._quick then return sampling.sample(scores, o, o.generator) end
  return sampling.draw(scores, o.generator)
end

--- Takes in the token that each row got.
---@param ids accelerate.Tensor int64 (N, 1)
---@param tokens integer[] the same ones
function Processor:saw(ids, tokens)
  self._state.length = self._state.length + 1
  self._tracked.add(ids)
  for row, list in ipairs(self.rows or {}) do list[#list + 1] = tokens[row] end
end

--- Makes row i what row index[i] was.
---@param index accelerate.Tensor int64, from 0
function Processor:reorder(index)
  self._tracked.reorder(index)
  if self.rows then
    self.rows = copied(self.rows, index)
    self._state.rows = self.rows
  end
end

return M
