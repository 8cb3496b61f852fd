--- The options of generate: each key of Transformers' GenerationConfig is done, refused by name
--- where it has more than its neutral value, or without effect for a reason. What a call says
--- and what generation_config.json says go through the same table.

local config = require "accelerate.models.config"
local core = require "accelerate.core"
local fs = require "accelerate.utils.fs"
local lists = require "accelerate.utils.lists"
local notice = require "accelerate.messages.notice"
local options = require "accelerate.utils.options"
local ordered = require "accelerate.utils.ordered"

local fail, show = options.fail, options.show

local M = {}

-- ---- the table

-- `when`: the range counts where this option is true alone; the type always does.
local DONE = {
  max_length = { "integer", optional = true, min = 1 },
  max_new_tokens = { "integer", optional = true, min = 1 },
  min_length = { "integer", default = 0, min = 0 },
  min_new_tokens = { "integer", default = 0, min = 0 },
  max_time = { "number", optional = true, min = 0 },
  stop_strings = { "string|list", optional = true },
  do_sample = { "boolean", default = false },
  num_beams = { "integer", default = 1, min = 1 },
  length_penalty = { "number", default = 1 },
  early_stopping = { "boolean|string", default = false, one_of = { true, false, "never" } },
  use_cache = { "boolean", default = true },
  temperature = { "number", default = 1, above = 0, when = "do_sample" },
  top_k = { "integer", default = 50, min = 0, when = "do_sample" },
  top_p = { "number", default = 1, min = 0, max = 1, when = "do_sample" },
  min_p = { "number", default = 0, min = 0, max = 1, when = "do_sample" },
  top_h = { "number", optional = true, above = 0, max = 1, when = "do_sample" },
  typical_p = { "number", default = 1, above = 0, max = 1, when = "do_sample" },
  epsilon_cutoff = { "number", default = 0, min = 0, below = 1, when = "do_sample" },
  eta_cutoff = { "number", default = 0, min = 0, below = 1, when = "do_sample" },
  repetition_penalty = { "number", default = 1, above = 0 },
  encoder_repetition_penalty = { "number", default = 1, above = 0 },
  no_repeat_ngram_size = { "integer", default = 0, min = 0 },
  encoder_no_repeat_ngram_size = { "integer", default = 0, min = 0 },
  bad_words_ids = { "list", optional = true },
  sequence_bias = { "list", optional = true },
  suppress_tokens = { "list", optional = true },
  begin_suppress_tokens = { "list", optional = true },
  forced_bos_token_id = { "integer", optional = true, min = 0 },
  forced_eos_token_id = { "integer|list", optional = true, min = 0 },
  exponential_decay_length_penalty = { "list", optional = true },
  remove_invalid_values = { "boolean", default = false },
  renormalize_logits = { "boolean", default = false },
  num_return_sequences = { "integer", default = 1, min = 1 },
  return_dict_in_generate = { "boolean", default = false },
  output_scores = { "boolean", default = false },
  output_logits = { "boolean", default = false },
  pad_token_id = { "integer", optional = true },
  bos_token_id = { "integer", optional = true },
  eos_token_id = { "integer|list", optional = true },
  decoder_start_token_id = { "integer|list", optional = true, min = 0 },
  prompt_lookup_num_tokens = { "integer", optional = true, min = 1 },
  max_matching_ngram_size = { "integer", default = 2, min = 1 },
}

-- The values that change nothing, and what other ones would be.
local REFUSED = {
  use_mtp = { { false }, "drafts by heads for several tokens" },
  token_healing = { { false }, "another end of the prompt" },
  guidance_scale = { { 1 }, "classifier-free guidance" },
  watermarking_config = { {}, "watermarks" },
  output_attentions = { { false }, "attention weights in the result" },
  output_hidden_states = { { false }, "hidden states in the result" },
  cache_implementation = { { "dynamic", "static", "hybrid", "sliding_window" },
    "a cache whose values are rounded or elsewhere" },
  is_assistant = { { false }, "stopping where a draft is unsure" },
  assistant_early_exit = { {}, "drafts by the first layers" },
  speculation_type = { {}, "drafts of this kind" },
  assistant_ensemble_weight = { {}, "a mixture with the drafts' chances" },
  low_memory = { { false }, "beams one after the other" },
  penalty_alpha = { { 0 }, "contrastive search" },
  dola_layers = { {}, "contrast between layers" },
  diversity_penalty = { { 0 }, "groups of beams" },
  num_beam_groups = { { 1 }, "groups of beams" },
  constraints = { {}, "constrained beam search" },
  force_words_ids = { {}, "constrained beam search" },
}

