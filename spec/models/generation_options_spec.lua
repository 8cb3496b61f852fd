-- generate's options beside Transformers' (spec/generators/gen_generation_reference.py): tokens,
-- scores and what else comes back, from a call and from generation_config.json alike; and the table
-- of all keys.
local core = require "accelerate.core"
local disk = require "spec.support.disk"
local host = require "spec.support.host"
local json = require "accelerate.utils.json"
local keys = require "accelerate.models.generation_options"
local models = require "accelerate.models"
local raises = require("spec.support.messages").raises

local reference = assert(json.decode(disk.read "spec/models/generation_reference.json"))

local function load(name) return models.from_pretrained("spec/models/folders/" .. name) end

local function with(...)
  local o = {}
  for _, from in ipairs { ... } do
    for key, value in pairs(from) do o[key] = value end
  end
  return o
end

-- The prompt of a case as generate takes it.
local function prompt_of(entry, case)
  local prompt = entry.prompts[case.prompt]
  return core.tensor(prompt.input_ids, { dtype = "int64" }),
    { attention_mask = core.tensor(prompt.attention_mask, { dtype = "int64" }) }
end

local function text_of(case) return ("%s %s"):format(case.prompt, json.encode(case.options)) end

-- -inf is -1e30 in the reference.
local function check_near(expected, t, what)
  local got = t:masked_fill(t:eq(-math.huge), -1e30)
  local wanted = core.tensor(expected)
  assert.same(wanted.shape, got.shape, what)
  local far = (got - wanted):abs():gt(wanted:abs():clamp { min = 1 } * 1e-4)
  assert.is_false(far:any():item(), what)
end

