--- nn.Embedding, nn.EmbeddingBag.

local core = require "accelerate.core"
local class = require "accelerate.utils.class"
local options = require "accelerate.utils.options"
local positions = require "accelerate.utils.positions"
local Module = require "accelerate.nn.module"
local parameter = require "accelerate.nn.parameter"
local init = require "accelerate.nn.initializers"

local F = require "accelerate.nn.functional.embedding"

local embedding, embedding_bag = core.embedding, F.embedding_bag

---@class accelerate.nn.Embedding : accelerate.nn.Module
---@field weight accelerate.Tensor (num_embeddings, embedding_dim)
---@field num_embeddings integer
---@field embedding_dim integer
---@field padding_idx integer? counted from 0
local Embedding = class("Embedding", Module)
Embedding._builtin = true

local SIZE = { "integer", min = 1 }
local OPTIONS = {
  padding_idx = { "integer", optional = true },
  max_norm = { "number", optional = true, above = 0 },
  norm_type = { "number", default = 2 },
  scale_grad_by_freq = { "boolean", default = false },
  sparse = { "boolean", default = false },
  dtype = { "string", optional = true },
  device = { "string", optional = true },
}

-- A number as in the input: from 0, or from the end below 0.
local function checked_padding(name, index, count)
  if index == nil then return nil end
  if index < -count or index >= count then
    options.fail("%s: padding_idx must lie in %d..%d, got %d", name, -count, count - 1, index)
  end
  return index < 0 and index + count or index
end

-- What both modules have.
local function setup(self, name, num_embeddings, embedding_dim, o)
  self.num_embeddings = options.value(name, "num_embeddings", num_embeddings, SIZE)
  self.embedding_dim = options.value(name, "embedding_dim", embedding_dim, SIZE)
  self.padding_idx = checked_padding(name, o.padding_idx, num_embeddings)
  self.max_norm, self.norm_type, self.scale_grad_by_freq = o.max_norm, o.norm_type, o.scale_grad_by_freq
  self.sparse = o.sparse
  if o.sparse and o.scale_grad_by_freq then
    options.fail("%s: scale_grad_by_freq does not go with sparse gradients", name)
  end
  self.weight = parameter.empty({ num_embeddings, embedding_dim }, { dtype = o.dtype, device = o.device })
  self:reset_parameters()
end

local function shared_text(self)
  local text = ("%d, %d"):format(self.num_embeddings, self.embedding_dim)
  if self.padding_idx then text = text .. (", padding_idx=%d"):format(self.padding_idx) end
  if self.max_norm then text = text .. ", max_norm=" .. Module._show(self.max_norm) end
  if self.norm_type ~= 2 then text = text .. ", norm_type=" .. Module._show(self.norm_type) end
  if self.scale_grad_by_freq then text = text .. ", scale_grad_by_freq=True" end
  return text
end

--- A table of rows: numbers (int64, from 0) of any shape -> that shape with embedding_dim behind
--- it. Numbers outside the table raise.
---@param num_embeddings integer rows
---@param embedding_dim integer their size
---@param opts? { padding_idx: integer, max_norm: number, norm_type: number, scale_grad_by_freq:
---  boolean, sparse: boolean, dtype: string, device: string } padding_idx: this row starts as zeros
---  and gets no gradient; max_norm: rows that are read are first scaled down, in place, to this
---  norm_type-norm (2); scale_grad_by_freq: gradients of rows are divided by how often they are
---  read; sparse: the weight's gradient is a sparse tensor with the rows that were read, for
---  SparseAdam, and for SGD and Adagrad in their plain forms: a step costs what its rows cost. It
---  is not clipped, not reduced over ranks, and not scaled in fp16: prepare refuses what would need
---  that
function Embedding:init(num_embeddings, embedding_dim, opts)
  setup(self, "Embedding", num_embeddings, embedding_dim, options.check("Embedding", opts, OPTIONS))
end

--- Draws the rows anew, as PyTorch does: normal with mean 0 and deviation 1, zeros at padding_idx.
function Embedding:reset_parameters()
  init.normal_(self.weight)
  local padding = self.padding_idx
  if padding then init.zeros_(self.weight:select(1, padding + 1)) end
end

local FROM = { freeze = { "boolean", default = true }, padding_idx = OPTIONS.padding_idx,
  max_norm = OPTIONS.max_norm, norm_type = OPTIONS.norm_type,
  scale_grad_by_freq = OPTIONS.scale_grad_by_freq, sparse = OPTIONS.sparse }
local FROM_ORDER = { "freeze", "padding_idx", "max_norm", "norm_type", "scale_grad_by_freq", "sparse" }

