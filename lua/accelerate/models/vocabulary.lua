--- A model's vocabulary: the layers whose rows are its tokens, and how their number changes.
---
--- A token has a row in the input embeddings, and where the model writes tokens a row and a bias in
--- its head. The head's rows are the embeddings' own where config.tie_word_embeddings says so.

local class = require "accelerate.utils.class"
local core = require "accelerate.core"
local nn = require "accelerate.nn"
local options = require "accelerate.utils.options"

local fail = options.fail

local M = {}

-- The last names of both layers in the architectures here.
local INPUTS = { word_embeddings = true, wte = true, embed_tokens = true, shared = true }
local OUTPUTS = { lm_head = true, decoder = true, vocab_projector = true }

local function first(model, names, Class)
  for path, module in model:named_modules() do
    if names[path:match "[^.]*$"] and class.is(module, Class) then return module, path end
  end
end

--- Returns the layer that turns tokens into vectors, and its name.
---@param model accelerate.models.PreTrainedModel
---@return accelerate.nn.Embedding? nil: the model does not read tokens
---@return string? path
function M.input(model) return first(model, INPUTS, nn.Embedding) end

--- Returns the layer that gives each token its score, and its name.
---@param model accelerate.models.PreTrainedModel
---@return accelerate.nn.Module? nil: the model does not write tokens
---@return string? path
function M.output(model) return first(model, OUTPUTS, nn.Linear) end

-- ---- other sizes

local RESIZE = { pad_to_multiple_of = { "integer", optional = true, min = 1 },
  mean_resizing = { "boolean", default = true } }

-- How far the rows of new tokens lie around the mean, as a share of the deviation of the old rows.
local SPREAD = math.sqrt(1e-9)

-- Draws new rows (or elements of a bias) as the old ones suggest, or as the architecture starts.
local function draw(model, rows, old, mean_resizing)
  local width = model.config.initializer_range or 0.02
  if not mean_resizing then
    if rows:dim() == 1 then rows:zero_() else rows:normal_(0, width) end
    return
  end
  rows:normal_(0, SPREAD)
  if old.shape[1] > 1 then rows:mul_(old:std(1, { keepdim = true })) end
  rows:add_(old:mean(1, { keepdim = true }))
end

-- A parameter of n rows with the old one's values in those that both have.
local function resized(model, old, n, mean_resizing)
  local had, shape = old.shape[1], old.shape
  shape[1] = n
  local new = core.empty(shape, { dtype = old.dtype, device = old.device })
  core.no_grad(function()
    new:narrow(1, 1, math.min(had, n)):copy_(old:narrow(1, 1, math.min(had, n)))
    if n > had then draw(model, new:narrow(1, had + 1, n - had), old:detach(), mean_resizing) end
  end)
  return nn.Parameter(new, { requires_grad = old.requires_grad })
end

-- Puts parameters in the places of others, under all names that these have.
local function exchange(model, new_of)
  for _, module in ipairs(model:modules()) do
    local own = {}
    for name, p in module:named_parameters { recurse = false, remove_duplicate = false } do own[name] = p end
    for name, p in pairs(own) do
      if new_of[p] then module[name] = new_of[p] end
    end
  end
end

local function check_plain(path, layer)
  local weight = layer.weight
  if weight.device == "meta" or not core._is_float(weight) then
    fail("resize_token_embeddings: %s.weight is %s; its rows must be numbers in memory", path,
      weight.device == "meta" and "on the meta device" or ("in codes (%s)"):format(weight.dtype))
  end
end

-- A model that pads with a token without a row could be saved, and not loaded.
local function check_padding(where, embedding, n)
  local pad = embedding.padding_idx
  if pad and pad >= n then
    fail("%s: config.pad_token_id is %d, and %d tokens end at %d; make the model with another one", where,
      pad, n, n - 1)
  end
end

-- The number of rows that there will be.
local function rounded(had, n, multiple)
  n = n or had
  return multiple and math.ceil(n / multiple) * multiple or n
end

--- Gives a model rows for `n` tokens: embeddings, head, and config.vocab_size. Rows that it had
--- keep their values.
---@param model accelerate.models.PreTrainedModel
---@param n integer? default: as many as there are
---@param opts table? as PreTrainedModel.resize_token_embeddings has it
---@return accelerate.nn.Embedding
function M.resize(model, n, opts)
  local where = "resize_token_embeddings"
  local o = options.check(where, opts, RESIZE)
  options.value(where, "new_num_tokens", n, { "integer", optional = true, min = 1 })
  local embedding, path = M.input(model)
  if not embedding then fail("%s: %s reads no tokens", where, model.__name) end
  if core.flat_of(embedding.weight) then
    fail("%s: the parameters of %s are an optimizer's or were prepared, " ..
      "and new ones would not be trained; resize before both", where, model.__name)
  end
  local head, head_path = M.output(model)
  check_plain(path, embedding)
  if head then check_plain(head_path, head) end
  local had = embedding.num_embeddings
  n = rounded(had, n, o.pad_to_multiple_of)
  if n == had then return embedding end
  check_padding(where, embedding, n)
  local new_of = { [embedding.weight] = resized(model, embedding.weight, n, o.mean_resizing) }
  for _, p in ipairs { head and head.weight, head and head.bias } do
    new_of[p] = new_of[p] or resized(model, p, n, o.mean_resizing)
  end
  exchange(model, new_of)
  embedding.num_embeddings = n
  if head then head.out_features = n end
  model.config.vocab_size = n
  return embedding
end

-- ---- gradients of inputs

local hooks = setmetatable({}, { __mode = "k" })

--- Makes what the input embeddings give require gradients, also where they are frozen.
---@param model accelerate.models.PreTrainedModel
function M.require_input_gradients(model)
  local embedding = M.input(model)
  if not embedding then fail("enable_input_require_grads: %s reads no tokens", model.__name) end
  if hooks[embedding] then return end
  hooks[embedding] = embedding:register_forward_hook(function(_, _, out)
    if not out.requires_grad then out.requires_grad = true end
  end)
end

--- Ends `require_input_gradients`.
---@param model accelerate.models.PreTrainedModel
function M.leave_input_gradients(model)
  local embedding = M.input(model)
  if not embedding or not hooks[embedding] then return end
  hooks[embedding]:remove()
  hooks[embedding] = nil
end

return M