describe("generate's options", function()
  for name, entry in pairs(reference.models) do
    for _, kind in ipairs { "greedy", "beams" } do
      it(("give Transformers' tokens: %s, %s"):format(name, kind), function()
        local model = load(name)
        model.generation_config = {}
        for _, case in ipairs(entry[kind]) do
          local ids, mask = prompt_of(entry, case)
          assert.same(case.sequences, model:generate(ids, with(case.options, mask)):totable(), text_of(case))
        end
      end)

      it(("give the same tokens from generation_config: %s, %s"):format(name, kind), function()
        local model = load(name)
        for _, case in ipairs(entry[kind]) do
          model.generation_config = case.options
          local ids, mask = prompt_of(entry, case)
          assert.same(case.sequences, model:generate(ids, mask):totable(), text_of(case))
        end
      end)
    end

    it("leave Transformers' tokens to draw from: " .. name, function()
      local model = load(name)
      model.generation_config = {}
      for _, case in ipairs(entry.draws) do
        local ids, mask = prompt_of(entry, case)
        local out = model:generate(ids, with(case.options, mask,
          { return_dict_in_generate = true, output_scores = true, seed = 5 }))
        check_near(case.scores, out.scores[1], text_of(case))
        local same = model:generate(ids, with(case.options, mask, { seed = 5 }))
        assert.same(same:totable(), out.sequences:totable(), text_of(case))
      end
    end)

    it("give Transformers' scores, logits and rows of beams: " .. name, function()
      local model = load(name)
      model.generation_config = {}
      for _, case in ipairs(entry.outputs) do
        local ids, mask = prompt_of(entry, case)
        local out = model:generate(ids, with(case.options, mask,
          { return_dict_in_generate = true, output_scores = true, output_logits = true }))
        assert.same(case.sequences, out.sequences:totable())
        for _, list in ipairs { "scores", "logits" } do
          assert.equal(#case[list], #out[list])
          for i, t in ipairs(out[list]) do check_near(case[list][i], t, list .. " of step " .. i) end
        end
        if case.beam_indices then
          assert.same(case.beam_indices, out.beam_indices:totable())
          check_near(case.sequences_scores, out.sequences_scores, "sequences_scores")
        end
      end
    end)
  end

  it("give no outputs beside those that are wanted", function()
    local model = load "gpt2"
    local ids = core.tensor({ { 5, 9, 2 } }, { dtype = "int64" })
    local out = model:generate(ids, { return_dict_in_generate = true, max_new_tokens = 2, eos_token_id = 99 })
    assert.same({ 1, 5 }, out.sequences.shape)
    assert.is_nil(out.scores)
    assert.is_nil(out.logits)
    raises("output_scores = true needs return_dict_in_generate = true", model.generate, model, ids,
      { output_scores = true })
  end)
end)

-- A value that would change something, for keys that are refused.
local ASKING = { use_mtp = true, token_healing = true, guidance_scale = 1.5,
  watermarking_config = { bias = 2 }, output_attentions = true, output_hidden_states = true,
  cache_implementation = "quantized", is_assistant = true, assistant_early_exit = 2,
  speculation_type = "dflash",
  assistant_ensemble_weight = 0.5, low_memory = true, penalty_alpha = 0.6, dola_layers = "high",
  diversity_penalty = 0.5, num_beam_groups = 2, constraints = { {} }, force_words_ids = { { 3 } } }

-- Values of the keys that have no effect, as files have them.
local IDLE = { num_assistant_tokens = 20, num_assistant_tokens_schedule = "constant",
  assistant_confidence_threshold = 0.4, assistant_lookbehind = 10, target_lookbehind = 10,
  compile_config = { mode = "default" }, disable_compile = true, cache_config = { batch_size = 2 },
  max_cache_len = 64, prefill_chunk_size = 2, continuous_batching_config = { block_size = 4 },
  _from_model_config = true, transformers_version = "5.24.0", _commit_hash = "0" }

describe("the table of generate's options", function()
  local model, ids = load "gpt2", core.tensor({ { 5, 9, 2 } }, { dtype = "int64" })
  local function generate(opts, file)
    model.generation_config = file or {}
    return model:generate(ids, opts)
  end
  local plain = generate({ max_new_tokens = 6 }):totable()

  it("has every key of Transformers' GenerationConfig, and no others", function()
    local known = {}
    for key in pairs(keys.KEYS) do known[#known + 1] = key end
    table.sort(known)
    table.sort(reference.keys)
    assert.same(reference.keys, known)
  end)

  for key, entry in pairs(keys.KEYS) do
    if entry.status == "refused" then
      it("refuses by name: " .. key, function()
        local value = assert(ASKING[key])
        raises(("option '%s' = "):format(key), generate, { [key] = value })
        raises(("option '%s' of generation_config = "):format(key), generate, {}, { [key] = value })
        raises("is not implemented", generate, { [key] = value })
      end)

      it("takes the values that change nothing: " .. key, function()
        for _, value in ipairs { false, unpack(entry.neutral) } do
          assert.same(plain, generate({ max_new_tokens = 6, [key] = value }):totable())
          assert.same(plain, generate({ max_new_tokens = 6 }, { [key] = value }):totable())
        end
        assert.same(plain, generate({ max_new_tokens = 6, [key] = false }, { [key] = ASKING[key] }):totable())
      end)
    elseif entry.status == "no effect" then
      it("has no effect: " .. key, function()
        local value = assert(IDLE[key])
        assert.same(plain, generate({ max_new_tokens = 6, [key] = value }):totable())
        assert.same(plain, generate({ max_new_tokens = 6 }, { [key] = value }):totable())
      end)
    else
      it("refuses another type by the option's name: " .. key, function()
        raises(("option '%s' must be"):format(key), generate, { [key] = print })
        raises(("option '%s' of generation_config must be"):format(key), generate, {}, { [key] = print })
      end)
    end
  end

  it("stands in docs/generation.md", function()
    local page = disk.read "docs/generation.md"
    for key in pairs(keys.KEYS) do
      assert(page:find(("`%s`"):format(key), 1, true), key .. " is not in docs/generation.md")
    end
  end)
end)

describe("options of generate that end rows", function()
  local model, ids = load "gpt2", core.tensor({ { 5, 9, 2 } }, { dtype = "int64" })
  model.generation_config = {}

  -- A tokenizer with a letter for each id.
  local function letters()
    local vocab = {}
    for id = 0, 36 do vocab[string.char(id < 26 and 97 + id or 65 + id - 26)] = id end
    local path = os.tmpname()
    disk.write(path,
      json.encode { version = "1.0", model = { type = "WordLevel", vocab = vocab, unk_token = "a" },
      decoder = { type = "Fuse" } })
    local tokenizer = require("accelerate.tokenizers").from_file(path)
    os.remove(path)
    return tokenizer
  end

  it("stop behind a text, which may begin in the prompt", function()
    local tokenizer = letters()
    local free = model:generate(ids, { max_new_tokens = 10 })
    local text = tokenizer:decode(free[1])
    for from = 2, 8 do
      local stop = text:sub(from, from + 2)
      local last = select(2, text:find(stop, 1, true))
      if last > 3 then
        local out = model:generate(ids,
          { max_new_tokens = 10, stop_strings = { "??", stop }, tokenizer = tokenizer })
        assert.equal(text:sub(1, last), tokenizer:decode(out[1]))
        local beams = model:generate(ids, { max_new_tokens = 10, num_beams = 2, stop_strings = stop,
          tokenizer = tokenizer, num_return_sequences = 2 })
        for row = 1, 2 do
          local found = tokenizer:decode(beams[row]):find(stop, 2, true)
          assert(not found or found + 2 <= beams:size(2))
        end
      end
    end
  end)

  it("need a tokenizer for texts", function()
    raises("stop_strings needs the option tokenizer", model.generate, model, ids, { stop_strings = "x" })
    raises("stop_strings'[2] must be a text", model.generate, model, ids,
      { stop_strings = { "x", "" }, tokenizer = letters() })
  end)

  it("stop after the step in which the time is up", function()
    for _, o in ipairs { {}, { num_beams = 2 }, { prompt_lookup_num_tokens = 3 } } do
      assert.same({ 1, 4 }, model:generate(ids, with(o, { max_time = 0, max_new_tokens = 9 })).shape)
    end
    assert.same({ 1, 12 }, model:generate(ids, { max_time = 1000, max_new_tokens = 9 }).shape)
  end)
end)

describe("what generate refuses", function()
  local model, ids = load "gpt2", core.tensor({ { 5, 9, 2 } }, { dtype = "int64" })
  for what, case in pairs {
    ["a temperature of 0 that draws"] = { { temperature = 0, do_sample = true },
      "option 'temperature' must be above 0, got 0; do_sample = false takes the likeliest token" },
    ["lists of words that are empty"] = { { bad_words_ids = {} }, "bad_words_ids' must not be empty" },
    ["words that are no lists"] = { { bad_words_ids = { 5 } },
      "bad_words_ids'[1] must be a list of token ids" },
    ["ids that are none"] = { { suppress_tokens = { 4, -1 } },
      "suppress_tokens'[2] must be a token id from 0, got -1" },
    ["biases without a number"] = { { sequence_bias = { { { 5 } } } },
      "sequence_bias'[1] must be { { id, ... }, bias }" },
    ["biases beyond the vocabulary"] = { { sequence_bias = { { { 99 }, 1 } } },
      "sequence_bias has the token 99, but the vocabulary has 37 tokens" },
    ["forced tokens beyond the vocabulary"] = { { forced_eos_token_id = 99, max_new_tokens = 1 },
      "forced_eos_token_id = 99, but the vocabulary has 37 tokens" },
    ["a penalty of another form"] = { { exponential_decay_length_penalty = { 3 } },
      "exponential_decay_length_penalty' must be { start, factor }" },
    ["a penalty of end tokens that there are not"] = { { exponential_decay_length_penalty = { 3, 1.5 },
      eos_token_id = false }, "exponential_decay_length_penalty needs eos_token_id" },
    ["forcing what it suppresses"] = { { forced_eos_token_id = 4, suppress_tokens = { 4 } },
      "suppress_tokens has all of forced_eos_token_id" },
    ["another kind of early stopping"] = { { early_stopping = "sometimes" },
      "option 'early_stopping' must be one of true, false, never, got 'sometimes'" },
    ["drafts without a cache"] = { { prompt_lookup_num_tokens = 3, use_cache = false },
      "prompt_lookup_num_tokens needs use_cache = true" },
  } do
    it(what, function() raises(case[2], model.generate, model, ids, case[1]) end)
  end

  it("another number of first tokens than rows", function()
    local t5 = load "t5"
    raises("decoder_start_token_id must be one id, or one for each of 1 rows, got 2", t5.generate, t5, ids,
      { decoder_start_token_id = { 1, 2 } })
  end)
end)

describe("generation_config.json", function()
  local ids = core.tensor({ { 5, 9, 2 } }, { dtype = "int64" })

  it("is read, kept and written with Python's floats", function()
    host.in_folder(function(folder)
      local model = load "gpt2"
      local text = '{"eos_token_id": 99, "temperature": 2.0, "min_p": 0.0, "max_time": 60.0, ' ..
        '"sequence_bias": [[[5, 9], -10.0], [[3], 2.5]], "exponential_decay_length_penalty": [4, 2.0]}'
      model:save_pretrained(folder)
      disk.write(folder .. "/generation_config.json", text)
      local read = models.from_pretrained(folder)
      assert.same({ { { 5, 9 }, -10 }, { { 3 }, 2.5 } }, read.generation_config.sequence_bias)
      read:save_pretrained(folder)
      local written = disk.read(folder .. "/generation_config.json"):gsub("%s+", "")
      for _, part in ipairs { '"temperature":2.0', '"min_p":0.0', '"max_time":60.0',
        "[[[5,9],-10.0],[[3],2.5]]",
        '"exponential_decay_length_penalty":[4,2.0]', '"eos_token_id":99' } do
        assert(written:find(part, 1, true), part .. " is not in " .. written)
      end
    end)
  end)

  it("alone says what ends rows where it is there, else config.json", function()
    local model = load "gpt2"
    local free = model:generate(ids, { eos_token_id = false, max_new_tokens = 8 }):totable()
    model.config.eos_token_id = free[1][4]
    model.generation_config = {}
    assert.same(free, model:generate(ids, { max_new_tokens = 8 }):totable())
    model.generation_config = nil
    assert.same({ 1, 4 }, model:generate(ids, { max_new_tokens = 8 }).shape)
    model.config.no_repeat_ngram_size = 1
    model.config.eos_token_id = nil
    assert.are_not.same(free, model:generate(ids, { max_new_tokens = 8 }):totable())
  end)

  it("says which keys are none of generate's when it is read", function()
    host.in_folder(function(folder)
      load("gpt2"):save_pretrained(folder)
      disk.write(folder .. "/generation_config.json", '{"no_repeat_ngram": 2, "top_k": 4}')
      local script = folder .. "/load.lua"
      disk.write(script, ('require("accelerate.models").from_pretrained(%q)'):format(folder))
      local _, _, out = host.run { script }
      assert(out:find("generation_config.json: no_repeat_ngram is no option of generate; did you mean " ..
        "'no_repeat_ngram_size'?", 1, true), out)
      assert.is_nil(out:find("top_k", 1, true))
    end)
  end)
end)
