--- generate over what holds a model's weights: device maps, files, codes, adapters and ranks. Each
--- option gives the tokens of the model in memory, of plain numbers.
local accelerate = require "accelerate"
local core = require "accelerate.core"
local homes = require "accelerate.big_modeling.homes"
local host = require "spec.support.host"
local peft = require "accelerate.peft"
local ranks = require "spec.support.ranks"
local models, utils = accelerate.models, accelerate.utils

local OPTIONS = {
  greedy = {},
  ["without a cache"] = { use_cache = false },
  draws = { do_sample = true, seed = 3, temperature = 1.3, top_k = 9, top_p = 0.9 },
  ["draws with other filters"] = { do_sample = true, seed = 4, min_p = 0.02, typical_p = 0.95,
    epsilon_cutoff = 1e-3, eta_cutoff = 1e-3, top_h = 0.9 },
  ["several draws"] = { do_sample = true, seed = 9, num_return_sequences = 3 },
  beams = { num_beams = 3, num_return_sequences = 2, length_penalty = 1.5, early_stopping = true },
  penalties = { repetition_penalty = 1.4, encoder_repetition_penalty = 1.1, no_repeat_ngram_size = 2,
    bad_words_ids = { { 5 }, { 3, 4 } }, suppress_tokens = { 7 }, begin_suppress_tokens = { 1 },
    sequence_bias = { { { 9 }, 2 } } },
  ["forced tokens"] = { forced_bos_token_id = 4, forced_eos_token_id = 2, min_new_tokens = 3 },
  ["an end that gets likelier"] = { exponential_decay_length_penalty = { 3, 1.5 }, eos_token_id = 7 },
  outputs = { return_dict_in_generate = true, output_scores = true, output_logits = true },
}
local PROMPT = core.tensor({ { 5, 9, 2, 4 }, { 0, 0, 30, 3 }, { 0, 12, 13, 14 } }, { dtype = "int64" })
local MASK = core.tensor({ { 1, 1, 1, 1 }, { 0, 0, 1, 1 }, { 0, 1, 1, 1 } }, { dtype = "int64" })
local NEW = 7

local function generate(model, ids, more)
  local o = { eos_token_id = 999, max_new_tokens = NEW, pad_token_id = 0 }
  for key, value in pairs(more) do o[key] = value end
  local result = model:generate(ids, o)
  return type(result) == "table" and result.sequences:tolist() or result:tolist()
end

-- The tokens of `model` are those of `plain` under each option, of a padded batch; of each prompt
-- alone; in a stream; with drafts.
local function agree(plain, model, batches_differ)
  for what, o in pairs(OPTIONS) do
    local given = { attention_mask = MASK }
    for key, value in pairs(o) do given[key] = value end
    assert.same(generate(plain, PROMPT, given), generate(model, PROMPT, given), what)
  end
  local seen = {}
  local together = generate(model, PROMPT, { attention_mask = MASK, stream = function(tokens)
    for row, token in ipairs(tokens) do
      seen[row] = seen[row] or {}
      table.insert(seen[row], token)
    end
  end })
  for row, first in ipairs { 1, 3, 2 } do
    local alone = generate(model, PROMPT:narrow(1, row, 1):narrow(2, first, 5 - first), {})
    assert.same({ unpack(together[row], 5) }, seen[row])
    if not batches_differ then assert.same(seen[row], { unpack(alone[1], 6 - first) }) end
  end
  local one = PROMPT:narrow(1, 1, 1)
  assert.same(generate(model, one, {}), generate(model, one, { prompt_lookup_num_tokens = 3 }))
end

local function config(fields)
  fields.torch_dtype = "fp32"
  return utils.BnbQuantizationConfig(fields)
end
local KINDS = {
  nf4 = function() return config { load_in_4bit = true, bnb_4bit_quant_type = "nf4",
    bnb_4bit_compute_dtype = "fp32" } end,
  ["fp4 with doubled scales"] = function() return config { load_in_4bit = true,
    bnb_4bit_use_double_quant = true, bnb_4bit_compute_dtype = "fp32" } end,
  int8 = function() return config { load_in_8bit = true } end,
}

-- A model whose layers have the numbers that `encoded` has as codes.
local function decoded(folder, encoded)
  local plain = models.from_pretrained(folder, { dtype = "float32" })
  for path, layer in encoded:named_modules() do
    local numbers = layer._parts and layer:dequantize()
    local own = numbers and plain:get_submodule(path)
    if own then core.no_grad(function() own.weight:copy_(numbers) end) end
  end
  return plain
end

local function adapted(model)
  core.manual_seed(1)
  return peft.get_peft_model(model, peft.LoraConfig { r = 4, lora_alpha = 8, target_modules = "all-linear",
    init_lora_weights = false }):eval()
end

