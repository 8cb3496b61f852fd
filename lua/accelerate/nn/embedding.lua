--- nn.Embedding.

local core = require "accelerate.core"
local class = require "accelerate.utils.class"
local options = require "accelerate.utils.options"
local Module = require "accelerate.nn.module"
local parameter = require "accelerate.nn.parameter"
local init = require "accelerate.nn.initializers"

local embedding = core.embedding

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
  dtype = { "string", optional = true },
  device = { "string", optional = true },
}

-- A number as in the input: from 0, or from the end below 0.
local function checked_padding(index, count)
  if index == nil then return nil end
  if index < -count or index >= count then
    options.fail("Embedding: padding_idx must lie in %d..%d, got %d", -count, count - 1, index)
  end
  return index < 0 and index + count or index
end

--- A table of rows: numbers (int64, from 0) of any shape -> that shape with embedding_dim behind
--- it. Numbers outside the table raise.
---@param num_embeddings integer rows
---@param embedding_dim integer their size
---@param opts? { padding_idx: integer, dtype: string, device: string } padding_idx: this row starts
---  as zeros and gets no gradient
function Embedding:init(num_embeddings, embedding_dim, opts)
  local o = options.check("Embedding", opts, OPTIONS)
  self.num_embeddings = options.value("Embedding", "num_embeddings", num_embeddings, SIZE)
  self.embedding_dim = options.value("Embedding", "embedding_dim", embedding_dim, SIZE)
  self.padding_idx = checked_padding(o.padding_idx, num_embeddings)
  self.weight = parameter.new(core.empty({ num_embeddings, embedding_dim },
    { dtype = o.dtype, device = o.device }))
  self:reset_parameters()
end

--- Draws the rows anew, as PyTorch does: normal with mean 0 and deviation 1, zeros at padding_idx.
function Embedding:reset_parameters()
  init.normal_(self.weight)
  local padding = self.padding_idx
  if padding then init.zeros_(self.weight:select(1, padding + 1)) end
end

local FROM = { freeze = { "boolean", default = true }, padding_idx = { "integer", optional = true } }

--- Returns an Embedding over existing rows.
---@param embeddings accelerate.Tensor (count, size), floating point; it becomes the weight, not a
---  copy
---@param opts? { freeze: boolean, padding_idx: integer } freeze (default true): the rows are not
---  trained
---@return accelerate.nn.Embedding
function Embedding.from_pretrained(embeddings, opts)
  local o = options.check("Embedding.from_pretrained", opts, FROM)
  if not core.is_tensor(embeddings) or embeddings:dim() ~= 2 then
    options.fail("Embedding.from_pretrained: expected a tensor of two dims, got %s", options.show(embeddings))
  end
  local made = Embedding(embeddings.shape[1], embeddings.shape[2],
    { padding_idx = o.padding_idx, dtype = embeddings.dtype, device = embeddings.device })
  made.weight = parameter.new(embeddings, { requires_grad = not o.freeze })
  return made
end

function Embedding:forward(x)
  local values = self._values
  return self:_run(embedding, x, values.weight, values.padding_idx)
end

function Embedding:extra_repr()
  local text = ("%d, %d"):format(self.num_embeddings, self.embedding_dim)
  return self.padding_idx and text .. (", padding_idx=%d"):format(self.padding_idx) or text
end

return { Embedding = Embedding }
