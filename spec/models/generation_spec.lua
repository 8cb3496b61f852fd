-- generate: draws, streams, stopping and what it refuses. Tokens beside Transformers' are in
-- folders_spec.lua.
local core = require "accelerate.core"
local models = require "accelerate.models"

local FOLDER = "spec/models/folders/gpt2"
local model = models.from_pretrained(FOLDER)
local prompt = core.tensor({ { 5, 9, 2 }, { 1, 8, 30 } }, { dtype = "int64" })
local OPEN = { eos_token_id = 99, max_new_tokens = 8 }

local function with(more)
  local o = {}
  for _, from in ipairs { OPEN, more } do
    for key, value in pairs(from) do o[key] = value end
  end
  return o
end

local function fails(pattern, ...)
  local ok, message = pcall(model.generate, model, ...)
  assert.is_false(ok)
  assert(tostring(message):find(pattern, 1, true), tostring(message))
end

-- The scores behind the rows, without a cache.
local function scores_of(ids)
  local logits = model(ids).logits
  return logits:select(2, logits:size(2)):detach():totable()
end

-- Draws in plain Lua: temperature, top_k, top_p, and the first token whose running sum is above u.
local function draw(scores, o, u)
  local list = {}
  for i, s in ipairs(scores) do list[i] = { id = i - 1, s = s / o.temperature } end
  local sorted = { unpack(list) }
  table.sort(sorted, function(a, b) return a.s > b.s or a.s == b.s and a.id > b.id end)
  local last = sorted[o.top_k]
  for i = #sorted, 1, -1 do
    if last and sorted[i].s < last.s then sorted[i] = nil end
  end
  local total, running, kept = 0, 0, {}
  for _, e in ipairs(sorted) do total = total + math.exp(e.s - sorted[1].s) end
  for _, e in ipairs(sorted) do
    if running < o.top_p or running == 0 then kept[#kept + 1] = e end
    running = running + math.exp(e.s - sorted[1].s) / total
  end
  table.sort(kept, function(a, b) return a.id < b.id end)
  total, running = 0, 0
  for _, e in ipairs(kept) do total = total + math.exp(e.s - sorted[1].s) end
  for _, e in ipairs(kept) do
    running = running + math.exp(e.s - sorted[1].s) / total
    if running > u then return e.id end
  end
  return kept[#kept].id
end

describe("generate", function()
  for name, o in pairs {
    plain = { temperature = 1, top_k = 0, top_p = 1 }, hot = { temperature = 1.7, top_k = 0, top_p = 1 },
    few = { temperature = 0.8, top_k = 5, top_p = 1 },
    nucleus = { temperature = 1.3, top_k = 0, top_p = 0.6 },
    both = { temperature = 1.5, top_k = 9, top_p = 0.7 },
  } do
    it("draws as the definition says: " .. name, function()
      for seed = 1, 4 do
        local out = model:generate(prompt, with { do_sample = true, seed = seed, temperature = o.temperature,
          top_k = o.top_k, top_p = o.top_p })
        local generator = core.Generator(seed)
        for step = 1, 8 do
          local u = core.rand({ 2, 1 }, { dtype = "float64", generator = generator }):view(2):totable()
          local scores = scores_of(out:narrow(2, 1, 2 + step))
          for row = 1, 2 do assert.equal(draw(scores[row], o, u[row]), out[row][3 + step]:item()) end
        end
      end
    end)
  end

  it("draws the same from the likeliest tokens as from all of them, sorted", function()
    local sampling = require "accelerate.models.sampling"
    for seed = 1, 12 do
      core.manual_seed(seed)
      for _, count in ipairs { 5, 65, 700, 5000 } do
        local x = core.randn { 2, count } * (1 + seed % 5)
        if seed % 3 == 0 then x = (x * 4):round() / 4 end -- several tokens are as likely
        if seed % 4 == 0 then x = x:masked_fill(x:lt(x:amax(2, true) - 3), -math.huge) end
        for _, o in ipairs { { 0, 0.9 }, { 0, 0.3 }, { 50, 1 }, { 50, 0.9 }, { 3, 0.5 }, { 600, 0.95 },
          { 1, 1 } } do
          local u = core.rand({ 2, 1 },
            { dtype = "float64", generator = core.Generator(seed) }):view(2):totable()
          local got = sampling.sample(x, { temperature = 0.8, top_k = o[1], top_p = o[2] },
            core.Generator(seed)):totable()
          for row = 1, 2 do
            local scores = (x[row] / 0.8):totable()
            local wanted = draw(scores, { temperature = 1, top_k = o[1], top_p = o[2] },
              u[row])
            assert.equal(wanted, got[row],
              ("seed %d, %d tokens, k %d, p %g"):format(seed, count, o[1], o[2]))
          end
        end
      end
    end
  end)

  it("draws nothing from scores that are no numbers", function()
    local sampling = require "accelerate.models.sampling"
    for name, value in pairs { nan = 0 / 0, inf = math.huge, none = -math.huge } do
      for _, o in ipairs { { 0, 1 }, { 5, 1 }, { 0, 0.9 }, { 5, 0.9 } } do
        local x = core.randn { 3, 40 }
        if name == "none" then x[2] = value else x[{ 2, 7 }] = value end
        local ok, message = pcall(sampling.sample, x, { temperature = 1, top_k = o[1], top_p = o[2] })
        assert.is_false(ok, name)
        assert.matches(
          "generate: row 2 of the scores has no token to draw: a score is NaN or inf, or all are",
          message)
      end
    end
  end)

  it("draws the same for a seed, and from a generator what comes next", function()
    local o = with { do_sample = true, top_k = 0, temperature = 2 }
    o.seed = 4
    local first = model:generate(prompt, o):totable()
    assert.same(first, model:generate(prompt, o):totable())
    o.seed, o.generator = nil, core.Generator(4)
    assert.same(first, model:generate(prompt, o):totable())
    assert.are_not.same(first, model:generate(prompt, o):totable())
    assert.equal(6, model:generate(prompt, with { do_sample = true, num_return_sequences = 3 }):size(1))
  end)

  it("hands tokens to a stream, which may end it", function()
    local seen = {}
    local out = model:generate(prompt, with { stream = function(tokens, count)
      seen[count] = tokens
      return count == 5
    end })
    assert.equal(5, #seen)
    assert.same({ 2, 8 }, out.shape)
    for step = 1, 5 do assert.equal(out[2][3 + step]:item(), seen[step][2]) end
  end)

  it("ends rows at stop tokens and fills them up", function()
    local free = model:generate(prompt, with {}):totable()
    local stop = free[1][5]
    local out = model:generate(prompt, with { eos_token_id = { 98, stop }, pad_token_id = 0 }):totable()
    local ended = 0
    for row = 1, 2 do
      local open = true
      for i = 4, #out[row] do
        assert.equal(open and free[row][i] or 0, out[row][i])
        open = open and free[row][i] ~= stop
      end
      if not open then ended = ended + 1 end
    end
    assert.is_true(ended >= 1)
  end)

  it("is the same with a cache as without", function()
    local cache = models.KeyValueCache { capacity = 2 }
    local rows = core.tensor({ { 5, 9, 2, 7, 7, 1, 3 } }, { dtype = "int64" })
    local whole = model(rows).logits
    local parts = {}
    for _, part in ipairs { { 1, 3 }, { 4, 1 }, { 5, 2 }, { 7, 1 } } do
      parts[#parts + 1] = model(rows:narrow(2, part[1], part[2]), { cache = cache }).logits
    end
    assert.is_true((core.cat(parts, 2) - whole):abs():max():item() < 1e-5)
    assert.equal(7, cache.length)
  end)

  it("leaves training mode as it was and records nothing", function()
    model:train()
    local out = model:generate { input_ids = prompt, attention_mask = core.ones_like(prompt) }
    assert.is_true(model.training)
    assert.is_false(out.requires_grad)
    model:eval()
    assert.same(out:totable(), model:generate(prompt):totable())
  end)

  it("refuses what does not go together", function()
    fails("padded on the left", prompt,
      { attention_mask = core.tensor({ { 1, 1, 0 }, { 1, 1, 1 } }, { dtype = "int64" }) })
    fails("attention_mask must have input_ids' shape [2, 3], got [2, 2]", prompt,
      { attention_mask = core.ones(2, 2) })
    fails("num_return_sequences = 2 needs do_sample", prompt, { num_return_sequences = 2 })
    fails("stream needs num_beams = 1", prompt, { num_beams = 2, stream = print })
    fails("do_sample = true and num_beams = 2", prompt, { num_beams = 2, do_sample = true })
    fails("input_ids must be an int64 tensor", core.ones(2, 3))
    fails("unknown option 'temprature'", prompt, { temprature = 1 })
    fails("max_length = 3 leaves no token", prompt, { max_length = 3 })
    fails("more than config.n_positions (32)", prompt, with { max_new_tokens = 40 })
  end)
end)