for _, family in ipairs { "gpt2", "llama" } do
  local folder = "spec/models/folders/" .. family
  local function load(o)
    o.dtype = "float32"
    return models.from_pretrained(folder, o)
  end

  describe("generate of " .. family, function()
    it("over a device map with parts on disk", function()
      local plain = load {}
      local bytes = utils.compute_module_sizes(plain)[""]
      local model = load { device_map = "auto", max_memory = { cpu = math.floor(0.6 * bytes) } }
      homes.tighten(model)
      agree(plain, model)
      assert.is_true(homes.stats(model).cpu.left > 0)
    end)

    for kind, new in pairs(KINDS) do
      it("in " .. kind .. ", in memory and on disk", function()
        host.in_folder(function(root)
          local model = load { quantization_config = new() }
          -- int8 rounds inputs, too: there is no model of plain numbers that does the same
          if kind ~= "int8" then agree(decoded(folder, model), model) end
          model:save_pretrained(root)
          local away = models.from_pretrained(root, { dtype = "float32", device_map = { [""] = "disk" } })
          homes.tighten(away)
          agree(model, away, kind == "int8")
        end)
      end)
    end

    it("with an adapter, over codes on disk and over plain weights on disk", function()
      host.in_folder(function(root)
        local model = load { quantization_config = KINDS.nf4() }
        model:save_pretrained(root)
        local away = models.from_pretrained(root, { dtype = "float32", device_map = { [""] = "disk" } })
        homes.tighten(away)
        agree(adapted(decoded(folder, model)):merge_and_unload(), adapted(away))
        local plain_away = load { device_map = { [""] = "disk" } }
        homes.tighten(plain_away)
        agree(adapted(load {}):merge_and_unload(), adapted(plain_away))
      end)
    end)
  end)
end

describe("generate of a head that is encoded though it is tied", function()
  it("has the codes of the weight that it was", function()
    host.in_folder(function(root)
      local how = config { load_in_4bit = true, bnb_4bit_quant_type = "nf4", skip_modules = {},
        bnb_4bit_compute_dtype = "fp32" }
      local model = models.from_pretrained("spec/models/folders/gpt2",
        { dtype = "float32", quantization_config = how })
      local plain = models.from_pretrained("spec/models/folders/gpt2", { dtype = "float32" })
      local direct = utils.load_and_quantize_model(plain, how)
      assert.equal("Linear4bit", model.lm_head.__name)
      assert.same(direct.lm_head.weight:tolist(), model.lm_head.weight:tolist())
      model:save_pretrained(root)
      agree(model, models.from_pretrained(root, { dtype = "float32", device_map = { [""] = "disk" } }))
    end)
  end)
end)

describe("generate on several ranks", function()
  -- Each rank has its own prompts and stops after its own number of tokens, so that no two do the
  -- same number of passes; then all train a step, and generate again.
  local SCRIPT = [[
    local models, peft, utils = accelerate.models, require "accelerate.peft", accelerate.utils
    local kind, folder = arg[1], "spec/models/folders/llama"
    local plugin = kind:find "sharded" and
      utils.FullyShardedDataParallelPlugin { auto_wrap_policy = "transformer_based_wrap" } or nil
    local accelerator = accelerate.Accelerator { fsdp_plugin = plugin }
    local function new()
      local codes = kind:find "codes" and utils.BnbQuantizationConfig { load_in_4bit = true,
        bnb_4bit_quant_type = "nf4", bnb_4bit_compute_dtype = "fp32" } or nil
      local model = models.from_pretrained(folder, { dtype = "float32", quantization_config = codes })
      if not codes then return model end
      core.manual_seed(1)
      return peft.get_peft_model(model,
        peft.LoraConfig { r = 4, target_modules = { "q_proj", "v_proj" }, init_lora_weights = false })
    end
    local alone, model = new():eval(), new()
    local optimizer = accelerate.optim.SGD(model:parameters(), { lr = 0 })
    model, optimizer = accelerator:prepare(model, optimizer)
    local ids = core.tensor(rank == 0 and { { 5, 9, 2 } } or { { 1, 8, 30, 3, 7 }, { 3, 4, 5, 6, 7 } },
      { dtype = "int64" })
    local function tokens_are_those_alone()
      model:eval()
      for _, more in ipairs { {}, { num_beams = 3 }, { do_sample = true, seed = 1 } } do
        more.max_new_tokens, more.eos_token_id = rank == 0 and 4 or 11, -1
        local out, expected = model:generate(ids, more), alone:generate(ids, more)
        check(out:eq(expected):all():item(), kind .. ": other tokens than alone")
      end
    end
    tokens_are_those_alone()
    model:train()
    accelerator:backward(model({ input_ids = ids, labels = ids }).loss)
    optimizer:step()
    optimizer:zero_grad()
    tokens_are_those_alone()
  ]]
  for _, kind in ipairs { "replicas", "sharded", "replicas over codes", "sharded over codes" } do
    it("needs no lockstep: " .. kind, function() ranks.ok(2, SCRIPT, { arguments = { kind } }) end)
  end
end)