-- A module of Class over existing rows.
local function over_rows(Class, embeddings, schema, order, ...)
  local where = Class.__name .. ".from_pretrained"
  local o = options.read(where, order, schema, ...)
  if not core.is_tensor(embeddings) or embeddings:dim() ~= 2 then
    options.fail("%s: expected a tensor of two dims, got %s", where, options.show(embeddings))
  end
  local given = { dtype = embeddings.dtype, device = embeddings.device }
  for name in next, schema do given[name] = o[name] end
  given.freeze = nil
  local made = Class(embeddings.shape[1], embeddings.shape[2], given)
  made.weight = parameter.new(embeddings, { requires_grad = not o.freeze })
  return made
end

--- Returns an Embedding over existing rows.
---@param embeddings accelerate.Tensor (count, size), floating point; it becomes the weight, not a
---  copy
---@param ... any freeze (default true: the rows are not trained), padding_idx, max_norm, norm_type,
---  scale_grad_by_freq, sparse, or a table of them
---@return accelerate.nn.Embedding
function Embedding.from_pretrained(embeddings, ...)
  return over_rows(Embedding, embeddings, FROM, FROM_ORDER, ...)
end

function Embedding:forward(x)
  local values = self._values
  if values.max_norm or values.scale_grad_by_freq or values.sparse then
    return self:_run(F.embedding, x, values.weight, values.padding_idx, values.max_norm, values.norm_type,
      values.scale_grad_by_freq, values.sparse)
  end
  return self:_run(embedding, x, values.weight, values.padding_idx)
end

function Embedding:extra_repr() return shared_text(self) .. (self.sparse and ", sparse=True" or "") end

---@class accelerate.nn.EmbeddingBag : accelerate.nn.Module
---@field weight accelerate.Tensor (num_embeddings, embedding_dim)
local EmbeddingBag = class("EmbeddingBag", Module)
EmbeddingBag._builtin = true
EmbeddingBag.reset_parameters = Embedding.reset_parameters

local BAG = {
  mode = { "string", default = "mean", one_of = { "sum", "mean", "max" } },
  include_last_offset = { "boolean", default = false },
}
for name, entry in next, OPTIONS do BAG[name] = entry end

--- Reduces the rows of each bag: `bag(input, offsets?, per_sample_weights?)` with input (bags, n),
--- or all bags one after the other and offsets, where each begins (from 0). F.embedding_bag says
--- more.
---@param num_embeddings integer rows
---@param embedding_dim integer their size
---@param opts? { mode: "sum"|"mean"|"max", padding_idx: integer, max_norm: number, norm_type:
---  number, scale_grad_by_freq: boolean, sparse: boolean, include_last_offset: boolean, dtype:
---  string, device: string } mode is "mean" by default; sparse as in nn.Embedding
function EmbeddingBag:init(num_embeddings, embedding_dim, opts)
  local o = options.check("EmbeddingBag", opts, BAG)
  if o.sparse and o.mode == "max" then
    options.fail("EmbeddingBag: sparse gradients go with sum and mean, not with max")
  end
  self.mode, self.include_last_offset = o.mode, o.include_last_offset
  setup(self, "EmbeddingBag", num_embeddings, embedding_dim, o)
end

local BAG_FROM = { mode = BAG.mode, include_last_offset = BAG.include_last_offset }
for name, entry in next, FROM do BAG_FROM[name] = entry end
local BAG_ORDER = { "freeze", "max_norm", "norm_type", "scale_grad_by_freq", "mode", "sparse",
  "include_last_offset", "padding_idx" }

--- Returns an EmbeddingBag over existing rows.
---@param embeddings accelerate.Tensor (count, size), floating point; it becomes the weight, not a
---  copy
---@param ... any freeze (default true: the rows are not trained), max_norm, norm_type,
---  scale_grad_by_freq, mode ("mean"), sparse, include_last_offset, padding_idx, or a table of them
---@return accelerate.nn.EmbeddingBag
function EmbeddingBag.from_pretrained(embeddings, ...)
  return over_rows(EmbeddingBag, embeddings, BAG_FROM, BAG_ORDER, ...)
end

function EmbeddingBag:forward(input, offsets, per_sample_weights)
  local v = self._values
  return self:_run(embedding_bag, input, v.weight, { offsets = offsets, max_norm = v.max_norm,
    norm_type = v.norm_type, sparse = v.sparse, scale_grad_by_freq = v.scale_grad_by_freq, mode = v.mode,
    per_sample_weights = per_sample_weights, include_last_offset = v.include_last_offset,
    padding_idx = v.padding_idx })
end

positions.forward("EmbeddingBag", EmbeddingBag, "input offsets per_sample_weights")

function EmbeddingBag:extra_repr()
  local padding = self.padding_idx and (", padding_idx=%d"):format(self.padding_idx) or ""
  return shared_text(self):gsub(", padding_idx=%d+", "", 1) .. ", mode='" .. self.mode .. "'" .. padding
end

return { Embedding = Embedding, EmbeddingBag = EmbeddingBag }
