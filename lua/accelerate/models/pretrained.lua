--- What all models have: a checked configuration, initialisation, and folders in Hugging Face's
--- layout.
---
--- An architecture makes classes with `pretrained.class(name, traits)` and defines
--- `_build(config)`, which assigns the submodules under Transformers' names, and `forward`.

local core = require "accelerate.core"
local blocks = require "accelerate.models.blocks"
local checkpoint = require "accelerate.nn.utils.checkpoint"
local options = require "accelerate.utils.options"
local nn = require "accelerate.nn"
local config = require "accelerate.models.config"
local loading = require "accelerate.models.loading"
local fs = require "accelerate.utils.fs"
local class = require "accelerate.utils.class"
local vocabulary = require "accelerate.models.vocabulary"

local fail = options.fail

local M = { classes = {} }

---@class accelerate.models.PreTrainedModel : accelerate.nn.Module
---@field config table what config.json holds, with defaults
---@field device string of the first parameter
---@field dtype string of the first parameter of floating numbers
---@field generation_config table? what generation_config.json holds
---@field is_gradient_checkpointing boolean
---@field supports_gradient_checkpointing boolean whether it has layers that can be checkpointed
---@field generate fun(self: accelerate.models.PreTrainedModel, input_ids: accelerate.Tensor|table,
---  opts?: table): any of models that write tokens: decoders, encoder-decoders
local PreTrainedModel = nn.class("PreTrainedModel")
class.optional(PreTrainedModel, "generation_config")
M.PreTrainedModel = PreTrainedModel

local FIELDS = {}

function FIELDS.device(self)
  local p = self:parameters()[1]
  return p and p.device
end

function FIELDS.dtype(self)
  for _, p in ipairs(self:parameters()) do
    if core._is_float(p) then return p.dtype end
  end
end

-- Classes of modules that are not divided, by their names here.
function FIELDS._no_split_modules(self) return (blocks.of(self.traits.model_type)) end

-- Their names here, by those of Transformers.
function FIELDS._transformers_names(self) return select(2, blocks.of(self.traits.model_type)) end

function PreTrainedModel.__index(self, key)
  local read = FIELDS[key]
  if read then return read(self) end
  return nn.Module.__index(self, key)
end