local DRAFTS = "no other model drafts tokens"
local COMPILED = "nothing is compiled"
local NO_EFFECT = {
  num_assistant_tokens = DRAFTS,
  num_assistant_tokens_schedule = DRAFTS,
  assistant_confidence_threshold = DRAFTS,
  assistant_lookbehind = DRAFTS,
  target_lookbehind = DRAFTS,
  compile_config = COMPILED,
  disable_compile = COMPILED,
  cache_config = "it describes the caches that cache_implementation refuses",
  max_cache_len = "the cache has the size that the call needs",
  prefill_chunk_size = "the prompt is computed in one pass, with the same tokens",
  continuous_batching_config = "it does not concern generate",
  _from_model_config = "it says where the file came from",
  transformers_version = "it says what wrote the file",
  _commit_hash = "it says where the file came from",
}

-- What stands in calls alone.
local CALL = {
  attention_mask = { "tensor", optional = true },
  seed = { "integer", optional = true, min = 0 },
  generator = { "Generator", optional = true },
  stream = { "function", optional = true },
  tokenizer = { "Tokenizer", optional = true },
}

--- Every key of GenerationConfig: { status = "done"|"refused"|"no effect", why?, neutral? }.
M.KEYS = {}
for key in pairs(DONE) do M.KEYS[key] = { status = "done" } end
for key, entry in pairs(REFUSED) do
  M.KEYS[key] = { status = "refused", neutral = entry[1], why = entry[2] }
end
for key, why in pairs(NO_EFFECT) do M.KEYS[key] = { status = "no effect", why = why } end

-- ---- values that a schema does not describe

local function as_list(value) return type(value) == "table" and value or { value } end

local function is_id(value) return type(value) == "number" and value % 1 == 0 and value >= 0 end

local function check_ids(where, ids, least)
  if type(ids) ~= "table" or getmetatable(ids) or #ids < least then
    fail("%s must be a list of token ids, got %s", where, show(ids))
  end
  for i, id in ipairs(ids) do
    if not is_id(id) then fail("%s[%d] must be a token id from 0, got %s", where, i, show(id)) end
  end
end

local CHECKS = {}

function CHECKS.bad_words_ids(where, value)
  if #value == 0 then fail("%s must not be empty", where) end
  for i, ids in ipairs(value) do check_ids(("%s[%d]"):format(where, i), ids, 1) end
end

function CHECKS.sequence_bias(where, value)
  if #value == 0 then fail("%s must not be empty", where) end
  for i, entry in ipairs(value) do
    if type(entry) ~= "table" or type(entry[2]) ~= "number" then
      fail("%s[%d] must be { { id, ... }, bias }, got %s", where, i, show(entry))
    end
    check_ids(("%s[%d][1]"):format(where, i), entry[1], 1)
  end
end

function CHECKS.exponential_decay_length_penalty(where, value)
  if not is_id(value[1]) or type(value[2]) ~= "number" or #value ~= 2 then
    fail("%s must be { start, factor }, got %s", where, show(value))
  end
end

function CHECKS.stop_strings(where, value)
  for i, text in ipairs(as_list(value)) do
    if type(text) ~= "string" or text == "" then
      fail("%s[%d] must be a text that is not empty, got %s", where, i, show(text))
    end
  end
end

local function check_list(where, value) check_ids(where, value, 0) end
CHECKS.suppress_tokens, CHECKS.begin_suppress_tokens = check_list, check_list

local function check_one_or_more(where, value)
  if type(value) == "table" then check_ids(where, value, 1) end
end
CHECKS.forced_eos_token_id, CHECKS.decoder_start_token_id = check_one_or_more, check_one_or_more

function CHECKS.eos_token_id(where, value)  -- a negative id, which older files have, ends nothing
  for i, id in ipairs(as_list(value)) do
    if type(id) ~= "number" or id % 1 ~= 0 then
      fail("%s[%d] must be a token id, got %s", where, i, show(id))
    end
  end
end

-- ---- reading

local function refuse(where, key, value)
  local entry = REFUSED[key]
  for _, neutral in ipairs(entry[1]) do
    if value == neutral then return end
  end
  local names = {}
  for i, neutral in ipairs(entry[1]) do names[i] = show(neutral) end
  fail("%s = %s (%s) is not implemented; %s leaves it out", where, show(value), entry[2],
    names[1] and table.concat(names, " or ") or "false")
end

local HINTS = { temperature = "; do_sample = false takes the likeliest token" }

local function check_value(where, key, value, o)
  local entry = DONE[key] or CALL[key]
  if entry.when and not o[entry.when] then
    entry = { entry[1], optional = entry.optional, default = entry.default }
  end
  local ok, why = pcall(options.value, "generate", where, value, entry)
  if not ok then error(why .. (key == "temperature" and value == 0 and HINTS[key] or ""), 0) end
  value = why
  if value ~= nil and CHECKS[key] then CHECKS[key]("generate: " .. where, value) end
  return value
end

local NAMES = {}
for _, list in ipairs { M.KEYS, CALL } do
  for key in pairs(list) do NAMES[key] = { "any", optional = true } end
end

-- What the file says of keys: generation_config.json, or where there is none config.json, whose
-- options of outputs are those of the model itself.
local function defaults_of(model)
  if model.generation_config then return model.generation_config, "generation_config" end
  local found = {}
  for key in pairs(M.KEYS) do
    local value = model.config[key]
    if value ~= nil and not key:find("^output_") and key ~= "use_cache" then found[key] = value end
  end
  return found, "config"
