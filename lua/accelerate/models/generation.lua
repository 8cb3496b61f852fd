--- generate: tokens one after the other, greedy, drawn or by beam search.

local core = require "accelerate.core"
local options = require "accelerate.utils.options"
local beams = require "accelerate.models.beams"
local lookup = require "accelerate.models.lookup"
local sampling = require "accelerate.models.sampling"

local fail = options.fail

local M = {}

local OPTIONS = {
  max_new_tokens = { "integer", optional = true, min = 1 },
  max_length = { "integer", optional = true, min = 1 },
  min_new_tokens = { "integer", default = 0, min = 0 },
  do_sample = { "boolean", default = false },
  temperature = { "number", default = 1, above = 0 },
  top_k = { "integer", default = 50, min = 0 },
  top_p = { "number", default = 1, above = 0, max = 1 },
  repetition_penalty = { "number", default = 1, above = 0 },
  num_beams = { "integer", default = 1, min = 1 },
  length_penalty = { "number", default = 1 },
  early_stopping = { "boolean", default = false },
  num_return_sequences = { "integer", default = 1, min = 1 },
  eos_token_id = { "integer|list", optional = true },
  pad_token_id = { "integer", optional = true },
  attention_mask = { "tensor", optional = true },
  seed = { "integer", optional = true, min = 0 },
  generator = { "Generator", optional = true },
  stream = { "function", optional = true },
  prompt_lookup_num_tokens = { "integer", optional = true, min = 1 },
  max_matching_ngram_size = { "integer", default = 2, min = 1 },
}

-- What the call says, then generation_config.json, then config.json.
local function settings(self, opts)
  local given = {}
  for key, value in next, opts or {} do given[key] = value end
  for _, defaults in ipairs { self.generation_config or {}, self.config } do
    for _, key in ipairs { "eos_token_id", "pad_token_id", "do_sample", "temperature", "top_k", "top_p",
      "repetition_penalty", "num_beams", "length_penalty", "max_length", "max_new_tokens" } do
      local from_call = key == "max_length" and given.max_new_tokens
      if given[key] == nil and not from_call and defaults[key] ~= nil then
        if rawequal(defaults, self.generation_config) or key:find "token_id" and defaults[key] then
          given[key] = defaults[key]
        end
      end
    end
  end
  local o = options.check("generate", given, OPTIONS)
  o.ends, o.end_list = {}, type(o.eos_token_id) == "table" and o.eos_token_id or { o.eos_token_id }
  for _, id in ipairs(o.end_list) do o.ends[id] = true end
  o.pad_token_id = o.pad_token_id or o.end_list[1] or 0
  if o.seed then o.generator = core.Generator(o.seed) end
  if o.num_return_sequences > 1 and not o.do_sample and o.num_return_sequences > o.num_beams then
    fail("generate: num_return_sequences = %d needs do_sample = true or as many beams, got num_beams = %d",
      o.num_return_sequences, o.num_beams)
  end
  if o.num_beams > 1 and o.do_sample then
    fail("generate: do_sample = true and num_beams = %d are not there together; leave one out", o.num_beams)
  end
  if o.num_beams > 1 and o.stream then fail("generate: stream needs num_beams = 1, got %d", o.num_beams) end
  return o
end

-- The mask of a prompt, or nil when nothing of it is padding.
local function padding_of(ids, o)
  local mask = o.attention_mask
  if not mask then
    if o.ends[o.pad_token_id] or not ids:eq(o.pad_token_id):any():item() then return nil end
    mask = ids:ne(o.pad_token_id)
  end
  if mask:dim() ~= 2 or mask:size(1) ~= ids:size(1) or mask:size(2) ~= ids:size(2) then
    fail("generate: attention_mask must have input_ids' shape [%d, %d], got [%s]", ids:size(1), ids:size(2),
      table.concat(mask.shape, ", "))
  end
  mask = mask:ne(0)
  if mask:all():item() then return nil end
  return mask
end

-- Rows are padded before their tokens: the next one comes behind the last column.
local function check_left(mask)
  if mask and not mask:select(2, mask:size(2)):all():item() then
    fail("generate: rows of a decoder's batch must be padded on the left, and a row's last column is padding")
  end
end

local function repeated(t, times)
  return t and times > 1 and t:repeat_interleave(times, 1) or t
end

