-- The rows of a model's tokens: found, and their number changed (models/vocabulary.lua).
local accelerate = require "accelerate"
local core = require "accelerate.core"
local host = require "spec.support.host"
local messages = require "spec.support.messages"
local models = require "accelerate.models"
local optim = require "accelerate.optim"

-- Small models with 20 tokens, and all parameters that have a row or an element a token.
local CASES = {
  LlamaForCausalLM = {
    { hidden_size = 16, intermediate_size = 16, num_hidden_layers = 1, num_attention_heads = 2,
      num_key_value_heads = 2 },
    { "lm_head.weight", "model.embed_tokens.weight" } },
  GPT2ForSequenceClassification = {
    { n_embd = 16, n_layer = 1, n_head = 2, n_positions = 8 },
    { "transformer.wte.weight" } },
  BertForMaskedLM = {
    { hidden_size = 16, intermediate_size = 16, num_hidden_layers = 1, num_attention_heads = 2 },
    { "bert.embeddings.word_embeddings.weight", "cls.predictions.bias", "cls.predictions.decoder.bias",
      "cls.predictions.decoder.weight" } },
  AlbertForMaskedLM = {
    { hidden_size = 16, embedding_size = 8, intermediate_size = 16, num_hidden_layers = 1,
      num_attention_heads = 2 },
    { "albert.embeddings.word_embeddings.weight", "predictions.bias", "predictions.decoder.bias",
      "predictions.decoder.weight" } },
  DistilBertForMaskedLM = {
    { dim = 16, hidden_dim = 16, n_layers = 1, n_heads = 2 },
    { "distilbert.embeddings.word_embeddings.weight", "vocab_projector.bias", "vocab_projector.weight" } },
  T5ForConditionalGeneration = {
    { d_model = 16, d_kv = 4, d_ff = 16, num_layers = 1, num_heads = 2 },
    { "decoder.embed_tokens.weight", "encoder.embed_tokens.weight", "lm_head.weight", "shared.weight" } },
}

local function make(name, more)
  local config = { vocab_size = 20 }
  for key, value in pairs(CASES[name][1]) do config[key] = value end
  for key, value in pairs(more or {}) do config[key] = value end
  return models[name](config)
end

local function distance(a, b) return (a - b):abs():max():item() end