end

-- Values by key, and what messages call each.
local function gathered(model, given)
  local values, names = {}, {}
  local defaults, source = defaults_of(model)
  for key, value in pairs(defaults) do
    if M.KEYS[key] then values[key], names[key] = value, ("option '%s' of %s"):format(key, source) end
  end
  if given.max_new_tokens then values.max_length = nil end
  for key, value in pairs(given) do values[key], names[key] = value, ("option '%s'"):format(key) end
  for key, value in pairs(values) do  -- false: none, where no option is true or false
    local entry = DONE[key] or CALL[key]
    if value == false and not (entry and entry[1]:find "boolean") then values[key] = nil end
  end
  return values, names
end

local function check_together(o)
  if o.num_return_sequences > 1 and not o.do_sample and o.num_return_sequences > o.num_beams then
    fail("generate: num_return_sequences = %d needs do_sample = true or as many beams, got num_beams = %d",
      o.num_return_sequences, o.num_beams)
  end
  if o.num_beams > 1 and o.do_sample then
    fail("generate: do_sample = true and num_beams = %d are not there together; leave one out", o.num_beams)
  end
  if o.num_beams > 1 and o.stream then fail("generate: stream needs num_beams = 1, got %d", o.num_beams) end
  if o.stop_strings and not o.tokenizer then
    fail "generate: stop_strings needs the option tokenizer, which gives the tokens' texts"
  end
  if o.exponential_decay_length_penalty and #o.end_list == 0 then
    fail "generate: exponential_decay_length_penalty needs eos_token_id"
  end
  for _, key in ipairs { "output_scores", "output_logits" } do
    if o[key] and not o.return_dict_in_generate then
      fail("generate: %s = true needs return_dict_in_generate = true", key)
    end
  end
  local suppressed = lists.set(o.suppress_tokens or {})
  for _, key in ipairs { "forced_bos_token_id", "forced_eos_token_id" } do
    local forced, open = as_list(o[key]), false
    for _, id in ipairs(forced) do open = open or not suppressed[id] end
    if #forced > 0 and not open then
      fail("generate: suppress_tokens has all of %s, so that no token would be left", key)
    end
  end
end

--- Returns the options of a call, with those of the model's files and Transformers' defaults where
--- it says nothing. `false` leaves out what a file wants.
---@param model accelerate.models.PreTrainedModel
---@param given table?
---@return table o the values, and: ends (a set) and end_list of eos_token_id; has_padding:
---  pad_token_id is not just its default
function M.read(model, given)
  given = options.check("generate", given, NAMES)
  local values, names = gathered(model, given)
  local o = { do_sample = check_value(names.do_sample or "", "do_sample", values.do_sample, {}) }
  for _, key in ipairs(ordered.sorted_keys(values)) do
    if REFUSED[key] then refuse("generate: " .. names[key], key, values[key]) end
  end
  for _, schema in ipairs { DONE, CALL } do
    for _, key in ipairs(ordered.sorted_keys(schema)) do
      o[key] = check_value(names[key] or key, key, values[key], o)
    end
  end
  o.ends, o.end_list = {}, {}
  for _, id in ipairs(as_list(o.eos_token_id)) do
    if id >= 0 then o.ends[id], o.end_list[#o.end_list + 1] = true, id end
  end
  o.has_padding = o.pad_token_id ~= nil
  o.pad_token_id = o.pad_token_id or o.end_list[1] or 0
  if o.seed then o.generator = core.Generator(o.seed) end
  check_together(o)
  return o
end

-- ---- files

local FILE = "generation_config.json"

--- Returns what a folder's generation_config.json says, or nil. A line on stderr names the keys
--- that are none of generate's.
---@param where string
---@param folder string
---@return table?
function M.of_folder(where, folder)
  local path = fs.join(folder, FILE)
  if not fs.exists(path) then return nil end
  local found = config.read(where, path)
  local known = ordered.sorted_keys(M.KEYS)
  for _, key in ipairs(ordered.sorted_keys(found)) do
    if not M.KEYS[key] then
      local near = options.nearest(key, known)
      notice.main_once("%s: %s: %s is no option of generate%s", where, FILE, key,
        near and ("; did you mean '%s'?"):format(near) or "")
    end
  end
  return found
end

--- Writes a generation_config.json. Python takes biases and factors as floats alone.
---@param where string
---@param folder string
---@param values table
function M.write(where, folder, values)
  local text = config.text(values, DONE)
  for key, before in pairs { sequence_bias = "%]", exponential_decay_length_penalty = "%d" } do
    text = text:gsub(('("%s": )(%%b[])'):format(key), function(name, list)
      return name .. list:gsub(("(%s,%%s*%%-?%%d+)(%%s*%%])"):format(before), "%1.0%2")
    end)
  end
  local ok, why = fs.write(fs.join(folder, FILE), text, true)
  if not ok then fail("%s: %s", where, tostring(why)) end
end

return M
