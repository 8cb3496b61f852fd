--- The classes of modules that are not divided, by the architecture: units of sharded training, and
--- what a device map keeps together. Architectures share classes here, and Transformers has a name
--- for each: configurations written for it name those.
local M = {}

local ENCODER = { "Embeddings", "Layer" }
local DECODER = { "DecoderLayer" }

-- Transformers' prefix of the classes' names, their ends, and the classes here, if they have other
-- names.
local ARCHITECTURES = {
  gpt2 = { "GPT2", { "Block" } },
  t5 = { "T5", { "Block" } },
  vit = { "ViT", ENCODER },
  bert = { "Bert", ENCODER },
  roberta = { "Roberta", ENCODER, { "BertEmbeddings", "BertLayer" } },
  ["xlm-roberta"] = { "XLMRoberta", ENCODER, { "BertEmbeddings", "BertLayer" } },
  electra = { "Electra", ENCODER, { "BertEmbeddings", "BertLayer" } },
  mpnet = { "MPNet", ENCODER, { "BertEmbeddings", "MPNetLayer" } },
  albert = { "Albert", { "Layer" } },
  distilbert = { "", { "TransformerBlock" }, { "DistilBertBlock" } },
}
for model_type, prefix in pairs { llama = "Llama", mistral = "Mistral", qwen2 = "Qwen2", qwen3 = "Qwen3",
  phi3 = "Phi3", gemma = "Gemma", gemma2 = "Gemma2", olmo2 = "Olmo2", granite = "Granite",
  smollm3 = "SmolLM3", starcoder2 = "Starcoder2" } do
  ARCHITECTURES[model_type] = { prefix, DECODER, { "RotaryDecoderLayer" } }
end

--- Returns the names of an architecture's undivided classes, and the names here by Transformers';
--- nil, nil for one that has none.
---@param model_type string
---@return string[]?
---@return table<string, string>?
function M.of(model_type)
  local row = ARCHITECTURES[model_type]
  if not row then return nil, nil end
  local prefix, ends, ours = unpack(row)
  local names, known = {}, {}
  for i, rest in ipairs(ends) do
    names[i] = ours and ours[i] or prefix .. rest
    known[prefix .. rest] = names[i]
  end
  return names, known
end

return M
