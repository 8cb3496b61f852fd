--- accelerate.models: architectures with Hugging Face's names, files and results.
---
---   local models = require "accelerate.models"
---   local model = models.from_pretrained("path/to/gpt2")
---   local ids = model:generate(prompt, { max_new_tokens = 20 })
---
--- Every architecture is loaded at its first use.

local options = require "accelerate.utils.options"
local properties = require "accelerate.utils.properties"

-- Class -> its file, and what Transformers' Auto classes pick by model type.
local FILES = {
  albert = { "AlbertModel", "AlbertForSequenceClassification", "AlbertForTokenClassification",
    "AlbertForMaskedLM" },
  bert = { "BertModel", "BertForSequenceClassification", "BertForTokenClassification", "BertForMaskedLM" },
  distilbert = { "DistilBertModel", "DistilBertForSequenceClassification", "DistilBertForTokenClassification",
    "DistilBertForMaskedLM" },
  electra = { "ElectraModel", "ElectraForSequenceClassification", "ElectraForTokenClassification" },
  gpt2 = { "GPT2Model", "GPT2LMHeadModel", "GPT2ForSequenceClassification" },
  lenet = { "LeNet" },
  mpnet = { "MPNetModel", "MPNetForSequenceClassification", "MPNetForTokenClassification",
    "MPNetForMaskedLM" },
  resnet = { "ResNetModel", "ResNetForImageClassification", "resnet18", "resnet34", "resnet50", "resnet101" },
  roberta = { "RobertaModel", "RobertaForSequenceClassification", "RobertaForTokenClassification",
    "RobertaForMaskedLM", "XLMRobertaModel", "XLMRobertaForSequenceClassification",
    "XLMRobertaForTokenClassification", "XLMRobertaForMaskedLM" },
  t5 = { "T5Model", "T5EncoderModel", "T5ForConditionalGeneration" },
  vit = { "ViTModel", "ViTForImageClassification" },
}
local TYPES = { albert = "Albert", bert = "Bert", distilbert = "DistilBert", electra = "Electra",
  gpt2 = "GPT2", lenet = "LeNet", mpnet = "MPNet", resnet = "ResNet", roberta = "Roberta", t5 = "T5",
  vit = "ViT", ["xlm-roberta"] = "XLMRoberta" }
-- Decoders of Llama's kind have three classes each, Granite two.
for file, name in pairs { gemma = "Gemma", gemma2 = "Gemma2", granite = "Granite", llama = "Llama",
  mistral = "Mistral", olmo2 = "Olmo2", phi3 = "Phi3", qwen2 = "Qwen2", qwen3 = "Qwen3",
  smollm3 = "SmolLM3", starcoder2 = "Starcoder2" } do
  TYPES[file] = name
  FILES[file] = { name .. "Model", name .. "ForCausalLM",
    file ~= "granite" and name .. "ForSequenceClassification" or nil }
end
local TASKS = {
  AutoModel = { "Model" },
  AutoModelForCausalLM = { "LMHeadModel", "ForCausalLM" },
  AutoModelForMaskedLM = { "ForMaskedLM" },
  AutoModelForSequenceClassification = { "ForSequenceClassification" },
  AutoModelForSeq2SeqLM = { "ForConditionalGeneration" },
  AutoModelForImageClassification = { "ForImageClassification", "" },
  AutoModelForTokenClassification = { "ForTokenClassification" },
}

local members, file_of = {}, {}
for file, classes in pairs(FILES) do
  for _, name in ipairs(classes) do
    file_of[name] = file
    members[name] = ("accelerate.models.%s:%s"):format(file, name)
  end
end

local function class_named(name)
  return file_of[name] and require("accelerate.models." .. file_of[name])[name]
end

