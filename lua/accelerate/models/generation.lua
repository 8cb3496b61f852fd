--- generate: tokens one after the other, greedy, drawn or by beam search.

local core = require "accelerate.core"
local options = require "accelerate.utils.options"
local beams = require "accelerate.models.beams"
local generation_options = require "accelerate.models.generation_options"
local lookup = require "accelerate.models.lookup"
local processors = require "accelerate.models.processors"
local stopping = require "accelerate.models.stopping"

local fail = options.fail

local M = {}

-- The mask of a prompt, or nil when nothing of it is padding.
local function padding_of(ids, o)
  local mask = o.attention_mask
  if not mask then
    local told_apart = o.has_padding and not o.ends[o.pad_token_id]
    if not told_apart or not ids:eq(o.pad_token_id):any():item() then return nil end
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

-- One token after the other.
local function plain(step, o, limit, process, stop)
  local ids = step.ids
  local rows, columns, finished, open = ids:size(1), { ids }, {}, ids:size(1)
  local pads = #o.end_list > 0 -- else rows that a text has ended go on with the others
  local new = ids
  for count = 1, limit do
    local picked = process:pick(process:process(step.scores(new)))
    local tokens = picked:totable()
    local were_open = open
    for row = 1, rows do
      if finished[row] then
        if pads then tokens[row] = o.pad_token_id end
      elseif stop:ends(tokens[row], process.rows and process.rows[row]) then
        finished[row], open = true, open - 1
      end
    end
    new = rows == were_open and picked:view(rows, 1)
      or core.tensor(tokens, { dtype = "int64", device = ids.device }):view(rows, 1)
    columns[#columns + 1] = new
    process:saw(new, tokens)
    local enough = o.stream and o.stream(tokens, count)
    if open == 0 or enough or stop:late() then break end
  end
  return { sequences = core.cat(columns, 2) }
end

-- Most tokens to generate behind `given` ones.
local function most_new(self, o, given)
  if o.max_new_tokens then return o.max_new_tokens end
  if not o.max_length then
    local places = self.config.max_position_embeddings or self.config.n_positions
    return places and math.max(1, math.min(20, places - given)) or 20
  end
  if o.max_length <= given then
    fail("generate: max_length = %d leaves no token to generate behind %d", o.max_length, given)
  end
  return o.max_length - given
end

local function search(step, o, limit, stop)
  local process = processors.new(o, step, limit)
  local method = plain
  if o.prompt_lookup_num_tokens then
    lookup.check(step, o)
    method = lookup.generate
  elseif o.num_beams > 1 then
    method = beams.search
  end
  local result = method(step, o, limit, process, stop)
  if type(o.stream) == "table" and o.stream.finish then o.stream:finish() end
  if not o.return_dict_in_generate then return result.sequences end
  result.scores = o.output_scores and process.scores or nil
  result.logits = o.output_logits and process.logits or nil
  return result
end

--- Returns the prompt with the generated tokens behind it (of an encoder-decoder: the decoder's
--- tokens), int64 (batch * num_return_sequences, length); rows that ended are filled up with
--- pad_token_id. Nothing is recorded for gradients, and the model is in evaluation mode meanwhile.
---
--- Options that are not given are those of generation_config.json, then Transformers' defaults;
--- false leaves out what the file wants. Those of Transformers' GenerationConfig that are not
--- listed raise with their name where they would change something; docs/generation.md has all of
--- them. Draws take the first token, in the order of the vocabulary, whose running sum of chances
--- is above a uniform number of float64 from the generator: one for each row and step.
---@param input_ids accelerate.Tensor|table int64 (batch, length), padded on the left for a decoder;
---  or what a tokenizer returns: { input_ids = …, attention_mask = … }
---@param opts? { max_new_tokens: integer, max_length: integer, min_new_tokens: integer, min_length:
---  integer, max_time: number, stop_strings: string|string[], tokenizer: accelerate.Tokenizer,
---  do_sample: boolean, temperature: number, top_k: integer, top_p: number, min_p: number, top_h:
---  number, typical_p: number, epsilon_cutoff: number, eta_cutoff: number, repetition_penalty:
---  number, encoder_repetition_penalty: number, no_repeat_ngram_size: integer,
---  encoder_no_repeat_ngram_size: integer, bad_words_ids: integer[][], sequence_bias: table[],
---  suppress_tokens: integer[], begin_suppress_tokens: integer[], forced_bos_token_id: integer,
---  forced_eos_token_id: integer|integer[], exponential_decay_length_penalty: number[],
---  remove_invalid_values: boolean, renormalize_logits: boolean, num_beams: integer,
---  length_penalty: number, early_stopping: boolean|"never", num_return_sequences: integer,
---  return_dict_in_generate: boolean, output_scores: boolean, output_logits: boolean, use_cache:
---  boolean, eos_token_id: integer|integer[], pad_token_id: integer, decoder_start_token_id:
---  integer|integer[], attention_mask: accelerate.Tensor, seed: integer, generator:
---  accelerate.Generator, stream: fun(tokens: integer[], count: integer): boolean?,
---  prompt_lookup_num_tokens: integer, max_matching_ngram_size: integer } max_new_tokens: default
---  20, or max_length less the prompt; top_k: 0 for all, default 50 (draws only); eos_token_id:
---  tokens that end a row; stream: called after each step with a token of each row, true ends
---  generation (tokenizers.TextStreamer writes their text); prompt_lookup_num_tokens: at most so
---  many tokens (7 count) that followed the last max_matching_ngram_size (default 2) or fewer ones
---  before are verified in one pass, for one row; default: none
---@return any tokens a tensor; with return_dict_in_generate = true a table { sequences =, scores =,
---  logits =, sequences_scores =, beam_indices = } of those that were wanted
function M.generate(self, input_ids, opts)
  if type(input_ids) == "table" then
    local given = {}
    for key, value in next, opts or {} do given[key] = value end
    given.attention_mask = input_ids.attention_mask
    input_ids, opts = input_ids.input_ids, given
  end
  require("accelerate.models.pretrained").check_input("generate", input_ids)
  local o = generation_options.read(self, opts)
  local padding = padding_of(input_ids, o)
  local training = self.training
  if training then self:eval() end
  local ok, result = pcall(core.no_grad, function()
    local stop = stopping.new(o)
    local times = o.num_beams > 1 and o.num_beams or o.num_return_sequences
    if not self._encodes then check_left(padding) end
    local given = self._encodes and 1 or input_ids:size(2)
    local limit = most_new(self, o, given)
    local step = self:_stepper(repeated(input_ids, times), repeated(padding, times),
      input_ids:size(2) + limit, limit, o)
    return search(step, o, limit, stop)
  end)
  if training then self:train() end
  if not ok then error(result, 0) end
  return result
end

return M
