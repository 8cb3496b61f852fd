-- prompt_lookup_num_tokens: the tokens are those of generation without it.
local core = require "accelerate.core"
local lookup = require "accelerate.models.lookup"
local models = require "accelerate.models"
local raises = require("spec.support.messages").raises

local FOLDERS = { "gpt2", "llama", "llama_linear", "llama_yarn", "mistral", "qwen2", "qwen3", "gemma",
  "gemma2",
  "olmo2", "smollm3", "granite", "starcoder2" }
local CASES = {
  {}, { repetition_penalty = 1.2 }, { min_new_tokens = 9 }, { do_sample = true, temperature = 0.4 },
  { do_sample = true, top_k = 0, top_p = 0.8, temperature = 0.6 }, { max_new_tokens = 1 },
}

local function load(name) return models.from_pretrained("spec/models/folders/" .. name) end

local function prompt_of(seed)
  local ids = core.randint(1, 36, { 1, 4 }, { generator = core.Generator(seed) })
  return core.cat({ ids, ids }, 2)
end

local function with(...)
  local o = { max_new_tokens = 18, eos_token_id = { 7, 11 }, pad_token_id = 36 }
  for _, more in ipairs { ... } do
    for key, value in pairs(more) do o[key] = value end
  end
  return o
end

describe("generation with prompt lookup", function()
  for _, name in ipairs(FOLDERS) do
    it("gives the tokens that it gives without: " .. name, function()
      local model = load(name)
      for _, dtype in ipairs { "float32", "bfloat16" } do
        model:to(dtype)
        for seed = 1, 2 do
          for _, case in ipairs(CASES) do
            local plain = model:generate(prompt_of(seed), with(case, { seed = seed })):totable()
            for _, count in ipairs { 2, 10 } do
              assert.same(plain, model:generate(prompt_of(seed),
                with(case, { seed = seed, prompt_lookup_num_tokens = count })):totable())
            end
          end
        end
      end
    end)

    it("has the scores of single tokens, bit for bit: " .. name, function()
      local model = load(name)
      core.no_grad(function()
        for _, dtype in ipairs { "float32", "bfloat16", "float16" } do
          model:to(dtype)
          for count = 2, 8 do
            local ids = core.randint(0, 37, { 1, 14 + count }, { generator = core.Generator(count) })
            local one, many = model:_stepper(ids, nil, 32, 32), model:_stepper(ids, nil, 32, 32)
            one.scores(ids:narrow(2, 1, 14))
            many.scores(ids:narrow(2, 1, 14))
            local scores = many.verify(ids:narrow(2, 15, count))
            for i = 1, count do
              assert.same(one.scores(ids:narrow(2, 14 + i, 1)):totable(), scores:narrow(1, i, 1):totable())
            end
          end
        end
      end)
    end)
  end

  it("passes over the weights less often", function()
    local model = load "gpt2"
    local passes = 0
    local stepper = model._stepper
    rawset(model, "_stepper", function(...)
      local step = stepper(...)
      local verify = step.verify
      step.verify = function(ids)
        passes = passes + 1
        return verify(ids)
      end
      return step
    end)
    local seen = {}
    model:generate(prompt_of(1), with { eos_token_id = 99, max_new_tokens = 23, prompt_lookup_num_tokens = 7,
      stream = function(tokens, count) seen[count] = tokens[1] end })
    assert.equal(23, #seen)
    assert.is_true(passes < 18, passes)
  end)

  it("is ended by its stream", function()
    local out = load("gpt2"):generate(prompt_of(1), with { eos_token_id = 99, prompt_lookup_num_tokens = 5,
      stream = function(_, count) return count == 6 end })
    assert.same({ 1, 14 }, out.shape)
  end)

  it("takes drafts from where the last tokens occurred first", function()
    assert.same({ 3, 4, 1 }, lookup.drafts({ 1, 2, 3, 4, 1, 2 }, 3, 2))
    assert.same({ 3 }, lookup.drafts({ 1, 2, 3, 4, 1, 2 }, 1, 2))
    assert.same({ 3, 4, 9, 2 }, lookup.drafts({ 1, 2, 3, 4, 9, 2 }, 5, 2))
    assert.same({}, lookup.drafts({ 1, 2, 3 }, 5, 2))
    assert.same({ 5, 5 }, lookup.drafts({ 5, 5, 5 }, 5, 1))
    assert.same({}, lookup.drafts({ 5 }, 5, 2))
  end)

  it("refuses what it does not go with", function()
    local gpt2, row = load "gpt2", prompt_of(1)
    local o = with { prompt_lookup_num_tokens = 3 }
    raises("is for one row of tokens, got 2", gpt2.generate, gpt2, core.cat({ row, row }, 1), o)
    raises("is for one row of tokens, got 3", gpt2.generate, gpt2, row,
      with(o, { do_sample = true, num_return_sequences = 3 }))
    raises("needs num_beams = 1, got 2", gpt2.generate, gpt2, row, with(o, { num_beams = 2 }))
    local mask = core.ones_like(row)
    mask:narrow(2, 1, 1):zero_()
    raises("without padding", gpt2.generate, gpt2, row, with(o, { attention_mask = mask }))
    raises("'prompt_lookup_num_tokens' must be at least 1", gpt2.generate, gpt2, row,
      with { prompt_lookup_num_tokens = 0 })
    for _, name in ipairs { "phi3", "llama_dynamic", "llama_longrope", "t5" } do
      local model = load(name)
      raises("is for decoders whose positions do not turn by the length", model.generate, model, row, o)
    end
  end)
end)
