-- Models of small folders that Transformers wrote (spec/generators/gen_model_folders.py) have its
-- results, gradients and generated tokens, and write what they have read.
local core = require "accelerate.core"
local folders = require "spec.support.model_folders"
local fs = require "accelerate.utils.fs"
local host = require "spec.support.host"
local json = require "accelerate.utils.json"
local models = require "accelerate.models"
local ordered = require "accelerate.utils.ordered"

local FOLDERS, expected_of, inputs_of = folders.path, folders.expected_of, folders.inputs_of

-- The largest difference, relative to the largest element.
local function distance(t, values)
  local wanted = core.tensor(values)
  return (t:reshape(-1):float() - wanted):abs():max():item() / math.max(1, wanted:abs():max():item())
end

local function weighted(g)
  g = g:double():reshape(-1)
  local w = core.arange(1, g:numel() + 1):double():sin()
  return g:norm():item(), (g * w):sum():item()
end

local function check_gradients(model, expected)
  local seen, gradients, own = 0, {}, model:state_dict()
  for name, pair in pairs(expected.gradients) do
    gradients[own[name] and name or model.traits.rename(name)] = pair
  end
  local grads = {}
  for name, p in model:named_parameters { remove_duplicate = false } do grads[name] = p end
  for name, t in ordered.pairs(model:state_dict()) do
    local wanted = gradients[name]
    if wanted then
      local g = assert(grads[name].grad, name .. " has no gradient")
      if #t.shape == 2 and t:stride()[1] == 1 then g = g:t() end -- GPT-2's matrices
      local norm, sum = weighted(g)
      local scale = math.max(wanted[1], 1e-3)
      assert(math.abs(norm - wanted[1]) < 1e-4 * scale and math.abs(sum - wanted[2]) < 1e-4 * scale,
        ("%s: gradient with norm %g and sum %g; expected %g and %g"):format(name, norm, sum, wanted[1],
          wanted[2]))
      seen = seen + 1
    end
  end
  assert.equal(ordered.count(expected.gradients), seen)
end

local function check(name, folder)
  local expected = expected_of(name)
  local model, info = models[expected.class].from_pretrained(folder, { output_loading_info = true })
  assert.same({ missing_keys = {}, unexpected_keys = {}, mismatched_keys = {} }, info)
  local out = model(inputs_of(expected))
  assert.same(expected.shape, out[expected.output].shape)
  assert.is_true(distance(out[expected.output], expected.values) < 1e-4)
  if expected.loss then
    assert.is_near(expected.loss, out.loss:item(), 1e-4 * math.max(1, expected.loss))
    out.loss:backward()
    check_gradients(model, expected)
  end
  return model, expected
end

local function check_generation(model, expected)
  local prompt = core.tensor(expected.prompt, { dtype = "int64" })
  for _, kind in ipairs { "plain", "padded" } do
    for _, case in ipairs(expected[kind] or {}) do
      local o = {}
      for key, value in pairs(case.options) do o[key] = value end
      if kind == "padded" then o.attention_mask = core.tensor(expected.mask, { dtype = "int64" }) end
      local tokens = model:generate(prompt, o):totable()
      assert.same(case.tokens, tokens, kind .. " " .. json.encode(case.options))
    end
  end
end

describe("models of Transformers' folders", function()
  for _, name in ipairs(assert(fs.list(FOLDERS))) do
    it(name .. ": results and gradients", function() check(name, FOLDERS .. "/" .. name) end)

    local expected = expected_of(name)
    if expected.prompt then
      it(name .. ": generated tokens", function()
        check_generation(models.from_pretrained(FOLDERS .. "/" .. name), expected)
      end)
    end

    it(name .. ": written again and read again", function()
      local model = models.from_pretrained(FOLDERS .. "/" .. name)
      host.in_folder(function(folder)
        model:save_pretrained(folder, { max_shard_size = "2KB" })
        assert.is_true(fs.exists(folder .. "/model.safetensors.index.json"))
        check(name, folder)
        model:save_pretrained(folder)
        assert.is_false(fs.exists(folder .. "/model.safetensors.index.json"))
        check(name, folder)
        model:save_pretrained(folder .. "/bin", { safe_serialization = false })
        assert.is_true(fs.exists(folder .. "/bin/pytorch_model.bin"))
        check(name, folder .. "/bin")
      end)
    end)
  end
end)
