--- Models of GGUF files: the configuration comes from the settings, weights in blocks stay as they
--- are, in the mapped file.

local blocks = require "accelerate.quantisation.blocks"
local class = require "accelerate.utils.class"
local configs = require "accelerate.models.gguf.config"
local Encoding = require "accelerate.quantisation.encoding"
local File = require "accelerate.models.gguf.file"
local folders = require "accelerate.models.folder"
local lists = require "accelerate.utils.lists"
local names = require "accelerate.models.gguf.names"
local nn = require "accelerate.nn"
local options = require "accelerate.utils.options"
local ordered = require "accelerate.utils.ordered"
local replace = require "accelerate.quantisation.replace"

local fail = options.fail

local M = {}

-- Tensors of files that say what the settings do not: the factors of rotary positions.
local SETTINGS = lists.set { "rope_freqs.weight", "rope_factors_short.weight", "rope_factors_long.weight" }

---@class accelerate.models.GgufEncoding : accelerate.quantisation.Encoding
---@field path string
---@field kinds string[] types of models that the architecture stands for
---@field folder string? of generation_config.json, where gguf_file names a file in it
local Gguf = class("GgufEncoding", Encoding)
class.optional(Gguf, "folder")
Gguf.torch_dtype = "float32"

function Gguf:init(where, path, folder)
  self.where, self.path, self.folder = where, path, folder
  self.file = File(where, path)
  self.config, self.kinds = configs.of(self.file)
end

--- Returns what config.json would say, for a class where it is known.
---@param Class table?
---@return table
function Gguf:config_for(Class)
  local wanted = Class and Class.traits.model_type
  for _, kind in ipairs(self.kinds) do
    if kind == wanted then self.config.model_type = kind end
  end
  return self.config
end

-- A file of one tensor, which is not as the model needs it: what is made of it is in memory.
local Changed = class "GgufChanged"

function Changed:init(tensor, make) self.tensor, self.make, self.shape = tensor, make, tensor.shape end
function Changed:_lend() return self.make() end
function Changed:_drop() end
function Changed:_check() self.tensor.file:_check() end
function Changed:get_shape() return self.shape end

function Changed:_offload(_, schedule, dtype, turned)
  local t = self.make():to(dtype)
  return schedule:add((turned and t:t() or t):contiguous():clone())
end

-- The file's tensors by Transformers' names; names that models of the type lack raise.
local function by_name(self)
  local all = ordered.new()
  for _, name in ipairs(self.file.names) do
    local new = names.of(self.config.model_type, name)
    if new then all[new] = self.file.tensors[name]
    elseif not SETTINGS[name] then
      fail("%s: the tensor '%s' (%s) is not known in models of type %s", self.file.where, name,
        self.file.tensors[name].type, self.config.model_type)
    end
  end
  return all
end

-- The tensor of a weight, whether the model has the base model's prefix or not.
local function find(tensors, model, name)
  local prefix = model.traits.prefix
  return tensors[name] or prefix and tensors[prefix .. "." .. name]
end

local function check_shape(self, tensor, layer, rows, cols)
  if #tensor.shape == 2 and tensor.shape[1] == rows and tensor.shape[2] == cols then return end
  fail("%s: the tensor '%s' is %s, the model's %s has weights [%d, %d]", self.file.where, tensor.name,
    lists.shape_text { shape = tensor.shape }, layer.__name, rows, cols)
end

-- Embeddings over blocks; those of positions are read by their rows, so they stay plain. Returns
-- the new layers by the weights that they take the place of.
local function replace_embeddings(self, model, tensors)
  local made = {}
  for path, module in model:named_modules() do
    for _, child in ipairs(module:_own "module") do
      local name, layer = child[1], child[2]
      local full = (path == "" and name or path .. "." .. name) .. ".weight"
      local tensor = class.is(layer, nn.Embedding) and find(tensors, model, full)
      if tensor and tensor:is_encoded() and tensor.name == "token_embd.weight" then
        check_shape(self, tensor, layer, layer.num_embeddings, layer.embedding_dim)
        made[layer.weight] = blocks.GgufEmbedding(layer, tensor.type)
        module[name] = made[layer.weight]
      end
    end
  end
  return made
end

function Gguf:replace(model)
  local tensors = by_name(self)
  local embeddings = replace_embeddings(self, model, tensors)
  local paths = replace.each_linear(model, function(old, path)
    local tied = embeddings[old.weight]
    local tensor = find(tensors, model, path .. ".weight")
    if not tied and not (tensor and tensor:is_encoded()) then return nil end
    if tensor then check_shape(self, tensor, old, old.out_features, old.in_features) end
    local new = blocks.GgufLinear(old, tied and tied.encoding or tensor.type)
    if tied then new.weight = tied.weight end
    new:requires_grad_(false)
    return new
  end)
  if next(embeddings) or paths[1] then model._unsaved = "weights in the blocks of a GGUF file" end
end

--- Returns the tensors by Transformers' names: those of encoded layers as codes, all others as
--- numbers.
---@return table<string, accelerate.WeightSource> ordered
function Gguf:sources()
  local all, kind = ordered.new(), self.config.model_type
  for name, tensor in ordered.pairs(by_name(self)) do
    local plain = tensor.name == "position_embd.weight" or #tensor.shape ~= 2
    all[name] = { path = self.path, name = tensor.name, file = tensor.file }
    if names.is_converted(kind, tensor.name) or plain and tensor:is_encoded() then
      all[name].file = Changed(tensor, function()
        return names.convert(kind, tensor.name, plain and tensor:read() or tensor:lend(), self.config)
      end)
    end
  end
  return all
end

--- Returns how the weights of a GGUF file rest, where a call names one: by the option gguf_file,
--- or by a path that ends in ".gguf".
---@param where string
---@param name string
---@param o table options of from_pretrained
---@return accelerate.models.GgufEncoding?
function M.asked(where, name, o)
  local path = folders.gguf(where, name, o)
  if not path then return nil end
  if o.quantization_config then fail("%s: give a GGUF file or quantization_config, not both", where) end
  return Gguf(where, path, o.gguf_file and path:match "^(.*)/[^/]*$")
end

return M