-- Puts -inf where a token may not come yet.
local function without_ends(scores, o)
  local at = core.tensor({ o.end_list }, { dtype = "int64", device = scores.device })
  return scores:scatter(2, at:expand(scores:size(1), #o.end_list), -math.huge)
end

--- Returns a function that turns scores into those that tokens are picked from: the repetition
--- penalty and min_new_tokens. `count` is the number of tokens generated so far.
local function processor(o, step, rows)
  local seen
  local early = o.min_new_tokens > 0 and #o.end_list > 0
  return function(scores, count)
    if o.repetition_penalty ~= 1 then
      seen = seen or sampling.seen(rows, scores:size(2), step.padding)
      scores = sampling.penalised(scores, seen, o.repetition_penalty)
    end
    if early and count < o.min_new_tokens then scores = without_ends(scores, o) end
    return scores
  end, function(next_ids)
    if seen then seen = seen:logical_or(sampling.seen(next_ids, seen:size(2))) end
  end, function(index)
    if seen then seen = seen:index_select(1, index) end
  end
end
M.processor = processor

-- One token after the other.
local function plain(step, o, limit)
  local ids = step.ids
  local rows, columns, finished, open = ids:size(1), { ids }, {}, ids:size(1)
  local process, saw = processor(o, step, ids)
  local new = ids
  for count = 0, limit - 1 do
    local scores = process(step.scores(new), count)
    local picked = o.do_sample and sampling.sample(scores, o, o.generator) or scores:argmax(2)
    local tokens = picked:totable()
    for row = 1, rows do
      if finished[row] then tokens[row] = o.pad_token_id
      elseif o.ends[tokens[row]] then
        finished[row], open = true, open - 1
      end
    end
    new = rows == open and picked:view(rows, 1)
      or core.tensor(tokens, { dtype = "int64", device = ids.device }):view(rows, 1)
    columns[#columns + 1] = new
    if o.repetition_penalty ~= 1 then saw(new) end
    local stop = o.stream and o.stream(tokens, count + 1)
    if open == 0 or stop then break end
  end
  return core.cat(columns, 2)
end

--- Returns the prompt with the generated tokens behind it (of an encoder-decoder: the decoder's
--- tokens), int64 (batch * num_return_sequences, length); rows that ended are filled up with
--- pad_token_id. Nothing is recorded for gradients, and the model is in evaluation mode meanwhile.
---
--- Options that are not given are those of generation_config.json, then Transformers' defaults.
--- Draws take the first token, in the order of the vocabulary, whose running sum of chances is
--- above a uniform number of float64 from the generator: one for each row and step.
---@param input_ids accelerate.Tensor int64 (batch, length); a decoder's rows are padded on the left
---@param opts? { max_new_tokens: integer, max_length: integer, min_new_tokens: integer, do_sample:
---  boolean, temperature: number, top_k: integer, top_p: number, repetition_penalty: number,
---  num_beams: integer, length_penalty: number, early_stopping: boolean, num_return_sequences:
---  integer, eos_token_id: integer|integer[], pad_token_id: integer, attention_mask:
---  accelerate.Tensor, seed: integer, generator: accelerate.Generator, stream: fun(tokens:
---  integer[], count: integer): boolean?, prompt_lookup_num_tokens: integer,
---  max_matching_ngram_size: integer } max_new_tokens: default 20, or max_length less the
---  prompt; top_k: 0 for all, default 50 (draws only); eos_token_id: tokens that end a row; stream:
---  called after each step with a token of each row, true ends generation;
---  prompt_lookup_num_tokens: at most so many tokens (7 count) that followed the last
---  max_matching_ngram_size (default 2) or fewer ones before are verified in one pass, for one row;
---  default: none
---@return accelerate.Tensor
function M.generate(self, input_ids, opts)
  if type(input_ids) == "table" then
    local given = {}
    for key, value in next, opts or {} do given[key] = value end
    given.attention_mask = input_ids.attention_mask
    input_ids, opts = input_ids.input_ids, given
  end
  require("accelerate.models.pretrained").check_input("generate", input_ids)
  local o = settings(self, opts)
  local padding = padding_of(input_ids, o)
  local training = self.training
  if training then self:eval() end
  local ok, result = pcall(core.no_grad, function()
    local times = o.num_beams > 1 and o.num_beams or o.num_return_sequences
    if not self._encodes then check_left(padding) end
    local given = self._encodes and 1 or input_ids:size(2)
    local limit = o.max_new_tokens or o.max_length and o.max_length - given or 20
    if limit < 1 then
      fail("generate: max_length = %d leaves no token to generate behind %d", o.max_length, input_ids:size(2))
    end
    local step = self:_stepper(repeated(input_ids, times), repeated(padding, times),
      input_ids:size(2) + limit, limit)
    if o.prompt_lookup_num_tokens then
      lookup.check(step, o)
      return lookup.generate(step, o, limit, processor(o, step, step.ids))
    end
    if o.num_beams > 1 then return beams.search(step, o, limit, processor) end
    return plain(step, o, limit)
  end)
  if training then self:train() end
  if not ok then error(result, 0) end
  return result
end

return M