local function names_with_rows(model, n)
  local list = {}
  for name, p in model:named_parameters { remove_duplicate = false } do
    if p.shape[1] == n then list[#list + 1] = name end
  end
  table.sort(list)
  return list
end

describe("resize_token_embeddings", function()
  before_each(function() core.manual_seed(3) end)

  for name, case in pairs(CASES) do
    it("changes all rows of " .. name .. ", and keeps those that stay", function()
      local model = make(name)
      local old = model:get_input_embeddings().weight:detach():clone()
      local ties = #model:parameters()
      for _, n in ipairs { 23, 17 } do
        local embedding = model:resize_token_embeddings(n)
        assert.are.same(case[2], names_with_rows(model, n))
        assert.are.same({ n, n }, { model.config.vocab_size, embedding.num_embeddings })
        assert.are.equal(ties, #model:parameters())
        assert.are.equal(0, distance(old:narrow(1, 1, 17), embedding.weight:narrow(1, 1, 17)))
      end
    end)
  end

  it("starts new rows at the mean of the old ones", function()
    local model = make "LlamaForCausalLM"
    local old = model.lm_head.weight:detach():clone()
    model:resize_token_embeddings(22)
    local new = model.lm_head.weight:narrow(1, 21, 2)
    local off = distance(new, old:mean(1, { keepdim = true }))
    assert.is_true(off > 0 and off < 1e-5)
  end)

  it("draws new rows as the architecture does without mean_resizing", function()
    local model = make("LlamaForCausalLM", { initializer_range = 0.5 })
    model:resize_token_embeddings(2020, { mean_resizing = false })
    assert.is_near(0.5, model.lm_head.weight:narrow(1, 21, 2000):std():item(), 0.02)
  end)

  it("rounds up to a multiple, also the number that there is", function()
    local model = make "GPT2ForSequenceClassification"
    assert.are.equal(24, model:resize_token_embeddings(nil, { pad_to_multiple_of = 8 }).num_embeddings)
    assert.are.equal(32, model:resize_token_embeddings(25, { pad_to_multiple_of = 8 }).num_embeddings)
  end)

  it("gives a model that trains, is saved and is read again", function()
    local model = make "BertForMaskedLM"
    model:resize_token_embeddings(30)
    local optimizer = optim.SGD(model:parameters(), { lr = 0.1 })
    local ids = core.tensor({ { 29, 21, 3 } }, { dtype = "int64" })
    local first = model(ids, { labels = ids }).loss
    first:backward()
    optimizer:step()
    local second = model(ids, { labels = ids }).loss:item()
    assert.is_true(second < first:item())
    host.in_folder(function(folder)
      model:eval():save_pretrained(folder)
      assert.are.equal(model(ids, { labels = ids }).loss:item(),
        models.BertForMaskedLM.from_pretrained(folder)(ids, { labels = ids }).loss:item())
    end)
  end)

  it("keeps what is frozen frozen", function()
    local model = make "LlamaForCausalLM"
    model:requires_grad_(false)
    assert.is_false(model:resize_token_embeddings(21).weight.requires_grad)
  end)

  it("refuses to leave out the row of the padding", function()
    local model = make("LlamaForCausalLM", { pad_token_id = 19 })
    messages.raises("config.pad_token_id is 19, and 15 tokens end at 14",
      function() model:resize_token_embeddings(15) end)
    assert.are.equal(20, model.config.vocab_size)
  end)

  it("refuses models without tokens, prepared ones, and numbers below 1", function()
    local vit = models.ViTModel { hidden_size = 8, num_hidden_layers = 1, num_attention_heads = 1,
      intermediate_size = 8, image_size = 4, patch_size = 2 }
    messages.raises("ViTModel reads no tokens", function() vit:resize_token_embeddings(5) end)
    local model = accelerate.Accelerator():prepare(make "LlamaForCausalLM")
    messages.raises("LlamaForCausalLM are an optimizer's or were prepared", function()
      model:resize_token_embeddings(21)
    end)
    model = make "LlamaForCausalLM"
    messages.raises("new_num_tokens must be at least 1", function() model:resize_token_embeddings(0) end)
    accelerate.init_empty_weights(function()
      local empty = make "LlamaForCausalLM"
      messages.raises("embed_tokens.weight is on the meta",
        function() empty:resize_token_embeddings(21) end)
    end)
  end)
end)

describe("gradients and sizes of a model", function()
  it("come through frozen embeddings after enable_input_require_grads", function()
    local model = make "LlamaForCausalLM"
    model:requires_grad_(false)
    local ids = core.tensor({ { 1, 2 } }, { dtype = "int64" })
    assert.is_false(model(ids).logits.requires_grad)
    model:enable_input_require_grads()
    model:enable_input_require_grads() -- once is enough
    assert.is_true(model(ids).logits.requires_grad)
    model:disable_input_require_grads()
    assert.is_false(model(ids).logits.requires_grad)
  end)

  it("say whether layers are checkpointed", function()
    local model = make "LlamaForCausalLM"
    assert.is_false(model.is_gradient_checkpointing)
    model:gradient_checkpointing_enable { gradient_checkpointing_kwargs = { use_reentrant = false } }
    assert.is_true(model.is_gradient_checkpointing)
    model:gradient_checkpointing_disable()
    assert.is_false(model.is_gradient_checkpointing)
    messages.raises("unknown option 'use_reentrant'",
      function() model:gradient_checkpointing_enable { use_reentrant = false } end)
  end)

  it("are counted in bytes", function()
    local model = make "GPT2ForSequenceClassification"
    local bytes = model:get_memory_footprint { return_buffers = false }
    assert.are.equal(4 * model:num_parameters(), bytes)
    model:half()
    assert.are.equal(bytes / 2, model:get_memory_footprint { return_buffers = false })
  end)
end)
