--- Models of GGUF files (spec/reference/gguf/generate.py): the numbers of the gguf package, the
--- scores of Transformers, and what can be done with weights in blocks.
local adapters = require "spec.support.adapters"
local core = require "accelerate.core"
local disk = require "spec.support.disk"
local fs = require "accelerate.utils.fs"
local gguf = require "spec.support.gguf"
local json = require "accelerate.utils.json"
local models = require "accelerate.models"
local ordered = require "accelerate.utils.ordered"

local FOLDER = "spec/reference/gguf"
local expected = json.decode((assert(fs.read(FOLDER .. "/expected.json"))))

local function path_of(name) return ("%s/%s.gguf"):format(FOLDER, name) end
local function load(name, opts) return models.from_pretrained(path_of(name), opts) end

local IDS = core.tensor({ { 1, 5, 7, 9 } }, { dtype = "int64" })
local function scores(model, ids) return core.no_grad(function() return model(ids or IDS).logits end) end
local function off(a, b) return (a:float() - b:float()):abs():max():item() end

-- The sum of generate.py over the bits of float32 numbers.
local function bits(t)
  local b = t:contiguous():view("int32"):reshape(-1):long()
  return (b * (core.arange(b:numel()):remainder(13) + 1)):sum():item()
end

local function refuses(text, fn)
  local ok, message = pcall(fn)
  assert.is_false(ok)
  assert.is_truthy(tostring(message):find(text, 1, true), message)
end