-- The layers that are checkpointed, each by itself.
local function checkpointed(self)
  local names, list = {}, {}
  for _, name in ipairs(self._no_split_modules or {}) do
    names[name] = not name:find "Embeddings$" or nil
  end
  for _, module in ipairs(self:modules()) do
    if names[module.__name] then list[#list + 1] = module end
  end
  return list
end

function FIELDS.is_gradient_checkpointing(self)
  local layers = checkpointed(self)
  return layers[1] ~= nil and checkpoint.is_on(layers[1])
end

function FIELDS.supports_gradient_checkpointing(self) return checkpointed(self)[1] ~= nil end

local function checkpoint_layers(self, on)
  local layers = checkpointed(self)
  if #layers == 0 then fail("gradient_checkpointing: %s has no layers that it knows", self.__name) end
  for _, module in ipairs(layers) do checkpoint.module(module, on) end
end

-- PyTorch's two ways give the same gradients, and are one here.
local CHECKPOINTING = { gradient_checkpointing_kwargs = { "table", optional = true } }
local WAYS = { use_reentrant = { "boolean", optional = true } }

--- Computes what is inside the layers again in backward, where it is not kept for it: slower, and a
--- layer's memory instead of all layers'. Gradients have the same bits.
---@param opts? { gradient_checkpointing_kwargs: { use_reentrant: boolean? } } changes nothing
function PreTrainedModel:gradient_checkpointing_enable(opts)
  local o = options.check("gradient_checkpointing_enable", opts, CHECKPOINTING)
  options.check("gradient_checkpointing_kwargs", o.gradient_checkpointing_kwargs, WAYS)
  checkpoint_layers(self, true)
end

--- Ends `gradient_checkpointing_enable`.
function PreTrainedModel:gradient_checkpointing_disable() checkpoint_layers(self, false) end

--- The layer that turns tokens into vectors; nil where the model reads none.
---@return accelerate.nn.Embedding?
function PreTrainedModel:get_input_embeddings() return (vocabulary.input(self)) end

--- The layer that gives each token its score; nil where the model writes none.
---@return accelerate.nn.Module?
function PreTrainedModel:get_output_embeddings() return (vocabulary.output(self)) end

--- Gives the model rows for another number of tokens: in its embeddings, its head and
--- config.vocab_size. Rows that it had keep their values, and weights that were one stay one. The
--- parameters are new ones: call it before an optimizer is made.
---@param new_num_tokens integer? default: as many as there are
---@param opts? { pad_to_multiple_of: integer, mean_resizing: boolean } pad_to_multiple_of: the
---  number is rounded up; mean_resizing: rows of new tokens are the mean of the old rows with noise
---  of a variance of 1e-9 of theirs (default); false: they are drawn as the architecture's are
---@return accelerate.nn.Embedding the input embeddings
function PreTrainedModel:resize_token_embeddings(new_num_tokens, opts)
  return vocabulary.resize(self, new_num_tokens, opts)
end

--- Makes what the input embeddings give require gradients, also where they are frozen. Adapters and
--- checkpointed layers train without it here.
function PreTrainedModel:enable_input_require_grads() vocabulary.require_input_gradients(self) end

--- Ends `enable_input_require_grads`.
function PreTrainedModel:disable_input_require_grads() vocabulary.leave_input_gradients(self) end

--- Returns the bytes of parameters and buffers, encoded ones as they rest.
---@param opts? { return_buffers: boolean } default true; false: parameters alone
---@return integer
function PreTrainedModel:get_memory_footprint(opts)
  local o = options.check("get_memory_footprint", opts, { return_buffers = { "boolean", default = true } })
  local bytes = 0
  for _, list in ipairs { self:parameters(), o.return_buffers and self:buffers() or {} } do
    for _, t in ipairs(list) do bytes = bytes + t:numel() * t:element_size() end
  end
  return bytes
end

--- Makes a model with new weights.
---@param opts? table the configuration: keys of config.json; the others get Transformers' defaults
function PreTrainedModel:init(opts)
  self.config = config.check(self.__name, opts or {}, self.traits.config)
  self.config.model_type = self.traits.model_type
  if self.traits.check then self.traits.check(self.__name, self.config) end
  local made_by_script = not nn.init._is_skipped() -- else the configuration is a file's, or an outer model's
  if made_by_script and opts then config.note_misspelt(self.__name, opts, self.traits.config) end
  self:_build(self.config)
  if made_by_script then self:init_weights() end
end

--- Draws all weights anew, as the architecture does.
function PreTrainedModel:init_weights()
  for _, module in ipairs(self:modules()) do
    for name, p in module:named_parameters { recurse = false } do self:_init_parameter(module, name, p) end
  end
end

local NORMS = { LayerNorm = true, RMSNorm = true, BatchNorm2d = true, GroupNorm = true }

--- Draws one parameter anew: matrices normal with config.initializer_range, biases zeros, norms
--- ones. Architectures override it.
function PreTrainedModel:_init_parameter(module, name, p)
  if name:find("bias", 1, true) then return nn.init.zeros_(p) end
  if NORMS[module.__name] then return nn.init.ones_(p) end
  if module.__name == "CentredRMSNorm" then return nn.init.zeros_(p) end
  nn.init.normal_(p, 0, self.config.initializer_range or 0.02)
  local padding = module.padding_idx
  if padding then nn.init.zeros_(p:select(1, padding + 1)) end
end

local function check_input(where, ids)
  if not core.is_tensor(ids) or ids:dim() ~= 2 or not ids.dtype:find("int", 1, true) then
    fail("%s: input_ids must be an int64 tensor (batch, length), got %s", where, options.show(ids))
  end
end
M.check_input = check_input

--- Returns the named inputs of a call: `model(batch)` with a table, or `model(input_ids, opts)`.
---@param self accelerate.models.PreTrainedModel
---@param inputs table|accelerate.Tensor
---@param opts table?
---@param schema table<string, table>
---@param main string? the name of the first input, default "input_ids"
---@return table
function M.inputs(self, inputs, opts, schema, main)
  local given = {}
  if core.is_tensor(inputs) then
    given[main or "input_ids"] = inputs
    for name, value in next, opts or {} do given[name] = value end
  elseif type(inputs) == "table" and opts == nil then
    for name, value in next, inputs do given[name] = value end
  else
    fail("%s: expected a table of inputs by name, or %s and a table of options, got %s", self.__name,
      main or "input_ids", options.show(inputs))
  end
  return options.check(self.__name, given, schema)
end

local SAVE = {
  max_shard_size = { "number|string", default = "50GB" },
  safe_serialization = { "boolean", default = true },
  is_main_process = { "boolean", optional = true },
  save_function = { "function", optional = true },
  state_dict = { "table", optional = true },
}

--- Writes a folder that Transformers and `from_pretrained` open: config.json, the weights, and
--- generation_config.json if the model has one. Only the main process writes.
---@param directory string made if it is not there
---@param opts? { max_shard_size: integer|string, safe_serialization: boolean, is_main_process:
---  boolean, save_function: fun(weights: table, path: string), state_dict: table<string,
---  accelerate.Tensor> } max_shard_size: weights beyond it are cut into files with an index,
---  default "50GB"; safe_serialization: false for pytorch_model.bin, default model.safetensors;
---  is_main_process: whether this rank writes; save_function: what writes each file of
---  pytorch_model.bin; state_dict: the weights, default the model's. All ranks call it where the
---  values of the model are cut over them and state_dict is not given
function PreTrainedModel:save_pretrained(directory, opts)
  opts = options.check("save_pretrained", opts, SAVE)
  options.value("save_pretrained", "directory", directory, { "string" })
  if self._unsaved then
    fail("save_pretrained: %s are not written; model:dequantize(), or from_pretrained with dequantize " ..
      "= true, " ..
      "makes them plain numbers", self._unsaved)
  end
  local weights = require "accelerate.weights"
  local dict = opts.state_dict or weights.received(self)
  local writes = opts.is_main_process
  if writes == nil then writes = require("accelerate.state").PartialState().is_main_process end
  if not writes then return end
  local made, why = fs.make_dirs(directory)
  if not made then fail("save_pretrained: %s", why) end
  local written = {}
  for key, value in next, self.config do written[key] = value end
  written.architectures = { self.__name }
  written.torch_dtype, written.dtype = self.dtype, nil
  config.write("save_pretrained", fs.join(directory, "config.json"), written, self.traits.config,
    self._float_keys)
  if self.generation_config then
    require("accelerate.models.generation_options").write("save_pretrained", directory,
      self.generation_config)
  end
  weights.save_model(self, directory, opts, dict)
end

--- Makes all encoded weights plain numbers, layer by layer: they can be trained and saved as any.
---@param dtype? string default the model's
---@return accelerate.models.PreTrainedModel self
function PreTrainedModel:dequantize(dtype)
  require("accelerate.quantisation.dequantize").all(self, dtype or self.dtype or "float32")
  self.config.quantization_config, self._unsaved = nil, nil
  self.is_loaded_in_4bit, self.is_loaded_in_8bit = nil, nil
  return self
end

--- Returns the length of labels' loss: cross-entropy of scores (.., C) with labels (..), -100 left
--- out.
---@param logits accelerate.Tensor
---@param labels accelerate.Tensor int64
---@return accelerate.Tensor
function M.token_loss(logits, labels)
  local classes = logits:size(-1)
  return core.cross_entropy(logits:reshape(-1, classes):float(), labels:reshape(-1))
end

--- Returns the loss of scores (N, C) of whole sequences or images: mean squares for one class or
--- "regression", binary cross-entropy for "multi_label_classification", else cross-entropy.
---@param configuration table
---@param logits accelerate.Tensor
---@param labels accelerate.Tensor
---@return accelerate.Tensor
function M.class_loss(configuration, logits, labels)
  local classes = logits:size(-1)
  local kind = configuration.problem_type
  if not kind then
    kind = classes == 1 and "regression"
      or core._is_float(labels) and "multi_label_classification"
      or "single_label_classification"
  end
  if kind == "regression" then
    return core.mse_loss(logits:reshape(-1):float(), labels:reshape(-1):float())
  elseif kind == "multi_label_classification" then
    return core.binary_cross_entropy_with_logits(logits:float(), labels:float())
  end
  return M.token_loss(logits, labels)
end

--- Makes a class of models. `traits`:
---   model_type  what config.json calls the architecture
---   config      the configuration's schema
---   check       checks what a schema cannot say: check(where, config)
---   prefix      the name of the base model inside models with a head: "bert"
---   rename      gives a file's name for a weight the model's own name, or nil to leave it out:
---               rename(name)
---@param name string
---@param traits table
---@param base table? a class of models that it derives from
---@return table Class
function M.class(name, traits, base)
  local Class = nn.class(name, base or PreTrainedModel)
  Class.traits = traits

  --- Returns a model of this class with new weights.
  ---@param opts? table keys of config.json; the others get Transformers' defaults
  ---@return accelerate.models.PreTrainedModel
  Class.from_config = function(opts) return Class(opts) end

  --- Returns a model of this class with the weights of a folder; see `models.from_pretrained`.
  ---@param folder string
  ---@param opts? table
  ---@return accelerate.models.PreTrainedModel
  ---@return { missing_keys: string[], unexpected_keys: string[], mismatched_keys: string[] }? info
  Class.from_pretrained = function(folder, opts) return loading.load(Class, folder, opts) end

  M.classes[name] = Class
  return Class
end

return M
