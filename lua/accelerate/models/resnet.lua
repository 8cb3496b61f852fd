--- ResNet: stages of convolutions with batch norm whose input is added to what they compute.

local core = require "accelerate.core"
local nn = require "accelerate.nn"
local activations = require "accelerate.models.activations"
local images = require "accelerate.models.images"
local options = require "accelerate.utils.options"
local pretrained = require "accelerate.models.pretrained"

local CONFIG = {
  num_channels = { "integer", default = 3, min = 1 },
  embedding_size = { "integer", default = 64, min = 1 },
  hidden_sizes = { "list", default = { 256, 512, 1024, 2048 } },
  depths = { "list", default = { 3, 4, 6, 3 } },
  layer_type = { "string", default = "bottleneck", one_of = { "basic", "bottleneck" } },
  hidden_act = activations.entry "relu",
  downsample_in_first_stage = { "boolean", default = false },
  downsample_in_bottleneck = { "boolean", default = false },
}

local TRAITS = {
  model_type = "resnet", prefix = "resnet", config = CONFIG,
  check = function(where, c)
    if #c.hidden_sizes ~= #c.depths then
      options.fail("%s: config.hidden_sizes and config.depths must be of one length, got %d and %d", where,
        #c.hidden_sizes, #c.depths)
    end
  end,
}

-- ---- parts

-- A convolution and its batch norm, which applies relu in its own pass, to the sum with a second
-- input if there is one.
local Conv = nn.class "ResNetConvLayer"

function Conv:init(from, to, size, stride, act)
  self.convolution = nn.Conv2d(from, to, size, { stride = stride, padding = (size - 1) / 2, bias = false })
  self.normalization = nn.BatchNorm2d(to, act == "relu" and { activation = "relu" } or nil)
  self.act = act and act ~= "relu" and activations.functions[act] or nil
end

function Conv:forward(x, residual)
  local v = self._values
  local y = v.normalization(v.convolution(x), residual)
  return v.act and v.act(y) or y
end

local Block = nn.class "ResNetLayer"

-- The convolutions of a block: from, to, size, stride.
local function plan(config, from, to, stride)
  if config.layer_type == "basic" then return { { from, to, 3, stride }, { to, to, 3, 1 } } end
  local narrow, early = to / 4, config.downsample_in_bottleneck
  return { { from, narrow, 1, early and stride or 1 }, { narrow, narrow, 3, early and 1 or stride },
    { narrow, to, 1, 1 } }
end

function Block:init(config, from, to, stride)
  if from ~= to or stride ~= 1 then self.shortcut = Conv(from, to, 1, stride) end
  local list = {}
  for i, p in ipairs(plan(config, from, to, stride)) do
    list[i] = Conv(p[1], p[2], p[3], p[4], config.hidden_act)
  end
  self.layer = nn.ModuleList(list)
end

function Block:forward(x)
  local v = self._values
  local residual = v.shortcut and v.shortcut(x) or x
  local list = v.layer:_child_list()
  for i = 1, #list - 1 do x = list[i](x) end
  return list[#list](x, residual)
end

local function stage(config, i, from)
  local blocks, to = {}, config.hidden_sizes[i]
  local stride = (i > 1 or config.downsample_in_first_stage) and 2 or 1
  for k = 1, config.depths[i] do
    blocks[k] = Block(config, k == 1 and from or to, to, k == 1 and stride or 1)
  end
  local module = nn.Module()
  module.layers = nn.Sequential(blocks)
  return module
end

-- ---- models

-- As Transformers draws them: convolutions Kaiming normal, the last layer as nn.Linear does.
local function init_parameter(_, module, name, p)
  if module.__name == "Conv2d" then
    nn.init.kaiming_normal_(p, { mode = "fan_out", nonlinearity = "relu" })
  elseif name == "weight" then
    module:reset_parameters()
  end
end

---@class accelerate.models.ResNetModel : accelerate.models.PreTrainedModel
--- The stages, and the mean over their last result.
local ResNetModel = pretrained.class("ResNetModel", TRAITS)
ResNetModel._init_parameter = init_parameter

function ResNetModel:_build(config)
  self.embedder = nn.Module()
  self.embedder.embedder = Conv(config.num_channels, config.embedding_size, 7, 2, config.hidden_act)
  local stages = {}
  for i, size in ipairs(config.hidden_sizes) do
    stages[i] = stage(config, i, i == 1 and config.embedding_size or config.hidden_sizes[i - 1])
    options.value(self.__name, "config.hidden_sizes", size, { "integer", min = 1 })
  end
  self.encoder = nn.Module()
  self.encoder.stages = nn.ModuleList(stages)
end

-- The last feature maps, and with output_hidden_states those of all stages.
function ResNetModel:_hidden(o)
  local v = self._values
  images.check(self.__name, o.pixel_values, self.config.num_channels)
  local x = core.max_pool2d(v.embedder.embedder(o.pixel_values), 3, 2, 1)
  local all = o.output_hidden_states and { x } or nil
  for _, one in ipairs(v.encoder.stages:_child_list()) do
    x = one.layers(x)
    if all then all[#all + 1] = x end
  end
  return x, all
end

--- `model(pixel_values)` or `model { pixel_values = ... }`.
---@param inputs accelerate.Tensor|table pixel_values (batch, num_channels, height, width)
---@param opts? { output_hidden_states: boolean }
---@return { last_hidden_state: accelerate.Tensor, pooler_output: accelerate.Tensor, hidden_states:
---  accelerate.Tensor[]? } pooler_output: (batch, channels, 1, 1)
function ResNetModel:forward(inputs, opts)
  local o = pretrained.inputs(self, inputs, opts, images.INPUTS, "pixel_values")
  return core.scope(function()
    local x, all = self:_hidden(o)
    return { last_hidden_state = x, pooler_output = x:mean({ 3, 4 }, true), hidden_states = all }
  end)
end

---@class accelerate.models.ResNetForImageClassification : accelerate.models.PreTrainedModel
--- ResNet with a linear layer on the mean over its last feature maps.
local ResNetForImageClassification = pretrained.class("ResNetForImageClassification", TRAITS)
ResNetForImageClassification._init_parameter = init_parameter

function ResNetForImageClassification:_build(config)
  self.resnet = nn.init._skip(ResNetModel, config)
  local last = config.hidden_sizes[#config.hidden_sizes]
  self.classifier = nn.Sequential(nn.Flatten(), nn.Linear(last, config.num_labels))
end

images.classifier(ResNetForImageClassification, function(self, o)
  local x, all = self.resnet:_hidden(o)
  return self.classifier(x:mean({ 3, 4 })), all
end)

local M = { ResNetModel = ResNetModel, ResNetForImageClassification = ResNetForImageClassification }

local function sized(layer_type, depths)
  return function(given)
    local config = { layer_type = layer_type, depths = depths, num_labels = 1000 }
    if layer_type == "basic" then config.hidden_sizes = { 64, 128, 256, 512 } end
    for key, value in next, given or {} do config[key] = value end
    return ResNetForImageClassification(config)
  end
end

--- Returns a ResNet-18 with new weights and 1000 classes: 11.7 million parameters.
---@param config? table values that replace those of the configuration
---@return accelerate.models.ResNetForImageClassification
M.resnet18 = sized("basic", { 2, 2, 2, 2 })

--- Returns a ResNet-34 with new weights and 1000 classes: 21.8 million parameters.
---@param config? table values that replace those of the configuration
---@return accelerate.models.ResNetForImageClassification
M.resnet34 = sized("basic", { 3, 4, 6, 3 })

--- Returns a ResNet-50 with new weights and 1000 classes: 25.6 million parameters.
---@param config? table values that replace those of the configuration
---@return accelerate.models.ResNetForImageClassification
M.resnet50 = sized("bottleneck", { 3, 4, 6, 3 })

--- Returns a ResNet-101 with new weights and 1000 classes: 44.5 million parameters.
---@param config? table values that replace those of the configuration
---@return accelerate.models.ResNetForImageClassification
M.resnet101 = sized("bottleneck", { 3, 4, 23, 3 })

return M