-- The settings of the smallest model.
local function gpt2_settings()
  local list = { { "general.architecture", kind = "text", value = "gpt2" } }
  for key, value in pairs { context_length = 8, embedding_length = 2, block_count = 1,
    ["attention.head_count"] = 1 } do
    list[#list + 1] = { "gpt2." .. key, kind = "u32", value = value }
  end
  return list
end

local names = {}
for name in pairs(expected) do names[#names + 1] = name end
table.sort(names)

describe("a model of a GGUF file", function()
  for _, name in ipairs(names) do
    local wanted = expected[name]
    it("has Transformers' scores: " .. name, function()
      local model, info = load(name, { output_loading_info = true })
      assert.are.same({ missing_keys = {}, unexpected_keys = {}, mismatched_keys = {} }, info)
      assert.are.equal(wanted.class, model.__name)
      local values = core.tensor(wanted.logits)
      local out = scores(model, core.tensor(wanted.ids, { dtype = "int64" })):reshape(-1)
      assert.is_true(off(out, values) < 1e-5 * values:abs():max():item())
    end)
    it("has the gguf package's numbers with dequantize: " .. name, function()
      local model, seen = load(name, { dequantize = true }), 0
      for key, t in ordered.pairs(model:state_dict()) do
        if wanted.sums[key] then
          assert.are.equal(wanted.sums[key], bits(t), key)
          seen = seen + 1
        end
      end
      assert.are.equal(ordered.count(wanted.sums), seen)
    end)
  end

  it("keeps its blocks, also those of tied weights", function()
    local model = load "llama"
    assert.are.equal("GgufEmbedding", model.model.embed_tokens.__name)
    assert.are.equal("Q8_0", model.lm_head.encoding)
    assert.is_true(rawequal(model.lm_head.weight, model.model.embed_tokens.weight))
    assert.are.equal("Q4_0", model.model.layers[1].self_attn.q_proj.encoding)
    assert.are.equal("Linear", model.model.layers[1].mlp.down_proj.__name) -- of F16
  end)

  it("is found in a folder by gguf_file", function()
    local whole = scores(load "qwen2")
    local model = models.AutoModelForCausalLM.from_pretrained(FOLDER, { gguf_file = "qwen2.gguf" })
    assert.are.equal(0, off(whole, scores(model)))
    refuses("gguf_file must name a file in the folder", function()
      models.from_pretrained(FOLDER, { gguf_file = "../gguf/qwen2.gguf" })
    end)
    refuses("has no file 'other.gguf'", function()
      models.from_pretrained(FOLDER, { gguf_file = "other.gguf" })
    end)
  end)

  it("goes into other classes of its architecture", function()
    assert.are.equal("MistralForCausalLM", models.MistralForCausalLM.from_pretrained(path_of "llama").__name)
    local _, info = models.LlamaModel.from_pretrained(path_of "llama_k", { output_loading_info = true })
    assert.are.same({ {}, { "output.weight" } }, { info.missing_keys, info.unexpected_keys })
    _, info = models.LlamaForSequenceClassification.from_pretrained(path_of "llama",
      { num_labels = 3, output_loading_info = true })
    assert.are.same({ "score.weight" }, info.missing_keys)
    refuses("holds a model of type 'llama'; BertModel is of type 'bert'", function()
      models.BertModel.from_pretrained(path_of "llama")
    end)
  end)

  it("computes in the type that is requested", function()
    local model = load("llama", { dtype = "bfloat16" })
    assert.are.equal("bfloat16", scores(model).dtype)
    assert.are.equal("bfloat16", model.model.norm.weight.dtype)
    assert.is_true(off(scores(model), scores(load "llama")) < 0.3)
    assert.are.equal("float16", scores(load("llama"):half()).dtype)
    assert.are.equal("Q8_0", load("llama"):half().lm_head.encoding)
  end)

  it("follows a device map", function()
    for _, map in ipairs { { [""] = "disk" }, { [""] = "cpu" }, "auto" } do
      assert.are.equal(0, off(scores(load "gemma2"), scores(load("gemma2", { device_map = map }))))
      assert.are.equal(0, off(scores(load "gpt2"), scores(load("gpt2", { device_map = map }))))
    end
  end)

  it("takes no memory for weights that the file holds", function()
    load "llama_k"
    collectgarbage()
    collectgarbage()
    local before = core.memory_stats().live_bytes
    local model = load "llama_k"
    collectgarbage()
    collectgarbage()
    local q_and_k = 2 * 256 * 210 -- their rows are in another order
    assert.is_true(core.memory_stats().live_bytes - before < q_and_k + 40000)
    assert.is_truthy(model)
  end)

  it("says so when its file is cut", function()
    local base = os.tmpname()
    local path = base .. ".gguf"
    disk.write(path, disk.read(path_of "llama_k"))
    local model = models.from_pretrained(path)
    disk.write(path, "GGUF")
    refuses("another program has truncated it", function()
      scores(model)
      scores(model)
    end)
    os.remove(path)
    os.remove(base)
  end)

  it("without blocks is saved as any", function()
    local path = os.tmpname()
    local file, folder = path .. ".gguf", path .. ".saved"
    local function ones(n) return ("\0\0\128\63"):rep(n) end
    disk.write(file, gguf.bytes { settings = gpt2_settings(), tensors = {
      { "token_embd.weight", type = "F32", shape = { 3, 2 }, bytes = ones(6) },
      { "position_embd.weight", type = "F32", shape = { 8, 2 }, bytes = ones(16) } } })
    models.GPT2Model.from_pretrained(file):save_pretrained(folder)
    assert.are.equal(6, models.GPT2Model.from_pretrained(folder).wte.weight:sum():item())
    fs.remove_tree(folder)
    os.remove(file)
    os.remove(path)
  end)

  it("of several parts is read whole", function()
    local base = os.tmpname()
    local function part(i, tensors)
      local settings = { { "split.no", kind = "u16", value = i - 1 },
        { "split.count", kind = "u16", value = 2 } }
      if i == 1 then
        for _, entry in ipairs(gpt2_settings()) do settings[#settings + 1] = entry end
      end
      local path = ("%s-%05d-of-00002.gguf"):format(base, i)
      disk.write(path, gguf.bytes { settings = settings, tensors = tensors })
      return path
    end
    local function ones(n) return ("\0\0\128\63"):rep(n) end
    local first = part(1, { { "token_embd.weight", type = "F32", shape = { 3, 2 }, bytes = ones(6) } })
    refuses("a part of the model is missing", function() models.from_pretrained(first) end)
    local second = part(2, { { "position_embd.weight", type = "F32", shape = { 8, 2 }, bytes = ones(16) } })
    local model = models.GPT2Model.from_pretrained(first)
    assert.are.same({ { 1, 1 }, { 1, 1 }, { 1, 1 } }, model.wte.weight:totable())
    assert.are.equal(16, model.wpe.weight:sum():item())
    refuses("part 2 of 2 of a model; give the first one", function() models.from_pretrained(second) end)
    os.remove(first)
    os.remove(second)
    os.remove(base)
  end)
end)

describe("weights in blocks", function()
  it("pass gradients to inputs, so that adapters train", function()
    local model, first, last = adapters.train(load "llama", IDS)
    assert.is_true(last < 0.7 * first)
    refuses("numbers are not encoded in Q4_0", function() model:merge_and_unload() end)
  end)

  it("go through state dicts as they are", function()
    local one, other = load "llama", load "llama"
    core.no_grad(function() other.model.norm.weight:fill_(3) end)
    other:load_state_dict(one:state_dict())
    assert.are.equal(0, off(scores(one), scores(other)))
  end)

  it("take no plain numbers", function()
    local model, plain = load "llama", load("llama", { dequantize = true })
    refuses("GgufEmbedding: numbers are not encoded in Q8_0", function()
      model:load_state_dict(plain:state_dict())
    end)
  end)

  it("are not saved, and saved as plain numbers after dequantize", function()
    local model, folder = load "gpt2", os.tmpname()
    os.remove(folder)
    refuses("save_pretrained: weights in the blocks of a GGUF file are not written; model:dequantize()",
      function() model:save_pretrained(folder) end)
    local before = scores(model)
    assert.is_true(rawequal(model, model:dequantize()))
    assert.are.equal("Conv1D", model.transformer.h[1].mlp.c_fc.__name)
    assert.is_true(model.lm_head.weight.requires_grad)
    assert.is_true(off(before, scores(model)) < 1e-5)
    model:save_pretrained(folder)
    assert.are.equal(0, off(scores(model), scores((models.from_pretrained(folder)))))
    fs.remove_tree(folder)
  end)

  it("are a layer's as any: it prints, and is copied", function()
    local layer = load("llama").model.layers[1].mlp.up_proj
    assert.are.equal("GgufLinear(in_features=64, out_features=96, bias=False, encoding=MXFP4)",
      tostring(layer))
    local copy = layer:clone()
    assert.are.equal(0, off(layer:dequantize(), copy:dequantize()))
  end)
end)

-- The settings of a small model, with changes; false takes one out.
local function settings_with(changes)
  local all = { ["general.architecture"] = { "text", "llama" }, ["llama.context_length"] = { "u32", 64 },
    ["llama.embedding_length"] = { "u32", 4 }, ["llama.block_count"] = { "u32", 1 },
    ["llama.feed_forward_length"] = { "u32", 8 }, ["llama.attention.head_count"] = { "u32", 2 },
    ["llama.attention.layer_norm_rms_epsilon"] = { "f32", 1e-5 } }
  for key, entry in pairs(changes) do all[key] = entry or nil end
  local list = {}
  for _, key in ipairs(ordered.sorted_keys(all)) do
    local entry = all[key]
    list[#list + 1] = { key, kind = entry[1], value = entry[2], of = entry[3] }
  end
  return list
end

local EMBEDDING = { "token_embd.weight", type = "F32", shape = { 5, 4 }, bytes = ("\0"):rep(80) }

local REFUSED = {
  { "an architecture that is not there", { ["general.architecture"] = { "text", "mamba" } },
    "general.architecture 'mamba' is not there; known are gemma, gemma2, gpt2" },
  { "no architecture", { ["general.architecture"] = false }, "general.architecture nil is not there" },
  { "a missing setting", { ["llama.block_count"] = false }, "the setting llama.block_count is missing" },
  { "a setting that is not known", { ["llama.new_thing"] = { "u32", 1 } },
    "the setting 'llama.new_thing' is not known" },
  { "experts", { ["llama.expert_count"] = { "u32", 8 } },
    "llama.expert_count: models of experts are not there" },
  { "layers of several sizes", { ["llama.feed_forward_length"] = { "list", { 8, 16 }, "u32" } },
    "llama.feed_forward_length: layers of several sizes are not there" },
  { "angles of another kind", { ["llama.rope.scaling.type"] = { "text", "spiral" } },
    "llama.rope.scaling.type must be none, linear, yarn or longrope, got 'spiral'" },
  { "a factor that is missing", { ["llama.rope.scaling.type"] = { "text", "linear" } },
    "rope.scaling.factor is missing" },
  { "values of another size", { ["llama.attention.value_length"] = { "u32", 7 } },
    "llama.attention.value_length must be that of keys, 2, got 7" },
  { "a window", { ["llama.attention.sliding_window"] = { "u32", 7 } },
    "llama.attention.sliding_window: models of type llama have no window" },
  { "a text in place of a number", { ["llama.block_count"] = { "text", "one" } },
    "config.num_hidden_layers" },
}

describe("a GGUF file is refused by name:", function()
  local path = os.tmpname()
  local file = path .. ".gguf"
  teardown(function()
    os.remove(path)
    os.remove(file)
  end)

  for _, case in ipairs(REFUSED) do
    it(case[1], function()
      disk.write(file, gguf.bytes { settings = settings_with(case[2]), tensors = { EMBEDDING } })
      refuses(case[3], function() models.from_pretrained(file) end)
    end)
  end

  it("a tensor that models of the type lack", function()
    disk.write(file, gguf.bytes { settings = settings_with {}, tensors = { EMBEDDING,
      { "blk.0.attn_rot.weight", type = "F32", shape = { 1 }, bytes = ("\0"):rep(4) } } })
    refuses("the tensor 'blk.0.attn_rot.weight' (F32) is not known in models of type llama",
      function() models.from_pretrained(file) end)
  end)

  it("a weight of a type that is not read", function()
    disk.write(file, gguf.bytes { settings = settings_with {}, tensors = { EMBEDDING,
      { "blk.0.attn_v.weight", type = "IQ2_XXS", shape = { 4, 256 }, bytes = ("\0"):rep(264) } } })
    refuses("tensor 'blk.0.attn_v.weight' is of IQ2_XXS, which is not read",
      function() models.from_pretrained(file) end)
  end)

  it("a weight of another shape", function()
    disk.write(file, gguf.bytes { settings = settings_with {}, tensors = { EMBEDDING,
      { "blk.0.attn_v.weight", type = "Q8_0", shape = { 4, 32 }, bytes = ("\0"):rep(136) } } })
    refuses("the tensor 'blk.0.attn_v.weight' is [4, 32], the model's Linear has weights [4, 4]",
      function() models.from_pretrained(file) end)
  end)

  it("no embedding", function()
    disk.write(file, gguf.bytes { settings = settings_with {} })
    refuses("there is no tensor 'token_embd.weight'", function() models.from_pretrained(file) end)
  end)
end)