local function sorted(map)
  local list = {}
  for name in pairs(map) do list[#list + 1] = name end
  table.sort(list)
  return list
end

-- The class of a configuration: the first of its architectures that is here, else the base model.
local function choose(config, where)
  for _, name in ipairs(config.architectures or {}) do
    local Class = class_named(name)
    if Class then return Class end
  end
  local base = TYPES[config.model_type]
  if base then return class_named(base .. "Model") or class_named(base) end
  options.fail("%s: config.model_type '%s' with architecture '%s' is not there; known types: %s", where,
    tostring(config.model_type), tostring((config.architectures or {})[1]), table.concat(sorted(TYPES), ", "))
end

-- The class of a task for a configuration's type.
local function chooser(task)
  return function(config, where)
    local base = TYPES[config.model_type]
    for _, ending in ipairs(base and TASKS[task] or {}) do
      local Class = class_named(base .. ending)
      if Class then return Class end
    end
    options.fail("%s: %s has no class for config.model_type '%s'", where, task, tostring(config.model_type))
  end
end

--- Returns a model with the weights of a folder in Hugging Face's layout, in evaluation mode. Its
--- class is the one that config.json names. Weights that the files lack start new; a line on stderr
--- names them and those that are not used.
---@param name string a folder with config.json and model.safetensors (or its shards with their
---  index, or pytorch_model.bin), or the name of a repository in the local Hugging Face cache; or
---  the path of a GGUF file
---@param opts? { dtype: string, device: string, num_labels: integer, config: table, revision:
---  string, cache_dir: string, ignore_mismatched_sizes: boolean, device_map: string|table|integer,
---  max_memory: table, offload_folder: string, offload_state_dict: boolean, offload_buffers:
---  boolean, quantization_config: table, gguf_file: string, dequantize: boolean,
---  output_loading_info: boolean } dtype: default "float32", "auto" for the files' own; config:
---  values that replace those of config.json; ignore_mismatched_sizes: weights of other shapes
---  start new; device_map: where the parts rest, a map or a word, as load_checkpoint_and_dispatch
---  has it, or one place for all ("cuda:1", 1, "disk"), with max_memory, offload_folder,
---  offload_state_dict and offload_buffers; the model then has hf_device_map; quantization_config:
---  a BnbQuantizationConfig, encodes plain weights; gguf_file: the name of a GGUF file in the
---  folder; dequantize: encoded weights become plain numbers; output_loading_info: what did not fit
---  comes back, too. Transformers' torch_dtype is dtype; its attn_implementation, low_cpu_mem_usage
---  and local_files_only change nothing
---@return accelerate.models.PreTrainedModel
---@return { missing_keys: string[], unexpected_keys: string[], mismatched_keys: string[] }? info by
---  name, with output_loading_info
function members.from_pretrained()
  return function(name, opts) return require("accelerate.models.loading").load(choose, name, opts) end
end

--- Returns a model with new weights, of the class that config.architectures or config.model_type
--- names.
---@param config table the keys of config.json; the others get Transformers' defaults
---@return accelerate.models.PreTrainedModel
function members.from_config()
  return function(config)
    options.value("from_config", "config", config, { "table" })
    return choose(config, "from_config")(config)
  end
end

-- A configuration as Transformers' AutoConfig gives it: with the architecture's defaults.
local AutoConfig = {}

--- Returns the configuration of a folder, a table that classes of models and `from_config` take.
---@param name string a folder with config.json, or a name in the local Hugging Face cache
---@param opts? { revision: string, cache_dir: string, num_labels: integer } and keys of config.json
---  whose values replace the folder's
---@return table
function AutoConfig.from_pretrained(name, opts)
  return require("accelerate.models.loading").configuration(choose, name, opts)
end

--- `from_pretrained` of configurations.
members.AutoConfig = function() return AutoConfig end

-- What `members.LlamaConfig` and its like are.
for model_type, base in pairs(TYPES) do
  members[base .. "Config"] = function()
    return function(opts)
      local Class = choose({ model_type = model_type }, base .. "Config")
      local made = require("accelerate.models.config").check(base .. "Config", opts or {},
        Class.traits.config)
      made.model_type = model_type -- from_config of tasks chooses by it
      return made
    end
  end
end

--- Returns a configuration of weights in 4 or 8 bits for from_pretrained's quantization_config,
--- with Transformers' names and defaults; see utils.BnbQuantizationConfig for what each says.
---@param opts { load_in_4bit: boolean?, load_in_8bit: boolean?, bnb_4bit_quant_type: string?,
---  bnb_4bit_use_double_quant: boolean?, bnb_4bit_compute_dtype: string?, llm_int8_threshold:
---  number?, llm_int8_skip_modules: string[]? } bnb_4bit_compute_dtype: default "float32"
---@return accelerate.BnbQuantizationConfig
function members.BitsAndBytesConfig()
  return function(opts)
    options.value("BitsAndBytesConfig", "opts", opts, { "table" })
    return require("accelerate.quantisation.config").of_folder("BitsAndBytesConfig", opts)
  end
end

members.PreTrainedModel = "accelerate.models.pretrained:PreTrainedModel"
members.KeyValueCache = "accelerate.models.cache:KeyValueCache"

local function auto(task)
  local pick = chooser(task)
  return function()
    return {
      from_pretrained = function(name, opts)
        return require("accelerate.models.loading").load(pick, name, opts)
      end,
      from_config = function(config) return pick(config, task .. ".from_config")(config) end,
    }
  end
end

--- `from_pretrained` and `from_config` of the base model of config.model_type.
members.AutoModel = auto "AutoModel"
--- `from_pretrained` and `from_config` of the language model of config.model_type.
members.AutoModelForCausalLM = auto "AutoModelForCausalLM"
--- `from_pretrained` and `from_config` of the masked language model of config.model_type.
members.AutoModelForMaskedLM = auto "AutoModelForMaskedLM"
--- `from_pretrained` and `from_config` of the sequence classifier of config.model_type.
members.AutoModelForSequenceClassification = auto "AutoModelForSequenceClassification"
--- `from_pretrained` and `from_config` of the token classifier of config.model_type.
members.AutoModelForTokenClassification = auto "AutoModelForTokenClassification"

--- `from_pretrained` and `from_config` of the encoder-decoder of config.model_type.
members.AutoModelForSeq2SeqLM = auto "AutoModelForSeq2SeqLM"
--- `from_pretrained` and `from_config` of the image classifier of config.model_type.
members.AutoModelForImageClassification = auto "AutoModelForImageClassification"

return properties.lazy("accelerate.models", members)
